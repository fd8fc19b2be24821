"""Broken modules in plain PyTorch: each is refused at its stage, and its sound twin passes every stage."""

import re
from pathlib import Path

import pytest
import torch
from broken_modules import BROKEN_MODULES
from in_process import CPU, ModuleContender

from tunebench.kernels.runtime.ordinary import why_not_run
from tunebench.tuner.gate.battery import STEPS
from tunebench.tuner.gate.exemptions import Exemptions
from tunebench.tuner.gate.harness import Answers, Harness
from tunebench.tuner.gate.memory import PoisonedAllocations, PoisonedMemory
from tunebench.tuner.gate.oracle import consult_reference
from tunebench.tuner.gate.quick import QuickGate
from tunebench.tuner.gate.sources import LocalSource
from tunebench.tuner.gate.stage_log import StageLog, StageRefused
from tunebench.tuner.kernel import Mode
from tunebench.tuner.reference import load_reference
from tunebench.tuner.result import Stage

SECONDS_LONG = ("torch.compile",)


def stages_of(text: str, only: str | None = None) -> tuple[Stage, ...]:
    """The quick battery, and every stage of the full one or one of them."""
    source = LocalSource(load_reference(Path("file.py"), text=text), CPU)
    original = source.party(Mode.TRAIN)
    oracle = consult_reference(source, original)
    assert source.reference.candidate is not None
    contender, log = ModuleContender(source.reference.candidate, Exemptions()), StageLog()
    party = contender.party(source, Mode.TRAIN, original.state())
    verdict = QuickGate(party, oracle, contender.exemptions).check(lambda _: None, log)
    if not verdict.passed:
        return verdict.stages
    harness = Harness(Answers(source, oracle, CPU, Mode.TRAIN), contender)
    for step in STEPS:
        if step.name in SECONDS_LONG or only not in (None, step.name):
            continue
        harness.begin(step.name)
        try:
            with log.stage(step.name) as details, torch.no_grad():
                step.run(harness)
                details.extend(harness.summary)
        except StageRefused:
            break
    return log.verdict(0.0).stages


@pytest.mark.parametrize("name", BROKEN_MODULES)
def test_a_broken_module_is_refused(name: str) -> None:
    broken = BROKEN_MODULES[name]
    text = broken.sound
    for old, new in broken.changes.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    *earlier, last = stages_of(text, broken.stage)
    assert not last.passed and last.name.split(",")[0] == broken.stage, last
    assert re.search(broken.reason, last.detail), last
    assert all(stage.passed for stage in earlier)


SOUND = {str(number): text for number, text in enumerate(dict.fromkeys(b.sound for b in BROKEN_MODULES.values()))}


@pytest.mark.parametrize("number", SOUND)
def test_the_sound_twin_passes_every_stage(number: str) -> None:
    stages = stages_of(SOUND[number])
    assert [stage for stage in stages if not stage.passed] == []
    asked = {stage.name for stage in stages if stage.asked}
    assert asked >= {
        "sizes",
        "batches",
        "distributions",
        "threads",
        "copies",
        "growth",
        "hooks",
        "keywords",
        "training",
    }


@pytest.mark.parametrize("mode", [PoisonedAllocations, PoisonedMemory])
def test_a_kernel_runs_while_its_memory_is_poisoned(mode: type[PoisonedAllocations | PoisonedMemory]) -> None:
    """Else it would be its fallback that is judged."""
    with mode(0xFF):
        assert why_not_run() is None
