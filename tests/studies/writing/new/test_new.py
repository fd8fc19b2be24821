"""`tunebench new`: the folder it writes says what the problem computes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import CommandLine
from sampling import slow_but
from small_problems import assert_served, drafted, made_from, problem, why_none

import tunebench
from tunebench.kernels.runtime.registry import import_model
from tunebench.studies.writing.new.draft import draft
from tunebench.studies.writing.new.reduce import Reduced
from tunebench.studies.writing.new.trace import trace
from tunebench.studies.writing.new.values import Computed
from tunebench.tuner.reference import load_reference

POINTWISE = {
    "relu": ("return torch.relu(x)", "relu(x)"),
    "methods": ("return x.sigmoid().mul(2).sub(x)", "sigmoid(x) * 2 - x"),
    "swish": ("return x * torch.sigmoid(x)", "swish(x)"),
    "swish, decomposed": ("return x / (torch.exp(-x) + 1)", "swish(x)"),
    "sigmoid, decomposed": (
        "return 1 / (1 + torch.exp(-x)) + x / (torch.exp(-x) + 2)",
        "sigmoid(x) + x / (exp(-x) + 2)",
    ),
    "functional": ("return nn.functional.leaky_relu(x, self.slope)", "leaky_relu(x, slope)"),
    "defaults": ("return nn.functional.softplus(x)", "softplus(x)"),
    "parentheses": ("return (x + 1) / (2 - x)", "(x + 1) / (2 - x)"),
    "differences": ("return x - (x - 1)", "x - (x - 1)"),
    "clamp": ("return x.clamp(min=-1).clamp(max=self.slope)", "min(max(x, -1), slope)"),
    "minimum": ("return torch.min(x, torch.tensor(0.5, device=x.device))", "min(x, 0.5)"),
    "named in a tensor": ("return torch.maximum(x, torch.tensor(self.slope, device=x.device))", "max(x, slope)"),
    "used twice": (
        "y = torch.tanh(x) + 1\n        return y * torch.relu(y)",
        "auto part_1 = tanh(x) + 1; return part_1 * relu(part_1);",
    ),
    "powers": ("return x ** 2 + torch.pow(x, 3) + 2 ** x", "square(x) + x * x * x + pow(2, x)"),
    "gelu": ("return nn.functional.gelu(nn.functional.gelu(x), approximate='tanh')", "gelu_tanh(gelu(x))"),
    "constants": ("return x * math.sqrt(2.25)", "x * 1.5"),
    "the input by its name": ("return nn.functional.elu(input=x, alpha=2.0)", "elu(x, 2)"),
    "a factor of the second": ("return torch.sub(x.add(1, alpha=2), x, alpha=self.slope)", "x + 2 * 1 - slope * x"),
    "in place": ("y = x + 1\n        y *= 2\n        y.neg_().relu_()\n        return y", "relu(-((x + 1) * 2))"),
    "in place of an alias": (
        "y = x * 2\n        z = y.detach()\n        z.relu_()\n        return z + y",
        "auto part_1 = relu(x * 2); return part_1 + part_1;",
    ),
}


@pytest.mark.parametrize(("forward", "function"), POINTWISE.values(), ids=POINTWISE)
def test_operations_become_a_device_function(forward: str, function: str, tmp_path: Path) -> None:
    core = drafted(problem(tmp_path, forward))
    assert (core.block, dict(core.attributes)["function"], core.is_whole) == ("Pointwise", function, True)


def test_layers_are_operations_with_named_parameters(tmp_path: Path) -> None:
    made = "self.bounds = nn.Hardtanh(-2, slope); self.celu = nn.CELU(0.5)"
    core = drafted(problem(tmp_path, "return self.celu(self.bounds(x))", made))
    assert dict(core.attributes) == {
        "function": "celu(clamp(x, min_val, max_val), alpha)",
        "scalars": {"min_val": "bounds.min_val", "max_val": "bounds.max_val", "alpha": "celu.alpha"},
    }


def test_tensors_are_named_by_how_they_are_broadcast(tmp_path: Path) -> None:
    made = "self.feature = nn.Parameter(torch.ones(10)); self.one = nn.Parameter(torch.ones(1))"
    forward = "return (x + self.feature) * self.one - row * k + whole"
    inputs = "torch.randn(rows, 10), torch.randn(rows, 1), 2.0, torch.randn(rows, 10)"
    core = drafted(problem(tmp_path, forward, made, "x, row, k, whole", inputs))
    assert dict(core.attributes) == {
        "function": "(x + feature) * one - row * k + whole",
        "per_feature": ("feature",),
        "per_tensor": ("one",),
        "per_row": ("row",),
        "scalars": ("k",),
    }


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        ("return torch.relu(x) if x.sum() > 0 else x", "DataDependentOutputException"),
        ("return torch.cumsum(x, 1)", "cumsum"),
        ("return nn.functional.dropout(x, training=self.training)", "dropout"),
        ("return torch.relu(x).cumsum(1)", "cumsum"),
        ("return (torch.relu(x) + 1, x)", "the model does not return one tensor, as a block does"),
        ("return x.argmax(1)", "the model returns int64, which no block writes"),
        ("return torch.relu(x + torch.ones(10)) * 2", "forward makes a tensor of its own"),
        ("return torch.relu(x) * (2 if self.training else 3)", "something else in train mode than in eval mode"),
        ("self.slope += 1; return torch.relu(x) * self.slope", "forward changes its attribute 'slope'"),
    ],
)
def test_a_problem_that_no_block_does_all_of_has_none(forward: str, reason: str, tmp_path: Path) -> None:
    assert reason in why_none(problem(tmp_path, forward, made="self.eval()"))


ROWS = {
    "softmax": (
        "return torch.softmax(x, dim=-1)",
        {"top": 'blocks.Max("x")', "total": 'blocks.Sum("exp(x - top)")'},
        "exp(x - top) / total",
    ),
    "two sums": (
        "return (x - x.mean(-1, keepdim=True)) / x.square().sum(-1, keepdim=True)",
        {"total": 'blocks.Sum("x")', "total_2": 'blocks.Sum("square(x)")'},
        "(x - total / features) / total_2",
    ),
    "of a row alone": ("return x.amax(1) * self.slope", {"top": 'blocks.Max("x")'}, "top * slope"),
}


@pytest.mark.parametrize(("forward", "reductions", "function"), ROWS.values(), ids=ROWS)
def test_reductions_of_rows_are_found(forward: str, reductions: dict[str, str], function: str, tmp_path: Path) -> None:
    core = drafted(problem(tmp_path, forward))
    told = dict(core.attributes)
    assert {name: repr(one) for name, one in told["reductions"].items()} == reductions  # type: ignore[attr-defined]
    assert (core.block, told["function"], core.is_whole) == ("Rows", function, True)


HEADS = {
    "as torch has them": ("attend(q, k, v)", {}),
    "behind their lengths": (
        "attend(*(one.transpose(1, 2) for one in (q, k, v)), scale=0.5).permute(0, 2, 1, 3).contiguous()",
        {"heads": 2, "scale": 0.5},
    ),
}
ATTENTION = """
import torch
from torch import nn

