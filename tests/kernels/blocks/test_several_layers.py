"""Several layers of one input, and layers of inputs with more than two dimensions, on the CPU."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from one_file import CPU, load, run
from parts_contract import fictional
from sampling import slow_but
from test_linear import sample

from tunebench.kernels.runtime.shipped import ShippedResult
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.checking.check import check
from tunebench.studies.checking.request import CheckRequest
from tunebench.studies.writing.export.write import Evidence, file_text, layout_of
from tunebench.tuner.build import Within
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.compile.nvrtc import NvrtcCompiler
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.errors import KernelFolderError
from tunebench.tuner.kernel import Mode
from tunebench.tuner.problem import Problem

SWIGLU = """
def __init__(self, bias=True, features=12):
    super().__init__()
    self.gate = nn.Linear(33, 12, bias=not bias)
    self.up = nn.Linear(33, features, bias=bias)

def forward(self, x):
    return F.silu(self.gate(x)) * self.up(x)
"""
BLOCK = 'layer = "gate"\nother_layers = ("up",)\nfunction = "silu(value) * up"'
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
AXES = {"rows": 1024, "in_features": 512, "out_features": 512}


@pytest.fixture(scope="module")
def swiglu(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load(tmp_path_factory.mktemp("swiglu") / "swiglu.py", "blocks.Linear", SWIGLU, BLOCK)


def configurations(model: TunedModule, *given: torch.Tensor) -> list[Configuration]:
    """One of each product that the space of a call has, and for frozen models one that keeps parts of weights."""
    problem = model.problem(*given)
    assert problem is not None, model.reason
    asked: list[dict[str, Any]] = [{"product": "fp32"}]
    if problem.dtype == "float32":
        asked.append({"product": "stream", "stream_weight": "parts" if model.is_frozen else "whole"})
        asked += [{"product": "parts", "pieces": pieces, "corrections": "half"} for pieces in (1, 4)]
    return [model.kernel.space.choose(one, problem, CPU) for one in asked]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_product_joins_them(swiglu: Any, dtype: torch.dtype, *, bias: bool) -> None:
    model, x = swiglu(bias).to(dtype), torch.randn(9, 33).to(dtype)
    with torch.no_grad():
        wanted = copy.deepcopy(model).double().reference_forward(x.double())
    for configuration in configurations(model, x):
        found = run(model, configuration, x)
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)


def test_a_frozen_model_follows_each_weight(swiglu: Any) -> None:
    model, x = swiglu().freeze(), torch.randn(9, 33)
    _, stream, *_ = configurations(model, x)
    with torch.no_grad():
        for change in (lambda: model.up.weight.mul_(2.0), model.gate.weight.neg_, lambda: None):
            change()
            found = run(model, stream, x)
            torch.testing.assert_close(found, model.reference_forward(x), rtol=1e-3, atol=1e-3)
            kept = dict(model._derived._entries)
            assert kept.keys() == {"streamed weight", "streamed weight of up"}
            assert torch.equal(model(x), found)
            assert all(kept[name] is entries for name, entries in model._derived._entries.items())


@pytest.mark.slow
@pytest.mark.parametrize("transposed", [".T", ""])
def test_weights_may_be_parameters(tmp_path: Path, transposed: str) -> None:
    sizes = "12, 33" if transposed else "33, 12"
    text = f"""
def __init__(self):
    super().__init__()
    self.left = nn.Parameter(torch.randn({sizes}))
    self.right = nn.Parameter(torch.randn({sizes}).t().contiguous().t())

def forward(self, x):
    return torch.tanh(x @ self.left{transposed}) * (x @ self.right{transposed})
