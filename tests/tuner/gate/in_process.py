"""Both batteries on two modules of this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tunebench.tuner.gate.answers import Answers
from tunebench.tuner.gate.battery import STEPS, Depth
from tunebench.tuner.gate.contender import Contender
from tunebench.tuner.gate.draw import FIXED, Draw
from tunebench.tuner.gate.examine import examine
from tunebench.tuner.gate.exemptions import Exemptions
from tunebench.tuner.gate.harness import Harness
from tunebench.tuner.gate.memory import PoisonedAllocations
from tunebench.tuner.gate.model import Model
from tunebench.tuner.gate.sources import Source
from tunebench.tuner.gate.stage_log import StageLog, StageRefused
from tunebench.tuner.kernel import Mode, prepare_model
from tunebench.tuner.reference import Reference, load_reference
from tunebench.tuner.result import Stage

CPU = torch.device("cpu")
Inputs = Callable[[], Sequence[Any]]


class ModuleContender(Contender):
    """A class of modules of this process."""

    def __init__(self, factory: Callable[..., nn.Module], exemptions: Exemptions) -> None:
        self.exemptions = exemptions
        self._factory = factory

    def model(self, source: Source, mode: Mode, state: Mapping[str, torch.Tensor] | None) -> Model:
        module = prepare_model(source.reference, mode, CPU, self._factory, state)
        return Model(module, memory=PoisonedAllocations)


def refusals(
    model: Callable[..., nn.Module],
    new: Callable[..., nn.Module],
    inputs: Inputs,
    mode: Mode = Mode.TRAIN,
    exemptions: Exemptions | None = None,
    draw: Draw = FIXED,
    *,
    quick: bool = False,
) -> dict[str, str]:
    """The stages that refuse a module beside its reference, with their reasons.

    Args:
        quick: only the quick battery.
    """
    reference = Reference(Path("reference.py"), "", model, inputs, list, {})
    answers = Answers.consult(Source(reference, CPU), mode, draw=draw)
    contender = ModuleContender(new, exemptions or Exemptions())
    verdict = examine(answers, contender, StageLog(), depth=None if quick else Depth.FINALIST)
    return {stage.name: stage.detail for stage in verdict.stages if not stage.passed}


SECONDS_LONG = ("torch.compile",)


def stages_of(text: str, only: str | None = None, mode: Mode = Mode.TRAIN) -> tuple[Stage, ...]:
    """The quick battery, and every stage of the full one or one of them."""
    source = Source(load_reference(Path("file.py"), text=text), CPU)
    answers = Answers.consult(source, mode)
    assert source.reference.candidate is not None
    contender, log = ModuleContender(source.reference.candidate, Exemptions()), StageLog()
    verdict = examine(answers, contender, log, depth=None)
    if not verdict.passed:
        return verdict.stages
    harness = Harness(answers, contender)
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
