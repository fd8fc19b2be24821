"""Broken modules in plain PyTorch: each is refused at its stage, and its sound twin passes every stage."""

import re

import pytest
from broken_modules import BROKEN_MODULES
from in_process import stages_of
from sampling import slow_but

from tunebench.kernels.runtime.ordinary import why_not_run
from tunebench.tuner.gate.memory import PoisonedAllocations, PoisonedMemory


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


@pytest.mark.parametrize("number", slow_but([*SOUND][::3], SOUND))
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
        "manners",
    }


@pytest.mark.parametrize("mode", [PoisonedAllocations, PoisonedMemory])
def test_a_kernel_runs_while_its_memory_is_poisoned(mode: type[PoisonedAllocations | PoisonedMemory]) -> None:
    """Else it would be its fallback that is judged."""
    with mode(0xFF):
        assert why_not_run() is None
