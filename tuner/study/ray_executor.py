"""Evaluation on a Ray cluster: an actor for each device, which has its inputs and its reference, and builds as tasks.

Ray places actors and tasks, moves builds and results between machines, and runs a task again whose machine is lost. The
driver asks, tells and records: actors send results only.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tunebench.tuner.build import Build
from tunebench.tuner.compile.base import Compiler
from tunebench.tuner.compile.building import MOST_BUILDS
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import Device, DeviceKind, find_device
from tunebench.tuner.device_lock import alone_on
from tunebench.tuner.errors import (
    CompilerKilledError,
    DeviceMissingError,
    TunebenchError,
    UserError,
    WorkerError,
    first_line,
)
from tunebench.tuner.fork_server import start_forkserver
from tunebench.tuner.isolation import IsolatedProcess, LostError, asked_again_if_killed, settings
from tunebench.tuner.kernel import Kernel
from tunebench.tuner.study.evaluate import LocalEvaluator
from tunebench.tuner.study.executor import Building, Executor
from tunebench.tuner.study.worker import WorkerEvaluator
from tunebench.tuner.variant import Variant

Answer = TypeVar("Answer")

ANSWER_SECONDS = 10.0
"""For a cluster's address to answer at all."""

PLACEMENT_SECONDS = 120.0
"""For Ray to find a place for an actor; where it finds none, the study goes on without."""


def connect(address: str | None) -> None:
    """Connect to a cluster, unless this process is connected: to that of an address, else to one that runs on this
    machine or is named by RAY_ADDRESS, else to one that is started here and ends with this process.

    Raises:
        UserError: there is no cluster at the address.
    """
    if ray.is_initialized():
        return
    _require_answer(address or os.environ.get("RAY_ADDRESS", ""))
    try:
        ray.init(address=address, include_dashboard=None if address else False, logging_level=logging.WARNING)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UserError(f"no Ray cluster at '{address}': {first_line(error)}") from error


def _require_answer(address: str) -> None:
    """Find out at once whether anything is at `HOST:PORT`: Ray would try for minutes. Others are for Ray to judge.

    Raises:
        UserError: there is nothing.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"no Ray cluster at '{address}': {error}; 'ray start --head' says its address") from error


def cores_of_a_share(workers: int) -> int:
    """How many cores of a cluster each of so many workers has."""
    return max(1, int(_resources().get("CPU", 1)) // workers)


def make_on_share(factory: Callable[..., LocalEvaluator], number: int, cores: int) -> LocalEvaluator:
    """Make an evaluator that keeps to one share of this machine's cores, by its number; called in its process.

    Args:
        cores: of a share; 0 where it may use all.
    """
    here = sorted(os.sched_getaffinity(0))
    first = number % max(1, len(here) // max(1, cores)) * cores
    return factory(cores=here[first : first + cores])


def cluster_devices(name: str | None, cores: int) -> list[tuple[Device, str]]:
    """A cluster's devices of one model, each with its node.

    Args:
        name: `cuda`, `cpu`, or a device's own name, such as `NVIDIA H200`; None takes GPUs where there are any.
        cores: of a share of a CPU.

    Raises:
        DeviceMissingError: there is none of that name.
        UserError: they are of several models.
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]
    on_gpus = name != "cpu" and any(node["Resources"].get("GPU") for node in nodes)
    kind = DeviceKind.CUDA if on_gpus else DeviceKind.CPU
    found: list[tuple[Device, str]] = []
    for node in nodes:
        resource = "GPU" if on_gpus else "CPU"
        count = int(node["Resources"].get(resource, 0)) // (1 if on_gpus else cores)
        if not count:
            continue
        where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        asked = ray.remote(_device_here).options(num_gpus=on_gpus, num_cpus=0, scheduling_strategy=where)
        try:
            device: Device = ray.get(asked.remote(kind, cores), timeout=PLACEMENT_SECONDS)
        except GetTimeoutError:
            told = f"within {PLACEMENT_SECONDS:.0f} s: are its devices taken?"
            raise DeviceMissingError(f"Ray's node {node['NodeManagerHostname']} did not answer {told}") from None
        found += [(device, node["NodeID"])] * count
    models = {device.name: device.model for device, _ in found}
    if name in models:
        return [(device, node) for device, node in found if device.name == name]
    if name not in (None, "cuda", "cpu") or not found or (name == "cuda" and not on_gpus):
        raise DeviceMissingError(
            f"the cluster has no device '{name or 'cuda'}': it has {', '.join(sorted(models)) or 'none'}"
        )
    if len({device.model for device, _ in found}) > 1:
        raise UserError(
            "the cluster's devices are of several models, whose times make no one ranking: tune one at a time, "
            + " or ".join(f"--device '{one}'" for one in sorted(models))
        )
    return found


