"""Stages about where tensors lie in memory: the output as the reference's, and right for inputs in every layout, by
whatever path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tunebench.tuner.gate.answers import Pair
from tunebench.tuner.gate.changes import CHANNELS_LAST, CHANNELS_LAST_LAYOUTS, MISALIGN
from tunebench.tuner.gate.harness import Harness
from tunebench.tuner.gate.values import mapped

Layout = Callable[[torch.Tensor], torch.Tensor | None]
"""The same values, shape and dtype in another layout; None where a tensor has no such layout."""


def _transposed(value: torch.Tensor) -> torch.Tensor | None:
    return value.transpose(-1, -2).contiguous().transpose(-1, -2) if value.dim() >= 2 else None


def _strided(value: torch.Tensor) -> torch.Tensor | None:
    """Every other element of a row."""
    if not value.dim():
        return None
    twice = value.new_zeros(*value.shape[:-1], 2 * value.shape[-1])
    twice[..., ::2] = value
    return twice[..., ::2]


def _padded_rows(value: torch.Tensor) -> torch.Tensor | None:
    """Rows that lie apart, and begin where no vector does."""
    if value.dim() < 2:
        return None
    padded = value.new_zeros(*value.shape[:-1], value.shape[-1] + 3)
    padded[..., 1:-2] = value
    return padded[..., 1:-2]


def _expanded(value: torch.Tensor) -> torch.Tensor | None:
    """One row in the place of all: a step of zero."""
    return value[:1].clone().expand_as(value) if value.dim() else None


def _channels_last(value: torch.Tensor) -> torch.Tensor | None:
    layout = CHANNELS_LAST_LAYOUTS.get(value.dim())
    return None if layout is None else value.contiguous(memory_format=layout)


def _off_alignment(elements: int) -> Layout:
    """Dense, but that many elements into its memory."""

    def moved(value: torch.Tensor) -> torch.Tensor:
        memory = value.new_zeros(value.numel() + elements)
        return memory[elements:].view(value.shape).copy_(value)

    return moved


STRIDED: Mapping[str, Layout] = {
    "transposed": _transposed,
    "every other element": _strided,
    "rows apart": _padded_rows,
    "expanded": _expanded,
    "channels last": _channels_last,
}
MOVED: Mapping[str, Layout] = {
    "one element off alignment": _off_alignment(1),
    "two elements off alignment": _off_alignment(2),
    "three elements off alignment": _off_alignment(3),
}
LAYOUTS: Mapping[str, Layout] = {**STRIDED, **MOVED}


def form(harness: Harness) -> None:
    """The output lies in memory as the reference's does, and its tuples have the names that torch's have."""
    pair = harness.pair()
    harness.agree(pair, pair.inputs(1), "as drawn", strict=True)


def layouts(harness: Harness) -> None:
    """Each layout for all inputs that have it; then parameters and buffers in other layouts."""
    for name in harness.draw.shuffled("layouts", LAYOUTS):
        ask_layout(harness, harness.pair(), name)
    pair = harness.pair()
    pair.candidate.change(MISALIGN)
    harness.agree(pair, pair.inputs(1), MISALIGN)
    pair = harness.pair()
    if any(tensor.dim() in CHANNELS_LAST_LAYOUTS for tensor in pair.reference.state().values()):
        pair.change(CHANNELS_LAST)
        harness.agree(pair, pair.inputs(1), CHANNELS_LAST)


def ask_layout(harness: Harness, pair: Pair, name: str) -> bool:
    """Ask about inputs in one of `LAYOUTS`; return whether one has it."""
    inputs = pair.inputs(1)
    relaid = tuple(_relaid(value, LAYOUTS[name]) for value in inputs)
    if all(one is other for one, other in zip(inputs, relaid, strict=True)):
        harness.pass_over("no input has such a layout")
        return False
    harness.agree(pair, relaid, name, strict=True)
    return True


def _relaid(value: Any, layout: Layout) -> Any:
    if not isinstance(value, torch.Tensor):
        return mapped(value, lambda tensor: _relaid(tensor, layout))
    if not value.numel():
        return value
    other = layout(value)
    return value if other is None else other
