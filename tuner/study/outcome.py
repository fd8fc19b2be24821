"""The state of a study as it is told: what ends it, where it stands, and what it has found."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass

from tunebench.tuner.configuration import Configuration
from tunebench.tuner.errors import CompileError, CompileTimeoutError
from tunebench.tuner.result import Comparison, TrialResult, TrialStatus
from tunebench.tuner.study.history import PastTrial


@dataclass(frozen=True)
class Budget:
    """When a study ends.

    Attributes:
        trials: in all, those of earlier runs and of other processes included; each process may be evaluating one more.
        seconds: of this run, its final rounds and the winner's last check included; None for no limit. What there is no
            time for is not asked, see `Outcome.unasked`. The first configuration has all the time that it needs.
        stop_early: end when the search has settled, see `PoolSampler.settled`.
        compiled: the reference under torch.compile takes part in the final rounds.
    """

    trials: int
    seconds: float | None = None
    stop_early: bool = False
    compiled: bool = False


class Ending(enum.StrEnum):
    """Why a run of a study ended."""

    BUDGET = "budget"
    EXHAUSTED = "exhausted"
    SETTLED = "settled"
    """Another trial was expected to gain less than the timing can tell."""
    INTERRUPTED = "interrupted"


class Phase(enum.StrEnum):
    """The phases of a study once its search is over."""

    COMPILING = "having torch.compile compile the reference, to compare with that as well"
    COMPARING = "timing the finalists again, in interleaved rounds with the reference and the default"
    CONFIRMING = "putting the winner through the rest of the gate, and before a judge in another process"


def told(result: TrialResult) -> str:
    """How a trial failed, in one line."""
    return f"{result.status}: {result.message.splitlines()[0]}"


def not_built(configuration: Configuration, error: CompileError) -> TrialResult:
    """Return the result of a configuration that did not compile."""
    status = TrialStatus.TIMEOUT if isinstance(error, CompileTimeoutError) else TrialStatus.COMPILE
    return TrialResult(configuration, status, message=f"{error}\n{error.log}")


@dataclass(frozen=True)
class Progress:
    """Where a running study stands.

    Attributes:
        done, planned: trials, those of earlier runs and of other processes included.
        here: trials since this run began.
        seconds: since this run began.
        best_ms, default_ms: medians so far; None before there is one.
        last: the result that was just recorded; None at the start, and where nothing was.
        phase: None while it searches.
        phase_seconds: the longest that the phase may take; None where nothing bounds it.
        limit: seconds until the run is over, whatever is done by then.
        lost: see `Outcome`.
    """

    done: int
    planned: int
    here: int
    seconds: float
    best_ms: float | None
    default_ms: float | None
    last: TrialResult | None
    phase: Phase | None = None
    phase_seconds: float | None = None
    limit: float = math.inf
    lost: tuple[str, ...] = ()

    @property
    def failure(self) -> str:
        """Why the last trial was not timed; empty where it was."""
        return "" if self.last is None or self.last.status.timed else told(self.last)

    @property
    def per_second(self) -> float:
        """Trials a second since this run began."""
        return self.here / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Until the planned trials are done, at this run's rate, or the run is over."""
        return min((self.planned - self.done) / self.per_second, self.limit) if self.per_second else None


@dataclass(frozen=True)
class Outcome:
    """A study's findings so far.

    Attributes:
        counts: trials by status, all runs.
        comparison: None where nothing was correct or the run was cut short.
        proven: every valid configuration has been measured, so the best is the best there is.
        refusals: the first line of each kind of failure and how often it came, in this run.
        sanitizer: what compute-sanitizer was asked about the winner, or why it was not; empty without a winner.
        default_ms: the default configuration's median among the trials; None where there is none.
        confirmed: what the winner was asked across the gate's boundary, or why it was not; empty without a winner.
        unasked: what there was no time for; `tunebench confirm` asks it.
        repeats: configurations that this run evaluated although another process had just recorded them; none, unless a
            claim was lost with the session of a server.
        lost: devices that this run could not go on with, and why; it went on with the others.
        left_out: configurations that were not tried, since they round as others do that were too far off.
        seconds: of this run.
    """

    trials: int
    space_size: int
    counts: Mapping[TrialStatus, int]
    best: PastTrial | None
    comparison: Comparison | None
    ending: Ending
    proven: bool
    refusals: Mapping[str, int]
    sanitizer: str
    seconds: float
    default_ms: float | None = None
    confirmed: str = ""
    unasked: tuple[str, ...] = ()
    repeats: int = 0
    lost: tuple[str, ...] = ()
    left_out: int = 0
