"""The stage that asks in the other manners than the run is about: another mode, another part's, other recordings."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TypeVar

from tunebench.tuner.gate.changes import WEIGHT_CHANGES
from tunebench.tuner.gate.distributions import DISTRIBUTIONS, NON_FINITE
from tunebench.tuner.gate.faults import FAILURES
from tunebench.tuner.gate.gradients import Backward
from tunebench.tuner.gate.harness import Harness
from tunebench.tuner.gate.manner import Manner, Recording, other_mode
from tunebench.tuner.gate.model import CallOptions
from tunebench.tuner.gate.sources import Sizes
from tunebench.tuner.gate.stages.callers import GRADIENTS, TRAINING, ask_gradients
from tunebench.tuner.gate.stages.inputs import ask_distribution
from tunebench.tuner.gate.stages.layouts import MOVED, STRIDED, ask_layout
from tunebench.tuner.gate.stages.state import ask_changed
from tunebench.tuner.gate.stages.torch_features import DTYPES, ask_dtype

Item = TypeVar("Item")

_MORE = 3
"""The other mode under no_grad, in which a trained model is used, gets so many times as many questions."""


def manners(harness: Harness) -> None:
    """Inputs, layouts, sizes, types, changed weights and gradients in every other manner.

    The questions are those of the other stages. They are dealt to the manners, so that each manner has some of each
    kind; which, follows from the seed.
    """
    deal = _Deal(harness)
    for manner in harness.manners():
        if not harness.answers.takes(manner, harness.base):
            harness.pass_over("the reference cannot be called so")
        elif not _has_part(harness, manner):
            harness.pass_over("the modules have other parts")
        else:
            with harness.in_manner(manner):
                _ask(harness, deal, manner)


class _Deal:
    """Questions of each kind in the order that is drawn, dealt one after the other, and again from the first."""

    def __init__(self, harness: Harness) -> None:
        def dealt(name: str, items: Sequence[Item]) -> Iterator[Item]:
            order = harness.draw.shuffled(f"{name} in other manners", items)
            while order:
                yield from order

        self.distributions = dealt("distributions", [*DISTRIBUTIONS, *NON_FINITE])
        self.strided = dealt("layouts", [*STRIDED])
        self.moved = dealt("alignments", [*MOVED])
        self.sizes = dealt("sizes", harness.sizes_met)
        self.changes = dealt("changes", [*WEIGHT_CHANGES])
        self.dtypes = dealt("dtypes", DTYPES)
        self.gradients = dealt("gradients", [*GRADIENTS.items(), *TRAINING.items()])


def _ask(harness: Harness, deal: _Deal, manner: Manner) -> None:
    pair, held = harness.pair(), CallOptions(held=True)
    inputs = pair.inputs(1)
    pair.candidate.hold(inputs)
    if harness.agree(pair, inputs, "as drawn", held) is None:
        return
    others = harness.in_form(pair, pair.changed(inputs, DISTRIBUTIONS["normal"], 51))
    pair.candidate.rewrite(others, counted=False)
    harness.agree(pair, others, "new content in the same tensors", held)
    for _ in range(_MORE if manner == Manner(other_mode(harness.answers.mode)) else 1):
        ask_distribution(harness, harness.pair(), next(deal.distributions))  # what it leaves in buffers is its own
        any(ask_layout(harness, pair, name) for name in itertools.islice(deal.strided, len(STRIDED)))
        if pair.reference.has("parameters"):
            ask_changed(harness, pair, inputs, next(deal.changes))
        for source in itertools.islice(deal.sizes, 1):
            at = harness.pair(source)
            harness.agree(at, at.inputs(1), f"at {_told(source.sizes, harness.base.sizes)}")
    ask_layout(harness, pair, next(deal.moved))
    ask_dtype(harness, next(deal.dtypes))
    if manner.part or (manner.mode is not harness.answers.mode and manner.recording is Recording.GRADIENTS):
        ask_gradients(harness, "of inputs and parameters", Backward())
        ask_gradients(harness, *next(deal.gradients))


def _told(sizes: Sizes, base: Sizes) -> str:
    return ", ".join(f"{name}={size:g}" for name, size in sizes.items() if base[name] != size)


def _has_part(harness: Harness, manner: Manner) -> bool:
    """Whether the contender has the part as well."""
    if not manner.part:
        return True
    try:
        harness.contender.model(harness.base, manner.mode, None).put_part(manner.part, manner.part_mode)
    except FAILURES:
        return False
    return True
