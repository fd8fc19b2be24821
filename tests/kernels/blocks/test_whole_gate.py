"""Models made from blocks go through the whole gate, as `tunebench check` runs it."""

from __future__ import annotations

from pathlib import Path

import pytest
from one_file import write
from test_rows import LAYER, LAYER_BLOCK, LOGSUMEXP, LOGSUMEXP_BLOCK, RMS, RMS_BLOCK, SOFTMAX, SOFTMAX_BLOCK

from tunebench.studies.checking.check import check
from tunebench.studies.checking.request import CheckRequest

MADE = "\ndef get_init_inputs():\n    return [33]\n"
CASES = {
    "softmax": (SOFTMAX, SOFTMAX_BLOCK, ""),
    "rms": (RMS, RMS_BLOCK, MADE),
    "layer": (LAYER, LAYER_BLOCK, f"{MADE}\ndef get_inputs():\n    return [torch.randn(6, 33), torch.randn(6, 33)]\n"),
    "logsumexp": (LOGSUMEXP, LOGSUMEXP_BLOCK, ""),
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
