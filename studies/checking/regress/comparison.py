"""One kernel in two revisions, in one process: both built, both checked, both timed in the same rounds."""

from __future__ import annotations

import contextlib
import enum
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tunebench.kernels.runtime.registry import load_model
from tunebench.kernels.runtime.selection import Known, Tier, recorded_offers, shipped_offers
from tunebench.kernels.runtime.shipped import is_stale, readable_files
from tunebench.studies.checking.regress.modules import modules_of
from tunebench.studies.checking.regress.repository import Revision
from tunebench.studies.tuning.study_file import StudyRequest
from tunebench.studies.tuning.tune import Resolved, resolve
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import find_device
from tunebench.tuner.device_lock import alone_on
from tunebench.tuner.environment import versions_here
from tunebench.tuner.errors import (
    CompilerMissingError,
    DatabaseError,
    DatabaseMissingError,
    DeviceMissingError,
    DiskFullError,
    TunebenchError,
    UserError,
    first_line,
)
from tunebench.tuner.isolation import DeathError, report, run_isolated
from tunebench.tuner.kernel import Mode
from tunebench.tuner.problem import Problem, told_apart
from tunebench.tuner.result import CONTROL, Ratio
from tunebench.tuner.running_text import running_text
from tunebench.tuner.study.evaluate import Finalist, Leaders, LocalEvaluator, Subject
from tunebench.tuner.timing.confirm import most_seconds
from tunebench.tuner.timing.statistics import Samples, control_ratio, speedup

SECONDS = 600.0
"""The longest that one kernel in one mode may take."""

MOST_PAIRS = 3
"""Limit of pairs of processes, where their rounds leave open whether HEAD is slower by more than the threshold."""

PRECISE = 1.01
"""A process takes more rounds, within the seconds of a final comparison, until its control is known as well as this."""

_NOT_THEIRS = (CompilerMissingError, DatabaseError, DeviceMissingError, DiskFullError)
"""Errors that are this machine's, and no revision's."""

_QUICK = Leaders(finalist_ms=0.0)
"""Leaders with which the gate asks its quick battery alone: no median is below 0 ms, so no variant is a finalist."""


class Side(enum.StrEnum):
    """Which of the two revisions."""

    BASE = "BASE"
    HEAD = "HEAD"
    EITHER = "BASE or HEAD"


class SideError(TunebenchError):
    """A revision whose kernel cannot take part; `side` says which."""

    def __init__(self, side: Side, message: str) -> None:
        super().__init__(side, message)
        self.side = side
        self.message = message


class OtherProblemError(TunebenchError):
    """The revisions' own inputs are of two problems, so that their times are of two things."""


@dataclass(frozen=True)
class KernelSummary:
    """A revision's kernel, as far as it is known without running it.

    Attributes:
        sizes: names of its reference's constants.
        reference: what runs in its `reference.py`; empty of a kernel in one file.
    """

    name: str
    digest: str
    modes: tuple[str, ...]
    dtypes: tuple[str, ...]
    sizes: tuple[str, ...]
    reference: str


@dataclass(frozen=True)
class Case:
    """One kernel in one mode, and the two revisions that it is of.

    Attributes:
        request: its kernel is the folder or file below the root of either.
        threshold: the share that HEAD may be slower.
        database: where recorded results are; None for the default.
    """

    repository: Path
    revisions: Mapping[Side, Revision]
    request: StudyRequest
    mode: Mode
    threshold: float
    database: str | Path | None


@dataclass(frozen=True)
class Choice:
    """The configuration that a revision is timed under.

    Attributes:
        origin: where it comes from, for people.
        is_known: whether a result says so, recorded or shipped; the default is none.
    """

    configuration: Configuration
    origin: str
    is_known: bool


