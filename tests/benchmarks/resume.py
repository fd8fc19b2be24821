"""How long a study with many trials takes to go on: `python -m tests.benchmarks.resume`.

Writes a study of 20,000 trials into a new database, in bulk and without running anything; then opens it anew for each
strategy, in a process of its own, and goes on with it. Evaluations come back at once: what is left is what the run does
to read its history, to prepare its strategy, and to ask, claim and record. Printed: seconds until the first new trial,
CPU seconds until then and for each of the next (which say more on busy cores), and the peak of the process's memory.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from tests.benchmarks.driver import GPU, Answers
from tests.benchmarks.writing import _ENVIRONMENT, _result, _study
from tests.table_evaluator import AtOnce

from tunebench.db.connection.database import Database, open_database
from tunebench.db.entries.entry import RecordedTrial
from tunebench.db.entries.study_log import open_study
from tunebench.db.entries.writer import Writer
from tunebench.kernels.runtime.registry import load_model
from tunebench.tuner.build import Build
from tunebench.tuner.compile.building import BuildQueue
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import TrialResult, TrialStatus
from tunebench.tuner.search.strategies import find_sampler
from tunebench.tuner.space import SearchSpace, Tunable, ValidSpace
from tunebench.tuner.study.evaluate import NOBODY, Leaders
from tunebench.tuner.study.executor import LocalExecutor
from tunebench.tuner.study.outcome import Budget, Progress
from tunebench.tuner.study.study import StudyRun

_NEW = 5
_BATCH = 2000


_SPACE = SearchSpace(tuple(Tunable(name, (1, 2, 4, 8)) for name in "abcdefgh"))


class _Known(Answers):
    """An evaluator that has every time already."""

    def __init__(self, valid: ValidSpace) -> None:
        rng = np.random.default_rng(0)
        weights = rng.random((valid.indices.shape[1], int(valid.indices.max()) + 2))
        logs = weights[np.arange(len(weights)), valid.indices + 1].sum(axis=1) / 2
        self._times_ms = np.exp(logs) * rng.uniform(1.0, 1.02, len(valid))
        self._valid = valid

    def evaluate(self, configuration: Configuration, build: Build | None, leaders: Leaders = NOBODY) -> TrialResult:
        """A result like a real one; one in eight has failed."""
        del leaders
        number = self._valid.require(configuration)
        if number % 8 == 7:
            return TrialResult(configuration, TrialStatus.COMPILE, message="refused")
        time_ms, result = float(self._times_ms[number]), _result(0, number)
        assert result.measurement is not None
        samples = replace(
            result.measurement, samples_ms=(time_ms,) * 20, median_ms=time_ms, low_ms=time_ms, high_ms=time_ms
        )
        return replace(result, configuration=configuration, build=build or result.build, measurement=samples)


def fill(database: Database, valid: ValidSpace, sampler: str, trials: int) -> None:
    """Record so many trials of a study of that strategy."""
    log, known = open_study(database, replace(_study(0), sampler=sampler), _ENVIRONMENT), _Known(valid)
    chosen = np.random.default_rng(0).permutation(len(valid))[:trials].tolist()
    for start in range(0, trials, _BATCH):
        results = [known.evaluate(valid[number], None) for number in chosen[start : start + _BATCH]]
        with database.writing() as connection:
            writer = Writer(connection)
            numbers = writer.configurations([one.configuration.key for one in results])
            writer.add_trials(
                [
                    (
                        log.study_id,
                        numbers[one.configuration.key],
                        RecordedTrial.of(start + place, one, _ENVIRONMENT, datetime.now(UTC)),
                    )
                    for place, one in enumerate(results)
                ]
            )


def go_on(file: str, sampler: str, trials: int) -> dict[str, object]:
    """Resume the study for a few trials more; what that took."""
    valid = _SPACE.enumerate(Problem({}), GPU)
    kernel = replace(load_model("scalar_mul").kernel, space=_SPACE)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    moments: list[tuple[float, float]] = []

    def note(progress: Progress) -> None:
        if progress.here > len(moments):
            moments.append((time.perf_counter(), time.process_time()))

    begun = (time.perf_counter(), time.process_time())
    with open_database(file) as database, tempfile.TemporaryDirectory() as builds:
        strategy = find_sampler(sampler)(valid, 0)
        log = open_study(database, replace(_study(0), sampler=sampler), _ENVIRONMENT)
        executor = LocalExecutor(kernel, [_Known(valid)], BuildQueue(AtOnce(), BuildCache(Path(builds))))
        StudyRun(executor, valid, strategy, log).run(Budget(trials + _NEW), note)
    return {
        "sampler": sampler,
        "trials": trials,
        "seconds_to_the_first": round(moments[0][0] - begun[0], 2),
        "cpu_seconds_to_the_first": round(moments[0][1] - begun[1], 2),
        "cpu_seconds_for_each_next": round((moments[-1][1] - moments[0][1]) / (len(moments) - 1), 3),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3),
        "peak_mb_before": round(before / 1e3),
    }


def main(
    sampler: Annotated[str, typer.Option(help="Strategies.")] = "gp,tpe,random",
    trials: Annotated[str, typer.Option(help="Recorded trials of each study.")] = "20000",
) -> None:
    """Print a line of JSON for each strategy and number of trials."""
    for count in map(int, trials.split(",")):
        for name in sampler.split(","):
            with tempfile.TemporaryDirectory() as folder:
                file = str(Path(folder) / "results.db")
                with open_database(file) as database:
                    fill(database, _SPACE.enumerate(Problem({}), GPU), name, count)
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    print(json.dumps(pool.apply(go_on, (file, name, count))), flush=True)


if __name__ == "__main__":
    typer.run(main)
