"""Stages about what the inputs hold: seeds, distributions, scalars, values that are not finite."""

from __future__ import annotations

from typing import Any

from tunebench.tuner.gate.distributions import DISTRIBUTIONS, NON_FINITE, InputChange, changed
from tunebench.tuner.gate.harness import Harness

_SEEDS = (11, 12)
_SCALARS = (-2.5, 0.0, 1.0)


def distributions(harness: Harness) -> None:
    """Further seeds, other distributions, and other values of whatever input is a plain number."""
    for seed in _SEEDS:
        pair = harness.pair()
        harness.agree(pair, pair.inputs(seed), f"seed {seed}")
    for name, change in DISTRIBUTIONS.items():
        _ask(harness, name, change)
    pair = harness.pair()
    for scalar in _SCALARS:
        inputs = tuple(scalar if isinstance(value, float) else value for value in pair.inputs(11))
        if any(isinstance(value, float) for value in inputs):
            harness.agree(pair, inputs, f"the number {scalar}")


def non_finite(harness: Harness) -> None:
    """NaN, infinities and denormals: not finite exactly where the reference is not, and of the same kind."""
    for name, change in NON_FINITE.items():
        _ask(harness, name, change, everywhere=True)


def _ask(harness: Harness, name: str, change: InputChange, *, everywhere: bool = False) -> None:
    pair = harness.pair()
    drawn: tuple[Any, ...] = pair.inputs(1)
    inputs = tuple(changed(value, change, seed) for seed, value in enumerate(drawn))
    harness.agree(pair, inputs, name, everywhere=everywhere)