attend = nn.functional.scaled_dot_product_attention


class Model(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return {made}


def get_inputs():
    return [torch.randn(2, 6, 6, 8) for _ in range(3)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(("made", "attributes"), HEADS.values(), ids=HEADS)
def test_attention_of_arguments_is_a_block(made: str, attributes: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "attention.py").write_text(ATTENTION.format(made=made), encoding="utf-8")
    core = drafted(tmp_path / "attention.py")
    assert (core.block, dict(core.attributes)) == ("Attention", {"tensors": ("q", "k", "v"), **attributes})


@pytest.mark.parametrize(
    "made",
    [
        "attend(q, k, v, is_causal=True)",
        "attend(q, k, v, torch.ones(6, 6))",
        "attend(q, k, v).transpose(1, 2)",
        "attend(q, k, v).contiguous()",
        "attend(q * 2, k, v)",
        "attend(q, k, k)",
        "attend(q, k, v) + 1",
    ],
)
def test_other_attention_is_none(made: str, tmp_path: Path) -> None:
    (tmp_path / "attention.py").write_text(ATTENTION.format(made=made), encoding="utf-8")
    drafts = draft(trace(load_reference(tmp_path / "attention.py")), None)
    assert not any(core.block == "Attention" for core in drafts.cores)


NORMS = {
    "groups": ("return self.gn(x) * 2", "torch.randn(rows, 8, 3, 3)", {"groups": "gn.num_groups"}),
    "groups of a function": (
        "return torch.relu(nn.functional.group_norm(x, 2, self.w, self.b, 1e-4))",
        "torch.randn(rows, 8, 5)",
        {"groups": 2, "per_channel": ("w", "b")},
    ),
    "a function of rows": (
        "return nn.functional.layer_norm(x * 2, (x.shape[-1],), bias=self.b)",
        "torch.randn(rows, 8)",
        {"per_feature": ("b",)},
    ),
    "a function of rows of two dimensions": (
        "return nn.functional.rms_norm(x, (3, 8), eps=1e-3)",
        "torch.randn(rows, 3, 8)",
        {"row_dimensions": 2, "reductions": {"squares": Reduced("Sum", "square(x)")}},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("forward", "inputs", "attributes"), NORMS.values(), ids=NORMS)
def test_normalisations_are_rows(forward: str, inputs: str, attributes: dict[str, object], tmp_path: Path) -> None:
    made = "self.gn = nn.GroupNorm(4, 8); self.w = nn.Parameter(torch.rand(8)); self.b = nn.Parameter(torch.rand(8))"
    file = problem(tmp_path, forward, made, inputs=inputs)
    core = drafted(file)
    found = dict(core.attributes)
    assert (core.block, core.is_whole) == ("Rows", True) and {key: found[key] for key in attributes} == attributes
    assert_served(file, load_reference(file).get_inputs()[0])


@pytest.mark.parametrize(
    "forward",
    [
        "return nn.functional.layer_norm(x, (8,), self.w * 2)",  # a weight that is no parameter
        "return self.gn(x).sum(1)",  # rows of another kind
        "return nn.functional.rms_norm(x, (8,))",  # its eps is the type's
        "return nn.functional.layer_norm(x, x.shape[1:])",  # what is a row is the input's to say
        "return nn.functional.group_norm(x, x.shape[1] // 2)",
    ],
)
def test_a_normalisation_that_rows_have_no_place_for_is_of_no_block(forward: str, tmp_path: Path) -> None:
    made = "self.gn = nn.GroupNorm(4, 8); self.w = nn.Parameter(torch.rand(8))"
    assert why_none(problem(tmp_path, f"{forward}.mul(2).tanh()", made, inputs="torch.randn(rows, 8)"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("front", "behind", "channels", "layout"),
    [
        ("torch.sin(x).transpose(2, 3)", "", 3, torch.contiguous_format),
        ("torch.sin(x).to(memory_format=torch.channels_last)", "", 3, None),
        ("x.transpose(2, 3)", "", 3, torch.contiguous_format),
        ("x.flip(0)[:, :, 1:]", ".cumsum(1)", 3, torch.contiguous_format),
        ("torch.sin(x)", "", 3, None),
        ("torch.cat([x, x], 1)", ".cumsum(1)", 32, torch.channels_last),
        ("torch.sin(x).transpose(2, 3)", " * x[:, :4, 1:-1, 1:-1]", 16, torch.channels_last),
    ],
    ids=["a transposition", "channels-last", "a view alone", "both sides", "few", "many channels", "many turned"],
)
def test_passes_make_images_as_a_convolution_takes_them(
    front: str, behind: str, channels: int, layout: torch.memory_format | None, tmp_path: Path
) -> None:
    images = 16 if channels == 32 else channels
    made, inputs = f"self.conv = nn.Conv2d({channels}, 4, 3)", f"torch.randn(2, {images}, 8, 8)"
    file = problem(tmp_path, f"return torch.relu(self.conv({front})){behind}", made, inputs=inputs)
    core = drafted(file)
    assert (core.block, core.layout) == ("Conv", layout)
    assert_served(file, torch.randn(2, images, 8, 8))


@pytest.mark.slow
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_what_is_convolved_of_images_that_passes_make_lies_as_torchs(
    memory_format: torch.memory_format, tmp_path: Path
) -> None:
    made, inputs = "self.conv = nn.Conv2d(16, 4, 3)", "torch.randn(2, 16, 8, 8)"
    model = made_from(problem(tmp_path, "return torch.relu(self.conv(torch.sin(x)))", made, inputs=inputs))
    model.to(memory_format=memory_format)
    x = torch.randn(2, 16, 8, 8)
    assert model.problem(x) is not None, model.reason
    found, reference = model(x), model.reference_forward(x)
    torch.testing.assert_close(found, reference)
    assert found.stride() == reference.stride()


def test_rows_without_their_dimension_are_not_put_beside_elements(tmp_path: Path) -> None:
    reason = why_none(problem(tmp_path, "return x.exp().tanh() * x.sum(1)", inputs="torch.randn(10, 10)"))
    assert reason == "no block has sum"


def test_what_stands_behind_a_layer_is_in_its_block(tmp_path: Path) -> None:
    made = "self.gemm = nn.Linear(10, 8); self.bn = nn.BatchNorm1d(8)"
    forward = "y = torch.tanh(self.bn(self.gemm(x) * self.slope))\n        return torch.cumsum(torch.relu(y), 1)"
    core = drafted(problem(tmp_path, forward, made))
    assert core.block == "Linear"
    assert dict(core.attributes) == {
        "layer": "gemm",
        "function": "value * slope",
        "batch_norm_at": "bn",
        "finish": "relu(tanh(value))",
        "scalars": ("slope",),
    }
    assert core.last == "relu"


WEIGHTS = "self.w = nn.Parameter(torch.randn(8, 10)); self.v = nn.Parameter(torch.randn(10, 8)); "
WEIGHTS += "self.b = nn.Parameter(torch.randn(8))"
PRODUCTS = {
    "an operator": ("return torch.relu(x @ self.w.T)", "x @ w.T", "relu(value)"),
    "a method": ("return torch.relu(x.matmul(self.v))", "x @ v", "relu(value)"),
    "a function": ("return torch.relu(torch.mm(x, self.w.t()))", "x @ w.T", "relu(value)"),
    "dimensions that change places": (
        "return torch.relu(torch.matmul(x, self.v.transpose(1, 0).permute(1, 0)))",
        "x @ v",
        "relu(value)",
    ),
    "dimensions that stay where they are": ("return torch.relu(x @ self.v.permute(0, 1))", "x @ v", "relu(value)"),
    "negative dimensions": ("return torch.relu(x @ torch.swapaxes(self.w, -1, -2))", "x @ w.T", "relu(value)"),
    "a linear function": ("return torch.relu(nn.functional.linear(x, self.w))", "x @ w.T", "relu(value)"),
    "a linear function of a transposition": (
        "return torch.relu(nn.functional.linear(x, self.v.T))",
        "x @ v",
        "relu(value)",
    ),
    "a linear function with a bias": (
        "y = nn.functional.linear(x, weight=self.w, bias=self.b)\n        return torch.relu(y) * y",
        "x @ w.T",
        "auto part_1 = value + b; return relu(part_1) * part_1;",
    ),
}


@pytest.mark.parametrize(("forward", "layer", "function"), PRODUCTS.values(), ids=PRODUCTS)
def test_a_product_with_a_parameter_is_a_layer(forward: str, layer: str, function: str, tmp_path: Path) -> None:
    core = drafted(problem(tmp_path, forward, WEIGHTS))
    found = dict(core.attributes)
    assert (core.block, found["layer"], found["function"], core.is_whole) == ("Linear", layer, function, True)


@pytest.mark.parametrize(
    "forward",
    [
        "return torch.relu(x @ (self.w * 2).T)",  # no parameter
        "return torch.relu(self.w @ x.T)",  # its input is the second factor
        "return torch.relu(x @ self.v[:, 0])",
        "return torch.relu(x @ self.w.reshape(10, 8))",
    ],
)
def test_a_product_of_another_kind_is_no_layer(forward: str, tmp_path: Path) -> None:
    assert why_none(problem(tmp_path, f"{forward} * 2", WEIGHTS))


FILTERS = {
    "of a parameter": ("conv2d(x, self.f, None, 2, 1)", "f", {"stride": 2, "padding": 1}),
    "of an input": ("conv2d(x, y, padding=(1, 0), groups=1)", "y", {"padding": (1, 0)}),
    "transposed": (
        "conv_transpose2d(x, y, dilation=2, stride=3)",
        "y",
        {"stride": 3, "dilation": 2, "transposed": 1},
    ),
}


@pytest.mark.parametrize(("call", "layer", "windows"), FILTERS.values(), ids=FILTERS)
def test_a_function_that_convolves_is_a_layer(
    call: str, layer: str, windows: dict[str, object], tmp_path: Path
) -> None:
    forward = f"return torch.relu(nn.functional.{call}) + self.b"
    made = "self.f = nn.Parameter(torch.randn(4, 4, 3, 3)); self.b = nn.Parameter(torch.randn(4, 1, 1))"
    given = (
        ("x, y", "torch.randn(2, 4, 9, 9), torch.randn(4, 4, 3, 3)")
        if layer == "y"
        else ("x", "torch.ones(2, 4, 9, 9)")
    )
    core = drafted(problem(tmp_path, forward, made, *given))
    wanted = {"layer": layer, "windows": windows, "function": "relu(value) + b", "per_channel": ("b",)}
    assert (core.block, core.is_whole, dict(core.attributes)) == ("Conv", True, wanted)


def test_a_bias_of_filters_is_for_each_channel(tmp_path: Path) -> None:
    made = "self.f = nn.Parameter(torch.randn(4, 4, 3, 3)); self.b = nn.Parameter(torch.randn(4))"
    forward = "return torch.relu(nn.functional.conv2d(x, self.f, self.b))"
    core = drafted(problem(tmp_path, forward, made, inputs="torch.randn(2, 4, 9, 9)"))
    assert dict(core.attributes) == {"layer": "f", "function": "relu(value + b)", "per_channel": ("b",)}


TWO = "self.gate = nn.Linear(10, 8); self.up = nn.Linear(10, 8, bias=False); self.bn = nn.BatchNorm1d(8); "
TWO += "self.narrow = nn.Linear(10, 1); self.down = nn.Linear(8, 10); self.u = nn.Parameter(torch.randn(8, 10)); "
JOINED = {
    "a gate": ("return nn.functional.silu(self.gate(x)) * self.up(x)", "swish(value) * up", ("up",), ""),
    "three": (
        "return self.gate(x).tanh() * self.up(x) + self.narrow(x).relu() + self.gate(x)",
        "tanh(value) * up",
        ("up",),
        "mul",
    ),
    "in front of a layer": (
        "return self.down(torch.relu(self.up(x)) + self.gate(x))",
        "relu(value) + gate",
        ("gate",),
        "add",
    ),
    "of other inputs": ("return self.gate(x) * self.up(x + 1)", None, None, "gate"),
    "products with parameters": (
        "return torch.tanh(x @ self.w.T) * nn.functional.linear(x, self.u, self.b)",
        "tanh(value) * (u + b)",
        ("u",),
        "",
    ),
    "products that lie otherwise": ("return x @ self.w.T * (x @ self.v)", None, None, "matmul"),
    "in front of a normalisation": ("return self.bn(self.gate(x) * self.up(x))", "value * up", ("up",), "mul"),
    "behind a normalisation": ("return self.bn(self.gate(x)) * self.up(x)", None, None, "bn"),
}


@pytest.mark.parametrize(("forward", "function", "others", "last"), JOINED.values(), ids=JOINED)
@pytest.mark.parametrize("inputs", ["torch.randn(rows, 10)", "torch.randn(2, rows, 10)"], ids=["2-d", "3-d"])
def test_layers_of_one_input_are_joined(
    forward: str, function: str | None, others: tuple[str, ...] | None, last: str, inputs: str, tmp_path: Path
) -> None:
    if "bn" in forward and "2" in inputs:
        pytest.skip("the reference's BatchNorm1d takes no such input")
    core = drafted(problem(tmp_path, forward, TWO + WEIGHTS, inputs=inputs))
    found = dict(core.attributes)
    assert (core.block, found.get("function"), found.get("other_layers")) == ("Linear", function, others)
    assert (core.given, core.last) == ({}, last)


def test_behind_a_layer_of_sequences_are_functions_of_each_element_alone(tmp_path: Path) -> None:
    made, inputs = "self.gemm = nn.Linear(10, 8); self.scale = nn.Parameter(torch.rand(8))", "torch.randn(2, rows, 10)"
    core = drafted(problem(tmp_path, "return torch.softmax(self.gemm(x).relu() * self.scale, -1)", made, inputs=inputs))
    assert (core.last, dict(core.attributes)["function"]) == ("mul", "relu(value) * scale")
    core = drafted(problem(tmp_path, "return torch.relu(torch.matmul(x.unsqueeze(0), self.v))", WEIGHTS))
    assert (core.given, dict(core.attributes)["layer"]) == ({"x": "unsqueeze"}, "x @ v")


OF_INPUTS = {
    "a function": ("return torch.matmul(x, y)", "x @ y", [(6, 7), (7, 5)]),
    "an operator": ("return x.T @ y", "x.T @ y", [(7, 6), (7, 5)]),
    "transposed by a method": ("return torch.mm(x, y.t())", "x @ y.T", [(6, 7), (5, 7)]),
    "both transposed": ("return x.transpose(0, 1).matmul(y.mT)", "x.T @ y.T", [(7, 6), (5, 7)]),
    "a batch, the other way about": ("return torch.bmm(y, x)", "y @ x", [(2, 7, 5), (2, 6, 7)]),
    "a batch that is permuted": ("return y.permute(0, 2, 1) @ x", "y.T @ x", [(2, 7, 5), (2, 7, 6)]),
    "a linear function": ("return nn.functional.linear(x, y)", "x @ y.T", [(3, 6, 7), (5, 7)]),
    "a contraction of four dimensions": (
        "return torch.einsum('bijl,lk->bijk', x, y)",
        "x @ y",
        [(2, 3, 6, 7), (7, 5)],
    ),
    "a contraction whose second comes first": ("return torch.einsum('nk,mk->mn', x, y)", "y @ x.T", [(6, 7), (5, 7)]),
    "a contraction whose columns come first": (
        "return torch.einsum('ij,jk->ki', x, y)",
        "y.T @ x.T",
        [(6, 7), (7, 5)],
    ),
    "a contraction in a batch": ("return torch.einsum('bkm, bkn -> bmn', x, y)", "x.T @ y", [(2, 7, 6), (2, 7, 5)]),
    "a contraction of transposed ones": ("return torch.einsum('km,kn->mn', x.T, y)", "x @ y", [(6, 7), (7, 5)]),
    "an input with itself": ("return x @ x.T + y", "x @ x.T", [(5, 7), (5, 5)]),
}


@pytest.mark.slow
@pytest.mark.parametrize(("forward", "layer", "shapes"), OF_INPUTS.values(), ids=OF_INPUTS)
def test_a_product_of_two_inputs_is_a_layer(
    forward: str, layer: str, shapes: list[tuple[int, ...]], tmp_path: Path
) -> None:
    inputs = ", ".join(f"torch.randn{shape}" for shape in shapes)
    file = problem(tmp_path, forward, arguments="x, y", inputs=inputs)
    core = drafted(file)
    assert (core.block, dict(core.attributes)["layer"], core.is_whole) == ("Linear", layer, True)
    assert_served(file, *load_reference(file).get_inputs())


def test_triangles_and_functions_behind_a_product_of_two_inputs(tmp_path: Path) -> None:
    file = problem(tmp_path, "return torch.triu(x @ y) * self.slope", arguments="x, y", inputs="*torch.randn(2, 9, 9)")
    assert dict(drafted(file).attributes) == {
        "layer": "x @ y",
        "triangle": "upper",
        "function": "value * slope",
        "scalars": ("slope",),
    }
    assert_served(file, *load_reference(file).get_inputs())
    file = problem(tmp_path, "return torch.tril(x @ y, 1) * 2", arguments="x, y", inputs="*torch.randn(2, 9, 9)")
    assert drafted(file).last == "matmul"  # its tril is of another diagonal


@pytest.mark.parametrize(
    "forward",
    [
        "return (x * 2) @ x",  # the first stands in the second's place
        "return torch.einsum('ij,kj->ikj', x, y)",  # nothing is added up
        "return torch.cumsum(x @ (y * 2), 1)",  # passes would stand in front and behind
        "return (x * 2) @ (x + y)[0:1].T + y[:, 0:1]",  # y is read as it is beside what would stand in its place
        "return torch.matmul(x, y[0])",
    ],
)
def test_a_product_that_is_none_of_two_inputs(forward: str, tmp_path: Path) -> None:
    file = problem(tmp_path, forward, arguments="x, y", inputs="*torch.randn(2, 9, 9)")
    assert "Linear" not in [core.block for core in draft(trace(load_reference(file)), None).cores]


COMPUTED = {
    "both": (
        "return nn.functional.normalize(x) @ nn.functional.normalize(y).t() / self.slope",
        {"layer": "x @ y.T", "function": "value * (1.0 / slope)"},
        {"x": "normalize", "y": "normalize_1"},
    ),
    "the second": ("return torch.relu(x @ (y * 2))", {"layer": "x @ y", "function": "relu(value)"}, {"y": "mul"}),
    "the second, by the first argument": ("return y @ (x + 1).T", {"layer": "y @ x.T"}, {"x": "add"}),
    "both by the first argument": ("return torch.exp(x) @ (x + 1).T", {"layer": "x @ y.T"}, {"x": "exp", "y": "add"}),
}


@pytest.mark.slow
@pytest.mark.parametrize(("forward", "attributes", "given"), COMPUTED.values(), ids=COMPUTED)
def test_a_product_of_two_values_has_passes_in_front(
    forward: str, attributes: dict[str, object], given: dict[str, str], tmp_path: Path
) -> None:
    file = problem(tmp_path, forward, arguments="x, y", inputs="*torch.randn(2, 9, 9)")
    core = drafted(file)
    assert (core.block, core.given) == ("Linear", given) and attributes.items() <= dict(core.attributes).items()
    assert_served(file, *load_reference(file).get_inputs())


def test_a_product_of_values_gives_way_to_a_layer_that_passes_may_stand_behind(tmp_path: Path) -> None:
    forward = "return torch.cumsum(self.l(x) @ (y * 2).T, 1)"
    file = problem(tmp_path, forward, "self.l = nn.Linear(9, 9)", arguments="x, y", inputs="*torch.randn(2, 9, 9)")
    assert dict(drafted(file).attributes)["layer"] == "l"


DIAGONALS = {
    "a dimension more": ("return x.unsqueeze(1) * y", "x * y", "per_row"),
    "an index": ("return y * x[:, None]", "y * x", "per_row"),
    "a matrix in front": ("return torch.diag(x) @ y", "x * y", "per_row"),
    "a matrix behind": ("return torch.matmul(y, torch.diag(x))", "y * x", "per_feature"),
}


@pytest.mark.parametrize(("forward", "function", "kind"), DIAGONALS.values(), ids=DIAGONALS)
def test_a_diagonal_is_a_vector(forward: str, function: str, kind: str, tmp_path: Path) -> None:
    file = problem(tmp_path, forward, arguments="x, y", inputs="torch.randn(6), torch.randn(6, 6)")
    core = drafted(file)
    assert core.is_whole and (core.block, dict(core.attributes)) == ("Pointwise", {"function": function, kind: ("x",)})
    assert_served(file, *load_reference(file).get_inputs())


ELSEWHERE = {
    "a layer of the second argument": (
        "return torch.relu(self.l(x)) * s",
        {"layer": "x @ l.weight.T", "function": "relu(value + bias) * s", "per_row": ("s",)},
        {},
    ),
    "a layer of what passes make of the second": (
        "return torch.relu(self.l(torch.cumsum(x, 1))) * s",
        {"layer": "l", "function": "relu(value)"},
        {"s": "cumsum"},
    ),
    "rows of the second, the first unread": (
        "return torch.softmax(x, 1) * s",
        {"reductions": {"top": Reduced("Max", "x"), "total": Reduced("Sum", "exp(x - top)")}},
        {},
    ),
    "elements of the first, the second unread": ("return torch.relu(s)", {"function": "relu(s)"}, {}),
}


@pytest.mark.slow
@pytest.mark.parametrize(("forward", "attributes", "given"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_the_first_argument_is_not_taken_for_what_stands_in_its_place(
    forward: str, attributes: dict[str, object], given: dict[str, str], tmp_path: Path
) -> None:
    made, inputs = "self.l = nn.Linear(10, 8)", "torch.rand(rows, 1), torch.rand(rows, 10)"
    file = problem(tmp_path, forward, made, arguments="s, x", inputs=inputs)
    core = drafted(file)
    assert core.given == given and attributes.items() <= dict(core.attributes).items()
    assert_served(file, torch.rand(6, 1), torch.rand(6, 10))


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        ("return x.mul_(2)", "mul_, which changes 'x' in place"),
        ("y = x * 2\n        y[0].relu_()\n        return y", "relu_, which changes 'mul' in place"),
        ("return torch.exp(x, out=torch.empty_like(x))", "exp, which writes into a tensor"),
        ("y = x * 2\n        y[0] = 1\n        return y", "does not support item assignment"),
        ("x += 1\n        return torch.relu(x) * 2", "iadd, which changes 'x' in place"),
        ("y = x.view(-1)\n        y *= 2\n        return torch.relu(x) * 2", "imul, which changes 'x' in place"),
        ("return nn.functional.relu(x, True) * 2", "relu, which changes 'x' in place"),
        ("x.data = x * 2\n        return torch.relu(x) * 2", "forward sets the attribute 'data' of a tensor"),
        ("self.b += 1\n        return torch.relu(x) * self.b", "forward changes its attribute 'b'"),
        ("self.b.mul_(2)\n        return torch.relu(x) * self.b", "mul_, which changes 'b' in place"),
        ("y = x * 2\n        return torch.relu(y.bernoulli_(0.5)) * y", "bernoulli_, which changes a tensor in place"),
    ],
)
def test_changes_in_place_that_others_see_are_left(forward: str, reason: str, tmp_path: Path) -> None:
    assert reason in why_none(problem(tmp_path, forward, made="self.register_buffer('b', torch.ones(10))"))


def test_arithmetic_on_attributes_follows_them(tmp_path: Path) -> None:
    made = "self.width = 10"
    forward = "return x * (1 - self.slope) + math.sqrt(self.width) * (1 - self.slope)"
    assert dict(drafted(problem(tmp_path, forward, made)).attributes) == {
        "function": "x * number_1 + number_2",
        "scalars": ("number_1", "number_2"),
        "number_1": Computed("(1 - self.slope)"),
        "number_2": Computed("(math.sqrt(self.width) * (1 - self.slope))"),
    }
    model = made_from(tmp_path / "problem.py", 0.5)
    assert (model.number_1, model.number_2) == (0.5, 0.5 * 10**0.5)


def test_arguments_keep_their_names_and_defaults(tmp_path: Path) -> None:
    core = drafted(
        problem(tmp_path, "return A * k + B", arguments="A, B, k=2.0", inputs="torch.rand(3), torch.rand(3)")
    )
    assert dict(core.attributes) == {"function": "A * k + B", "scalars": ("k",)}
    model = made_from(tmp_path / "problem.py")
    assert model.problem(torch.rand(3), torch.rand(3)).axes == {"elements": 3}


def test_an_argument_that_is_left_out_stays_the_references(tmp_path: Path) -> None:
    forward = "return x if mask is None else x * mask"
    reason = why_none(problem(tmp_path, forward, arguments="x, mask=None"))
    assert reason == "the argument 'mask', which get_inputs() leaves out"


@pytest.mark.slow
def test_the_command_writes_what_the_gate_passes(run: CommandLine, tmp_path: Path) -> None:
    file = problem(tmp_path, "return nn.functional.softplus(x) * self.slope")
    done = run("new", tmp_path / "mine", "--from", file, "--block", "pointwise")
    assert done.code == 0, done.err
    assert f"tunebench tune {tmp_path / 'mine'}" in done.out.replace("\n", "")
    (report,) = tunebench.check(tmp_path / "mine", device="cpu")
    assert report.verdict.passed, str(report)


@pytest.mark.slow
def test_a_process_of_its_own_says_nothing_but_what_it_has_written(tmp_path: Path) -> None:
    file = problem(tmp_path, "return x.softmax(-1)")
    command = [sys.executable, "-m", "tunebench", "new", str(tmp_path / "mine"), "--from", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == "" and done.stdout.startswith("written: ")


@pytest.mark.slow
@pytest.mark.parametrize("block", slow_but(["pointwise", "rows"], ["conv", "linear", "pointwise", "rows"]))
def test_a_sample_of_each_block_is_a_kernel(block: str, tmp_path: Path) -> None:
    made = tunebench.new(tmp_path / "sample", block=block)
    assert made.block.lower() == block
    assert import_model(str(tmp_path / "sample")).kernel.name == "sample"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["my-kernel"], "'my-kernel' cannot be a kernel's name: letters, digits and underscores, such as my_kernel"),
        (["."], "'' cannot be a kernel's name"),
        (["class"], "'class' cannot be a kernel's name: it is a word of Python; choose another, such as class_1"),
        (["scalar_mul"], "'scalar_mul' is the name of a kernel that is there already: choose another"),
        (["mine", "--from", "/dev/zero"], "/dev/zero: a pipe, a device or a socket is no regular file: put one there"),
        (["mine", "--from", "pipe.py"], "pipe.py: a pipe, a device or a socket is no regular file: put one there"),
        (["mine", "--from", "huge.py"], "huge.py: cannot read it: it is larger than 16 MB"),
        (["mine", "--from", "own.py"], "its Model has a 'kernel' of its own, which every kernel has: rename it"),
        (["there"], "there is there already: name a folder that is not"),
        (["mine", "--block", "matmul"], "unknown block 'matmul'"),
        (["mine", "--from", "nowhere.py"], "nowhere.py: cannot read it"),
        (["mine", "--from", "empty.py"], "empty.py: no Model, get_inputs, get_init_inputs"),
        (["mine", "--from", "broken.py"], "broken.py:2: does not run: ValueError: no"),
        (["mine", "--from", "wrong.py"], "RuntimeError"),
        (["mine", "--from", "any.py"], "the problem's forward takes '*x': give every argument a name"),
    ],
)
def test_what_cannot_be_is_one_line(
    arguments: list[str], message: str, run: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "empty.py").write_text("", encoding="utf-8")
    (tmp_path / "broken.py").write_text("\nraise ValueError('no')\n", encoding="utf-8")
    os.mkfifo(tmp_path / "pipe.py")
    with (tmp_path / "huge.py").open("wb") as file:
        file.truncate(1 << 40)
    made = "self.kernel = nn.Parameter(torch.ones(10))"
    problem(tmp_path, "return torch.relu(x) * self.kernel", made).rename(tmp_path / "own.py")
    problem(tmp_path, "return x @ x").rename(tmp_path / "wrong.py")
    problem(tmp_path, "return x[0]", arguments="*x").rename(tmp_path / "any.py")
    assert message in run("new", *arguments).error
    assert not (tmp_path / "mine").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("forward", "message"),
    [
        ("while True:\n            pass", "it cannot be run: still running after 3 s"),
        ("import os\n        os.abort()", "it cannot be run: "),
    ],
)
def test_a_problem_that_hangs_or_crashes_is_one_line(
    forward: str, message: str, run: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNEBENCH_LOAD_SECONDS", "2")
    assert message in run("new", tmp_path / "mine", "--from", problem(tmp_path, forward)).error
    assert not (tmp_path / "mine").exists()


def test_what_is_larger_than_can_be_run_here_is_run_at_smaller_sizes(tmp_path: Path) -> None:
    file = problem(tmp_path, "return torch.relu(x) * self.slope", inputs="torch.randn(rows, 10)")
    text = file.read_text(encoding="utf-8").replace("rows = 6", "rows = 1099511627776")
    file.write_text(text, encoding="utf-8")
    made = tunebench.new(tmp_path / "mine", problem=file)
    assert made.block == "Pointwise" and made.checked.sizes is not None and made.checked.sizes["rows"] == 2048


AROUND_A_LAYER = {
    "a view in front": ("torch.tanh(self.fc(x.flatten(1)))", "rows, 24, 1", "Linear and passes"),
    "passes in front": ("torch.tanh(self.fc(x.sin()))", "rows, 24", "Linear and passes"),
    "passes behind": ("torch.tanh(self.fc(x)).cumsum(1)", "rows, 24", "Linear and passes"),
    "rows behind": ("torch.softmax(self.fc(x), 1)", "rows, 24", "Linear"),
    "a view of passes": ("self.fc(x).unsqueeze(1).cumsum(0).transpose(0, 1)", "rows, 24", "Linear and passes"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("forward", "sizes", "block"), AROUND_A_LAYER.values(), ids=AROUND_A_LAYER)
def test_what_stands_around_a_layer_is_trained_with_it(forward: str, sizes: str, block: str, tmp_path: Path) -> None:
    file = problem(tmp_path, f"return {forward}", "self.fc = nn.Linear(24, 20)", inputs=f"torch.randn({sizes})")
    assert tunebench.new(tmp_path / "mine", problem=file).block == block
    (report,) = tunebench.check(tmp_path / "mine", device="cpu", modes=("eval",), seed=3)
    assert report.verdict.passed, str(report)
