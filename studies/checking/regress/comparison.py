"""One kernel in two revisions, in one process: both built, both checked, both timed in the same rounds."""

from __future__ import annotations

import contextlib
import enum
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

from tunebench.kernels.runtime.selection import Tier, what_is_known
from tunebench.studies.checking.regress.modules import modules_of
from tunebench.studies.checking.regress.repository import Revision, Side
from tunebench.studies.tuning.resolved import resolve
from tunebench.studies.tuning.study_file import StudyRequest
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import find_device
from tunebench.tuner.device_lock import alone_on
from tunebench.tuner.errors import (
    CompilerMissingError,
    DatabaseError,
    DeviceMissingError,
    DiskFullError,
    TunebenchError,
    UserError,
    first_line,
)
from tunebench.tuner.isolation import DeathError, report, run_isolated
from tunebench.tuner.problem import Problem, told_apart
from tunebench.tuner.result import CONTROL, Ratio
from tunebench.tuner.study.evaluate import Finalist, Leaders, LocalEvaluator
from tunebench.tuner.study.subject import Subject
from tunebench.tuner.timing.confirm import most_seconds
from tunebench.tuner.timing.statistics import Samples, control_ratio, speedup

SECONDS = 600.0
"""The longest that one process of a kernel in one mode may take."""

MOST_PAIRS = 3
"""Limit of comparisons, where their rounds leave open whether HEAD is slower by more than the threshold."""

PRECISE = 1.01
"""A take goes on, within the seconds of a final comparison, until its control is known as well as this."""

_NOT_THEIRS = (CompilerMissingError, DatabaseError, DeviceMissingError, DiskFullError)
"""Errors that are this machine's, and no revision's."""

_QUICK = Leaders(finalist_ms=0.0)
"""Leaders with which the gate asks its quick battery alone: no median is below 0 ms, so no variant is a finalist."""


class Outcome(enum.StrEnum):
    """The outcome of a kernel that differs between two revisions."""

    FASTER = "faster"
    SLOWER = "slower"
    TIE = "tie"
    INCONCLUSIVE = "inconclusive"
    """The interval is too wide to say anything."""
    REGRESSION = "regression"
    """Slower, and the whole interval lies beyond the threshold."""
    WRONG = "wrong"
    """HEAD does not load, build or run, or the gate refused it."""
    NOT_COMPARED = "not compared"
    """BASE is such, only one of the two has it, or the problem is another one now."""


