"""A model made from a block, as one file in KernelBench's form: its host code runs the kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from one_file import CPU, load
from test_rows import LOGSUMEXP, LOGSUMEXP_BLOCK, SOFTMAX, SOFTMAX_BLOCK

from tunebench.kernels.runtime.shipped import ShippedResult
from tunebench.studies.writing.export.write import Evidence, file_text, layout_of
from tunebench.tuner.build import Within
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.kernel import Mode


@pytest.mark.parametrize(
    ("model", "block", "keep"), [(SOFTMAX, SOFTMAX_BLOCK, "registers"), (LOGSUMEXP, LOGSUMEXP_BLOCK, "split")]
)
def test_its_host_code_runs_the_kernel(
    model: str, block: str, keep: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory = load(tmp_path / "rows.py", "blocks.Rows", model, block)
    (tmp_path / "rows.py").write_text(
        (tmp_path / "rows.py").read_text(encoding="utf-8").replace("6, 33", "6, 2048"), encoding="utf-8"
    )
    kernel = factory.kernel
    layout = layout_of(factory, kernel.reference(), Mode.EVAL)
    problem = layout.problem
    assert problem is not None and problem.axes == {"rows": 6, "features": 2048}
    configuration = kernel.space.choose({"keep": keep}, problem, CPU)
    result = ShippedResult(dict(problem.axes), problem.dtype, {}, dict(configuration), {}, 1.0, None, {})
    text = file_text(factory, Evidence(result, "a card", "sm_90", "trial 1", kernel.digest), layout)
    assert "design" not in text and "Kernel.declare" not in text
    context: dict[str, Any] = {}
    exec((tmp_path / "rows.py").read_text(encoding="utf-8").split("class ModelNew")[0], context)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    exec(text, context)
    plan = build_plan(kernel, configuration, problem, CPU, compiler_for(CPU))
    x, made = torch.randn(6, 2048), context["ModelNew"]()
    with torch.no_grad():
        assert torch.allclose(made.tuned_forward(plan, x), made.reference_forward(x), rtol=1e-5, atol=1e-6)


PRODUCT = (
    "Linear",
    "def forward(self, x, y):\n    return F.relu(x.mT @ y)",
    'layer = "x.T @ y"\nfunction = "relu(value)"',
    "torch.randn(40, 12), torch.randn(40, 9)",
)
ATTENTION = (
    "Attention",
    "def forward(self, q, k, v):\n    return F.scaled_dot_product_attention(q, k, v, scale=0.5)",
    'tensors = ("q", "k", "v")\nscale = 0.5',
    "torch.randn(2, 3, 5, 8), torch.randn(2, 3, 9, 8), torch.randn(2, 3, 9, 8)",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "values"),
    [*((PRODUCT, {"product": one}) for one in ("fp32", "parts", "stream")), (ATTENTION, {"warps": 2})],
)
def test_the_host_code_of_several_inputs_runs_the_kernel(
    case: tuple[str, str, str, str], values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block, forward, attributes, drawn = case
    factory = load(tmp_path / "inputs.py", f"blocks.{block}", forward, attributes)
    text = (tmp_path / "inputs.py").read_text(encoding="utf-8")
    (tmp_path / "inputs.py").write_text(text.replace("torch.randn(6, 33)", drawn), encoding="utf-8")
    kernel = factory.kernel
    layout = layout_of(factory, kernel.reference(), Mode.EVAL)
    assert layout.problem is not None
    configuration = kernel.space.choose(values, layout.problem, CPU)
    result = ShippedResult(dict(layout.problem.axes), "float32", {}, dict(configuration), {}, 1.0, None, {})
    text = file_text(factory, Evidence(result, "a card", "sm_90", "trial 1", kernel.digest), layout)
    assert "design" not in text and "Kernel.declare" not in text
    context: dict[str, Any] = {}
    exec((tmp_path / "inputs.py").read_text(encoding="utf-8").split("class ModelNew")[0], context)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    exec(text, context)
    context["Within"] = Within  # the plan is not the file's own
    plan = build_plan(kernel, configuration, layout.problem, CPU, compiler_for(CPU))
    given, made = kernel.reference().get_inputs(), context["ModelNew"]()
    with torch.no_grad():
        found, wanted = made.tuned_forward(plan, *given), made.reference_forward(*given)
    assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-3)
