"""Problems like KernelBench's: `new` makes a few lines of each, which agree with the reference."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import pytest
from benchmarks.known_kernels import BenchProblem, bench_problems, small
from known_problems import known_problems
from sampling import slow_but

import tunebench
from tunebench.kernels.runtime.registry import import_model

_ON_A_CPU = ("level1_72_transposed3d", "level1_81_transposed2d", "level1_83_of_each_channel")
WRITTEN = [one for one in bench_problems().values() if one.group != "plain_convolution" or one.name in _ON_A_CPU]
"""The problems that `new` writes in seconds: it runs the reference, and most convolutions alone take a CPU a minute."""
OF_THEMSELVES = "level1_32_hardtanh"
"""KernelBench draws numbers between 0 and 1 for it, and of those it returns the input: a copy would do."""
SAMPLE = [bench_problems()[OF_THEMSELVES], *random.Random(0).sample(WRITTEN, 1)]

BLOCKS = {"linear": "Linear", "linear_rows": "Linear", "rows": "Rows", "pointwise": "Pointwise", "convolution": "Conv"}
BLOCKS |= {"product": "Linear", "plain_convolution": "Conv"}


@pytest.mark.parametrize("problem", slow_but(WRITTEN[::48], WRITTEN[::3]), ids=lambda one: one.name)
def test_new_writes_a_few_lines_that_tell_problems_apart(problem: BenchProblem, tmp_path: Path) -> None:
    made = problem.write(tmp_path)
    if problem.name == "level1_100_hinge_loss":
        # a mean of functions of elements is no block, and passes are not few lines
        assert made.block == "Passes"
        return
    assert made.block == BLOCKS[problem.group]
    (written,) = (
        one for one in ast.parse((made.folder / "model.py").read_text("utf-8")).body if isinstance(one, ast.ClassDef)
    )
    assert written.end_lineno is not None and written.end_lineno - written.lineno <= 13
    model = import_model(str(made.folder))
    assert model.kernel.name == problem.name
    assert [base.__name__ for base in model.__bases__] == [BLOCKS[problem.group], "Model"]
    assert "tunebench" not in problem.reference
    assert len(known_problems(model, seed=len(problem.name))) > 3


@pytest.mark.slow
@pytest.mark.parametrize("problem", SAMPLE, ids=lambda one: one.name)
def test_the_gate_passes(problem: BenchProblem, tmp_path: Path) -> None:
    for report in tunebench.check(problem.write(tmp_path).folder, sizes=small(problem), device="cpu"):
        assert report.verdict.passed, report.verdict.reason
