"""Stages about calls that follow one another: memory that is used again, and what earlier calls leave behind."""

from __future__ import annotations

from typing import Any

import torch

from tunebench.tuner.gate.distributions import DISTRIBUTIONS, changed
from tunebench.tuner.gate.harness import Harness, Pair, synchronise
from tunebench.tuner.gate.memory import same_bits
from tunebench.tuner.gate.party import Manner
from tunebench.tuner.gate.stage_log import StageRefused
from tunebench.tuner.gate.values import Values

_CALLS = 64
_HELD = 3


def same_memory(harness: Harness) -> None:
    """The same tensors with new content, and other tensors on the same memory: an answer kept for either is stale."""
    pair, held = harness.pair(), Manner(held=True)
    inputs = pair.inputs(1)
    pair.candidate.hold(inputs)
    harness.agree(pair, inputs, "the first call", held)
    harness.agree(pair, _rewritten(pair, inputs, 2, counted=True), "new content in the same tensors", held)
    inputs = _rewritten(pair, inputs, 3, counted=False)
    harness.agree(pair, inputs, "new content through .data", held)
    pair.candidate.exchange()
    pair.candidate.rewrite(inputs, counted=False)  # a call may have changed them
    harness.agree(pair, inputs, "other tensors on the same memory", held)
    inputs = _rewritten(pair, inputs, 4, counted=False)
    harness.agree(pair, inputs, "other tensors on the same memory, new content", held)


def _rewritten(pair: Pair, inputs: tuple[Any, ...], seed: int, *, counted: bool) -> tuple[Any, ...]:
    """Other values, which are in the candidate's tensors now, whether torch's version counter has seen it or not."""
    others = tuple(
        changed(value, DISTRIBUTIONS["normal"], 100 * seed + position) for position, value in enumerate(inputs)
    )
    pair.candidate.rewrite(others, counted=counted)
    return others


def later_calls(harness: Harness) -> None:
    """The last of many calls on inputs that take turns is as right as the first."""
    pair = harness.pair()
    turns = [pair.inputs(21), pair.inputs(22)]
    if harness.agree(pair, turns[0], "the first call") is None:
        return
    if pair.reference.has("buffers"):  # they move as the candidate's do
        pair.reference.call_many(turns, _CALLS)
    with harness.refusing(f"{_CALLS} calls"):
        pair.candidate.call_many(turns, _CALLS)
    last = tuple(changed(value, DISTRIBUTIONS["normal"], 23 + number) for number, value in enumerate(turns[0]))
    harness.agree(pair, last, f"the call after {_CALLS} others")


def held_results(harness: Harness) -> None:
    """Results that a caller holds are the caller's: later calls leave them alone, and no module keeps their memory."""
    pair = harness.pair()
    copies: list[Values] = []
    for seed in range(_HELD):
        manner = Manner(byte=None, keep=True)
        output = harness.agree(pair, pair.inputs(seed), f"result {seed + 1}", manner)
        if output is None:
            return
        copies.append(output.mapped(torch.clone))
    synchronise(harness.device)
    kept = zip(copies, pair.candidate.kept(), strict=True)
    if not all(same_bits(tensor, now.tensors[path]) for copy, now in kept for path, tensor in copy.tensors.items()):
        raise StageRefused("a result that a caller holds was overwritten by a later call")
    if pair.candidate.keeps_outputs() and not _returns_own_memory(pair):
        raise StageRefused("the output is memory that the module keeps")


def _returns_own_memory(pair: Pair) -> bool:
    """Whether the reference itself returns one of its parameters or buffers."""
    pair.reference.call(pair.inputs(0), Manner(byte=None, guarded=False, keep=True))
    return pair.reference.keeps_outputs()
