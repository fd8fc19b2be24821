"""Files that are wrong in one manner or in their backward, and right twins, at the stages that ask about these."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from in_process import CPU, ModuleContender
from tests.gate_files import FILES
from tests.gate_files.entry import GateFile

from tunebench.tuner.gate.answers import Answers
from tunebench.tuner.gate.battery import STEPS
from tunebench.tuner.gate.draw import Draw
from tunebench.tuner.gate.exemptions import Exemptions
from tunebench.tuner.gate.harness import Harness
from tunebench.tuner.gate.sources import Source
from tunebench.tuner.gate.stage_log import StageLog, StageRefused
from tunebench.tuner.kernel import Mode
from tunebench.tuner.reference import load_candidate, load_reference

_STAGES = ("sizes", "mode", "gradients", "training", "manners")
_KINDS = ("manners", "gradients", "backward")
# An error of the system is the file's only where the file has a process of its own.
_JUDGED = {file.name: file for file in FILES if file.kind in _KINDS and "raise OSError" not in file.text}


def refusing(file: GateFile, seed: int) -> dict[str, str]:
    """The stages among these that refuse a file, with their reasons."""
    source, log = Source(load_reference(Path("reference.py"), text=file.reference), CPU), StageLog()
    answers = Answers.consult(source, Mode.TRAIN, draw=Draw(seed))
    harness = Harness(answers, ModuleContender(load_candidate(Path("file.py"), file.text), Exemptions()))
    for step in STEPS:
        if step.name in _STAGES:
            harness.begin(step.name)
            try:
                with log.stage(step.name), torch.no_grad():
                    step.run(harness)
            except StageRefused:
                continue
    return {stage.name: stage.detail for stage in log.verdict(0.0).stages if not stage.passed}


@pytest.mark.slow
@pytest.mark.parametrize("name", _JUDGED)
def test_a_file_is_judged_as_it_is(name: str) -> None:
    file = _JUDGED[name]
    refused = refusing(file, 3)
    assert (not refused) is file.right, refused


@pytest.mark.parametrize("seed", range(3))
def test_a_part_in_another_mode_is_asked_about(seed: int) -> None:
    refused = refusing(_JUDGED["takes the model's mode for its norm's"], seed)
    assert "'norm' in " in refused["manners"], refused


def test_the_seed_decides_what_is_asked_in_which_manner() -> None:
    told = {refusing(_JUDGED["other values in inference mode"], seed)["manners"] for seed in range(3)}
    assert len(told) > 1 and all("inference_mode" in one for one in told)
