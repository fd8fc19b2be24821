"""Runs studies: from a request to a kernel's outcomes, one for each mode, everything recorded in a database."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import cast

import torch

from tunebench.db.connection.database import Database
from tunebench.db.entries.study_log import open_study
from tunebench.db.queries.warm_start import begun_study, earlier_studies
from tunebench.db.upkeep.optuna_mirror import publish
from tunebench.kernels.runtime.decision import forget_plans
from tunebench.kernels.runtime.policy import set_policy
from tunebench.kernels.runtime.registry import load_model, target_of
from tunebench.kernels.runtime.shipped import shipped_studies
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.tuning.on_this_machine import Lane, alone, lanes_of, local_executor
from tunebench.studies.tuning.study_file import ExecutorName, StudyRequest
from tunebench.tuner.build import Build
from tunebench.tuner.compile.base import Compiler
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.compile.for_gpu import refusal_for_gpu
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import Device, DeviceKind, find_devices
from tunebench.tuner.environment import Environment, current_environment
from tunebench.tuner.errors import CompilerMissingError, DiskFullError, UserError, WorkerError
from tunebench.tuner.gate.boundary.spec import Files
from tunebench.tuner.gate.contender import KernelContender
from tunebench.tuner.gate.exemptions import Exemptions
from tunebench.tuner.gate.sources import Source
from tunebench.tuner.isolation import TRACER, DeathError, is_from_outside, is_watched, start_forkserver
from tunebench.tuner.kernel import Kernel, Mode, ModelFactory
from tunebench.tuner.problem import Objective, Problem, told_apart
from tunebench.tuner.reference import Reference
from tunebench.tuner.search.sampler import PoolSampler
from tunebench.tuner.search.strategies import find_sampler
from tunebench.tuner.search.warm_start import WarmStart, choose_warm_starts
from tunebench.tuner.settings import Setting, apply_settings, in_force, require_settings
from tunebench.tuner.space import SearchSpace, ValidSpace
from tunebench.tuner.study.account import Account, Activity, Spent
from tunebench.tuner.study.confirm_winner import MOST_BYTES, ConfirmWinner
from tunebench.tuner.study.evaluate import LocalEvaluator, Subject
from tunebench.tuner.study.executor import Executor
from tunebench.tuner.study.history import StudyDescription
from tunebench.tuner.study.study import Budget, Ending, Outcome, Progress, StudyRun
from tunebench.tuner.timing.confirm import most_seconds
from tunebench.tuner.timing.energy import counter_of
from tunebench.tuner.watched import ended

NAMED = "named by the study"
"""Where a configuration comes from that a study is told to begin with."""

_PRELOAD = (__name__, TRACER)
"""Modules that worker processes need, imported once by the server that they are forked from."""


@dataclass(frozen=True)
class StudyReport:
    """One study's outcome with what it was about.

    Attributes:
        study: its number in the database.
        warm_starts: what it began with from earlier studies.
        gpu_refusal: of a study on a CPU, why the first configuration does not build for a GPU; empty where it does.
        spent: where its time went.
    """

    kernel: str
    problem: Problem
    device: Device
    study: int
    outcome: Outcome
    warm_starts: tuple[WarmStart, ...] = ()
    gpu_refusal: str = ""
    spent: Spent = field(default_factory=Spent)


@dataclass(frozen=True)
class Announcement:
    """A study that is about to run, for a display of progress.

    Attributes:
        warm_starts: what it began with from earlier studies.
        done: trials of earlier runs.
        slots: how many configurations are evaluated at once.
    """

    kernel: str
    problem: Problem
    device: Device
    space_size: int
    warm_starts: tuple[WarmStart, ...] = ()
    done: int = 0
    slots: int = 1


Reporter = Callable[[Announcement], Callable[[Progress], None]]
"""Called when a study begins; returns what is called with its progress."""


@dataclass(frozen=True)
class Resolved:
    """A request whose every name has been found; running it needs only a database.

    Attributes:
        devices: of one model; a study evaluates on all of them at once.
        expected: the problem that its study has to be of; None for whatever its sizes make.
        lane: what of this machine it runs on; None for all of its devices.
    """

    request: StudyRequest
    model: type[TunedModule]
    space: SearchSpace
    devices: Sequence[Device]
    compiler: Compiler
    reference: Reference
    modes: Sequence[Mode]
    expected: Problem | None = None
    lane: Lane | None = None

    @property
    def kernel(self) -> Kernel:
        """The kernel to tune."""
        return self.model.kernel

    @property
    def device(self) -> Device:
        """The first of the devices."""
        return self.devices[0]

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings of PyTorch while it is tuned."""
        return self.request.settings or {}


