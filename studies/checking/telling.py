"""Tells what a run of the gate does: each question before it is asked, each stage when it has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tunebench.studies.request.options import Declaration
from tunebench.tuner.gate.answers import Answers
from tunebench.tuner.gate.battery import claim_of, loss_of
from tunebench.tuner.gate.contender import Contender
from tunebench.tuner.gate.exemptions import Exemptions
from tunebench.tuner.gate.manner import Manner
from tunebench.tuner.gate.refusal import Question, Refusal, Reproduction
from tunebench.tuner.gate.reproduction import reproduce
from tunebench.tuner.gate.stage_log import StageRefused
from tunebench.tuner.isolation import IsolationError
from tunebench.tuner.result import Stage

Tell = Callable[[object], None]
"""Called with each `Question`, and with each `Stage` that ends: a `Refusal` where it did not pass."""


class Teller:
    """Tells each question, and each stage; of a refusal also the one call that shows it.

    Attributes:
        judged: the reference and the contender, once they are there to be called; a refusal is reproduced with them.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self.judged: tuple[Answers, Contender] | None = None

    def __call__(self, what: Question | Stage, refusal: StageRefused | None) -> None:
        """See `stage_log.Listen`."""
        if refusal is not None and isinstance(what, Stage):
            claim, loss = claim_of(what.name), loss_of(what.name)
            what = Refusal(**vars(what), claim=claim, loss=loss, reproduction=self._reproduction(refusal))
        self._tell(what)

    def _reproduction(self, refusal: StageRefused) -> Reproduction | None:
        if self.judged is None:
            return None
        answers, contender = self.judged
        inputs = answers.oracle.cases[0].inputs if refusal.inputs is None else refusal.inputs
        try:
            with torch.no_grad():
                source = refusal.source or answers.source
                manner = refusal.manner or Manner(answers.mode)
                return reproduce(source, contender, manner, inputs, answers.draw, strict=refusal.strict)
        except IsolationError:
            return None  # the next question finds that the process is gone


def exemptions_of(declared: Sequence[Declaration]) -> Exemptions:
    """Return what the gate leaves out for what was declared of a file or a module."""
    return Exemptions(
        atomics=Declaration.ATOMICS in declared,
        rewrites_algebra=Declaration.REWRITES_ALGEBRA in declared,
        dense=Declaration.DENSE in declared,
    )
