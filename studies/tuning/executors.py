"""Executors of requests: a worker for each device or each share of the CPU's cores, here or on a Ray cluster."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import Future

from tunebench.kernels.runtime.registry import target_of
from tunebench.studies.tuning import PRELOAD
from tunebench.studies.tuning.on_this_machine import lanes_of, local_executor
from tunebench.studies.tuning.resolved import Resolved, make_evaluator
from tunebench.studies.tuning.study_file import ExecutorName
from tunebench.tuner.device import Device
from tunebench.tuner.environment import Environment, current_environment
from tunebench.tuner.errors import WorkerError
from tunebench.tuner.isolation import DeathError, is_from_outside
from tunebench.tuner.kernel import Mode
from tunebench.tuner.study.executor import Executor, in_background
from tunebench.tuner.watched import ended


def executor_ahead(resolved: Resolved) -> Future[Executor]:
    """Begin to make the executor of a request's first mode, while its database is opened; see `make_executor`."""
    return in_background(functools.partial(make_executor, resolved, resolved.modes[0]), "executor")


def make_executor(resolved: Resolved, mode: Mode) -> Executor:
    """A worker for each device of a request, or for each share of the CPU's cores.

    Raises:
        UserError: see `make_evaluator`; or there are more workers than cores.
    """
    request, kernel, compiler = resolved.request, resolved.kernel, resolved.compiler
    make, environment = functools.partial(make_evaluator, mode=mode), environment_for(resolved)
    if request.executor is ExecutorName.RAY:
        from tunebench.studies.tuning.on_ray import ray_executor

        return ray_executor(request, kernel, compiler, make, environment, PRELOAD)
    lane = resolved.lane or lanes_of(request, resolved.devices)[0]
    try:
        return local_executor(request, kernel, compiler, lane, make, environment)
    except WorkerError as error:
        if isinstance(error.__cause__, DeathError) and not is_from_outside(error.__cause__):
            raise ended(error.__cause__, "the reference does not answer", kernel.place) from error
        raise


def environment_for(resolved: Resolved) -> Callable[[Device], Environment]:
    """Return a function that describes the environment of a device's results, on the machine on which it is called."""
    kernel, target = resolved.kernel, target_of(resolved.kernel)
    version, path = resolved.compiler.version(), None if target == kernel.name else target
    return functools.partial(
        current_environment, compiler_version=version, kernel_folder=kernel.folder, kernel_path=path
    )
