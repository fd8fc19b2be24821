"""What every block shares: attributes, names in device functions, and the errors that name what is wrong."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from one_file import load
from torch import nn

from tunebench import blocks
from tunebench.kernels.blocks.device_function import body_of, has_fast_form, used_names
from tunebench.kernels.runtime.registry import load_model
from tunebench.tuner.errors import KernelFolderError

MODEL = """
def __init__(self, scale=2.0):
    super().__init__()
    self.scale = scale
    self.bias = nn.Parameter(torch.randn(33))

def forward(self, x: torch.Tensor, y: "torch.Tensor | None" = None, k: float = 0.5) -> torch.Tensor:
    return torch.sigmoid(x) * self.scale + self.bias * k
"""
BLOCK = """
function = "sigmoid(x) * scale + bias * k"
scalars = {"scale": "scale"}
per_feature = {"bias": "bias"}
"""


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("A * s", ["A", "s"]),
        ("x > 0 ? x : slope * expm1(x)", ["x", "slope"]),
        ("const accumulator_t t = exp(-x); return t / (1 + t) * 1.5e-3f + y.z;", ["x", "y"]),
        ("auto a = x; for (int i = 0; i < 3; ++i) { a += i * k; } return a; // of z", ["x", "k"]),
        ("static_cast<accumulator_t>(x) * 0x10 * INFINITY", ["x"]),
        ("functions::exp(x)", ["x"]),
    ],
)
def test_names_that_a_text_uses(text: str, names: list[str]) -> None:
    assert used_names(text) == names


def test_real_numbers_are_of_the_type_that_is_computed_in() -> None:
    body = body_of("f", "0.5 * x + 1e-5 + 2 * .25f + y2.x1")
    assert body == "return accumulator_t(0.5) * x + accumulator_t(1e-5) + 2 * .25f + y2.x1;"


def test_fast_math_is_a_tunable_where_it_makes_a_difference(tmp_path: Path) -> None:
    assert has_fast_form(["x", "1 + tanh (x)"]) and not has_fast_form(["x * expx // exp(x)"])
    fast = load(tmp_path / "fast.py", "blocks.Pointwise", MODEL, BLOCK).kernel.space
    assert fast.default["fast_math"] is False and "fast_tanh" not in fast.names
    plain = BLOCK.replace("sigmoid(x)", "x")
    assert "fast_math" not in load(tmp_path / "plain.py", "blocks.Pointwise", MODEL, plain).kernel.space.names


WRONG = {
    "no function": ({BLOCK: "pass"}, r"ModelNew.function: give a device function as text"),
    "a function that is none": ({BLOCK: "function = 3"}, r"ModelNew.function: give a device function as text"),
    "an unknown name": (
        {"+ bias * k": "+ bias * kk"},
        r"ModelNew.function: unknown name 'kk' \(known: x, y, k, scale, bias\); name it under scalars",
    ),
    "statements without return": (
        {'"sigmoid(x) * scale + bias * k"': '"auto t = x * scale + bias * k;"'},
        r"ModelNew.function: its statements have no `return`",
    ),
    "a name that is not used": ({"* scale + ": "+ "}, r"ModelNew.scalars: 'scale' is used in no text"),
    "a name given twice": (
        {'{"bias": "bias"}': '("bias", "scale")'},
        r"ModelNew.per_feature: 'scale' is named under sc",
    ),
    "no path": ({'{"scale": "scale"}': '{"scale": 2.0}'}, r"ModelNew.scalars: 'scale' is 2.0: give the path"),
    "no dict": ({'{"scale": "scale"}': '"scale"'}, r"ModelNew.scalars: give a dict, such as"),
    "no name": ({'{"scale": "scale"}': '{"the scale": "scale"}'}, r"ModelNew.scalars: 'the scale' cannot be a name"),
    "no tensor": (
        {"sigmoid(x) * scale + bias * k": "scale * k", "per_feature": "# "},
        r"ModelNew.function: it uses no tensor of forward \(x, y, k\)",
    ),
    "a misspelt attribute": (
        {"per_feature": "per_feture"},
        r"ModelNew.per_feture: a block reads no such attribute; did you mean per_feature\?",
    ),
    "an attribute that is misspelt beside a whole text": (
        {"per_feature": "default = {'block_size': 512}\nper_feature"},
        r"ModelNew.default: a block reads no such attribute; did you mean defaults\?",
    ),
    "a default that is none": (
        {"per_feature": "defaults = {'block_size': 100}\nper_feature"},
        r"ModelNew.defaults: tunable 'block_size' has no value 100",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_attribute_is_one_line_that_names_it(case: str, tmp_path: Path) -> None:
    changes, message = WRONG[case]
    block = BLOCK
    for old, new in changes.items():
        assert old in block
        block = block.replace(old, new)
    with pytest.raises(KernelFolderError, match=message) as raised:
        load(tmp_path / "wrong.py", "blocks.Pointwise", MODEL, block)
    assert "\n" not in str(raised.value) and "wrong.py" in str(raised.value)


@pytest.mark.parametrize("base", ["blocks.Pointwise", "Model, blocks.Pointwise"])
def test_a_block_without_a_reference_is_refused(base: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    head = "from torch import nn\nfrom tunebench import blocks\n\nclass Model(nn.Module):\n    pass\n\n"
    text = f"{head}class ModelNew({base}):\n    function = 'x'\n"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(KernelFolderError, match=r"write `class ModelNew\(Pointwise, Model\)` with the reference's Mo"):
        load_model(str(path))


def test_a_path_that_the_model_does_not_have(tmp_path: Path) -> None:
    factory = load(tmp_path / "wrong.py", "blocks.Pointwise", MODEL, BLOCK.replace('": "scale"', '": "norm.scale"'))
    with pytest.raises(KernelFolderError, match=r"ModelNew.scalars: the model has no 'norm.scale'"):
        factory().problem(torch.randn(6, 33), None, 0.5)


def test_a_scalar_that_is_no_number_is_the_references(tmp_path: Path) -> None:
    model = load(tmp_path / "fine.py", "blocks.Pointwise", MODEL, BLOCK)()
    x = torch.randn(6, 33)
    assert model.problem(x, None, 0.5) is not None
    assert model.problem(x, None, torch.tensor(0.5)) is None and "'k' is a Tensor" in model.reason
    model.scale = torch.tensor(2.0)
    assert model.problem(x, None, 0.5) is None and model.reason == "'scale' is a Tensor, not a number"


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


class FastDoubled(blocks.Pointwise, Doubled):
    function = "2 * x"


class FastTripled(blocks.Pointwise, Doubled):
    function = "3 * x"


def test_classes_of_a_program_have_names_and_digests_of_their_own() -> None:
    kernels = [FastDoubled.kernel, FastTripled.kernel]
    assert [kernel.name for kernel in kernels] == ["FastDoubled", "FastTripled"]
    assert kernels[0].digest != kernels[1].digest
    assert set(kernels[0].texts) == {"FastDoubled", "Doubled"}
    assert all("test_classes" not in text for text in kernels[0].texts.values())


def test_a_class_of_a_program_runs_and_is_pickled() -> None:
    model = pickle.loads(pickle.dumps(FastDoubled()))
    x = torch.randn(7, 5)
    assert torch.equal(model(x), 2 * x)


def test_a_class_without_a_file_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("typed_in")
    monkeypatch.setitem(sys.modules, "typed_in", module)
    text = "class ModelNew(blocks.Pointwise, Doubled):\n    function = '2 * x'\n"
    exec(text, {"blocks": blocks, "Doubled": Doubled, "__name__": "typed_in"}, module.__dict__)
    assert module.ModelNew.kernel.texts.keys() == {"ModelNew", "Doubled"}
    x = torch.randn(7, 5)
    assert torch.equal(module.ModelNew()(x), 2 * x)