class RayProcess(IsolatedProcess):
    """A process that an actor has, on its device; an actor that is lost is replaced wherever Ray finds a place.

    Args:
        where: the device and the node that are meant; another node may take its place with a device of that model.
        cores: that it takes of a CPU.
        preload: modules that the process needs.
    """

    def __init__(self, where: tuple[Device, str], cores: int, preload: Sequence[str]) -> None:
        super().__init__()
        self._device, self._node = where
        self._cores, self._preload = cores, preload
        self._actor: Any = None

    @property
    def alive(self) -> bool:
        with contextlib.suppress(LostError):
            return self._actor is not None and bool(self.answer("alive"))
        return False

    def start(self) -> None:
        self.answer("start")

    def ask(self, seconds: float, function: Callable[..., Answer], *arguments: object, **named: Any) -> Answer:
        """See `IsolatedProcess.ask`; its time begins once the actor has the device for itself."""
        answer: Answer = self.answer("ask", seconds, function, *arguments, **named)
        return answer

    def kill(self) -> None:
        self._ends = True
        if (actor := self._actor) is not None:
            ray.kill(actor)

    def close(self) -> None:
        self.kill()

    def answer(self, method: str, *arguments: object, **named: object) -> Any:
        """Return what a method of the actor answers.

        Raises:
            TunebenchError: what it raised there.
            LostError: the actor was lost.
            WorkerError: there is no place for one.
        """
        try:
            if self._ends:
                raise WorkerError("it has been ended")
            if self._actor is None:
                self._place()
            answer = ray.get(getattr(self._actor, method).remote(*arguments, **named))
        except RayActorError:
            self._actor = None
            raise LostError("two of Ray's actors in a row were lost", from_outside=True) from None  # said of the second
        if isinstance(answer, TunebenchError):
            raise answer
        return answer

    def _place(self) -> None:
        on_gpu = self._device.kind is DeviceKind.CUDA
        actor = ray.remote(_Actor).options(
            num_gpus=int(on_gpu),
            num_cpus=self._cores,
            scheduling_strategy=NodeAffinitySchedulingStrategy(self._node, soft=True),
        )
        self._actor = actor.remote(settings(), self._preload)
        if self._ends:
            self.kill()
        try:
            found = ray.get(self._actor.find.remote(self._device.kind, self._cores), timeout=PLACEMENT_SECONDS)
            if found.model == self._device.model:
                return
            why = f"a place for it on another model alone, {found.name}"
        except GetTimeoutError:
            why = f"no place for it within {PLACEMENT_SECONDS:.0f} s"
        ray.kill(self._actor)
        self._actor = None
        raise WorkerError(f"Ray found {why}")


class RayExecutor(Executor):
    """Actors of a cluster, and compilers as its tasks.

    Args:
        evaluators: see `Executor`; each has a `RayProcess`.
        cores: that their actors take.
    """

    def __init__(self, kernel: Kernel, evaluators: Sequence[WorkerEvaluator], compiler: Compiler, cores: int) -> None:
        free = int(_resources().get("CPU", 0)) - cores
        super().__init__(evaluators, max(1, min(MOST_BUILDS, free)))
        # Where evaluation takes all cores, compilers share them.
        self._cores = max(0, min(1, free))
        self._kernel = kernel
        self._compiler = compiler
        self._builds: dict[str, _RayBuilding] = {}

    def build(self, configuration: Configuration) -> Building:
        """See `Executor.build`."""
        variant = self._kernel.variant(configuration, self.problem, self.device.architecture)
        if variant.digest not in self._builds:
            self._builds[variant.digest] = _RayBuilding(self._compiler.of(variant), variant, self._cores)
        return self._builds[variant.digest]

    def run(self, function: Callable[..., Answer], *arguments: object) -> Answer:
        """See `Executor.run`."""
        process = self.first.process
        assert isinstance(process, RayProcess)
        answer: Answer = asked_again_if_killed(lambda: process.answer("run", function, *arguments))
        return answer


class _RayBuilding:
    """A build as a task; Ray runs it again where its machine is lost."""

    def __init__(self, compiler: Compiler, variant: Variant, cores: int) -> None:
        self._file = variant.source.file
        self._task = ray.remote(_build).options(num_cpus=cores).remote(settings(), compiler, variant)

    def result(self) -> Build:
        """See `Building.result`."""
        try:
            answer: Build | TunebenchError = ray.get(self._task)
        except RayError as error:
            raise CompilerKilledError(f"{self._file} was not compiled: {first_line(error)}", "") from error
        if isinstance(answer, TunebenchError):
            raise answer
        return answer


def _resources() -> Mapping[str, float]:
    found: Mapping[str, float] = ray.cluster_resources()
    return found


# What follows runs on the cluster. Ray wraps what is raised there in errors of its own, so that errors are answers.


def _device_here(kind: DeviceKind, cores: int) -> Device:
    """Return the device that Ray has given this process; of a CPU so many cores."""
    device = find_device(kind.value)
    return replace(device, multiprocessors=cores) if cores and kind is DeviceKind.CPU else device


def _build(given: Mapping[str, str], compiler: Compiler, variant: Variant) -> Build | TunebenchError:
    os.environ.update(given)
    try:
        return BuildCache().build(compiler, variant)
    except TunebenchError as error:
        return error


class _Actor:
    """Has one device, and on it a worker process that a variant may crash."""

    def __init__(self, given: Mapping[str, str], preload: Sequence[str]) -> None:
        os.environ.update(given)
        start_forkserver(preload)
        self._process = IsolatedProcess()

    def find(self, kind: DeviceKind, cores: int) -> Device:
        """Return the device that Ray has given it."""
        self._device = _device_here(kind, cores)
        return self._device

    def alive(self) -> bool:
        """See `IsolatedProcess.alive`."""
        return self._process.alive

    def start(self) -> TunebenchError | None:
        """See `IsolatedProcess.start`."""
        return self.run(self._process.start)

    def ask(self, *question: Any, **named: Any) -> object:
        """See `IsolatedProcess.ask`."""
        return self.run(functools.partial(self._process.ask, *question, **named))

    def run(self, function: Callable[..., Answer], *arguments: object) -> Answer | TunebenchError:
        """Return what a function returns or raises here, with the device for itself."""
        try:
            with alone_on(self._device, "tunebench tune", shared=True):
                return function(*arguments)
        except TunebenchError as error:
            return error
