"""References in KernelBench's form, at their own and at changed sizes."""

import sys
from pathlib import Path

import pytest
import torch

from tunebench.tuner.errors import KernelFolderError, UnknownNameError, UserError
from tunebench.tuner.reference import load_reference

SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, 2)

    def forward(self, x):
        return self.linear(x)

rows = 4 * 2
features = 3
shape = (rows, features)

def get_inputs():
    return [torch.rand(*shape), 2.0]

def get_init_inputs():
    return [features]
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "reference.py"
    file.write_text(SOURCE, encoding="utf-8")
    return file


def test_a_changed_size_reaches_what_is_computed_from_it(path: Path) -> None:
    reference = load_reference(path, {"rows": 5, "features": 7})
    inputs = reference.make_inputs(0, torch.device("cpu"))
    assert inputs[0].shape == (5, 7)
    assert inputs[1] == 2.0
    assert reference.make_model(0, torch.device("cpu"))(inputs[0]).shape == (5, 2)
    assert reference.sizes == {"rows": 5, "features": 7}
    assert load_reference(path).sizes == {"rows": 8, "features": 3}


def test_what_the_model_reads_itself_is_no_size_for_a_model_in_another_file(tmp_path: Path) -> None:
    text = """
import torch
EPS, BASE = 1e-6, 8
width = 16
HALF = width // 2
SCALES = (0.5, 3.5)
limit = 2.5

def scaled(x, half=HALF):
    return x * SCALES[0] + half

class Model(torch.nn.Module):
    def __init__(self, eps=EPS, limit=1.0):
        super().__init__()
        self.limit = limit  # its own argument, not the number of that name

    def forward(self, x):
        return scaled(x)

def get_inputs():
    return [torch.rand(width, BASE, 12)]

def get_init_inputs():
    return [1e-3, limit]
"""
    file = tmp_path / "reference.py"
    file.write_text(text, encoding="utf-8")
    whole = load_reference(file)
    reference = whole.for_another_file()
    assert set(whole.numbers) - set(reference.numbers) == {
        "width",
        *(f"the number {number}" for number in (0.5, 3.5, 1e-6, 8)),
    }
    assert set(reference.numbers) == {"limit", "the number 12", "the number 0.001"}
    assert reference.resized({"limit": 3.0}).numbers == {**reference.numbers, "limit": 3.0}


def test_a_dataclass_whose_annotations_are_texts(path: Path) -> None:
    lines = (
        "from __future__ import annotations",
        "import dataclasses",
        "@dataclasses.dataclass",
        "class Shape:",
        "    n: int",
    )
    path.write_text("\n".join((*lines, SOURCE)), encoding="utf-8")
    loaded = set(sys.modules)
    assert load_reference(path).make_model(1, torch.device("cpu")) is not None
    assert not {name for name in set(sys.modules) - loaded if name.startswith("tunebench_reference")}


def test_seeds_decide_inputs_and_weights(path: Path) -> None:
    reference = load_reference(path)
    cpu = torch.device("cpu")
    assert torch.equal(reference.make_inputs(1, cpu)[0], reference.make_inputs(1, cpu)[0])
    assert not torch.equal(reference.make_inputs(1, cpu)[0], reference.make_inputs(2, cpu)[0])
    one, other = reference.make_model(1, cpu), reference.make_model(1, cpu)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_what_is_wrong_is_said(path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown size .*'row'; did you mean rows\?"):
        load_reference(path, {"row": 3})
    with pytest.raises(UserError, match="size 'rows' is -1"):
        load_reference(path, {"rows": -1})
    with pytest.raises(UserError, match="size 'rows' is inf"):
        load_reference(path, {"rows": float("inf")})
    with pytest.raises(UserError, match=r"size 'rows' is 2\.5: it is a whole number in"):
        load_reference(path, {"rows": 2.5})
    with pytest.raises(KernelFolderError, match="cannot read it"):
        load_reference(path.parent / "absent.py")
    path.write_text(SOURCE.replace("def get_init_inputs", "def other"), encoding="utf-8")
    with pytest.raises(KernelFolderError, match="no get_init_inputs"):
        load_reference(path)


def test_models_and_inputs_of_another_dtype(path: Path) -> None:
    cpu = torch.device("cpu")
    reference = load_reference(path, {"rows": 5}, "bfloat16").resized({"rows": 6})
    x, number = reference.make_inputs(1, cpu)
    assert (x.shape, x.dtype, number) == ((6, 3), torch.bfloat16, 2.0)
    assert torch.equal(x, load_reference(path, {"rows": 6}).make_inputs(1, cpu)[0].bfloat16())
    assert {parameter.dtype for parameter in reference.make_model(1, cpu).parameters()} == {torch.bfloat16}
    with pytest.raises(UnknownNameError, match="float8"):
        load_reference(path, dtype="float8")
