"""Everything about one trial."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import literal, select

from tunebench.db.connection.database import Database
from tunebench.db.entries.entry import RecordedStudy, RecordedTrial
from tunebench.db.entries.reader import reading
from tunebench.db.queries.rows import TrialRow
from tunebench.db.queries.statements import everything_about, fields_of
from tunebench.tuner.environment import Environment
from tunebench.tuner.errors import UserError
from tunebench.tuner.result import Comparison, Verdict


@dataclass(frozen=True)
class WonComparison:
    """A comparison that a trial's configuration won in its study.

    Attributes:
        concluded_at: UTC.
    """

    concluded_at: datetime
    environment: Environment
    comparison: Comparison


@dataclass(frozen=True)
class TrialDetails:
    """One trial with everything that its result depends on.

    Attributes:
        row: how it stands.
        study: its device's `index` is always 0: where a card sits is not recorded.
        trial: as it was recorded; where it was refused late, with what was measured before.
    """

    row: TrialRow
    study: RecordedStudy
    trial: RecordedTrial

    @property
    def verdict(self) -> Verdict | None:
        """The gate's verdict, with the stage of a late refusal; None where the trial ended before it."""
        return self.trial.standing.verdict

    @property
    def comparisons(self) -> tuple[WonComparison, ...]:
        """The comparisons that it has won, the newest first."""
        won = reversed(self.trial.comparisons)
        best = self.row.configuration
        return tuple(WonComparison(one.concluded_at, one.environment, one.won_by(best)) for one in won)

    @property
    def warm_start_from(self) -> str | None:
        """The origin of the configuration where the study began with it; None where the search proposed it."""
        warm_starts, own = self.study.warm_starts or (), self.row.configuration
        return next((one.origin for one in warm_starts if one.configuration == own), None)


def trial_details(database: Database, trial_id: int) -> TrialDetails:
    """Return everything about the trial of that number.

    Raises:
        UserError: there is no such trial.
    """
    with reading(database) as reader:
        # A number beyond 64 bits is no trial's; asked for as it is, it would be an error of the driver's.
        found = reader.trial(trial_id) if 0 < trial_id < 2**63 else None
        if found is None:
            raise UserError(f"{database.name} has no trial {trial_id}: 'tunebench trials' lists those that there are")
        picked = select(literal(trial_id).label("trial_id")).cte("picked")
        row = reader.connection.execute(everything_about(picked)).one()
        return TrialDetails(TrialRow(**fields_of(row, {})), *found)