def resolve(request: StudyRequest) -> Resolved:
    """Find everything a request names, before anything is created or run.

    Settings of PyTorch's that it does not say are those of this process.

    Raises:
        UserError: something is unknown or not on this machine.
    """
    if not is_watched():
        start_forkserver(_PRELOAD)
    model = load_model(request.kernel)
    kernel = model.kernel
    find_sampler(request.sampler)
    most_seconds()  # what the environment says of the final rounds is refused now, not after the search
    devices = _devices(request)
    if request.settings is None:
        here = in_force(Setting, devices[0].torch_device.type)
        request = request.model_copy(update={"settings": here})
    else:
        require_settings(request.settings, devices[0].torch_device.type)
    _require_energy(request, devices)
    space = kernel.space.restrict(request.tunables)
    for values in request.start:
        space.fix(values)  # refuses what is no value of it
    return Resolved(
        request=request,
        model=model,
        space=space,
        devices=devices,
        compiler=compiler_for(devices[0], request.compiler, kernel.languages_in(space)),
        reference=kernel.reference(request.sizes, request.dtype),
        modes=kernel.modes_named(request.modes or kernel.modes),
    )


def _require_energy(request: StudyRequest, devices: Sequence[Device]) -> None:
    """Refuse an objective that cannot be measured; what a cluster's devices report is found there."""
    if request.objective is Objective.TIME or request.executor is ExecutorName.RAY:
        return
    for device in devices:
        if counter_of(device) is None:
            raise UserError(
                f"the objective '{request.objective}' needs a GPU whose energy NVML reports, and {device.name} is "
                "none: leave it out to minimise time"
            )


def _devices(request: StudyRequest) -> Sequence[Device]:
    if request.device and request.devices:
        raise UserError("a study runs on one device or on several: give --device or --devices")
    if request.executor is ExecutorName.RAY:
        if request.devices:
            raise UserError("Ray says which devices there are: leave --devices out; --workers says how many at most")
        from tunebench.studies.tuning.on_ray import devices_of

        return [device for device, _ in devices_of(request)]
    devices = find_devices(request.devices or [request.device])
    if request.address is not None:
        raise UserError("an address is that of a Ray cluster: give --executor ray, or leave it out")
    if request.workers and (request.devices or devices[0].kind is not DeviceKind.CPU):
        raise UserError("several workers are for the CPU: name GPUs as --devices cuda:0,cuda:1 or --devices all")
    return devices


def tune(
    resolved: Resolved,
    database: Database,
    announce: Reporter = lambda _: lambda _: None,
    before: float = 0.0,
) -> list[StudyReport]:
    """Run or resume a kernel's studies, one for each mode, until their budgets are spent or Ctrl-C.

    Args:
        before: seconds that a command took until now; the first study is charged with them.

    Raises:
        UserError: the model cannot serve its reference's inputs, or no configuration is valid for them.
    """
    account = Account(before)
    ends = None if resolved.request.seconds is None else time.monotonic() - before + resolved.request.seconds
    start_forkserver(_PRELOAD)
    reports: list[StudyReport] = []
    for number, mode in enumerate(resolved.modes):
        now, studies_left = time.monotonic(), len(resolved.modes) - number
        share = None if ends is None else now + (ends - now) / studies_left
        reports.append(_tune_mode(resolved, mode, database, announce, account, share))
        account = Account()
        if reports[-1].outcome.ending is Ending.INTERRUPTED:
            break
    forget_plans()
    return reports


