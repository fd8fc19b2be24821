"""Studies on a Ray cluster: what a request has of it, and the executor there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tunebench.studies.tuning.on_this_machine import MakeEvaluator, alone
from tunebench.studies.tuning.study_file import StudyRequest
from tunebench.tuner.compile.base import Compiler
from tunebench.tuner.device import Device, DeviceKind
from tunebench.tuner.environment import Environment
from tunebench.tuner.errors import UserError
from tunebench.tuner.kernel import Kernel

if TYPE_CHECKING:
    from tunebench.tuner.study.ray_executor import RayExecutor


def devices_of(request: StudyRequest) -> list[tuple[Device, str]]:
    """The devices of a cluster that a request may use, each with its node.

    Raises:
        UserError: Ray is not installed, there is no cluster, or it does not have such devices.
    """
    try:
        from tunebench.tuner.study.ray_executor import cluster_devices, connect, cores_of_a_share
    except ImportError as error:
        raise UserError(f"the executor 'ray' needs Ray: pip install 'tunebench[ray]' ({error})") from error
    connect(request.address)
    return cluster_devices(request.device, cores_of_a_share(request.workers or 1))[: request.workers]


def ray_executor(
    request: StudyRequest,
    kernel: Kernel,
    compiler: Compiler,
    make: MakeEvaluator,
    environment: Callable[[Device], Environment],
    preload: Sequence[str],
) -> RayExecutor:
    """An actor for each device of the cluster that the request may use.

    Args:
        environment: what is said there of its results.
        preload: modules that its worker processes need.

    Raises:
        UserError: an evaluator cannot be made, or the cluster does not have such devices any more.
        WorkerError: no actor comes up.
    """
    from tunebench.tuner.study.ray_executor import RayExecutor, RayProcess, cores_of_a_share, make_on_share
    from tunebench.tuner.study.worker import WorkerEvaluator

    devices = devices_of(request)
    factory = functools.partial(make, alone(request, devices[0][0]))
    cores = cores_of_a_share(request.workers or 1) if devices[0][0].kind is DeviceKind.CPU else 0
    evaluators: list[WorkerEvaluator] = []
    for number, where in enumerate(devices):
        on_share = functools.partial(make_on_share, factory, number, cores)
        known = (evaluators[0].problem, where[0]) if evaluators else None
        process = RayProcess(where, cores, preload)
        evaluators.append(WorkerEvaluator(on_share, environment, known=known, process=process))
    return RayExecutor(kernel, evaluators, compiler, cores * len(devices))
