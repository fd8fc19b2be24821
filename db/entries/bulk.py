"""Adding many entries in short transactions, each of them once however often and from wherever it comes.

Another writer, such as a running `tune`, waits for one transaction at most, and never for all of them. Where adding is
interrupted, what was added is there, and adding the same entries again adds the rest.

What an entry *is* decides whether it is there already: a study is its description and the database it began in, a
trial its configuration in a study with the moment it was recorded and what came of it. Numbers are of one database
only. One study cannot hold two results of one configuration. Where copies of one database were tuned separately, a
second result of a configuration can arrive: it is kept in another study, whose origin is derived from the first study's
in the same way on every machine.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import TypeAlias

from sqlalchemy import Connection, case, func, select, tuple_

from tunebench.db.connection.database import Database
from tunebench.db.entries.entry import Entry, Origin, RecordedComparison, RecordedStudy, RecordedTrial
from tunebench.db.entries.writer import Placed, Writer
from tunebench.db.schema import tables
from tunebench.tuner.result import TrialStatus

_BATCH = 1000
"""Entries in a transaction, which takes some tenths of a second."""

_GAP_SECONDS = 0.12
"""The least time between two transactions on SQLite, where who waits looks every 0.1 s whether he can begin."""

Outcome: TypeAlias = tuple[datetime, str, float | None]
"""The fields that distinguish two results of one configuration in one study: time, status, median in milliseconds."""


@dataclass(frozen=True)
class Added:
    """Counts of what was added, and of the trials that were there already.

    Attributes:
        studies, trials, comparisons: new rows.
        present: trials that were there already.
        conflicts: those of the new trials that are kept under a derived origin, since their study has another result
            of their configuration.
        late_refusals: new ones, of new trials and of those that were there.
    """

    studies: int = 0
    trials: int = 0
    comparisons: int = 0
    present: int = 0
    conflicts: int = 0
    late_refusals: int = 0

    def __add__(self, other: Added) -> Added:
        return Added(*(getattr(self, name) + getattr(other, name) for name in Added.__dataclass_fields__))


def add_entries(database: Database, entries: Iterable[Entry], progress: Callable[[int], None] | None = None) -> Added:
    """Add entries to a database in many short transactions.

    Args:
        progress: called after each transaction with the number of entries looked at.

    Raises:
        Exception: whatever reading the entries raises; those before it were added.
    """
    seen, added, stream = 0, Added(), iter(entries)
    ended = -math.inf
    while batch := list(islice(stream, _BATCH)):
        if database.engine.dialect.name == "sqlite":
            time.sleep(max(0.0, _GAP_SECONDS - (time.monotonic() - ended)))
        with database.writing() as connection:
            added += _Batches(connection).add(batch)
        ended = time.monotonic()
        seen += len(batch)
        if progress is not None:
            progress(seen)
    return added


def derived(origin: Origin) -> Origin:
    """The origin of a study's second results of configurations that it has a result of."""
    return replace(origin, uid=hashlib.sha256(f"another result\n{origin.uid}".encode()).hexdigest()[:32])