def make_evaluator(
    request: StudyRequest, mode: Mode, cores: Collection[int] = (), driving: Collection[int] = ()
) -> LocalEvaluator:
    """The evaluator of a request in one mode on one device; called in the worker process.

    Args:
        cores: the process keeps to these; it may use all that it has unless given.
        driving: of these, those that drive timings and do nothing else meanwhile.

    Raises:
        UserError: the model cannot serve its reference's inputs, or something is not on this machine.
    """
    if cores:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(min(torch.get_num_threads(), len(cores)))
    account = Account()
    with account.phase(Activity.WORKER):
        resolved = resolve(request)
        apply_settings(resolved.settings, resolved.device.torch_device.type)
    with account.phase(Activity.CONTEXT):
        if resolved.device.kind is DeviceKind.CUDA:
            torch.cuda.set_device(resolved.device.torch_device)  # as a program does that has one of several
        torch.zeros(1, device=resolved.device.torch_device).item()
    with account.phase(Activity.REFERENCE):
        subject = Subject.prepare(
            resolved.kernel,
            resolved.model,
            resolved.reference,
            mode,
            resolved.device,
            request.accuracy,
            request.objective,
        )
    prepared = account.seconds
    return LocalEvaluator(subject, resolved.compiler, compiled=request.compile, driving=driving, prepared=prepared)


def make_contender(request: StudyRequest, configuration: Configuration, build: Build) -> tuple[Source, KernelContender]:
    """A configuration of a request's kernel, and its reference; called in a process of its own."""
    set_policy(wait=True)
    resolved = resolve(request)
    factory = cast(ModelFactory, resolved.model)
    contender = KernelContender(
        resolved.kernel, factory, configuration, resolved.compiler, build, accuracy=request.accuracy
    )
    return Source(resolved.reference, resolved.device.torch_device), contender


def _confirmation(resolved: Resolved, mode: Mode, problem: Problem) -> ConfirmWinner:
    """Return the judge that examines the winner of a study once more."""
    request, kernel, reference = alone(resolved.request, resolved.device), resolved.kernel, resolved.reference
    own, where, moved = (reference.path, reference.text), resolved.device.torch_device, kernel.work(problem).bytes
    return ConfirmWinner(
        Files(own, None, dict(request.sizes), request.dtype, where, settings=resolved.settings),
        kernel.place,
        functools.partial(make_contender, request),
        Exemptions.of(kernel),
        mode,
        moved,
        moved <= MOST_BYTES,
        request.accuracy,
    )


def make_executor(resolved: Resolved, mode: Mode) -> Executor:
    """A worker for each device of a request, or for each share of the CPU's cores.

    Raises:
        UserError: see `make_evaluator`; or there are more workers than cores.
    """
    request, kernel, compiler = resolved.request, resolved.kernel, resolved.compiler
    make, environment = functools.partial(make_evaluator, mode=mode), environment_for(resolved)
    if request.executor is ExecutorName.RAY:
        from tunebench.studies.tuning.on_ray import ray_executor

        return ray_executor(request, kernel, compiler, make, environment, _PRELOAD)
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


