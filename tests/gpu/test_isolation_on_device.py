"""Variants that leave a GPU unusable for their process: rows, and a study that goes on."""

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
from sample_kernel import WriteKernel

from tunebench.db.connection.database import open_database
from tunebench.db.queries.trials import trials
from tunebench.studies.tuning.resolved import make_evaluator, resolve
from tunebench.studies.tuning.study_file import request_of
from tunebench.studies.tuning.tune import tune
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.device import find_device
from tunebench.tuner.kernel import Mode
from tunebench.tuner.result import Baseline, TrialStatus
from tunebench.tuner.study.worker import WorkerEvaluator

pytestmark = pytest.mark.gpu

WEIGH = "y[i] = x[i] * weight[0];"
BREAK = {
    "illegal address": ("*reinterpret_cast<volatile int*>(variety) = 0;", TrialStatus.RUNTIME),
    "misaligned address": (
        "*reinterpret_cast<volatile int*>(reinterpret_cast<char*>(y) + 1) = 0;",
        TrialStatus.RUNTIME,
    ),
    "trap": ("__trap();", TrialStatus.RUNTIME),
    "endless loop": ("for (volatile int spin = 0; variety == 1;) { spin = spin + 1; }", TrialStatus.TIMEOUT),
}


@pytest.fixture
def evaluators() -> Iterator[list[WorkerEvaluator]]:
    """Evaluators that end with the test."""
    started: list[WorkerEvaluator] = []
    yield started
    for evaluator in started:
        evaluator.close()


@pytest.mark.parametrize("name", BREAK)
def test_a_broken_variant_is_a_row_and_the_next_one_is_right(
    name: str, write_kernel: WriteKernel, evaluators: list[WorkerEvaluator], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunebench.tuner.study.worker.EVALUATE_SECONDS", 10.0)
    statement, status = BREAK[name]
    factory = write_kernel(source={WEIGH: f"if (variety == 1) {{ {statement} }} {WEIGH}"})
    request = request_of(str(factory.kernel.folder), {"device": "cuda"})
    evaluator = WorkerEvaluator(functools.partial(make_evaluator, request, Mode.EVAL))
    evaluators.append(evaluator)
    space = factory.kernel.space.enumerate(evaluator.problem, evaluator.device)
    compiler = compiler_for(find_device("cuda"))
    for number, expected in ((1, status), (0, TrialStatus.CORRECT)):
        variant = factory.kernel.variant(space[number], evaluator.problem, evaluator.device.architecture)
        result = evaluator.evaluate(space[number], BuildCache().build(compiler, variant))
        assert result.status is expected, result.message


def test_a_third_of_all_variants_crashes_and_the_study_ends(write_kernel: WriteKernel, tmp_path: Path) -> None:
    statement = BREAK["illegal address"][0]
    factory = write_kernel(source={WEIGH: f"if (variety == 1) {{ {statement} }} {WEIGH}"})
    request = request_of(str(factory.kernel.folder), {"device": "cuda", "sampler": "exhaustive"})
    with open_database(tmp_path / "results.db") as database:
        (report,) = tune(resolve(request), database)
        failed = trials(database, status=TrialStatus.RUNTIME, limit=None)
    assert {row.configuration["variety"] for row in failed} == {1}
    assert len(failed) == 11
    assert report.outcome.trials == 33
    assert all("CUDA" in row.message for row in failed)
    comparison = report.outcome.comparison
    assert comparison is not None and Baseline.COMPILED in comparison.speedups, comparison
