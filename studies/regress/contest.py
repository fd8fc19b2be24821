"""One kernel in two revisions, in one process: both built, both checked, both timed in the same rounds."""

from __future__ import annotations

import contextlib
import enum
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath

from tunebench.kernels.runtime.registry import load_model
from tunebench.kernels.runtime.selection import Known, Tier, recorded_offers, shipped_offers
from tunebench.kernels.runtime.shipped import is_stale, readable_files
from tunebench.studies.regress.modules import modules_of
from tunebench.studies.regress.repository import Revision
from tunebench.studies.study_file import make_request
from tunebench.studies.tune import Resolved, resolve
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.configuration import Configuration, Value
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
"""Of processes, where their rounds leave open whether HEAD is slower by more than the threshold."""

PRECISE = 1.01
"""A process takes more rounds, within the seconds of a final comparison, until its control is known as well as this."""

_NOT_THEIRS = (CompilerMissingError, DatabaseError, DeviceMissingError, DiskFullError)
"""What is wrong with this machine, and with no revision."""

_QUICK = Leaders(finalist_ms=0.0)
"""Of the gate the quick battery alone: no time is less than this, so that nothing has to be proven beyond it."""


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
class Look:
    """What a revision's kernel is.

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
class Matter:
    """One kernel in one mode, and the two revisions that it is of.

    Attributes:
        place: the folder or file, below the root of either.
        options: keys of `StudyRequest`: sizes, dtype, device, compiler, tunables.
        threshold: the share that HEAD may be slower.
        database: where recorded results are; None for the default.
    """

    repository: Path
    base: Revision
    head: Revision
    place: PurePosixPath
    mode: Mode
    options: Mapping[str, object]
    threshold: float
    database: str | Path | None


@dataclass(frozen=True)
class Choice:
    """The configuration that a revision was timed under, and where it comes from."""

    configuration: Mapping[str, Value]
    origin: str


@dataclass(frozen=True)
class Take:
    """The rounds of one process.

    Attributes:
        samples_ms: by `BASE`, `HEAD` and `control`; the n-th of each belong to the same round.
        copied: the side that `control` is a second copy of.
    """

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
class TakenTwice:
    """The rounds of two processes, in which the revisions have changed places.

    One process does not treat two versions of a Python class quite alike: which was imported first costs the other up
    to a microsecond a call. The n-th rounds of both make one ratio, their geometric mean, in which that cancels.
    """

    takes: tuple[Take, Take]

    @property
    def samples_ms(self) -> Samples:
        """By side, the geometric means of the n-th rounds."""
        return {
            side: tuple(math.sqrt(one * other) for one, other in zip(*self._samples(side), strict=False))
            for side in (Side.BASE, Side.HEAD)
        }

    def _samples(self, side: Side) -> list[tuple[float, ...]]:
        return [take.samples_ms[side] for take in self.takes]

    @property
    def ratio(self) -> Ratio:
        """How many times faster HEAD is than BASE.

        The interval of the rounds is widened by as much as two copies of one revision may lie apart for all that the
        rounds tell, and holds what either process found by itself: on a busy CPU both say more than the interval does.
        """
        plain = speedup(self.samples_ms[Side.HEAD], self.samples_ms[Side.BASE])
        apart = max(max(take.control.high, 1 / take.control.low) for take in self.takes)
        found = [take.ratio.value for take in self.takes]
        return replace(plain, low=min(plain.low / apart, *found), high=max(plain.high * apart, *found))

    @property
    def width(self) -> float:
        """How far the ends of the interval lie apart, as a ratio."""
        return self.ratio.high / self.ratio.low


@dataclass(frozen=True)
class Contest:
    """What two revisions were timed for, under what, and the rounds: of several pairs of processes the most certain."""

    problem: Problem
    device: str
    base: Choice
    head: Choice
    rounds: TakenTwice


def contest(matter: Matter) -> Contest:
    """Both revisions of a kernel, timed against each other in processes of their own.

    Raises:
        SideError: one of them does not load, build or run, is wrong, or ended the process.
        OtherProblemError: their problems differ.
        UserError: the question was wrong.
    """
    best: Contest | None = None
    device = matter.options.get("device")
    for _ in range(MOST_PAIRS):
        with alone_on(find_device(None if device is None else str(device)), "tunebench regress"):
            one, other = (_in_process(matter, order) for order in _ORDERS)
        rounds = TakenTwice((one.take, other.take))
        if best is None or rounds.width < best.rounds.width:
            best = Contest(one.problem, one.device, one.choices[Side.BASE], one.choices[Side.HEAD], rounds)
        if not best.rounds.ratio.low < 1 / (1 + matter.threshold) <= best.rounds.ratio.high:
            break
    assert best is not None
    return best


@dataclass(frozen=True)
class _Rounds:
    """What one process brings."""

    problem: Problem
    device: str
    choices: Mapping[Side, Choice]
    take: Take


_ORDERS = ((Side.BASE, Side.HEAD), (Side.HEAD, Side.BASE))


def _in_process(matter: Matter, order: tuple[Side, Side]) -> _Rounds:
    running = Side.EITHER

    def listen(side: Side) -> None:
        nonlocal running
        running = side

    try:
        return run_isolated(SECONDS, _take, matter, order, listen=listen)
    except DeathError as death:
        raise SideError(running, str(death)) from death


# What follows runs in the process.


def look(repository: Path, revision: Revision, place: PurePosixPath) -> Look:
    """What a revision's kernel is; its files run here."""
    with modules_of(revision.root, repository):
        kernel = load_model(str(revision.root / place)).kernel
        sizes = tuple(kernel.reference().sizes)
    reference = running_text(kernel.texts.get("reference.py", ""))
    return Look(kernel.name, kernel.digest, kernel.modes, kernel.dtypes, sizes, reference)


