"""Triton sources on a GPU: the cubins that Triton makes, launched by the driver, judged and timed like all others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from triton_kernels import SOFTMAX, TWO_SOURCES, write

import tunebench
from tunebench.kernels.runtime.registry import load_model
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.device import find_device
from tunebench.tuner.errors import ArgumentError, LaunchError
from tunebench.tuner.kernel import Plan
from tunebench.tuner.problem import Problem

pytestmark = pytest.mark.gpu

WIDE = {"(128, 512)": "(4096,)", "columns = 80": "columns = 4096", "rows = 4": "rows = 512"}


def plan_of(file: Path, problem: Problem) -> Plan:
    kernel, device = load_model(str(file)).kernel, find_device("cuda")
    default = kernel.space.default_for(problem, device)
    return build_plan(kernel, default, problem, device, compiler_for(device, None, kernel.languages))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("columns", [4096, 4095])
def test_every_alignment_has_its_binary(tmp_path: Path, dtype: str, columns: int) -> None:
    plan = plan_of(write(tmp_path / "softmax.py", SOFTMAX, WIDE), Problem({"rows": 64, "columns": columns}, dtype))
    memory = torch.randn(64 * columns + 1, dtype=getattr(torch, dtype), device="cuda")
    for start in (0, 1):
        x = memory[start : start + 64 * columns].view(64, columns)
        y = torch.full_like(x, torch.nan)
        plan.launch("softmax", x, y, columns, blocks=64)
        torch.testing.assert_close(y, torch.softmax(x, 1))
    # What has an axis' name need not be what it says: here a part of each row, from rows that follow one another.
    x, y = memory[: 64 * 100].view(64, 100), torch.zeros(64, 100, dtype=memory.dtype, device="cuda")
    plan.launch("softmax", x, y, 100, blocks=64)
    torch.testing.assert_close(y, torch.softmax(x, 1))


def test_a_launch_is_captured_and_wrong_ones_are_refused(tmp_path: Path) -> None:
    plan = plan_of(write(tmp_path / "softmax.py", SOFTMAX, WIDE), Problem({"rows": 64, "columns": 4096}))
    x = torch.randn(64, 4096, device="cuda")
    y = torch.zeros_like(x)
    plan.launch("softmax", x, y, 4096, blocks=64)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.launch("softmax", x, y, 4096, blocks=64)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(y, torch.softmax(x, 1))
    assert plan.resident_blocks("softmax") >= plan.device.multiprocessors
    with pytest.raises(ArgumentError, match=r"takes an int or a bool, not 4096.0"):
        plan.launch("softmax", x, y, 4096.0, blocks=64)
    with pytest.raises(ArgumentError, match=r"it takes 3 arguments \(x, y, columns\), not 2"):
        plan.launch("softmax", x, y, blocks=64)
    with pytest.raises(LaunchError, match="given no threads"):
        plan.launch("softmax", x, y, 4096, blocks=64, threads=128)


def test_a_study_confirms_a_best(tmp_path: Path) -> None:
    file, place = write(tmp_path / "softmax.py", SOFTMAX, WIDE), tmp_path / "results.db"
    (report,) = tunebench.tune(file, trials=3, compile=False, device="cuda", db=place)
    assert report.outcome.comparison is not None and not report.outcome.refusals
    (best,) = tunebench.best("softmax", db=place)
    assert best.compiler == "triton"


def test_both_sources_are_right_on_the_device(tmp_path: Path) -> None:
    file, place = write(tmp_path / "twice.py", TWO_SOURCES, {"n = 300": "n = 1 << 20"}), tmp_path / "results.db"
    (report,) = tunebench.tune(file, trials=6, compile=False, device="cuda", db=place)
    assert not report.outcome.refusals
    rows = tunebench.trials("twice", db=place)
    assert {row.configuration["source"] for row in rows} == {"cuda", "triton"}
    assert {row.status for row in rows} <= {"correct", "pruned"}
