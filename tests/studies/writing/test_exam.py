"""The problems of the exam: kernels of a few lines that agree with their references."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.exam.problems import ExamProblem, problems
from benchmarks.exam.table import details, geometric_mean, summary
from known_problems import known_problems
from sampling import slow_but

import tunebench
from tunebench.kernels.runtime.registry import import_model

PROBLEMS = problems(Path(), small=True)
_ON_A_CPU = ("level1_72_transposed3d", "level1_81_transposed2d", "level1_83_of_each_channel")
WRITTEN = [one for one in PROBLEMS if one.group != "plain_convolution" or one.name in _ON_A_CPU]
"""The problems that `new` writes in seconds: it runs the reference, and most convolutions alone take a CPU a minute."""
OF_THEMSELVES = "level1_32_hardtanh"
"""Of numbers between 0 and 1 it is the number itself: a copy of the input would do for what KernelBench draws."""
SAMPLE = [one for one in PROBLEMS if one.name == OF_THEMSELVES] + random.Random(0).sample(WRITTEN, 1)
"""The others are asked by `python -m tests.benchmarks.exam.check`."""


BLOCKS = {"linear": "Linear", "linear_rows": "Linear", "rows": "Rows", "pointwise": "Pointwise", "convolution": "Conv"}
BLOCKS |= {"product": "Linear", "plain_convolution": "Conv"}


@pytest.mark.parametrize("problem", slow_but(WRITTEN[::48], WRITTEN), ids=lambda one: one.name)
def test_new_writes_a_few_lines_that_tell_problems_apart(problem: ExamProblem, tmp_path: Path) -> None:
    problem = replace(problem, folder=tmp_path)
    made = problem.write()
    if (
        problem.name == "level1_100_hinge_loss"
    ):  # a mean of functions of elements is no block, and passes are not few lines
        assert (made.block, made.left) == ("Passes", ())
        return
    assert (made.block, made.left) == (BLOCKS[problem.group], ())
    assert problem.lines <= 15
    model = import_model(str(problem.path))
    assert model.kernel.name == problem.name
    assert [base.__name__ for base in model.__bases__] == [BLOCKS[problem.group], "Model"]
    assert "tunebench" not in problem.problem.reference
    assert len(known_problems(model, seed=len(problem.name))) > 3


@pytest.mark.slow
@pytest.mark.parametrize("problem", SAMPLE, ids=lambda one: one.name)
def test_the_gate_passes(problem: ExamProblem, tmp_path: Path) -> None:
    problem = replace(problem, folder=tmp_path)
    problem.write()
    for report in tunebench.check(problem.path, sizes=problem.sizes, device="cpu"):
        assert report.verdict.passed, report.verdict.reason


def test_sizes_are_kernelbenchs_where_they_fit() -> None:
    large = {problem.name: problem.sizes for problem in problems(Path()) if problem.sizes}
    assert large["level1_19_relu"] == {"batch_size": 2048} and "level2_4_mish_mish" not in large
    assert all(sizes.keys() == {"batch_size"} for sizes in large.values())


def test_tables_have_means_by_class() -> None:
    assert geometric_mean([1.0, 4.0]) == 2.0
    row = {
        "name": "level1_19_relu",
        "group": "pointwise",
        "lines": 3,
        "over_eager": [2.0, 1.9, 2.1],
        "over_compile": [1.0, 0.99, 1.01],
        "share": 0.93,
        "bound": "read rate",
        "right": 5,
        "kernelbench_eager_ms": 3.0,
        "kernelbench_tuned_ms": 1.5,
    }
    other = {**row, "name": "level1_20_leaky_relu", "over_eager": [8.0, 7.9, 8.1], "over_compile": None, "right": 4}
    assert "| pointwise | 2 | 1 of 2 | 4 | 1 | 2 | 3 to 3 |" in summary([row, other])
    assert "| 1.19 relu | 2 [1.9, 2.1] | 1 [0.99, 1.01] | 93% of read rate | 5 | 2 | 3 |" in details([other, row])
