"""A kernel of `tunebench new` serves what it is written for, and leaves anything else to the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from small_problems import problem
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import tunebench
from tunebench.kernels.runtime.registry import import_model
from tunebench.studies.writing.new.trace import converted_in_place, trace
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.device import find_device
from tunebench.tuner.reference import load_reference


@pytest.mark.slow
@pytest.mark.parametrize(
    ("forward", "block"),
    [("(x * k).cumsum(-1)", "Passes"), ("(torch.relu(self.fc(x)) * k).cumsum(-1)", "Linear and passes")],
    ids=["passes", "passes behind a layer"],
)
@pytest.mark.parametrize("arguments", ["x, k", "x, k=2.0"], ids=["given", "by default"])
def test_passes_serve_the_numbers_that_they_were_written_for(
    forward: str, block: str, arguments: str, tmp_path: Path
) -> None:
    inputs = "torch.randn(rows, 24)" + (", 2.0" if arguments == "x, k" else "")
    file = problem(tmp_path, f"return {forward}", "self.fc = nn.Linear(24, 20)", arguments, inputs)
    assert tunebench.new(tmp_path / "mine", problem=file).block == block
    model, x = import_model(str(tmp_path / "mine"))(0.25).eval(), torch.randn(6, 24)
    pinned(model, x, 2.0)
    with torch.no_grad():
        for numbers in ((2.0,), (3.0,), (2.0,), (2,), ()):
            if numbers or arguments != "x, k":
                torch.testing.assert_close(model(x, *numbers), model.reference_forward(x, *numbers))
    assert model.problem(x, 3.0) is None and model.reason == "the passes are for k=2.0"


@pytest.mark.parametrize(
    ("forward", "dtypes"),
    [
        ("torch.tanh(x) * 2", ("float32", "float64", "float16", "bfloat16")),
        ("torch.tanh(x.float()).to(x.dtype)", ("float32", "float16", "bfloat16")),
        ("torch.tanh(x.float())", ("float32",)),
        ("torch.softmax(x, -1, dtype=torch.float32)", ("float32",)),
        ("self.fc(x).float()", ("float32",)),
        ("x * (2 if x.dtype == torch.float32 else 3)", ("float32",)),
        ("torch.nan_to_num(x)", ("float32",)),
        ("(x + torch.arange(24)).cumsum(-1)", ("float32", "float64", "float16", "bfloat16")),
        ("(x + torch.arange(24) / 3).cumsum(-1)", ("float32",)),
    ],
)
def test_a_kernel_is_for_the_types_in_which_its_model_returns_them(
    forward: str, dtypes: tuple[str, ...], tmp_path: Path
) -> None:
    file = problem(tmp_path, f"return {forward}", "self.fc = nn.Linear(24, 8)", inputs="torch.randn(rows, 24)")
    assert trace(load_reference(file)).dtypes == dtypes
    if dtypes == ("float32",):
        made = tunebench.new(tmp_path / "mine", problem=file)
        model = import_model(str(made.folder))(0.25).half()
        x = torch.randn(6, 24).half()
        assert made.block and model.problem(x) is None and "the kernel is for float32, the inputs" in model.reason


STRUCTURES: Mapping[str, tuple[str, str, tuple[object, object]]] = {
    "another activation": ("self.act = kind()", "self.act(self.fc(x))", (nn.ReLU, nn.Tanh)),
    "a word of a layer": ("self.act = nn.GELU(kind)", "self.act(x) * 9", ("none", "tanh")),
    "a number of a layer": ("self.act = nn.Softmax(kind)", "self.act(x)", (-1, 0)),
    "a switch": ("self.kind = kind", "torch.tanh(self.fc(x)) * (2 if self.kind else 3)", (True, False)),
    "more layers": (
        "self.act = nn.Sequential(*[nn.LayerNorm(24) for _ in range(kind)])",
        "self.act(x).cumsum(1)",
        (2, 3),
    ),
    "a private number": ("self._kind = kind", "(x * self._kind).cumsum(1)", (2.0, 3.0)),
    "a private number of a block": ("self._kind = kind", "torch.tanh(self.fc(x)) * self._kind", (2.0, 3.0)),
    "a number of its class": ("Model.kind = kind", "torch.tanh(x * self.kind)", (2.0, 3.0)),
    "a number of a configuration": (
        "from types import SimpleNamespace; self.told = SimpleNamespace(kind=kind, other=object())",
        "torch.tanh(x * self.told.kind)",
        (2.0, 3.0),
    ),
    "several numbers": ("self.kind = kind", "torch.tanh(x * self.kind[0])", ((2.0, 3.0), (4.0, 3.0))),
}
"""By what changes: how the model makes it, what it does, and the kind that it was written for and another one."""


@pytest.mark.slow
@pytest.mark.parametrize(("made", "forward", "kinds"), STRUCTURES.values(), ids=STRUCTURES)
def test_a_kernel_is_for_the_structure_that_it_was_written_for(
    made: str, forward: str, kinds: tuple[object, object], tmp_path: Path
) -> None:
    file = problem(tmp_path, f"return {forward}", f"self.fc = nn.Linear(24, 8); {made}", inputs="torch.randn(rows, 24)")
    text = file.read_text(encoding="utf-8").replace("slope):", "slope, kind=KIND):")
    name = getattr(kinds[0], "__name__", None)
    file.write_text(text.replace("KIND", f"nn.{name}" if name else repr(kinds[0])), encoding="utf-8")
    assert tunebench.new(tmp_path / "mine", problem=file).block
    factory, x = import_model(str(tmp_path / "mine")), torch.randn(6, 24)
    assert factory(0.25).eval().problem(x) is not None
    other = factory(0.25, kinds[1]).eval()
    assert other.problem(x) is None and "written for" in other.reason


def test_numbers_in_a_list_that_changes_are_noticed_in_the_next_call(tmp_path: Path) -> None:
    made = (
        'from types import SimpleNamespace as N; self._steps, self.n = [0.5, 2.0], {"by": 1.5}; self.told = N(at=2.5)'
    )
    forward = "return torch.tanh(x * self._steps[1] + self.n['by']) * self.told.at"
    file = problem(tmp_path, forward, made, inputs="torch.randn(rows, 24)")
    assert tunebench.new(tmp_path / "mine", problem=file).block == "Pointwise"
    model, x = import_model(str(tmp_path / "mine"))(0.25).eval(), torch.randn(6, 24)
    with torch.no_grad():
        for change in (
            lambda: None,
            lambda: model._steps.__setitem__(1, 3.0),
            lambda: model.n.update(by=2.0),
            lambda: setattr(model.told, "at", 0.5),
        ):
            change()
            for _ in range(2):  # the second one is like the first
                torch.testing.assert_close(model(x), model.reference_forward(x))
    assert "written for" in model.reason


@pytest.mark.slow
def test_a_table_in_float32_beside_a_half_type_stays_one(tmp_path: Path) -> None:
    made = "self.table = nn.Buffer(torch.rand(50))"
    file = problem(
        tmp_path,
        "return self.table[index].to(x.dtype)[:, None] * x",
        made,
        "x, index",
        "torch.randn(rows, 24).bfloat16(), torch.randint(50, (rows,))",
    )
    assert tunebench.new(tmp_path / "mine", problem=file).block.lower() == "passes"
    model = import_model(str(tmp_path / "mine"))(0.25).eval()
    x, index = torch.randn(6, 24).bfloat16(), torch.tensor([3, 1, 49, 0, 7, 7])
    assert model.problem(x, index) is not None
    pinned(model, x, index)
    torch.testing.assert_close(model(x, index), model.reference_forward(x, index))
    model.table = model.table.bfloat16()
    assert model.problem(x, index) is None
    assert model.reason == "a parameter or buffer is torch.bfloat16 on cpu, not torch.float32 on cpu"


@pytest.mark.slow
def test_a_layer_in_another_mode_than_its_model_is_left_to_the_reference(tmp_path: Path) -> None:
    made, forward = "self.norm = nn.BatchNorm1d(24)", "return self.norm(x).cumsum(1)"
    file = problem(tmp_path, forward, made, inputs="torch.randn(rows, 24)")
    assert tunebench.new(tmp_path / "mine", problem=file).block
    model, x = import_model(str(tmp_path / "mine"))(0.25), torch.randn(6, 24)
    assert model.eval().problem(x) is not None and model.train().problem(x) is not None
    model.norm.eval()
    assert model.problem(x) is None and "written for" in model.reason


OTHERWISE: Mapping[str, Callable[..., tuple[object, ...]]] = {
    "one of another type": lambda x, y: (x, y.bfloat16()),
    "the other of another type": lambda x, y: (x.bfloat16(), y),
    "integers": lambda x, y: (x, y.int()),
    "more axes": lambda x, y: (x[None], y[None]),
    "fewer axes": lambda x, y: (x[0], y[0]),
    "a number": lambda x, _: (x, 2.0),
    "not contiguous": lambda x, y: (x.T.contiguous().T, y),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "forward", ["(x.sin() * y).cumsum(-1)", "self.fc(x.sin() * y)", "(self.fc(x) * y[:, :8]).cumsum(-1)"]
)
def test_passes_serve_inputs_like_those_that_they_were_written_for(forward: str, tmp_path: Path) -> None:
    """Whatever else the reference takes it computes itself."""
    inputs = "torch.randn(rows, 24), torch.randn(rows, 24)"
    file = problem(tmp_path, f"return {forward}", "self.fc = nn.Linear(24, 8)", "x, y", inputs)
    assert tunebench.new(tmp_path / "mine", problem=file).block.lower().endswith("passes")
    model, x, y = import_model(str(tmp_path / "mine"))(0.25).eval(), torch.randn(6, 24), torch.randn(6, 24)
    pinned(model, x, y)
    with torch.no_grad():
        torch.testing.assert_close(model(x, y), model.reference_forward(x, y))
        for name, change in OTHERWISE.items():
            given = change(x, y)
            try:
                wanted = model.reference_forward(*given)
            except (RuntimeError, TypeError, IndexError):
                continue
            torch.testing.assert_close(model(*given), wanted, msg=f"{name}: {model.reason}")


def pinned(model: Any, *inputs: Any) -> None:
    """Have a model served by its default configuration."""
    served, device = model.problem(*inputs), find_device("cpu")
    configuration = model.kernel.space.default_for(served, device)
    model.pin(build_plan(model.kernel, configuration, served, device, compiler_for(device)))


def test_a_name_that_a_block_has_is_the_reason_why_there_is_no_kernel(tmp_path: Path) -> None:
    file = problem(
        tmp_path, "return self.layer(x)", "self.layer = nn.Conv2d(4, 8, 3)", inputs="torch.randn(2, 4, 6, 7)"
    )
    written = tunebench.new(tmp_path / "mine", problem=file)
    assert (written.block, written.reason) == (
        "",
        "the model's own 'layer' has the name of an attribute of blocks.Conv: rename it",
    )


@pytest.mark.parametrize(
    ("made", "inputs"),
    [("nn.Conv2d(4, 8, 3)", "torch.randn(2, 4, 6, 7)"), ("nn.Linear(40, 24)", "torch.randn(5, 40)")],
    ids=["convolution", "product"],
)
def test_passes_behind_a_layer_that_knows_no_fast_functions_may_take_them(
    made: str, inputs: str, tmp_path: Path
) -> None:
    forward = "return torch.softmax(self.first(x).cumsum(-1), 1)"
    file = problem(tmp_path, forward, f"self.first = {made}", inputs=inputs)
    assert tunebench.new(tmp_path / "mine", problem=file).block.endswith("and passes")
    model, x = import_model(str(tmp_path / "mine"))(0.25).eval(), eval(inputs)
    space, device = model.kernel.space, find_device("cpu")
    assert "fast_math" in space.rounding
    assert space.starts[0]["fast_math"] is True and {**space.starts[-1], "fast_math": True} in space.starts
    served = model.problem(x)
    for fast in (False, True):
        chosen = space.choose({"fast_math": fast}, served, device)
        model.pin(build_plan(model.kernel, chosen, served, device, compiler_for(device)))
        with torch.no_grad():
            torch.testing.assert_close(model(x), model.reference_forward(x))


@pytest.mark.parametrize(
    ("rows", "wanted", "block"),
    [(90, None, "Passes"), (90, "linear", "Linear and passes"), (2, None, "Linear and passes")],
)
def test_passes_are_tuned_freely_where_a_layer_takes_little_of_the_time(
    rows: int, wanted: str | None, block: str, tmp_path: Path
) -> None:
    forward = "return torch.cumsum(x, 1) * torch.relu(self.first(s))[:, None]"
    inputs = f"torch.randn(7, {rows}, 32), torch.randn(7, 60)"
    file = problem(tmp_path, forward, "self.first = nn.Linear(60, 32)", arguments="x, s", inputs=inputs)
    assert tunebench.new(tmp_path / "mine", problem=file, block=wanted).block == block


@pytest.mark.slow
def test_passes_behind_a_convolution_are_drop_ins_where_statistics_move(tmp_path: Path) -> None:
    made = "self.conv = nn.Conv2d(6, 8, 3, padding=1); self.bn = nn.BatchNorm2d(8)"
    forward = "return torch.amax(torch.softmax(self.bn(nn.functional.mish(self.conv(x)) * self.slope), 1), dim=(2, 3))"
    file = problem(tmp_path, forward, made, inputs="torch.randn(4, 6, 12, 10)")
    written = tunebench.new(tmp_path / "mine", problem=file)
    assert written.block == "Conv and passes"
    # With some inputs in bfloat16 the largest error is just more than four times torch's, since values are so few.
    (report,) = tunebench.check(tmp_path / "mine", device="cpu", modes=("train",), seed=3)
    assert report.verdict.passed, str(report)


@pytest.mark.slow
def test_a_model_that_converts_itself_may_decide_by_ties(tmp_path: Path) -> None:
    """Some scores are equal in bfloat16, so that two right answers may differ in their indices."""
    forward = "return torch.topk(self.fc(x).softmax(-1), 2)[1]"
    layer = "self.fc = nn.Linear(256, 8).bfloat16()"
    file = problem(tmp_path, forward, layer, "x", "torch.randn(512, 256).bfloat16()")
    assert tunebench.new(tmp_path / "mine", problem=file).block == "Passes"


def test_parameters_stay_shared_where_a_module_without_memory_is_converted() -> None:
    swap = torch.utils.swap_tensors
    with FakeTensorMode(), converted_in_place():
        model = nn.ModuleDict({"first": nn.Linear(4, 4), "second": nn.Linear(4, 4), "norm": nn.BatchNorm1d(4)})
        model["second"].weight = model["first"].weight
        model["norm"].weight.requires_grad_(False)
        model.half()
    assert torch.utils.swap_tensors is swap
    assert {one.dtype for one in (*model.parameters(), model["norm"].running_mean)} == {torch.half}
    assert model["second"].weight is model["first"].weight and isinstance(model["first"].weight, nn.Parameter)
    assert [one.requires_grad for one in model["norm"].parameters()] == [False, True]
    assert model["norm"].num_batches_tracked.dtype is torch.int64
