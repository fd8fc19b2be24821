"""Runs studies: from a request to a kernel's outcomes, one for each mode, everything recorded in a database."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tunebench.db.connection.database import Database
from tunebench.db.entries.study_log import open_study
from tunebench.db.queries.warm_start import begun_study, earlier_studies
from tunebench.db.upkeep.optuna_mirror import publish
from tunebench.kernels.runtime.decision import forget_plans
from tunebench.kernels.runtime.registry import load_model, target_of
from tunebench.kernels.runtime.shipped import shipped_studies
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.study_file import StudyRequest, make_request, read_study_file
from tunebench.tuner.compile.base import Compiler
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.compile.for_gpu import refusal_for_gpu
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import Device, DeviceKind, find_device
from tunebench.tuner.environment import current_environment
from tunebench.tuner.errors import CompilerMissingError, DiskFullError, UnknownNameError, UserError
from tunebench.tuner.isolation import TRACER, start_forkserver
from tunebench.tuner.kernel import Kernel, Mode
from tunebench.tuner.problem import Problem
from tunebench.tuner.reference import Reference
from tunebench.tuner.search.sampler import PoolSampler
from tunebench.tuner.search.strategies import find_sampler
from tunebench.tuner.search.warm_start import WarmStart, choose_warm_starts
from tunebench.tuner.space import SearchSpace
from tunebench.tuner.study.evaluate import LocalEvaluator, Subject
from tunebench.tuner.study.history import StudyDescription
from tunebench.tuner.study.study import Budget, Ending, Outcome, Progress, StudyRun
from tunebench.tuner.study.worker import WorkerEvaluator


@dataclass(frozen=True)
class StudyReport:
    """One study's outcome with what it was about.

    Attributes:
        study: its number in the database.
        warm_starts: what it began with from earlier studies.
        gpu_refusal: of a study on a CPU, why the first configuration does not build for a GPU; empty where it does.
    """

    kernel: str
    problem: Problem
    device: Device
    study: int
    outcome: Outcome
    warm_starts: tuple[WarmStart, ...] = ()
    gpu_refusal: str = ""


@dataclass(frozen=True)
class Announcement:
    """A study that is about to run, for a display of progress.

    Attributes:
        warm_starts: what it began with from earlier studies.
        done: trials of earlier runs.
    """

    kernel: str
    problem: Problem
    device: Device
    space_size: int
    warm_starts: tuple[WarmStart, ...] = ()
    done: int = 0


Reporter = Callable[[Announcement], Callable[[Progress], None]]
"""Called when a study begins; returns what is called with its progress."""


def request_of(target: str, options: dict[str, object]) -> StudyRequest:
    """The request for a target: a shipped kernel's name, a study file, or a kernel's folder.

    Args:
        options: keys of `StudyRequest` that override the target's own.

    Raises:
        UserError: the target or an option is not legal.
    """
    path = Path(target)
    if path.suffix == ".toml":
        base = read_study_file(path).model_dump(exclude_unset=True)
    else:
        base = {"kernel": target}
    return make_request({**base, **options}, target)


@dataclass(frozen=True)
class Resolved:
    """A request whose every name has been found; running it needs only a database.

    Attributes:
        expected: the problem that its study has to be of; None for whatever its sizes make.
    """

    request: StudyRequest
    model: type[TunedModule]
    space: SearchSpace
    device: Device
    compiler: Compiler
    reference: Reference
    modes: Sequence[Mode]
    expected: Problem | None = None

    @property
    def kernel(self) -> Kernel:
        """The kernel to tune."""
        return self.model.kernel


def resolve(request: StudyRequest) -> Resolved:
    """Find everything a request names, before anything is created or run.

    Raises:
        UserError: something is unknown or not on this machine.
    """
    model = load_model(request.kernel)
    kernel = model.kernel
    find_sampler(request.sampler)
    device = find_device(request.device)
    space = kernel.space.restrict(request.tunables)
    return Resolved(
        request=request,
        model=model,
        space=space,
        device=device,
        compiler=compiler_for(device, request.compiler, kernel.languages_in(space)),
        reference=kernel.reference(request.sizes, request.dtype),
        modes=_modes(kernel, request),
    )


def tune(
    resolved: Resolved,
    database: Database,
    announce: Reporter = lambda _: lambda _: None,
) -> list[StudyReport]:
    """Run or resume a kernel's studies, one for each mode, until their budgets are spent or Ctrl-C.

    Raises:
        UserError: the model cannot serve its reference's inputs, or no configuration is valid for them.
    """
    start_forkserver([__name__, TRACER])
    reports: list[StudyReport] = []
    for mode in resolved.modes:
        reports.append(_tune_mode(resolved, mode, database, announce))
        if reports[-1].outcome.ending is Ending.INTERRUPTED:
            break
    forget_plans()
    return reports


def make_evaluator(request: StudyRequest, mode: Mode) -> LocalEvaluator:
    """The evaluator of a request in one mode; called in the worker process.

    Raises:
        UserError: the model cannot serve its reference's inputs, or something is not on this machine.
    """
    resolved = resolve(request)
    subject = Subject.prepare(resolved.kernel, resolved.model, resolved.reference, mode, resolved.device)
    return LocalEvaluator(subject, resolved.compiler, compiled=request.compile)


def _tune_mode(resolved: Resolved, mode: Mode, database: Database, announce: Reporter) -> StudyReport:
    request, kernel, device, compiler = resolved.request, resolved.kernel, resolved.device, resolved.compiler
    evaluator = WorkerEvaluator(functools.partial(make_evaluator, request, mode))
    try:
        if resolved.expected not in (None, evaluator.problem):
            raise UserError(
                f"the reference's own inputs are {evaluator.problem} where {resolved.expected} is asked for"
            )
        space = resolved.space.enumerate(evaluator.problem, device)
        description = StudyDescription(
            kernel=kernel.name,
            source_digest=kernel.digest,
            space_digest=_space_digest(resolved.space),
            problem=evaluator.problem,
            device=device,
            compiler=compiler.name,
            sampler=request.sampler,
            seed=request.seed,
        )
        sampler = find_sampler(request.sampler)(space, request.seed)
        warm_starts = _warm_starts(resolved, description, sampler, database)
        target = target_of(kernel)
        path = None if target == kernel.name else target
        environment = current_environment(device, compiler.version(), kernel.folder, path)
        log = open_study(database, description, environment, warm_starts)
        if (begun := begun_study(database, description)) is not None:
            warm_starts = begun.warm_starts  # another process may have begun it in the meantime
        run = StudyRun(kernel, evaluator, space, compiler, sampler, log, warm_starts=warm_starts)
        done = len(log.past())
        progress = announce(Announcement(kernel.name, evaluator.problem, device, len(space), warm_starts, done))
        with ThreadPoolExecutor(1) as beside:
            asked = beside.submit(_gpu_refusal, kernel, space[space.default], evaluator.problem, device)
            outcome = run.run(Budget(request.trials, request.seconds, stop_early=request.stop_early), progress)
            gpu_refusal = asked.result()
    finally:
        evaluator.close()
    if outcome.trials:
        publish(database, log.study_id, {tunable.name: tunable.values for tunable in resolved.space.tunables})
    return StudyReport(kernel.name, evaluator.problem, device, log.study_id, outcome, warm_starts, gpu_refusal)


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
        if request.fresh and begun.warm_starts:
            raise UserError(
                f"study {begun.study} has begun with {len(begun.warm_starts)} configurations from earlier ones: "
                "leave out --fresh to go on with it, or begin another one with --seed"
            )
        return begun.warm_starts
    if request.fresh or not sampler.learns:
        return ()
    shipped = shipped_studies(resolved.kernel, description.problem, description.device)
    earlier = [*earlier_studies(database, description), *shipped]
    return tuple(choose_warm_starts(sampler.space, sorted(earlier, key=lambda study: study.distance)))


def _modes(kernel: Kernel, request: StudyRequest) -> Sequence[Mode]:
    for mode in request.modes or ():
        if mode not in kernel.modes:
            raise UnknownNameError(f"mode of kernel '{kernel.name}'", mode, kernel.modes)
    return request.modes or kernel.modes


def _space_digest(space: SearchSpace) -> str:
    values = {tunable.name: list(tunable.values) for tunable in space.tunables}
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()
