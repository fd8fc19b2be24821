"""Stages about what a module holds: what it keeps between calls must follow every change of what that was made from."""

from __future__ import annotations

import torch

from tunebench.tuner.gate.changes import STATISTICS_CHANGES, UNCOUNTED, WEIGHT_CHANGES
from tunebench.tuner.gate.faults import FAILURES
from tunebench.tuner.gate.harness import Harness, Pair
from tunebench.tuner.gate.stage_log import StageRefused
from tunebench.tuner.kernel import Mode


def construction(harness: Harness) -> None:
    """Made after the same seed, both have the same state, name by name and bit by bit: nobody has to copy it."""
    source, mode = harness.base, harness.answers.mode
    expected = source.party(mode).state()
    with harness.refusing("making the model"):
        got = harness.contender.party(source, mode, None).state()
    if list(expected) != list(got):
        raise StageRefused(f"its state is ({', '.join(got) or 'empty'}) in place of ({', '.join(expected) or 'empty'})")
    for name, tensor in expected.items():
        if tensor.shape != got[name].shape or tensor.dtype != got[name].dtype:
            raise StageRefused(
                f"'{name}' is {tuple(got[name].shape)} {got[name].dtype} in place of {tuple(tensor.shape)}"
            )
        if not torch.equal(tensor, got[name]):
            raise StageRefused(f"'{name}' has other values than the reference's after the same seed")


def weights(harness: Harness) -> None:
    """Each way to change parameters changes the next output as the reference's."""
    pair = harness.pair()
    if not pair.reference.has("parameters"):
        harness.pass_over("the reference has no parameters")
        return
    inputs = pair.inputs(1)
    harness.agree(pair, inputs, "as made")
    for name in WEIGHT_CHANGES:
        pair.change(name)
        _freeze_again(harness, pair, name)
        harness.agree(pair, inputs, f"after {name}")


def statistics(harness: Harness) -> None:
    """Buffers and the settings of normalisations: each change shows in the next output as in the reference's."""
    pair = harness.pair()
    if not (pair.reference.has("buffers") or pair.reference.has("normalisations")):
        harness.pass_over("the reference has no buffers")
        return
    inputs = pair.inputs(1)
    harness.agree(pair, inputs, "as made")
    for name in STATISTICS_CHANGES:
        try:
            pair.change(name)
        except FAILURES:
            harness.pass_over("the modules have other parts")
            continue
        _freeze_again(harness, pair, name)
        harness.agree(pair, inputs, f"after {name}")


def _freeze_again(harness: Harness, pair: Pair, change: str) -> None:
    """Freeze the candidate again after an edit that PyTorch does not count, as `freeze` requires of its callers."""
    if change in UNCOUNTED:
        pair.candidate.put(harness.answers.mode)


def mode(harness: Harness) -> None:
    """Calls in train mode, in eval mode, and in train mode again: outputs and buffers move as the reference's."""
    pair = harness.pair()
    inputs = pair.inputs(1)
    still = Mode.FROZEN if harness.answers.mode is Mode.FROZEN else Mode.EVAL
    for number, now in enumerate((Mode.TRAIN, still, Mode.TRAIN, still)):
        pair.both(lambda party, now=now: party.put(now))  # type: ignore[misc]
        harness.agree(pair, inputs, f"call {number + 1}, in {now} mode")