"""
    block = f'layer = "x @ left{transposed}"\nother_layers = ("right",)\nfunction = "tanh(value) * right"'
    model, x = load(tmp_path / "parameters.py", "blocks.Linear", text, block)(), torch.randn(9, 33)
    for configuration in configurations(model, x):
        torch.testing.assert_close(run(model, configuration, x), model.reference_forward(x), rtol=1e-4, atol=1e-4)


def test_layers_of_other_sizes_are_the_references(swiglu: Any) -> None:
    model = swiglu(features=1)
    assert model.problem(torch.randn(6, 33)) is None
    assert model.reason == "'out_features' is 1 in 'up.weight' and 12 before it"
    x = torch.randn(6, 33)
    torch.testing.assert_close(model(x), model.reference_forward(x))


def test_halves_are_one_kernel_where_a_tile_has_features_of_each(tmp_path: Path, swiglu: Any) -> None:
    assert swiglu.kernel.work(Problem(AXES, "float32", {"mode": "eval"})).operations == 4 * 1024 * 512 * 512
    names = ("up", "left", "right")
    columns = {}
    for layers in (2, 3, 4):
        function = "value * " + " * ".join(names[: layers - 1])
        block = f'layer = "gate"\nother_layers = {names[: layers - 1]!r}\nfunction = "{function}"'
        space = load(tmp_path / f"of_{layers}.py", "blocks.Linear", SWIGLU, block).kernel.space
        for dtype in ("bfloat16", "float32"):
            valid = space.enumerate(Problem(AXES, dtype, {"mode": "eval"}), fictional("sm_90"))
            fused = [one for one in map(valid.__getitem__, range(len(valid))) if one["product"] == "fused"]
            columns[layers, dtype] = {(one["product_columns"], one["product_cluster"]) for one in fused}
    both = {(256, 2), (256, 1), (128, 2), (128, 1)}
    assert columns[2, "bfloat16"] == columns[2, "float32"] == columns[3, "float32"] == both
    assert columns[3, "bfloat16"] == set()
    assert columns[4, "bfloat16"] == both - {(128, 2)}


@pytest.mark.parametrize("architecture", slow_but(["sm_80"], ARCHITECTURES))
@pytest.mark.parametrize("dtype", slow_but(["float16"], ["float16", "bfloat16", "float32"]))
def test_every_generation_builds_it(nvrtc: NvrtcCompiler, swiglu: Any, architecture: str, dtype: str) -> None:
    kernel, problem = swiglu.kernel, Problem(AXES, dtype, {"mode": "eval"})
    asked = {"product": "fused" if architecture == "sm_90" else "fp32"}
    configuration = kernel.space.choose(asked, problem, fictional(architecture))
    build = nvrtc.compile(kernel.variant(configuration, problem, architecture))
    assert build.figures
    if architecture == "sm_90" and dtype != "float32":
        figures = build.figures["half_product"]
        assert (figures.registers, figures.spill_stores, figures.stack) == (168, 0, 0)


SEQUENCES = """
def __init__(self):
    super().__init__()
    self.linear = nn.Linear(33, 8)
    self.scale = nn.Parameter(torch.rand(8))

def forward(self, x, residual):
    return torch.relu(self.linear(x)) * self.scale + residual
