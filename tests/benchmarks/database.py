"""How fast the results database answers when it is large: `python -m tests.benchmarks.database`.

Builds a SQLite file of a million trials (once; it is kept for the next run with the same size), asks each question
several times on an open database, and prints the median and the fastest time of each in milliseconds. Rows are inserted
in bulk with SQL, not through studies: what is measured is reading.
"""

from __future__ import annotations

import functools
import json
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from tunebench.db.connection.database import Database, open_database, upgrade_database
from tunebench.db.connection.engine import for_writing, locate, make_engine
from tunebench.db.entries.writer import Writer
from tunebench.db.queries.trials import Order, best, trials
from tunebench.db.schema.documents import comparison_columns, trial_columns
from tunebench.kernels.runtime.selection import recorded_offers
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import Device, DeviceKind
from tunebench.tuner.environment import Environment
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import TrialStatus

KERNELS = 5
SOURCES = 2
PROBLEMS = 10
DEVICES = 5
"""Kernels × sources × problems × devices are the 500 rows of an unfiltered `best`; the studies share these evenly."""

_CONFIGURATIONS = 2_000
_SAMPLES = 20
_MOMENT = "2026-01-01T00:00:00.000000+00:00"


_IN_SQL = {
    "best on a device": "SELECT kernel, problem, configuration, median_ms, over_reference, over_reference_low "
    "FROM best WHERE device = 'GPU 1'",
    "leaderboard of a problem": "SELECT place, times_fastest, configuration, registers FROM leaderboard "
    "WHERE kernel = 'kernel_1' AND problem ->> '$.axes.rows' = 4096 AND place <= 10",
    "trials by status": "SELECT status, count(*), min(message) FROM trials_flat GROUP BY status",
    "a tunable against the time": "SELECT configuration ->> 'block', min(median_ms) FROM trials_flat "
    "WHERE kernel = 'kernel_1' AND status = 'correct' GROUP BY 1",
}
"""The questions of docs/database.md."""


@dataclass(frozen=True)
class Timing:
    """How long a question took, milliseconds, and how many rows answered it.

    Attributes:
        cpu_ms: the least that this process computed for it, which on busy cores says more than how long it took.
    """

    question: str
    rows: int
    median_ms: float
    fastest_ms: float
    cpu_ms: float


def build(file: Path, studies: int, trials_each: int) -> None:
    """Make a database of that many studies with that many trials each; four in five are correct."""
    upgrade_database(file)
    _add_parts(file)
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -500000")
        connection.execute("BEGIN")
        keys = (
            (Configuration({"block": 32 * n, "hint": "streaming", "unroll": n % 2 == 0}).key,)
            for n in range(_CONFIGURATIONS)
        )
        connection.executemany("INSERT INTO tunebench_configurations (key) VALUES (?)", keys)
        connection.executemany(
            "INSERT INTO tunebench_studies (id, origin_id, kernel, source_digest, space_digest, problem_id, device_id, "
            "compiler, sampler, seed, begun_at) VALUES (?, 1, ?, ?, 'space', ?, ?, 'nvrtc', 'gp', ?, ?)",
            (_study(number) for number in range(studies)),
        )
        count = studies * trials_each
        names = ("id", "study_id", "number", "configuration_id", "environment_id", "recorded_at", "document")
        connection.executemany(
            _inserting("trials", (*names, *trial_columns(_document(0)))),
            (_trial(number, trials_each) for number in range(count)),
        )
        _add_comparisons(connection)
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _add_parts(file: Path) -> None:
    """The parts that studies share get the numbers from 1 on, by way of the first studies themselves."""
    engine = make_engine(locate(file))
    with for_writing(engine).begin() as connection:
        writer = Writer(connection)
        writer.environment(Environment("0.1.0", "3.11", "2.9", "13.0", "580.1", "nvrtc", "Linux", "host"))
        for number in range(DEVICES):
            writer.device(_device(number))
        for number in range(PROBLEMS):
            writer.problem(_problem(number))
    engine.dispose()


def _device(number: int) -> Device:
    device = Device(DeviceKind.CUDA, 0, "", "sm_90", "", 132, 150_000_000_000, 60_000_000)
    return replace(device, name=f"GPU {number}", uuid=f"GPU-{number}")


def _problem(number: int) -> Problem:
    return Problem({"rows": 1024 * (number + 1), "columns": 8192}, "float32", {"mode": "eval"})


def _study(number: int) -> tuple[object, ...]:
    rest, kernel = divmod(number, KERNELS)
    rest, source = divmod(rest, SOURCES)
    rest, problem = divmod(rest, PROBLEMS)
    seed, device = divmod(rest, DEVICES)
    return number + 1, f"kernel_{kernel}", f"source-{source}", problem + 1, device + 1, seed, _MOMENT


def _at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _is_correct(number: int) -> bool:
    return number % 5 != 3


def _median_ms(number: int) -> float:
    """Spread evenly over 1 to 2 ms, without any order."""
    return 1 + (number * 2_654_435_761 % 2**32) / 2**32


def _inserting(table: str, names: Sequence[str]) -> str:
    return f"INSERT INTO tunebench_{table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"


def _document(number: int) -> dict[str, Any]:
    """A trial as the database keeps it, without a build."""
    rest = {"build_cached": None, "seconds": {}, "late_refusal": None}
    if not _is_correct(number):
        return {"status": "compile", "verdict": None, "measurement": None, "message": "error: no"} | rest
    median_ms = _median_ms(number)
    verdict = {"passed": True, "reason": "", "tolerance": 1e-4, "max_relative": None, "stages": []}
    measurement = {
        "median_ms": median_ms,
        "low_ms": median_ms * 0.99,
        "high_ms": median_ms * 1.01,
        "regime": "cold",
        "clock": "cuda-event",
        "samples_ms": [round(median_ms * (1 + place / 1000), 6) for place in range(_SAMPLES)],
    }
    return {"status": "correct", "verdict": verdict, "measurement": measurement, "message": ""} | rest


