"""How fast results are written, and that none is lost: `python -m tests.benchmarks.writing`.

Three figures on a new database: trials a second in bulk (an import), milliseconds that recording adds to a running
study's trial, and how many of the trials of several processes that write at once are there afterwards.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from tunebench.db.connection.database import open_database
from tunebench.db.entries.bulk import add_entries
from tunebench.db.entries.reader import scan
from tunebench.db.entries.study_log import open_study
from tunebench.db.queries.trials import count_rows
from tunebench.tuner.build import Build, CompilerName, KernelFigures
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import Device, DeviceKind
from tunebench.tuner.environment import Environment
from tunebench.tuner.errors import UserError
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import CacheRegime, ErrorFigures, Measurement, Stage, TrialResult, TrialStatus, Verdict
from tunebench.tuner.study.history import StudyDescription

_ENVIRONMENT = Environment("0.1.0", "3.11", "2.9", "13.0", "580.1", "nvrtc", "Linux", "host")
_DEVICE = Device(DeviceKind.CUDA, 0, "GPU", "sm_90", "GPU-0", 132, 150_000_000_000, 60_000_000)
_LOG = "ptxas info    : Used 32 registers, 368 bytes cmem[0]\n" * 10


def _study(seed: int) -> StudyDescription:
    problem = Problem({"rows": 1024, "columns": 8192}, "float32", {"mode": "eval"})
    return StudyDescription("kernel", "source", "space", problem, _DEVICE, CompilerName.NVRTC, "gp", seed)


def _result(writer: int, number: int) -> TrialResult:
    """A trial with all that a correct one has: a build with its log, a verdict with stages, twenty samples."""
    median_ms = 1 + number / 10_000
    name = f"{writer}-{number}"
    return TrialResult(
        Configuration({"block": number, "hint": "streaming", "writer": writer}),
        TrialStatus.CORRECT,
        Build(name, CompilerName.NVRTC, "13", name.encode(), _LOG, {"f": KernelFigures(32, 0, 0, 0, 0)}, 0.05, False),
        Verdict(
            True,
            (Stage("shapes", True, 0.001), Stage("values", True, 0.02)),
            1e-4,
            ErrorFigures(1e-6, 1e-7, 1e-7, 1e-7, 1e-7),
        ),
        Measurement((median_ms,) * 20, median_ms, median_ms, median_ms, CacheRegime.COLD, "cuda-event"),
        seconds={"compile": 0.05, "check": 0.02, "measure": 0.1},
    )


def _write(url: str, writer: int, trials: int) -> tuple[list[float], str]:
    """Record a study's trials; what each took in milliseconds, and the error that a user would have seen."""
    times = []
    try:
        with open_database(url) as database:
            log = open_study(database, _study(writer), _ENVIRONMENT)
            for number in range(trials):
                result, begun = _result(writer, number), time.perf_counter()
                log.record(result)
                times.append((time.perf_counter() - begun) * 1e3)
    except UserError as error:
        return times, str(error)
    return times, ""


def _summary(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    names = {"median_ms": statistics.median(ordered), "p99_ms": ordered[len(ordered) * 99 // 100]}
    return {name: round(value, 2) for name, value in names.items()}


def main(
    url: Annotated[str | None, typer.Option(help="An empty database; default: a SQLite file that is removed.")] = None,
    processes: Annotated[int, typer.Option(min=1)] = 4,
    trials: Annotated[int, typer.Option(min=1, help="Of each process.")] = 500,
    bulk: Annotated[bool, typer.Option(help="Also import all of it into another SQLite file.")] = True,
) -> None:
    """Write from one process, then from several at once, then in bulk; prints JSON."""
    with tempfile.TemporaryDirectory(prefix="tunebench-") as folder:
        where = url or str(Path(folder, "results.db"))
        alone, error = _write(where, 0, trials)
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            done = pool.starmap(_write, [(where, writer, trials) for writer in range(1, processes + 1)])
        with open_database(where, read_only=True) as database:
            _, there = count_rows(database)
            figures: dict[str, object] = {
                "database": database.url.get_backend_name(),
                "alone": _summary(alone),
                "processes": processes,
                "at_once": _summary([one for times, _ in done for one in times]),
                "recorded": trials * (processes + 1),
                "found": there,
                "errors": [text for text in (error, *(text for _, text in done)) if text],
            }
            if bulk:
                entries = list(scan(database))
                with open_database(Path(folder, "bulk.db")) as target:
                    begun, used = time.perf_counter(), time.process_time()
                    added = add_entries(target, entries)
                    figures["bulk_trials_a_second"] = round(added.trials / (time.perf_counter() - begun))
                    figures["bulk_trials_a_second_of_cpu"] = round(added.trials / (time.process_time() - used))
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    typer.run(main)
