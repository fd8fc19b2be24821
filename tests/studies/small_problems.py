"""Small problems in KernelBench's form, and the kernels that `tunebench new` makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tunebench.kernels.runtime.registry import import_model
from tunebench.studies.writing.new import make
from tunebench.studies.writing.new.check import Checked
from tunebench.studies.writing.new.core import Core
from tunebench.studies.writing.new.draft import draft
from tunebench.studies.writing.new.trace import trace
from tunebench.tuner.reference import load_reference

MODEL = """
import math
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, slope):
        super().__init__()
        {made}
        self.slope = slope

    def forward(self, {arguments}):
        {forward}

slope = 0.25
rows = 6

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return [slope]
"""


def problem(
    folder: Path, forward: str, made: str = "", arguments: str = "x", inputs: str = "torch.randn(rows, 10)"
) -> Path:
    """A file in KernelBench's form."""
    file = folder / "problem.py"
    text = MODEL.format(forward=forward, made=made or "pass", arguments=arguments, inputs=inputs)
    file.write_text(text, encoding="utf-8")
    return file


def drafted(file: Path) -> Core:
    """The best kernel for a problem."""
    return draft(trace(load_reference(file)), None).cores[0]


def why_none(file: Path) -> str:
    """Why there is no kernel for a problem."""
    drafts = draft(trace(load_reference(file)), None)
    assert drafts.cores == ()
    return drafts.reason


def made_from(file: Path, slope: float = 0.25, block: str | None = None) -> Any:
    """A model of the kernel that is made from a problem: in this process, and not checked before the test does so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make, "check", lambda *_: Checked())
        folder = make.make(file.parent / "mine", file, file.read_text(encoding="utf-8"), block).folder
    return import_model(str(folder))(slope)


def assert_served(file: Path, *inputs: torch.Tensor) -> None:
    """The kernel that is made from a problem serves these inputs, and answers what the reference does."""
    model = made_from(file)
    assert model.problem(*inputs) is not None, model.reason
    torch.testing.assert_close(model(*inputs), model.reference_forward(*inputs))
