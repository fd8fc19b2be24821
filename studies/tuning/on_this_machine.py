"""Studies on this machine: which worker evaluates on what, and the executor that has them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from tunebench.studies.tuning.study_file import ExecutorName, StudyRequest
from tunebench.tuner.compile.base import Compiler
from tunebench.tuner.compile.building import BuildQueue
from tunebench.tuner.cores import driving_cores
from tunebench.tuner.device import Device, DeviceKind
from tunebench.tuner.environment import Environment
from tunebench.tuner.errors import TunebenchError, UserError
from tunebench.tuner.kernel import Kernel
from tunebench.tuner.problem import Problem
from tunebench.tuner.study.evaluate import LocalEvaluator
from tunebench.tuner.study.executor import LocalExecutor
from tunebench.tuner.study.worker import WorkerEvaluator, Workers

MakeEvaluator = Callable[..., LocalEvaluator]
"""Makes the evaluator of a request on one device; `cores` and `driving` are those that its process keeps to."""


def local_executor(
    request: StudyRequest,
    kernel: Kernel,
    compiler: Compiler,
    lane: Lane,
    make: MakeEvaluator,
    environment: Callable[[Device], Environment],
) -> LocalExecutor:
    """A worker for each place of a lane.

    Args:
        environment: what results on a device are obtained with.

    Raises:
        UserError: an evaluator cannot be made.
    """
    queue = BuildQueue(compiler, driving=lane.driving, share=lane.share, apart=request.seconds is not None)

    def foresee(problem: Problem, device: Device) -> None:
        """Build what every study of the kernel begins with, while the worker gets ready."""
        with suppress(TunebenchError):
            queue.submit(kernel, kernel.space.default_for(problem, device), problem, device)

    evaluators: list[WorkerEvaluator] = []
    try:
        for place in lane.places:
            alike = alone(request, place.device)
            factory = functools.partial(make, alike, cores=place.cores, driving=place.driving)
            lock = place.device.uuid if place.device.kind is DeviceKind.CUDA else None
            if evaluators:
                known = (evaluators[0].problem, place.device)
                evaluators.append(WorkerEvaluator(factory, environment, lock, known, lane.workers))
            else:
                evaluators.append(WorkerEvaluator(factory, device_lock=lock, among=lane.workers, foresee=foresee))
    except BaseException:
        for evaluator in evaluators:
            evaluator.close()
        raise
    for evaluator in evaluators[1:]:
        evaluator.come_up()
    return LocalExecutor(kernel, evaluators, queue)


def alone(request: StudyRequest, device: Device) -> StudyRequest:
    """The same on one device of the machine that it is on."""
    local = {"executor": ExecutorName.LOCAL, "address": None}
    return request.model_copy(update={"device": str(device.torch_device), "devices": None, "workers": None, **local})


@dataclass(frozen=True)
class Place:
    """The device and the cores that one worker evaluates on.

    Attributes:
        cores: it keeps to these; to all that this process may use where none is named.
        driving: of these, those that drive timings.
    """

    device: Device
    cores: Collection[int] = ()
    driving: Collection[int] = ()


@dataclass(frozen=True)
class Lane:
    """The part of this machine that one study has.

    Attributes:
        places: it evaluates on these at once.
        driving: cores that drive timings, those of other lanes too: compilers keep off them.
        share: of the machine's compilers.
        workers: of its studies, one after another.
    """

    places: Sequence[Place]
    driving: Collection[int] = ()
    share: float = 1.0
    workers: Workers = field(default_factory=Workers, compare=False)


def lanes_of(request: StudyRequest, devices: Sequence[Device], most: int = 1) -> list[Lane]:
    """The devices of a request, or its shares of the CPU, dealt out to so many studies at once, each with one at least.

    Raises:
        UserError: there are more workers than cores.
    """
    places = _places(request, devices)
    count = min(most, len(places))
    driving = [core for place in places for core in place.driving]
    return [Lane(places[number::count], driving, 1 / count) for number in range(count)]


def _places(request: StudyRequest, devices: Sequence[Device]) -> list[Place]:
    cores = sorted(os.sched_getaffinity(0))
    if devices[0].kind is DeviceKind.CUDA:
        driving = [set(own) for own in driving_cores(cores, len(devices))]
        if not driving:
            return [Place(device) for device in devices]
        shared = set(cores).difference(*driving)
        return [Place(device, shared | own, own) for device, own in zip(devices, driving, strict=True)]
    workers = request.workers or 1
    if workers == 1:
        return [Place(devices[0])]
    if workers > len(cores):
        raise UserError(f"{workers} workers are more than the {len(cores)} cores here: give each one core at least")
    share = len(cores) // workers
    device = replace(devices[0], multiprocessors=share)
    return [Place(device, cores[first : first + share]) for first in range(0, workers * share, share)]
