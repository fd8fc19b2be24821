"""Stages about calls that follow one another: memory that is used again, and what earlier calls leave behind."""

from __future__ import annotations

from typing import Any

import torch

from tunebench.tuner.gate.distributions import DISTRIBUTIONS, changed
from tunebench.tuner.gate.harness import Harness, ModelPair, synchronise
from tunebench.tuner.gate.memory import all_equal, checksum, shares_memory
from tunebench.tuner.gate.stage_log import StageRefused

_CALLS = 64
_HELD = 3


def same_memory(harness: Harness) -> None:
    """The same tensors with new content, and other tensors on the same memory: an answer kept for either is stale."""
    pair = harness.pair()
    inputs = pair.inputs(1)
    harness.agree(pair, inputs, "the first call", guarded=False)
    _rewrite(inputs, 2, counted=True)
    harness.agree(pair, inputs, "new content in the same tensors", guarded=False)
    _rewrite(inputs, 3, counted=False)
    harness.agree(pair, inputs, "new content through .data", guarded=False)
    others = tuple(value.detach() if isinstance(value, torch.Tensor) else value for value in inputs)
    harness.agree(pair, others, "other tensors on the same memory", guarded=False)
    _rewrite(others, 4, counted=False)
    harness.agree(pair, others, "other tensors on the same memory, new content", guarded=False)


def _rewrite(inputs: tuple[Any, ...], seed: int, *, counted: bool) -> None:
    """Other values in the same tensors, whether torch's version counter sees it or not."""
    for position, value in enumerate(inputs):
        if isinstance(value, torch.Tensor):
            target = value if counted else value.data
            target.copy_(changed(value, DISTRIBUTIONS["normal"], 100 * seed + position))


def later_calls(harness: Harness) -> None:
    """The last of many calls on inputs that take turns is as right as the first."""
    pair = harness.pair()
    turns = [pair.inputs(21), pair.inputs(22)]
    if harness.agree(pair, turns[0], "the first call") is None:
        return
    has_buffers = any(True for _ in pair.reference.buffers())
    for number in range(_CALLS):
        if has_buffers:  # they move as the candidate's do
            pair.reference(*turns[number % 2])
        harness.contender.ready(pair.candidate, turns[number % 2])
        pair.candidate(*turns[number % 2])
    last = tuple(changed(value, DISTRIBUTIONS["normal"], 23) for value in turns[0])
    harness.agree(pair, last, f"the call after {_CALLS} others")


def held_results(harness: Harness) -> None:
    """Results that a caller holds are the caller's: later calls leave them alone, and no module keeps their memory."""
    pair = harness.pair()
    held: list[torch.Tensor] = []
    sums: list[torch.Tensor] = []
    for seed in range(_HELD):
        output = harness.agree(pair, pair.inputs(seed), f"result {seed + 1}", poisoned=False)
        if output is None:
            return
        held.append(output)
        sums.append(checksum(output))
    synchronise(harness.device)
    if not all(all_equal(sums, [checksum(output) for output in held])):
        raise StageRefused("a result that a caller holds was overwritten by a later call")
    if not _returns_own_memory(pair) and any(shares_memory(output, _kept_by(pair.candidate)) for output in held):
        raise StageRefused("the output is memory that the module keeps")


def _kept_by(module: torch.nn.Module) -> list[Any]:
    """Tensors that a module holds on to, in plain attributes as well."""
    tensors: list[Any] = []
    for part in module.modules():
        values = [*part.__dict__.values(), *part._parameters.values(), *part._buffers.values()]
        for value in values:
            tensors += value.values() if isinstance(value, dict) else [value]
    return tensors


def _returns_own_memory(pair: ModelPair) -> bool:
    """Whether the reference itself returns one of its parameters or buffers."""
    return shares_memory(pair.reference(*pair.inputs(0)), _kept_by(pair.reference))
