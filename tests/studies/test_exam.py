"""The problems of the exam: kernels of a few lines that agree with their references."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from benchmarks.exam.problems import CLASSES, SMALL, ExamProblem, at_small, paths, problems
from benchmarks.exam.table import details, geometric_mean, summary
from sampling import slow_but

import tunebench
from tunebench.kernels.runtime.registry import load_model

PATHS = [path for group in CLASSES for path in paths(group)]
OF_THEMSELVES = "level1_32_hardtanh"
"""Of numbers between 0 and 1 it is the number itself: a copy of the input would do for what KernelBench draws."""
SAMPLE = [one for one in PATHS if one.stem == OF_THEMSELVES] + random.Random(0).sample(PATHS, 2)
"""The others are as quick to ask: `python -m tests.benchmarks.exam.check`."""


@pytest.mark.parametrize("path", slow_but(PATHS[::12], PATHS), ids=lambda one: one.stem)
def test_a_kernel_is_a_few_lines_and_its_problem_stands_alone(path: Path, tmp_path: Path) -> None:
    problem = ExamProblem(path, "", {})
    assert problem.lines <= 15
    assert load_model(str(path)).kernel.name == problem.name
    file = tmp_path / "reference.py"
    file.write_text(problem.reference_text, encoding="utf-8")
    assert "tunebench" not in problem.reference_text
    left = tunebench.new(tmp_path / "anew", problem=file).left
    assert left == (("mean",) if problem.name == "level1_100_hinge_loss" else ())


@pytest.mark.slow
@pytest.mark.parametrize("path", SAMPLE, ids=lambda one: one.stem)
def test_the_gate_passes(path: Path) -> None:
    for report in tunebench.check(path, sizes=at_small(path), device="cpu"):
        assert report.verdict.passed, report.verdict.reason


def test_sizes_are_kernelbenchs_where_they_fit() -> None:
    for problem in problems():
        assert problem.sizes.keys() <= {"batch_size"}, problem.name
    assert SMALL


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