def _trial(number: int, trials_each: int) -> tuple[object, ...]:
    study, place = divmod(number, trials_each)
    moment = time.strftime("%Y-%m-%dT%H:%M:%S.000000+00:00", time.gmtime(1_767_225_600 + number * 10))
    document = _document(number)
    start = (number + 1, study + 1, place, (study * 7 + place) % _CONFIGURATIONS + 1, 1, moment, json.dumps(document))
    return *start, *trial_columns(document).values()


def _add_comparisons(connection: sqlite3.Connection) -> None:
    """Every study ended with a comparison, which its fastest trial won."""
    ratios = (("reference", 2.0), ("default", 1.3), ("copy", 0.9))
    won = {
        name: {"ratio": ratio, "low": ratio * 0.99, "high": ratio * 1.01, "rounds": 40, "confidence": 0.95}
        for name, ratio in ratios
    }
    samples = [1.0 + place / 1000 for place in range(40)]
    contenders = {name: {"median_ms": 1.0, "samples_ms": samples} for name in ("best", *won)}
    document = {"contenders": contenders, "speed_ups": won}
    names = ("study_id", "configuration_id", "environment_id", "concluded_at", "document")
    fastest = connection.execute(
        "SELECT study_id, configuration_id, 1, max(recorded_at) FROM (SELECT study_id, configuration_id, "
        "recorded_at, row_number() OVER (PARTITION BY study_id ORDER BY median_ms) AS place FROM tunebench_trials "
        "WHERE status = 'correct') WHERE place = 1 GROUP BY study_id"
    ).fetchall()
    columns = comparison_columns(document)
    connection.executemany(
        _inserting("comparisons", (*names, *columns)),
        ((*row, json.dumps(document), *columns.values()) for row in fastest),
    )


def questions(database: Database) -> Iterator[tuple[str, Callable[[], list[Any]]]]:
    """The questions by the name that they are shown under; the first is none, but what comes before each."""
    yield "opening, for reading", lambda: [open_database(database.name, read_only=True).close()]
    yield "best", lambda: best(database)
    yield "best of a kernel", lambda: best(database, kernel="kernel_1")
    yield "best on a device", lambda: best(database, device="GPU 1")
    yield ("best for a call", lambda: [recorded_offers("kernel_1", "source-1", _problem(3), _device(2), database.name)])
    yield "newest trials", lambda: trials(database)
    yield "trials of a kernel", lambda: trials(database, kernel="kernel_1")
    yield "trials refused by the compiler", lambda: trials(database, status=TrialStatus.COMPILE)
    yield "fastest of a problem", lambda: trials(database, problem=_problem(3), order=Order.FASTEST)
    yield "trials with a value", lambda: trials(database, tunables={"block": 320})
    yield "trials of a study", lambda: trials(database, study_id=1234)
    yield "trials on a device", lambda: trials(database, device="GPU 3")
    yield "trials of a dtype", lambda: trials(database, dtype="float32")
    yield "correct trials of a kernel", lambda: trials(database, kernel="kernel_2", status=TrialStatus.CORRECT)
    yield "fastest of a kernel", lambda: trials(database, kernel="kernel_2", order=Order.FASTEST)
    yield "fastest of all", lambda: trials(database, order=Order.FASTEST)
    yield "trials since a day", lambda: trials(database, since=_at(1_776_000_000))
    yield "trials of an hour", lambda: trials(database, since=_at(1_770_000_000), until=_at(1_770_003_600))
    yield "trials of no status there", lambda: trials(database, status=TrialStatus.TIMEOUT)
    for name, sql in _IN_SQL.items():
        yield f"SQL: {name}", functools.partial(_rows_of, database, sql)


def _rows_of(database: Database, sql: str) -> list[Any]:
    with database.reading() as connection:
        return list(connection.exec_driver_sql(sql))


def measure(database: Database, rounds: int) -> list[Timing]:
    """Ask every question once unmeasured, then `rounds` times."""
    timings = []
    for name, question in questions(database):
        rows, times, computed = len(question()), [], []
        for _ in range(rounds):
            begun, used = time.perf_counter(), time.process_time()
            question()
            times.append((time.perf_counter() - begun) * 1e3)
            computed.append((time.process_time() - used) * 1e3)
        timings.append(Timing(name, rows, statistics.median(times), min(times), min(computed)))
    return timings


def main(
    file: Annotated[Path, typer.Option(help="Where the database is, or is to be made.")] = Path("benchmark.db"),
    studies: Annotated[int, typer.Option(min=1)] = 5_000,
    trials_each: Annotated[int, typer.Option(min=1, max=_CONFIGURATIONS)] = 200,
    rounds: Annotated[int, typer.Option(min=1, help="How often each question is asked.")] = 9,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Build a large database and time questions to it."""
    if not file.exists():
        build(file, studies, trials_each)
    with open_database(file, read_only=True) as database:
        timings = measure(database, rounds)
    if as_json:
        print(json.dumps([asdict(timing) for timing in timings], indent=2))
        return
    print(f"{file}: {file.stat().st_size / 1e6:,.0f} MB")
    for timing in timings:
        print(
            f"{timing.question:32} {timing.rows:6} rows  {timing.median_ms:8.1f} ms  {timing.fastest_ms:8.1f} ms  "
            f"CPU {timing.cpu_ms:8.1f} ms"
        )


if __name__ == "__main__":
    typer.run(main)
