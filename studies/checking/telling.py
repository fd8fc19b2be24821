"""Tells what a run of the gate does: each question before it is asked, each stage when it has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tunebench.studies.checking.request import Declaration
from tunebench.tuner.gate.battery import claim_of, loss_of
from tunebench.tuner.gate.contender import Contender
from tunebench.tuner.gate.exemptions import Exemptions
from tunebench.tuner.gate.refusal import Question, Refusal, Reproduction
from tunebench.tuner.gate.reproduction import reproduce
from tunebench.tuner.gate.sources import Source
from tunebench.tuner.gate.stage_log import Listener, StageRefused
from tunebench.tuner.isolation import IsolationError
from tunebench.tuner.kernel import Mode
from tunebench.tuner.result import Stage

Tell = Callable[[object], None]
"""Called with each `Question`, and with each `Stage` that ends: a `Refusal` where it did not pass."""


@dataclass(frozen=True)
class Judged:
    """What a refusal is reproduced with.

    Attributes:
        source: the reference at the problem's own sizes.
        inputs: a call's at these sizes, for refusals that are about no call.
    """

    source: Source
    contender: Contender
    mode: Mode
    inputs: Sequence[Any]


class Teller(Listener):
    """Tells each question, and each stage; of a refusal also the one call that shows it.

    Attributes:
        judged: once it is there to be called.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self.judged: Judged | None = None

    def asked(self, question: Question) -> None:
        self._tell(question)

    def ended(self, stage: Stage, refusal: StageRefused | None) -> None:
        if refusal is None:
            self._tell(stage)
            return
        claim, loss = claim_of(stage.name), loss_of(stage.name)
        self._tell(Refusal(**vars(stage), claim=claim, loss=loss, reproduction=self._reproduction(refusal)))

    def _reproduction(self, refusal: StageRefused) -> Reproduction | None:
        if self.judged is None:
            return None
        one = self.judged
        inputs = one.inputs if refusal.inputs is None else refusal.inputs
        try:
            with torch.no_grad():
                source = refusal.source or one.source
                return reproduce(source, one.contender, one.mode, inputs, strict=refusal.strict)
        except IsolationError:
            return None  # the next question finds that the process is gone


def exemptions_of(declared: Sequence[Declaration]) -> Exemptions:
    """What the gate leaves out for what was declared of a file or a module."""
    return Exemptions(
        atomics=Declaration.ATOMICS in declared,
        rewrites_algebra=Declaration.REWRITES_ALGEBRA in declared,
        dense=Declaration.DENSE in declared,
    )
