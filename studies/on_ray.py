"""Studies on a Ray cluster: what a request has of it, and the executor there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tunebench.studies.study_file import StudyRequest
from tunebench.tuner.compile.base import Compiler
from tunebench.tuner.device import Device, DeviceKind
from tunebench.tuner.environment import Environment
from tunebench.tuner.errors import UserError
from tunebench.tuner.isolation import settings
from tunebench.tuner.kernel import Kernel

if TYPE_CHECKING:
    from tunebench.tuner.study.ray_executor import Factory, RayExecutor


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
    factory: Factory,
    environment: Callable[[Device], Environment],
    preload: Sequence[str],
) -> RayExecutor:
    """An actor for each device of the cluster that the request may use.

    Args:
        factory: makes an evaluator there.
        environment: what is said there of its results.
        preload: modules that its worker processes need.

    Raises:
        UserError: the factory refuses, or the cluster does not have such devices any more.
        WorkerError: no actor comes up.
    """
    from tunebench.tuner.study.ray_executor import RayEvaluator, RayExecutor, Share, Work, cores_of_a_share

    work = Work(factory, environment, settings(), preload)
    cores = cores_of_a_share(request.workers or 1)
    evaluators = [
        RayEvaluator(work, Share(number, cores if where[0].kind is DeviceKind.CPU else 0), where)
        for number, where in enumerate(devices_of(request))
    ]
    try:
        evaluators[0].prepare()
    except BaseException:
        evaluators[0].close()
        raise
    return RayExecutor(kernel, evaluators, compiler)