def _take(matter: Matter, order: tuple[Side, Side]) -> _Rounds:
    """Both revisions of a kernel, the first of them loaded first and there in two copies, in interleaved rounds."""
    parties = {side: _Party(matter, side) for side in order}
    base, head = parties[Side.BASE], parties[Side.HEAD]
    if base.problem != head.problem:
        before, after = told_apart([("", base.problem), ("", head.problem)])
        raise OtherProblemError(f"the problem was {before} and is {after} now")
    was, now = base.best_known(), head.best_known()
    # What only one has a result for is compared under that; else each is as it would serve.
    chosen = {
        Side.BASE: base.taking(now) or was if now.is_known and not was.is_known else was,
        Side.HEAD: head.taking(was) or now if was.is_known and not now.is_known else now,
    }
    finalists = {side: parties[side].built(chosen[side]) for side in order}
    if order == _ORDERS[0]:  # what is right in one process is in the other
        for side in order:
            parties[side].prove(finalists[side])
    report(Side.EITHER)
    copied, other = order
    duel = partial(parties[other].evaluator.duel, finalists[other], finalists[copied])
    samples = duel(opponent=parties[copied].evaluator)
    deadline = time.monotonic() + most_seconds()
    while time.monotonic() < deadline and not _is_precise(control_ratio(samples, "second")):
        more = duel(opponent=parties[copied].evaluator)
        samples = {name: (*times, *more[name]) for name, times in samples.items()}
    named = {other: samples["first"], copied: samples["second"], CONTROL: samples[CONTROL]}
    choices = {side: Choice(one.configuration, one.origin) for side, one in chosen.items()}
    return _Rounds(head.problem, head.evaluator.device.name, choices, Take(named, copied))


def _is_precise(control: Ratio) -> bool:
    return control.high <= PRECISE * control.low


@dataclass(frozen=True)
class _Candidate:
    configuration: Configuration
    origin: str
    is_known: bool


class _Party:
    """A revision's kernel, ready to be built, checked and timed."""

    def __init__(self, matter: Matter, side: Side) -> None:
        self._side = side
        self._database = matter.database
        revision = matter.base if side is Side.BASE else matter.head
        target = str(revision.root / matter.place)
        with self._own():
            with modules_of(revision.root, matter.repository):
                request = make_request({"kernel": target, **matter.options, "modes": [matter.mode]}, target)
                self._resolved: Resolved = resolve(request)
            resolved = self._resolved
            subject = Subject.prepare(resolved.kernel, resolved.model, resolved.reference, matter.mode, resolved.device)
            self.problem = subject.problem
            self.evaluator = LocalEvaluator(subject, resolved.compiler)

    @contextlib.contextmanager
    def _own(self) -> Iterator[None]:
        """What goes wrong here is this revision's."""
        report(self._side)
        try:
            yield
        except _NOT_THEIRS:
            raise
        except TunebenchError as error:
            raise SideError(self._side, first_line(error)) from error

    def best_known(self) -> _Candidate:
        """What was measured of this very source and is nearest to the problem, else the default."""
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
            return _Candidate(best.configuration, f"{self._side}'s default", is_known=False)
        return _Candidate(best.configuration, f"{self._side}: {best.reason}", is_known=True)

    def taking(self, other: _Candidate) -> _Candidate | None:
        """The other's configuration, where it is valid here."""
        admitted = self._resolved.space.admits(other.configuration, self.problem, self.evaluator.device)
        return other if admitted else None

    def built(self, candidate: _Candidate) -> Finalist:
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
