"""A reference whose process dies of a question goes on in another one, and an error of tunebench is no verdict."""

import json
from pathlib import Path

import pytest
from command_line import CommandLine

from tunebench.studies.checking import check

DIES = """
import os
import torch
from torch import nn

rows = 6

class Model(nn.Module):
    def forward(self, x):
        if {}:
            os._exit(3)
        return torch.tanh(x)

class Other(nn.Module):
    def forward(self, x):
        return x.tanh()

def get_inputs():
    return [torch.rand(rows, 8)]

def get_init_inputs():
    return []
"""


def _written(folder: Path, condition: str) -> tuple[Path, Path]:
    reference, candidate = folder / "reference.py", folder / "candidate.py"
    reference.write_text(DIES.format(condition), encoding="utf-8")
    candidate.write_text(DIES.format("False").replace("Other", "ModelNew"), encoding="utf-8")
    return candidate, reference


@pytest.mark.slow
def test_a_question_that_the_reference_does_not_survive_is_passed_over_and_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    candidate, reference = _written(tmp_path, "tuple(x.shape) == (1, 8)")
    run = CommandLine(monkeypatch, capsys)
    done = run("check", candidate, "--reference", reference, "--device", "cpu", "--json")
    assert done.code == 0, done.err
    (report,) = json.loads(done.out)
    assert report["drop_in"] and not report["unshown"]
    reasons = [one["reason"] for one in report["not_asked"] if one["stage"] == "sizes"]
    assert any("the reference does not survive it" in reason for reason in reasons), report["not_asked"]


def test_an_error_of_the_judge_is_an_error_of_tunebench(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    candidate, reference = _written(tmp_path, "False")
    monkeypatch.setattr(check, "_judge_file", _wrong)
    run = CommandLine(monkeypatch, capsys)
    done = run("check", candidate, "--reference", reference, "--device", "cpu")
    assert done.code == 3 and "an error of tunebench" in done.err and "KeyError" in done.err


def _wrong(_check: object) -> None:
    raise KeyError("judge")