@dataclass(frozen=True)
class Timing:
    """The rounds of one process.

    Attributes:
        device: its name.
        choices: by side.
        samples_ms: by `BASE`, `HEAD` and `control`; the n-th of each belong to the same round.
        copied: the side that `control` is a second copy of.
    """

    problem: Problem
    device: str
    choices: Mapping[Side, Choice]
    samples_ms: Samples
    copied: Side

    @property
    def ratio(self) -> Ratio:
        """How many times faster HEAD is than BASE."""
        return speedup(self.samples_ms[Side.HEAD], self.samples_ms[Side.BASE])

    @property
    def control(self) -> Ratio:
        """How much faster the second copy seemed."""
        return control_ratio(self.samples_ms, self.copied)


@dataclass(frozen=True)
class Comparison:
    """The rounds of two processes, in which the revisions have changed places.

    One process does not treat two versions of a Python class quite alike: which was imported first costs the other up
    to a microsecond a call. The n-th rounds of both make one ratio, their geometric mean, in which that cancels.
    """

    timings: tuple[Timing, Timing]

    @property
    def samples_ms(self) -> Samples:
        """By side, the geometric means of the n-th rounds."""
        one, other = (timing.samples_ms for timing in self.timings)
        return {side: tuple(map(_geometric_mean, one[side], other[side])) for side in (Side.BASE, Side.HEAD)}

    @property
    def ratio(self) -> Ratio:
        """How many times faster HEAD is than BASE.

        The interval of the rounds is widened by as much as two copies of one revision may lie apart for all that the
        rounds tell, and holds what either process found by itself: on a busy CPU both say more than the interval does.
        """
        plain = speedup(self.samples_ms[Side.HEAD], self.samples_ms[Side.BASE])
        apart = max(max(timing.control.high, 1 / timing.control.low) for timing in self.timings)
        found = [timing.ratio.value for timing in self.timings]
        return replace(plain, low=min(plain.low / apart, *found), high=max(plain.high * apart, *found))


def _geometric_mean(one: float, other: float) -> float:
    return math.sqrt(one * other)


def compare_revisions(case: Case) -> Comparison:
    """Time both revisions of a kernel against each other in processes of their own; of several pairs the most certain.

    Raises:
        SideError: one of them does not load, build or run, is wrong, or ended the process.
        OtherProblemError: their problems differ.
        UserError: the question was wrong.
    """
    pairs: list[Comparison] = []
    limit = 1 / (1 + case.threshold)
    while len(pairs) < MOST_PAIRS:
        with alone_on(find_device(case.request.device), "tunebench regress"):
            pairs.append(Comparison((_in_process(case, _ORDERS[0]), _in_process(case, _ORDERS[1]))))
        best = min(pairs, key=lambda pair: pair.ratio.high / pair.ratio.low)
        if not best.ratio.low < limit <= best.ratio.high:
            break
    return best


_ORDERS = ((Side.BASE, Side.HEAD), (Side.HEAD, Side.BASE))


def _in_process(case: Case, order: tuple[Side, Side]) -> Timing:
    running = Side.EITHER

    def listen(side: Side) -> None:
        nonlocal running
        running = side

    try:
        return run_isolated(SECONDS, _time, case, order, listen=listen)
    except DeathError as death:
        raise SideError(running, str(death)) from death


# What follows runs in the process.


def summarise(repository: Path, revision: Revision, place: str) -> KernelSummary:
    """Load a revision's kernel; its files run here."""
    with modules_of(revision.root, repository):
        kernel = load_model(str(revision.root / place)).kernel
        sizes = tuple(kernel.reference().sizes)
    reference = running_text(kernel.texts.get("reference.py", ""))
    return KernelSummary(kernel.name, kernel.digest, kernel.modes, kernel.dtypes, sizes, reference)


