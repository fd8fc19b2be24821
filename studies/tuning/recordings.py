"""Recorded spaces from wherever results are: our own databases and their exports, files of other tuners."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tunebench.db.connection.database import open_database
from tunebench.db.entries.entry import Entry
from tunebench.db.entries.reader import StudyFilter, matching_studies, scan
from tunebench.db.exchange.reading import format_of, read_entries, stem
from tunebench.tuner.errors import UserError
from tunebench.tuner.problem import Problem, told_apart
from tunebench.tuner.search.recorded import Record, RecordedSpace, RecordedSpaceError, recorded_space

_DATABASES = (".db", ".sqlite", ".sqlite3")


def load_spaces(source: str | Path, kernel: str | None = None, study: int | None = None) -> list[RecordedSpace]:
    """The recorded spaces of a file or database; the time of a configuration is the median of its samples.

    A file of another tuner holds one, which is called as the file. A database, or an export of it, has one for each
    kernel, source, problem and device: the study of it with the most configurations. What a study has not tried is not
    in its space.

    Args:
        source: a file, or a SQLAlchemy URL.
        kernel, study: which studies are meant, of a database or its export; None for all. A study's number counts in a
            database only.

    Raises:
        RecordedSpaceError: it has no such space.
        FormatError: the file is of no known format, or has something wrong in it.
        UserError: the database has no such study.
        DatabaseError: the database cannot be read.
    """
    path = Path(source)
    if "://" in str(source) or path.suffix in _DATABASES:
        with open_database(source, read_only=True) as database:
            numbers = matching_studies(database, StudyFilter(kernel, study))
            return _largest(scan(database, numbers), str(source))
    if study is not None:
        raise UserError(f"{source} is no database: --study counts the studies of one")
    form = format_of(path)
    form.require()
    entries = read_entries(path, form)
    if form.foreign:
        return [replace(one, name=stem(path), kernel="") for one in _largest(entries, str(source))]
    return _largest((one for one in entries if kernel in (None, one.study.kernel)), str(source))


def _largest(entries: Iterable[Entry], source: str) -> list[RecordedSpace]:
    """The largest study of each kernel, source, problem and device."""
    by_study: dict[str, list[Record]] = {}
    belongs: dict[str, tuple[str, Problem, str, str]] = {}
    for entry in entries:
        if entry.trial is None:
            continue
        found, measured = entry.study, entry.trial.standing.measurement
        study = repr(found)
        belongs[study] = (found.kernel, found.problem, found.device.name, found.source_digest)
        time_ms = measured.median_ms if measured else math.nan
        by_study.setdefault(study, []).append((entry.trial.result.configuration, time_ms))
    largest: dict[tuple[str, Problem, str, str], list[Record]] = {}
    for study, records in by_study.items():
        if len(records) > len(largest.get(belongs[study], ())):
            largest[belongs[study]] = records
    timed = {place: rows for place, rows in largest.items() if any(math.isfinite(time_ms) for _, time_ms in rows)}
    if not timed:
        raise RecordedSpaceError(f"{source} has no study with a configuration that was timed")
    problems = told_apart((f"{kernel} {device} {source}", problem) for kernel, problem, device, source in timed)
    return [
        recorded_space(f"{kernel} ({problem}) on {device}", rows, kernel)
        for ((kernel, _, device, _), rows), problem in zip(timed.items(), problems, strict=True)
    ]