def _tune_mode(
    resolved: Resolved, mode: Mode, database: Database, announce: Reporter, account: Account, ends: float | None
) -> StudyReport:
    request, kernel = resolved.request, resolved.kernel
    with account.phase(Activity.WORKER):
        executor = make_executor(resolved, mode)
    account.move(Activity.WORKER, executor.first.prepared)
    device, problem, slots = executor.device, executor.problem, executor.slots
    try:
        if resolved.expected not in (None, problem, problem.named):
            its_own, wanted = told_apart([("", problem), ("", resolved.expected)])
            raise UserError(f"the reference's own inputs are {its_own} where {wanted} is asked for")
        with account.phase(Activity.SPACE):
            space = resolved.space.enumerate(problem, device)
        description = describe_study(resolved, problem, device)
        with account.phase(Activity.STRATEGY):
            sampler = find_sampler(request.sampler)(space, request.seed)
        with account.phase(Activity.DATABASE):
            warm_starts = _warm_starts(resolved, description, sampler, database)
            log = open_study(database, description, environment_for(resolved)(device), warm_starts)
            if (begun := begun_study(database, description)) is not None:
                warm_starts = begun.warm_starts  # another process may have begun it in the meantime
        confirmation = _confirmation(resolved, mode, problem)
        run = StudyRun(executor, space, sampler, log, warm_starts, confirmation, account)
        progress = announce(
            Announcement(kernel.name, problem, device, len(space), warm_starts, run.done, slots=executor.slots)
        )
        with ThreadPoolExecutor(1) as beside:
            asked = beside.submit(_gpu_refusal, kernel, space[space.default], problem, device)
            seconds = None if ends is None else ends - time.monotonic()
            outcome = run.run(Budget(request.trials, seconds, request.stop_early, request.compile), progress)
            gpu_refusal = asked.result()
    finally:
        executor.close()
    if outcome.trials:
        with account.phase(Activity.DATABASE):
            publish(database, log.study_id, {tunable.name: tunable.values for tunable in resolved.space.tunables})
    spent = Spent(account.seconds, slots, sum(executor.built), len(executor.built))
    return StudyReport(kernel.name, problem, device, log.study_id, outcome, warm_starts, gpu_refusal, spent)


def describe_study(resolved: Resolved, problem: Problem, device: Device) -> StudyDescription:
    """Return the description by which the study of a problem is the same one when it is run again."""
    return StudyDescription(
        kernel=resolved.kernel.name,
        source_digest=resolved.kernel.digest,
        space_digest=_space_digest(resolved.space),
        problem=problem,
        device=device,
        compiler=resolved.compiler.name,
        sampler=resolved.request.sampler,
        seed=resolved.request.seed,
    )


def _gpu_refusal(kernel: Kernel, configuration: Configuration, problem: Problem, device: Device) -> str:
    """Why what is studied on a CPU would not build for a GPU; empty where it would, or no compiler here can tell."""
    if device.kind is not DeviceKind.CPU:
        return ""
    try:
        refusal = refusal_for_gpu(kernel, configuration, problem)
    except (CompilerMissingError, DiskFullError):
        return ""
    return "" if refusal is None else str(refusal)


def _warm_starts(
    resolved: Resolved, description: StudyDescription, sampler: PoolSampler, database: Database
) -> tuple[WarmStart, ...]:
    """The configurations that a study begins with; those on record where it began, so that a resumed one is alike.

    Raises:
        UserError: it is to begin without and has begun with something.
    """
    request = resolved.request
    begun = begun_study(database, description)
    if begun is not None:
        if request.fresh and any(one.origin != NAMED for one in begun.warm_starts):
            raise UserError(
                f"study {begun.study} has begun with {len(begun.warm_starts)} configurations from earlier ones: "
                "leave out --fresh to go on with it, or begin another one with --seed"
            )
        return begun.warm_starts
    named = _named(request, sampler.space)
    if request.fresh or not sampler.learns:
        return named
    shipped = shipped_studies(resolved.kernel, description.problem, description.device)
    earlier = [*earlier_studies(database, description), *shipped]
    found = choose_warm_starts(sampler.space, sorted(earlier, key=lambda study: study.distance))
    begun_with = {one.configuration for one in named}
    return (*named, *(one for one in found if one.configuration not in begun_with))


def _named(request: StudyRequest, space: ValidSpace) -> tuple[WarmStart, ...]:
    """The configurations that a request says to begin with, as far as they are valid here."""
    numbers = (space.completing(values) for values in request.start)
    return tuple(WarmStart(space[number], NAMED) for number in numbers if number is not None)


def _space_digest(space: SearchSpace) -> str:
    values = {tunable.name: list(tunable.values) for tunable in space.tunables}
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()