def _time(case: Case, order: tuple[Side, Side]) -> Timing:
    """Both revisions of a kernel, the first of them loaded first and there in two copies, in interleaved rounds."""
    sides = {side: _Revision(case, side) for side in order}
    base, head = sides[Side.BASE], sides[Side.HEAD]
    if base.problem != head.problem:
        before, after = told_apart([("", base.problem), ("", head.problem)])
        raise OtherProblemError(f"the problem was {before} and is {after} now")
    was, now = base.best_known(), head.best_known()
    # What only one has a result for is compared under that; else each is as it would serve.
    chosen = {
        Side.BASE: base.taking(now) or was if now.is_known and not was.is_known else was,
        Side.HEAD: head.taking(was) or now if was.is_known and not now.is_known else now,
    }
    finalists = {side: sides[side].built(chosen[side]) for side in order}
    if order == _ORDERS[0]:  # what is right in one process is in the other
        for side in order:
            sides[side].prove(finalists[side])
    report(Side.EITHER)
    copied, other = order
    duel = partial(sides[other].evaluator.duel, finalists[other], finalists[copied])
    samples = duel(opponent=sides[copied].evaluator)
    deadline = time.monotonic() + most_seconds()
    while time.monotonic() < deadline and not _is_precise(control_ratio(samples, "second")):
        more = duel(opponent=sides[copied].evaluator)
        samples = {name: (*times, *more[name]) for name, times in samples.items()}
    named = {other: samples["first"], copied: samples["second"], CONTROL: samples[CONTROL]}
    return Timing(head.problem, head.evaluator.device.name, chosen, named, copied)


def _is_precise(control: Ratio) -> bool:
    return control.high <= PRECISE * control.low


class _Revision:
    """A revision's kernel, ready to be built, checked and timed."""

    def __init__(self, case: Case, side: Side) -> None:
        self._side = side
        self._database = case.database
        root = case.revisions[side].root
        with self._own():
            with modules_of(root, case.repository):
                own = {"kernel": str(root / case.request.kernel), "modes": (case.mode,)}
                self._resolved: Resolved = resolve(case.request.model_copy(update=own))
            resolved = self._resolved
            subject = Subject.prepare(resolved.kernel, resolved.model, resolved.reference, case.mode, resolved.device)
            self.problem = subject.problem
            self.evaluator = LocalEvaluator(subject, resolved.compiler)

    @contextlib.contextmanager
    def _own(self) -> Iterator[None]:
        """Raise the errors of the `with` body as a `SideError` of this revision, unless they are this machine's."""
        report(self._side)
        try:
            yield
        except _NOT_THEIRS:
            raise
        except TunebenchError as error:
            raise SideError(self._side, first_line(error)) from error

    def best_known(self) -> Choice:
        """Return the configuration that was measured of this very source, nearest to the problem; else the default."""
        resolved, device = self._resolved, self.evaluator.device
        kernel = resolved.kernel
        known = Known(
            resolved.space,
            self.problem,
            device,
            recorded=(),
            shipped=shipped_offers(file for file in readable_files(kernel) if not is_stale(kernel, file)),
            here=versions_here(device),
        )
        with contextlib.suppress(DatabaseMissingError):
            offers = recorded_offers(kernel.name, kernel.digest, self.problem, device, self._database)
            known = replace(known, recorded=offers)
        with self._own():
            contenders = known.contenders()
            if not contenders or contenders[0].configuration is None:
                raise UserError(f"no configuration is valid for {self.problem}")
        best = contenders[0]
        assert best.configuration is not None
        if best.tier is Tier.DEFAULT:
            return Choice(best.configuration, f"{self._side}'s default", is_known=False)
        return Choice(best.configuration, f"{self._side}: {best.reason}", is_known=True)

    def taking(self, other: Choice) -> Choice | None:
        """The other's configuration, where it is valid here."""
        admitted = self._resolved.space.admits(other.configuration, self.problem, self.evaluator.device)
        return other if admitted else None

    def built(self, candidate: Choice) -> Finalist:
        """A configuration with its build.

        Raises:
            SideError: it does not build.
        """
        resolved = self._resolved
        with self._own():
            variant = resolved.kernel.variant(candidate.configuration, self.problem, self.evaluator.device.architecture)
            return Finalist(candidate.configuration, BuildCache().build(resolved.compiler, variant))

    def prove(self, finalist: Finalist) -> None:
        """Put a configuration through the quick gate.

        Raises:
            SideError: it is refused.
        """
        with self._own():
            result = self.evaluator.evaluate(*finalist, _QUICK)
        if not result.status.timed:
            raise SideError(self._side, f"{result.status}: {result.message.splitlines()[0]}")
