"""Several processes on one study: `python -m tests.benchmarks.one_study --processes 6 --trials 200`.

Each process runs a real study on one database; compiling and timing are replaced by a recorded space's times and by
waiting, so that many processes do not disturb each other on few cores. Printed: the trials, those that two processes
evaluated at the same time, and the best found.
"""

from __future__ import annotations

import multiprocessing
import random
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from tests.benchmarks.writing import _ENVIRONMENT, _study
from tests.table_evaluator import AtOnce, TableEvaluator

from tunebench.db.connection.database import open_database
from tunebench.db.entries.study_log import open_study
from tunebench.kernels.runtime.registry import load_model
from tunebench.studies.tuning.recordings import load_spaces
from tunebench.tuner.build import Build
from tunebench.tuner.compile.building import BuildQueue
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.result import Comparison, TrialResult
from tunebench.tuner.search.recorded import RecordedSpace
from tunebench.tuner.search.strategies import find_sampler
from tunebench.tuner.study.evaluate import NOBODY, Leaders
from tunebench.tuner.study.executor import LocalExecutor
from tunebench.tuner.study.outcome import Budget
from tunebench.tuner.study.study import StudyRun


class Waiting(TableEvaluator):
    """Waits as long as a trial takes, and tells the recorded time."""

    def __init__(self, recorded: RecordedSpace, seconds: float) -> None:
        super().__init__(lambda one: float(recorded.times_ms[recorded.space.require(one)]))
        self._seconds = seconds

    def evaluate(self, configuration: Configuration, build: Build, leaders: Leaders = NOBODY) -> TrialResult:
        """See `LocalEvaluator.evaluate`."""
        time.sleep(self._seconds * random.lognormvariate(0, 0.5))
        return super().evaluate(configuration, build, leaders)

    def compare(self, *_: Any) -> Comparison:
        """End the run: the search is over."""
        raise KeyboardInterrupt


def _recorded(file: Path) -> RecordedSpace:
    (recorded,) = load_spaces(str(file))
    return recorded


def _search(url: str, number: int, space: Path, sampler: str, trials: int, seconds: float) -> tuple[int, float | None]:
    """One process, on a card of its own: configurations that another one had recorded first, and the best time."""
    recorded = _recorded(space)
    with open_database(url) as database, tempfile.TemporaryDirectory() as builds:
        description = _study(0)
        card = replace(description.device, uuid=f"GPU-{number}")
        log = open_study(database, replace(description, device=card), replace(_ENVIRONMENT, device_uuid=card.uuid))
        strategy = find_sampler(sampler)(recorded.space, 0)
        kernel = replace(load_model("scalar_mul").kernel, space=recorded.space.space)
        evaluator = Waiting(recorded, seconds)
        executor = LocalExecutor(kernel, [evaluator], BuildQueue(AtOnce(), BuildCache(Path(builds))))
        outcome = StudyRun(executor, recorded.space, strategy, log).run(Budget(trials))
    return outcome.repeats, outcome.best.median_ms if outcome.best else None


def main(
    space: Annotated[Path, typer.Argument(help="A recorded space, such as convolution_A100_T4.json.gz.")],
    processes: int = 6,
    trials: int = 200,
    sampler: str = "gp",
    seconds: Annotated[float, typer.Option(help="What a trial takes, in the median.")] = 0.25,
    database_url: Annotated[str | None, typer.Option(help="An empty database; default: a SQLite file.")] = None,
    studies: Annotated[int, typer.Option(help="How often the whole is done.")] = 1,
) -> None:
    """Print what each study comes to."""
    optimum_ms = _recorded(space).optimum_ms
    for _ in range(studies):
        with tempfile.TemporaryDirectory() as folder:
            url = database_url or str(Path(folder) / "results.db")
            open_database(url).close()
            begun = time.perf_counter()
            with multiprocessing.get_context("spawn").Pool(processes) as pool:
                asked = [(url, number, space, sampler, trials, seconds) for number in range(processes)]
                ends = pool.starmap(_search, asked, chunksize=1)
            elapsed = time.perf_counter() - begun
            with open_database(url, read_only=True) as database, database.reading() as connection:
                recorded = connection.exec_driver_sql("select count(*) from tunebench_trials").scalar_one()
                begun_studies = connection.exec_driver_sql("select count(*) from tunebench_studies").scalar_one()
                cards = connection.exec_driver_sql(
                    "select count(distinct e.device_uuid) from tunebench_trials t "
                    "join tunebench_environments e on e.id = t.environment_id"
                ).scalar_one()
        repeats = sum(count for count, _ in ends)
        best_ms = min(best for _, best in ends if best is not None)
        print(
            f"{sampler}, {processes} processes: {begun_studies} study, {cards} cards, {recorded} trials "
            f"for a budget of {trials}, {repeats} evaluated twice "
            f"({repeats / (recorded + repeats):.1%}), best/optimum {best_ms / optimum_ms:.3f}, {elapsed:.0f} s"
        )


if __name__ == "__main__":
    typer.run(main)