class _Batches:
    """Adds entries inside one transaction.

    Attributes:
        _outcomes: by study, the results that it has of the batch's configurations, those that the batch adds included.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._writer = Writer(connection)
        self._next_numbers: dict[int, int] = {}
        self._outcomes: dict[int, dict[int, Outcome]] = {}

    def add(self, batch: Sequence[Entry]) -> Added:
        pairs = [(self._writer.study(entry.study), entry) for entry in batch]
        trials = [(study_id, entry.study, entry.trial) for study_id, entry in pairs if entry.trial is not None]
        numbers = self._writer.configurations([trial.result.configuration.key for _, _, trial in trials])
        self._load({study_id for study_id, _, _ in trials}, numbers.values())
        new: list[Placed] = []
        found: list[Placed] = []
        conflicts = 0
        for study_id, study, trial in trials:
            tried = numbers[trial.result.configuration.key]
            place, is_new = self._place(study_id, study, tried, trial, numbers.values())
            (new if is_new else found).append((place, tried, trial))
            conflicts += is_new and place != study_id
        self._writer.add_trials([*self._numbered(new)])
        comparisons = sum(self._add_comparisons(*one) for one in (*new, *found) if one[2].comparisons)
        refused = sum(one[2].late_refusal is not None for one in new)
        refused += self._refuse([one for one in found if one[2].late_refusal])
        return Added(self._writer.added[tables.Study], len(new), comparisons, len(found), conflicts, refused)

    def _place(
        self, study_id: int, study: RecordedStudy, tried: int, trial: RecordedTrial, configurations: Collection[int]
    ) -> tuple[int, bool]:
        """The study that a trial of a configuration belongs to, and whether it is new there."""
        outcome = _outcome_of(trial)
        while (there := self._outcomes[study_id].get(tried)) is not None:
            if there == outcome:
                return study_id, False
            study = replace(study, origin=derived(study.origin))
            study_id = self._writer.study(study)
            self._load({study_id}, configurations)
        self._outcomes[study_id][tried] = outcome
        return study_id, True

    def _load(self, studies: set[int], configurations: Collection[int]) -> None:
        new = studies - self._outcomes.keys()
        self._outcomes |= {study_id: {} for study_id in new}
        query = select(
            tables.Trial.study_id,
            tables.Trial.configuration_id,
            tables.Trial.recorded_at,
            tables.Trial.status,
            tables.Trial.median_ms,
            # The status that a refused trial was recorded with is in its document alone.
            case((tables.Trial.status == TrialStatus.CORRECTNESS, tables.Trial.document)),
        ).where(tables.Trial.configuration_id.in_(configurations), tables.Trial.study_id.in_(new))
        for study_id, tried, recorded_at, status, median_ms, refused in self._connection.execute(query) if new else ():
            late = refused is not None and refused["late_refusal"] is not None
            recorded = (refused["status"], refused["measurement"]["median_ms"]) if late else (status, median_ms)
            self._outcomes[study_id][tried] = (recorded_at, *recorded)

    def _numbered(self, new: Sequence[Placed]) -> Iterator[Placed]:
        """New trials, each with the number that it had, or its study's next where that one is taken."""
        had = {trial.number for _, _, trial in new} - {None}
        query = select(tables.Trial.study_id, tables.Trial.number).where(
            tables.Trial.study_id.in_({study_id for study_id, _, _ in new}), tables.Trial.number.in_(had)
        )
        taken = {(study_id, number) for study_id, number in self._connection.execute(query)}
        # Numbers that trials of this batch had come first, so that a trial that gets a new one never takes theirs.
        for study_id, _, trial in new:
            if trial.number is not None:
                self._next_numbers[study_id] = max(self._next_number(study_id), trial.number + 1)
        for study_id, configuration_id, trial in new:
            number = trial.number
            if number is None or (study_id, number) in taken:
                number = self._next_number(study_id)
                self._next_numbers[study_id] += 1
            taken.add((study_id, number))
            yield study_id, configuration_id, replace(trial, number=number)

    def _next_number(self, study_id: int) -> int:
        if study_id not in self._next_numbers:
            largest = self._connection.scalar(
                select(func.max(tables.Trial.number)).where(tables.Trial.study_id == study_id)
            )
            self._next_numbers[study_id] = 0 if largest is None else largest + 1
        return self._next_numbers[study_id]

    def _refuse(self, refused: Sequence[Placed]) -> int:
        """Refuse trials that are there, unless they were refused before; how many."""
        if not refused:
            return 0
        place = tuple_(tables.Trial.study_id, tables.Trial.configuration_id)
        refusals = {(study_id, configuration_id): trial.late_refusal for study_id, configuration_id, trial in refused}
        query = select(tables.Trial.id, tables.Trial.study_id, tables.Trial.configuration_id).where(place.in_(refusals))
        found = {number: refusals[study_id, tried] for number, study_id, tried in self._connection.execute(query)}
        return self._writer.refuse({number: one for number, one in found.items() if one is not None})

    def _add_comparisons(self, study_id: int, configuration_id: int, trial: RecordedTrial) -> int:
        """Add the comparisons that are not there yet, and return how many."""
        query = select(tables.Comparison.concluded_at).where(
            tables.Comparison.study_id == study_id, tables.Comparison.configuration_id == configuration_id
        )
        there = set(self._connection.scalars(query))
        new: dict[datetime, RecordedComparison] = {
            one.concluded_at: one for one in trial.comparisons if one.concluded_at not in there
        }
        for comparison in new.values():
            self._writer.add_comparison(study_id, configuration_id, comparison)
        return len(new)


def _outcome_of(trial: RecordedTrial) -> Outcome:
    """Return the fields that distinguish a trial from another one of its configuration in its study."""
    result = trial.result
    return trial.recorded_at, result.status.value, result.measurement.median_ms if result.measurement else None