class IncomparableError(TunebenchError):
    """There are no times, and the outcome is another one for that."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(outcome, message)
        self.outcome, self.message = outcome, message

    @classmethod
    def of(cls, side: Side | None, message: str) -> Self:
        """One for which a revision is to blame, or either of them."""
        return cls(Outcome.NOT_COMPARED if side is Side.BASE else Outcome.WRONG, message)


class Choice(NamedTuple):
    """The configuration that a revision is timed under, where it comes from, and whether a result says so."""

    configuration: Configuration
    origin: str
    is_known: bool


@dataclass(frozen=True)
class Comparison:
    """Rounds of both revisions, taken by two processes, in which they have changed places.

    One process does not treat two versions of a Python class quite alike: which was imported first costs the other up
    to a microsecond a call. The n-th rounds of both make one ratio, their geometric mean, in which that cancels.

    Attributes:
        device: its name.
        choices: by side.
        takes: by `BASE`, `HEAD` and `control`, which is BASE once more in the first take and HEAD in the second. The
            n-th of each belong to the same round.
    """

    problem: Problem
    device: str
    choices: Mapping[Side, Choice]
    takes: Sequence[Samples]

    @property
    def controls(self) -> list[Ratio]:
        """How much faster, in each take, the side that is there twice seemed the second time."""
        return [control_ratio(samples, side) for samples, side in zip(self.takes, Side, strict=True)]

    @property
    def samples_ms(self) -> Samples:
        """By side, the geometric means of the n-th rounds of both takes."""
        return {side: tuple(map(_geometric_mean, *(samples[side] for samples in self.takes))) for side in Side}

    @property
    def ratio(self) -> Ratio:
        """How many times faster HEAD is than BASE.

        The interval of the rounds is widened by as much as two copies of one revision may lie apart for all that the
        rounds tell, and holds what either process found by itself: on a busy CPU both say more than the interval does.
        """
        plain, *found = (speedup(one[Side.HEAD], one[Side.BASE]) for one in (self.samples_ms, *self.takes))
        apart = max(max(control.high, 1 / control.low) for control in self.controls)
        values = [one.value for one in found]
        return replace(plain, low=min(plain.low / apart, *values), high=max(plain.high * apart, *values))


def _geometric_mean(one: float, other: float) -> float:
    return math.sqrt(one * other)


def compare_revisions(
    revisions: Mapping[Side, Revision], request: StudyRequest, threshold: float, database: str | Path | None
) -> Comparison:
    """Time both revisions of a kernel against each other; of several comparisons the most certain.

    Args:
        request: of one mode; its kernel is the folder or file below the root of either.
        threshold: the share that HEAD may be slower.
        database: where recorded results are; None for the default.

    Raises:
        IncomparableError: one of them does not load, build or run, is wrong, or ended its process; or their own inputs
            are of two problems, so that their times would be of two things.
        UserError: the question was wrong.
    """
    found: list[Comparison] = []
    limit = 1 / (1 + threshold)
    while len(found) < MOST_PAIRS:
        with alone_on(find_device(request.device), "tunebench regress"):
            takes = [_take(revisions, request, database, copied) for copied in Side]
        found.append(replace(takes[0], takes=[samples for take in takes for samples in take.takes]))
        best = min(found, key=lambda one: one.ratio.high / one.ratio.low)
        if not best.ratio.low < limit <= best.ratio.high:
            break
    return best


def _take(
    revisions: Mapping[Side, Revision], request: StudyRequest, database: str | Path | None, copied: Side
) -> Comparison:
    """Both revisions in a process of their own, where the copied one is loaded first."""
    running: list[Side | None] = [None]
    try:
        return run_isolated(SECONDS, _timed, revisions, request, database, copied, listen=running.append)
    except DeathError as death:
        side = running[-1]
        raise IncomparableError.of(side, f"{side or 'BASE or HEAD'}: {death}") from death


# What follows runs in the process.


def _timed(
    revisions: Mapping[Side, Revision], request: StudyRequest, database: str | Path | None, copied: Side
) -> Comparison:
    """Both revisions in interleaved rounds, one of them twice."""
    if database is not None:
        os.environ["TUNEBENCH_DB"] = str(database)  # where is looked for what is known
    order = list(Side) if copied is Side.BASE else list(reversed(Side))
    sides = {side: _Kernel(side, revisions[side], request) for side in order}
    base, head = sides[Side.BASE], sides[Side.HEAD]
    if base.problem != head.problem:
        before, after = told_apart([("", base.problem), ("", head.problem)])
        raise IncomparableError(Outcome.NOT_COMPARED, f"the problem was {before} and is {after} now")
    was, now = base.best_known(), head.best_known()
    # What only one has a result for is compared under that; else each is as it would serve.
    chosen = {
        Side.BASE: now if now.is_known and not was.is_known and base.admits(now) else was,
        Side.HEAD: was if was.is_known and not now.is_known and head.admits(was) else now,
    }
    finalists = {side: sides[side].built(chosen[side]) for side in order}
    for side in order if copied is Side.BASE else ():  # what is right in one process is in the other
        sides[side].prove(finalists[side])
    report(None)
    _, other = order
    duel = partial(sides[other].evaluator.duel, finalists[other], finalists[copied], opponent=sides[copied].evaluator)
    samples = duel()
    deadline = time.monotonic() + most_seconds()
    while time.monotonic() < deadline and not _is_precise(control_ratio(samples, "second")):
        more = duel()
        samples = {name: (*times, *more[name]) for name, times in samples.items()}
    named = {other: samples["first"], copied: samples["second"], CONTROL: samples[CONTROL]}
    return Comparison(head.problem, head.evaluator.device.name, chosen, [named])


def _is_precise(control: Ratio) -> bool:
    return control.high <= PRECISE * control.low


class _Kernel:
    """A revision's kernel, ready to be built, checked and timed."""

    def __init__(self, side: Side, revision: Revision, request: StudyRequest) -> None:
        self._side = side
        with self._own():
            with modules_of(revision):
                resolved = resolve(request.model_copy(update={"kernel": str(revision.root / request.kernel)}))
            (mode,), device = resolved.modes, resolved.device
            subject = Subject.prepare(resolved.kernel, resolved.model, resolved.reference, mode, device)
            self._resolved, self.problem = resolved, subject.problem
            self.evaluator = LocalEvaluator(subject, resolved.compiler)

    @contextlib.contextmanager
    def _own(self) -> Iterator[None]:
        """Raise the errors of the `with` body as this revision's, unless they are this machine's."""
        report(self._side)
        try:
            yield
        except _NOT_THEIRS:
            raise
        except TunebenchError as error:
            raise IncomparableError.of(self._side, f"{self._side}: {first_line(error)}") from error

    def best_known(self) -> Choice:
        """Return the configuration that was measured of this very source, nearest to the problem; else the default."""
        known = what_is_known(self._resolved.kernel, self.problem, self.evaluator.device)
        with self._own():
            best = next(iter(replace(known, space=self._resolved.space, related=tuple).contenders()), None)
            if best is None or best.configuration is None:
                raise UserError(f"no configuration is valid for {self.problem}")
        is_known = best.tier is not Tier.DEFAULT
        origin = f"{self._side}: {best.reason}" if is_known else f"{self._side}'s default"
        return Choice(best.configuration, origin, is_known)

    def admits(self, other: Choice) -> bool:
        """Whether the other revision's configuration is valid here."""
        return self._resolved.space.admits(other.configuration, self.problem, self.evaluator.device)

    def built(self, choice: Choice) -> Finalist:
        """A configuration with its build.

        Raises:
            IncomparableError: it does not build.
        """
        with self._own():
            architecture = self.evaluator.device.architecture
            variant = self._resolved.kernel.variant(choice.configuration, self.problem, architecture)
            return Finalist(choice.configuration, BuildCache().build(self._resolved.compiler, variant))

    def prove(self, finalist: Finalist) -> None:
        """Put a configuration through the quick gate.

        Raises:
            IncomparableError: it is refused.
        """
        with self._own():
            result = self.evaluator.evaluate(*finalist, _QUICK)
            if not result.status.timed:
                raise UserError(f"{result.status}: {result.message}")
