"""An error of tunebench is no verdict."""

from pathlib import Path

import pytest
from command_line import CommandLine

from tunebench.studies.checking import check

FILE = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.tanh(x)

class ModelNew(nn.Module):
    def forward(self, x):
        return x.tanh()

def get_inputs():
    return [torch.rand(6, 8)]

def get_init_inputs():
    return []
"""


def test_an_error_of_the_judge_is_an_error_of_tunebench(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "file.py"
    file.write_text(FILE, encoding="utf-8")
    monkeypatch.setattr(check, "_judge_file", _wrong)
    done = CommandLine(monkeypatch, capsys)("check", file, "--device", "cpu")
    assert done.code == 3 and "an error of tunebench" in done.err and "KeyError" in done.err


def _wrong(_check: object) -> None:
    raise KeyError("judge")