"""
OF_SEQUENCES = 'layer = "linear"\nfunction = "relu(value) * scale + residual"\nper_feature = ("scale",)'


@pytest.mark.parametrize("before", [(2, 3), (1, 2, 5)])
def test_dimensions_before_the_last_are_rows(tmp_path: Path, before: tuple[int, ...]) -> None:
    model = load(tmp_path / "sequences.py", "blocks.Linear", SEQUENCES, OF_SEQUENCES)()
    x, residual = torch.randn(*before, 33), torch.randn(*before, 8)
    problem = model.problem(x, residual)
    rows = torch.Size(before).numel()
    assert problem is not None and problem.axes == {"rows": rows, "in_features": 33, "out_features": 8}
    for configuration in sample(model, 2, x, residual):
        found, wanted = run(model, configuration, x, residual), model.reference_forward(x, residual)
        torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2)


def test_sequences_that_lie_otherwise_or_are_broadcast_are_the_references(tmp_path: Path) -> None:
    model = load(tmp_path / "other.py", "blocks.Linear", SEQUENCES, OF_SEQUENCES)()
    x, residual = torch.randn(2, 3, 33), torch.randn(2, 3, 8)
    for other in (
        (x.transpose(0, 1), residual.transpose(0, 1)),
        (x, residual[:, :1]),
        (x, residual[0]),
        (x[:1], residual[0]),
    ):
        assert model.problem(*other) is None
        torch.testing.assert_close(model(*other), model.reference_forward(*other))


def test_rows_of_sequences_are_the_references(tmp_path: Path) -> None:
    text = SEQUENCES.replace(" + residual", ".softmax(1)").replace(", residual", "")
    block = 'layer = "linear"\nfunction = "relu(value)"\nover_rows = "softmax"'
    model, x = load(tmp_path / "rows.py", "blocks.Linear", text, block)(), torch.randn(2, 3, 33)
    assert model.problem(x) is None
    assert model.problem(x[0]) is not None


@pytest.mark.parametrize(
    ("block", "what"),
    [
        ('other_layers = ("up",)', "other_layers: 'up' is used in no text"),
        ('other_layers = "up"\nfunction = "value * up"', 'other_layers: give a dict, such as {"eps": "norm.eps"}'),
        ('other_layers = ("up",)\nfunction = "value * up"\ntriangle = "upper"', "other_layers: give none beside"),
        ('other_layers = ("up",)\nfunction = "value * up"\nbatch_norm_at = "bn"', "other_layers: give none beside"),
    ],
)
def test_what_is_wrong_with_a_class_is_one_line(tmp_path: Path, block: str, what: str) -> None:
    with pytest.raises(KernelFolderError) as caught:
        load(tmp_path / "wrong.py", "blocks.Linear", SWIGLU, f'layer = "gate"\n{block}')
    assert f"ModelNew.{what}" in str(caught.value) and "\n" not in str(caught.value)


def test_other_blocks_have_no_layers(tmp_path: Path) -> None:
    with pytest.raises(KernelFolderError, match="other_layers: this block has no such operands; it has scalars"):
        load(tmp_path / "wrong.py", "blocks.Pointwise", SWIGLU, 'function = "x * up"\nother_layers = ("up",)')


@pytest.mark.slow
@pytest.mark.parametrize("product", ["fp32", "stream"])
def test_its_host_code_runs_the_kernel(product: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    factory = load(tmp_path / "swiglu.py", "blocks.Linear", SWIGLU, BLOCK)
    kernel, layout = factory.kernel, layout_of(factory, factory.kernel.reference(), Mode.EVAL)
    assert layout.problem is not None
    configuration = kernel.space.choose({"product": product}, layout.problem, CPU)
    result = ShippedResult(dict(layout.problem.axes), "float32", {}, dict(configuration), {}, 1.0, None, {})
    text = file_text(factory, Evidence(result, "a card", "sm_90", "trial 1", kernel.digest), layout)
    context: dict[str, Any] = {}
    exec((tmp_path / "swiglu.py").read_text(encoding="utf-8").split("class ModelNew")[0], context)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    exec(text, context)
    context["Within"] = Within  # the plan is not the file's own
    plan = build_plan(kernel, configuration, layout.problem, CPU, compiler_for(CPU))
    x, made = torch.randn(6, 33), context["ModelNew"]()
    with torch.no_grad():
        assert torch.allclose(made.tuned_forward(plan, x), made.reference_forward(x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_gate_passes_them_in_every_mode(tmp_path: Path) -> None:
    load(tmp_path / "swiglu.py", "blocks.Linear", SWIGLU, BLOCK)
    # In bfloat16 the largest error of some inputs is just more than four times torch's, since values are so few.
    reports = check(CheckRequest(str(tmp_path / "swiglu.py"), device="cpu", seed=3))
    assert [report.verdict.passed for report in reports] == [True, True], "\n".join(map(str, reports))
