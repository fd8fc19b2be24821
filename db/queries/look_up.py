"""The query of a look-up at run time: a kernel's best configurations, and the problems that they were best at.

A SQLite file is asked through the standard library alone: importing SQLAlchemy takes longer than the rest of a first
forward. The statement is the same for every database, and what is best is the view's own business.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tunebench.db.connection.location import file_named, missing
from tunebench.db.connection.reading import read_file
from tunebench.db.entries.decode import configuration_of, json_of, problem_of, speed_up_of, text_of
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.problem import Problem
from tunebench.tuner.versions import Versions

Decoded = TypeVar("Decoded")

_BEST = """
SELECT
    confirmed_at IS NOT NULL, trial, key, tunebench_problems.dtype, CAST(axes AS TEXT), CAST(options AS TEXT), device,
    architecture, configuration, best.over_reference, best.over_reference_low, best.over_reference_high,
    best.over_compiled, best.over_compiled_low, best.over_compiled_high,
    measured.torch, measured.cuda, measured.cudnn, measured.driver
FROM best JOIN tunebench_problems ON key = problem
JOIN tunebench_trials ON tunebench_trials.id = trial
LEFT JOIN tunebench_comparisons AS won ON won.study_id = study
    AND won.configuration_id = tunebench_trials.configuration_id AND won.concluded_at = confirmed_at
JOIN tunebench_environments AS measured ON measured.id = coalesce(won.environment_id, tunebench_trials.environment_id)
WHERE kernel = :kernel AND source_digest = :source_digest AND best.dtype = :dtype AND architecture = :architecture
ORDER BY confirmed_at IS NULL, best.regime <> 'cold', coalesce(confirmed_at, best.recorded_at) DESC
"""
_STATE = "SELECT * FROM best WHERE substr(kernel, 1, :length) = :beginning ORDER BY trial"
_BUSY_SECONDS = 1.0


@dataclass(frozen=True)
class KnownBest:
    """A configuration that was best at a problem on a kind of device.

    Attributes:
        over_reference: how many times faster than the reference it was, and the interval of that; None where no
            conclusive comparison says so.
        over_compiled: the same over the reference under torch.compile.
        versions: in force in the comparison that it won, or when it was tried where there is none.
    """

    trial_id: int
    problem: Problem
    device_name: str
    architecture: str
    configuration: Configuration
    over_reference: tuple[float, float, float] | None
    over_compiled: tuple[float, float, float] | None
    versions: Versions


def known_best(
    kernel: str, source_digest: str, dtype: str, architecture: str, url_or_path: str | Path | None = None
) -> list[KnownBest]:
    """Return the best of every problem of a dtype on every device of an architecture, for one version of a kernel.

    Confirmed ones come first, then those with cold caches (which is what a call in a larger program meets), then the
    newer ones.

    Args:
        url_or_path: the database; None for the one that `open_database` would open.

    Raises:
        DatabaseMissingError: there is no such file.
    """
    asked = {"kernel": kernel, "source_digest": source_digest, "dtype": dtype, "architecture": architecture}
    return _asked(_BEST, asked, url_or_path, _decoded)


def state_of_best(beginning: str) -> str:
    """Return a text that changes with what is best of the kernels whose names begin like this.

    Raises:
        DatabaseMissingError: there is no database.
    """
    asked: dict[str, str | int] = {"beginning": beginning, "length": len(beginning)}
    return _asked(_STATE, asked, None, lambda rows: repr([*map(tuple, rows)]))


def _asked(
    statement: str,
    asked: Mapping[str, str | int],
    url_or_path: str | Path | None,
    decoded: Callable[[Iterable[Any]], Decoded],
) -> Decoded:
    """Return what the database answers to a statement."""
    file = file_named(url_or_path)
    if file is not None and not os.path.lexists(file):
        raise missing(str(file))
    if file is not None and file.is_file():
        # Whatever is in the way of an answer is in the way below, too, where there are words for it.
        with suppress(sqlite3.Error, UnicodeDecodeError), closing(read_file(file, _BUSY_SECONDS)) as connection:
            connection.execute("PRAGMA trusted_schema = 0")
            return decoded(connection.execute(statement, asked).fetchall())
    from sqlalchemy import text

    from tunebench.db.connection.database import open_database

    with open_database(url_or_path, read_only=True) as database, database.reading() as connection:
        return decoded(connection.execute(text(statement), asked))


def _decoded(rows: Iterable[Any]) -> list[KnownBest]:
    return [
        KnownBest(
            trial,
            problem_of(key, dtype, json_of(axes, "a problem"), json_of(options, "a problem")),
            device,
            architecture,
            configuration_of(configuration),
            speed_up_of(*figures[:3]) if confirmed else None,
            speed_up_of(*figures[3:6]) if confirmed else None,
            Versions(*map(text_of, figures[6:])),
        )
        for confirmed, trial, key, dtype, axes, options, device, architecture, configuration, *figures in rows
    ]
