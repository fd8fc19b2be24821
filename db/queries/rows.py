"""Rows that queries of the results database return."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from tunebench.tuner.configuration import Configuration
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import CacheRegime, Decision, Ratio, TrialStatus
from tunebench.tuner.study.history import StudyDescription

FLAT_NAMES = {"trial_id": "trial", "study_id": "study", "device_name": "device"}
"""Fields of a `TrialRow` that the view calls otherwise."""


@dataclass(frozen=True)
class TrialRow:
    """A trial with what it was a trial of: columns of the view `trials_flat` in its order, see `FLAT_NAMES`.

    Attributes:
        trial_id, study_id: numbers in this database; `number` counts within the study.
        device_uuid: of the very card.
        median_ms, low_ms, high_ms, regime: of the search's own samples; None where the trial was not timed.
        recorded_at: UTC.
        message: why it failed; empty for a correct trial.
        over_reference, over_default, over_compiled, over_copy: speed-ups of the newest comparison that this
            configuration won in its study; the last is the share of the memory's ceiling.
        confirmed_at, confirmed_ms: when that was, and its median there; None where it was inconclusive, so that the
            speed-ups are unconfirmed.
    """

    trial_id: int
    study_id: int
    number: int
    kernel: str
    problem: Problem
    device_name: str
    architecture: str
    compiler: str
    status: TrialStatus
    configuration: Configuration
    median_ms: float | None
    low_ms: float | None
    high_ms: float | None
    regime: CacheRegime | None
    over_reference: Ratio | None
    over_default: Ratio | None
    over_compiled: Ratio | None
    over_copy: Ratio | None
    confirmed_at: datetime | None
    confirmed_ms: float | None
    source_digest: str
    sampler: str
    seed: int
    device_uuid: str
    recorded_at: datetime
    message: str

    @property
    def confirmed(self) -> bool:
        """Whether it won an interleaved comparison that was conclusive."""
        return self.confirmed_at is not None

    @property
    def decision(self) -> Decision | None:
        """How it compares with the reference; None where they were not compared."""
        if self.over_reference is None:
            return None
        return self.over_reference.decision if self.confirmed else Decision.INCONCLUSIVE

    @property
    def reference_is_faster(self) -> bool:
        """Whether that comparison found the reference to be faster."""
        return self.decision is Decision.SLOWER

    @property
    def time_ms(self) -> float | None:
        """The time in milliseconds: the median of the comparison that it won, else that of the search."""
        return self.median_ms if self.confirmed_ms is None else self.confirmed_ms


@dataclass(frozen=True)
class BestRow(TrialRow):
    """The best correct trial for one kernel, source, problem, kind of device, compiler and cache regime.

    It is the winner of the newest conclusive comparison, or the lowest median where nothing was confirmed yet.
    """


@dataclass(frozen=True)
class StudyRow(StudyDescription):
    """A study that has trials.

    Attributes:
        study_id: its number in this database.
        trials: how many it has.
        last_at: when the newest of them was recorded; UTC.
    """

    study_id: int
    begun_at: datetime
    trials: int
    last_at: datetime


@dataclass(frozen=True)
class Missed:
    """The calls of one problem that were run without evidence.

    Attributes:
        path: of the kernel's folder or file.
        served: what served the latest of them, and why, such as the scores of a duel; None where nobody said.
    """

    kernel: str
    source_digest: str
    path: str
    problem: Problem
    device_name: str
    architecture: str
    calls: int
    served: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class MissRow(Missed):
    """The same, counted over all processes.

    Attributes:
        first_at, last_at: when the first and the latest of them were written down, UTC.
        tuned: there are results for this very problem now.
    """

    first_at: datetime
    last_at: datetime
    tuned: bool
