"""Models made from blocks go through the whole gate, as `tunebench check` runs it."""

from __future__ import annotations

from pathlib import Path

import pytest
from one_file import write
from test_rows import LAYER, LAYER_BLOCK, SOFTMAX, SOFTMAX_BLOCK

from tunebench.studies.checking.check import check
from tunebench.studies.checking.request import CheckRequest

MADE = """
def get_init_inputs():
    return [33]

def get_inputs():
    return [torch.randn(6, 33), torch.randn(6, 33)]
"""
CASES = {
    "softmax": (SOFTMAX, SOFTMAX_BLOCK, ""),
    "layer": (
        LAYER,
        LAYER_BLOCK,
        MADE,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_it_passes(name: str, tmp_path: Path) -> None:
    model, block, end = CASES[name]
    path = write(tmp_path / f"{name}.py", "blocks.Rows", model, block)
    path.write_text(path.read_text(encoding="utf-8") + end, encoding="utf-8")
    (report,) = check(CheckRequest(str(path), device="cpu"))
    assert report.verdict.passed, report.verdict.reason
    assert {"layouts", "not finite", "sizes", "gradients"} <= {stage.name for stage in report.verdict.stages}
