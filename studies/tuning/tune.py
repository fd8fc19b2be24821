"""Runs studies: from a request to a kernel's outcomes, one for each mode, everything recorded in a database."""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from tunebench.db.connection.database import Database
from tunebench.db.entries.study_log import open_study
from tunebench.db.queries.warm_start import begun_study, earlier_studies
from tunebench.db.upkeep.optuna_mirror import prepare, publish
from tunebench.kernels.runtime.decision import forget_plans
from tunebench.kernels.runtime.shipped import shipped_studies
from tunebench.studies.tuning import PRELOAD
from tunebench.studies.tuning.executors import environment_for, make_executor
from tunebench.studies.tuning.on_this_machine import alone
from tunebench.studies.tuning.resolved import Resolved, make_contender
from tunebench.tuner.compile.for_gpu import refusal_for_gpu
from tunebench.tuner.configuration import Configuration, Value
from tunebench.tuner.device import Device, DeviceKind
from tunebench.tuner.errors import CompilerMissingError, DiskFullError, UserError
from tunebench.tuner.fork_server import start_forkserver
from tunebench.tuner.gate.boundary.spec import Files
from tunebench.tuner.gate.exemptions import Exemptions
from tunebench.tuner.kernel import Kernel, Mode
from tunebench.tuner.problem import Problem, told_apart
from tunebench.tuner.search.sampler import PoolSampler
from tunebench.tuner.search.strategies import find_sampler
from tunebench.tuner.search.warm_start import NEAR, EarlierStudy, WarmStart, choose_warm_starts
from tunebench.tuner.space import SearchSpace, ValidSpace
from tunebench.tuner.study.account import Account, Activity, Spent
from tunebench.tuner.study.confirm_winner import MOST_BYTES, ConfirmWinner
from tunebench.tuner.study.executor import Executor
from tunebench.tuner.study.history import StudyDescription
from tunebench.tuner.study.outcome import Budget, Ending, Outcome, Phase, Progress
from tunebench.tuner.study.study import StudyRun

NAMED = "named by the study"
OWN = "named by the kernel"
DEFAULT = "the default"
"""Where a configuration comes from that a study is told to begin with."""


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
        invalid: values to begin with that no valid configuration has.
    """

    kernel: str
    problem: Problem
    device: Device
    space_size: int
    warm_starts: tuple[WarmStart, ...] = ()
    done: int = 0
    slots: int = 1
    invalid: tuple[Configuration, ...] = ()


Reporter = Callable[[Announcement], Callable[[Progress], None]]
"""Called when a study begins; returns what is called with its progress."""


def tune(
    resolved: Resolved,
    database: Database,
    announce: Reporter = lambda _: lambda _: None,
    before: float = 0.0,
    ahead: Future[Executor] | None = None,
) -> list[StudyReport]:
    """Run or resume a kernel's studies, one for each mode, until their budgets are spent or Ctrl-C.

    Args:
        before: seconds that a command took until now; the first study is charged with them.
        ahead: the executor of the first mode, see `executor_ahead`; None for one that is made now.

    Raises:
        UserError: the model cannot serve its reference's inputs, or no configuration is valid for them.
    """
    account = Account(before)
    ends = None if resolved.request.seconds is None else time.monotonic() - before + resolved.request.seconds
    start_forkserver(PRELOAD)
    reports: list[StudyReport] = []
    for number, mode in enumerate(resolved.modes):
        now, studies_left = time.monotonic(), len(resolved.modes) - number
        share = None if ends is None else now + (ends - now) / studies_left
        reports.append(_tune_mode(resolved, mode, database, announce, account, share, None if reports else ahead))
        account = Account()
        if reports[-1].outcome.ending is Ending.INTERRUPTED:
            break
    forget_plans()
    return reports


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
        resolved.accuracy,
    )


def _tune_mode(
    resolved: Resolved,
    mode: Mode,
    database: Database,
    announce: Reporter,
    account: Account,
    ends: float | None,
    ahead: Future[Executor] | None,
) -> StudyReport:
    request, kernel = resolved.request, resolved.kernel
    started = time.perf_counter()
    with account.phase(Activity.WORKER):
        executor = make_executor(resolved, mode) if ahead is None else ahead.result()
    waited, prepared = time.perf_counter() - started, executor.first.prepared
    share = min(1.0, waited / (sum(prepared.values()) or 1.0))  # the rest went by while the command got ready
    account.move(Activity.WORKER, {part: share * seconds for part, seconds in prepared.items()})
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
        invalid = tuple(Configuration(values) for values in request.start if space.completing(values) is None)
        progress = announce(
            Announcement(kernel.name, problem, device, len(space), warm_starts, run.done, executor.slots, invalid)
        )
        choices = {tunable.name: tunable.values for tunable in resolved.space.tunables}
        copies: list[Future[str]] = []

        def follow(now: Progress) -> None:
            if now.phase not in (None, Phase.COMPILING) and not copies:  # what comes now takes longer than the copy
                copies.append(beside.submit(publish, database, log.study_id, choices))
            progress(now)

        with ThreadPoolExecutor(1) as beside:
            beside.submit(prepare, database)
            asked = beside.submit(_gpu_refusal, kernel, space[space.default], problem, device)
            seconds = None if ends is None else ends - time.monotonic()
            outcome = run.run(Budget(request.trials, seconds, request.stop_early, bool(request.compile)), follow)
            gpu_refusal = asked.result()
    finally:
        executor.close()
    if outcome.trials:
        with account.phase(Activity.DATABASE):
            publish(database, log.study_id, choices)
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
        if request.fresh and any(one.origin not in (NAMED, OWN, DEFAULT) for one in begun.warm_starts):
            raise UserError(
                f"study {begun.study} has begun with {len(begun.warm_starts)} configurations from earlier ones: "
                "leave out --fresh to go on with it, or begin another one with --seed"
            )
        return begun.warm_starts
    named = _valid(request.start, sampler.space, NAMED)
    if not sampler.learns:
        return named
    own, earlier = _valid(resolved.space.starts, sampler.space, OWN), list[EarlierStudy]()
    if not request.fresh:
        shipped = shipped_studies(resolved.kernel, description.problem, description.device)
        earlier = sorted([*earlier_studies(database, description), *shipped], key=lambda study: study.distance)
    found = choose_warm_starts(sampler.space, earlier)
    default, chosen = sampler.space[sampler.space.default], dict[Configuration, WarmStart]()
    near = found[:1] if earlier and earlier[0].distance <= NEAR else []
    known = [*near, *named, *own]
    # A study of one trial has its default: what is known may be refused here.
    first = [known[0], WarmStart(default, DEFAULT)] if known and request.trials > 1 else []
    for one in (*first, *known, *found):
        chosen.setdefault(one.configuration, one)
    return tuple(chosen.values())


def _valid(starts: Iterable[Mapping[str, Value]], space: ValidSpace, origin: str) -> tuple[WarmStart, ...]:
    """The configurations with the given values, as far as there are such."""
    numbers = map(space.completing, starts)
    return tuple(WarmStart(space[number], origin) for number in numbers if number is not None)


def _space_digest(space: SearchSpace) -> str:
    values = {tunable.name: list(tunable.values) for tunable in space.tunables}
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()
