"""Everything about one trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import literal, select

from tunebench.db.connection.database import Database
from tunebench.db.connection.engine import first_line
from tunebench.db.entries.entry import BuildFacts, StudyFacts
from tunebench.db.entries.live import comparison_of, device_of, measurement_of, verdict_of
from tunebench.db.entries.reader import reading
from tunebench.db.queries.rows import TrialRow
from tunebench.db.queries.statements import everything_about, fields_of
from tunebench.tuner.device import Device
from tunebench.tuner.environment import Environment
from tunebench.tuner.errors import DatabaseError, UserError
from tunebench.tuner.result import Comparison, Measurement, Verdict


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
        device: its `index` is always 0: where a card sits is not recorded.
        build_cached: for this trial the build came from the build cache.
        build, verdict, measurement: None where the trial ended before. The verdict has the stage of a late refusal; the
            measurement and the comparisons are those that were made before it.
        seconds: what each phase took, by its name.
        comparisons: the newest first.
        warm_start_from: where the study had this configuration from when it began; None where the search proposed it.
    """

    row: TrialRow
    study: StudyFacts
    environment: Environment
    device: Device
    build: BuildFacts | None
    build_cached: bool | None
    verdict: Verdict | None
    measurement: Measurement | None
    seconds: Mapping[str, float]
    comparisons: tuple[WonComparison, ...]
    warm_start_from: str | None = None


def trial_details(database: Database, trial_id: int) -> TrialDetails:
    """Return everything about the trial of that number.

    Raises:
        UserError: there is no such trial.
        DatabaseError: the database cannot be read, or holds what tunebench does not write.
    """
    with reading(database) as reader:
        # A number beyond 64 bits is no trial's; asked for as it is, it would be an error of the driver's.
        found = reader.trial(trial_id) if 0 < trial_id < 2**63 else None
        if found is None:
            raise UserError(f"{database.name} has no trial {trial_id}: 'tunebench trials' lists those that there are")
        study, trial = found
        picked = select(literal(trial_id).label("trial_id")).cte("picked")
        try:
            row = TrialRow(**fields_of(reader.connection.execute(everything_about(picked)).one(), {}))
            verdict = trial.standing.verdict
            return TrialDetails(
                row=row,
                study=study,
                environment=trial.environment,
                device=device_of(study.device),
                build=trial.build,
                build_cached=trial.build_cached,
                verdict=None if verdict is None else verdict_of(verdict),
                measurement=None if trial.measurement is None else measurement_of(trial.measurement),
                seconds=trial.seconds,
                comparisons=tuple(
                    WonComparison(one.concluded_at, one.environment, comparison_of(one, row.configuration))
                    for one in reversed(trial.comparisons)
                ),
                warm_start_from=next(
                    (one.origin for one in study.warm_starts or () if one.configuration == trial.configuration), None
                ),
            )
        except (TypeError, ValueError) as error:
            # The values' own invariants: what breaks them is not of tunebench's writing.
            raise DatabaseError(
                f"{database.name}: trial {trial_id} is not as tunebench writes it: {first_line(error)}"
            ) from error
