"""Stages about what the inputs hold: seeds, distributions, scalars, values that are not finite."""

from __future__ import annotations

from typing import Any

from tunebench.tuner.gate.distributions import DISTRIBUTIONS, NON_FINITE, Change, changed
from tunebench.tuner.gate.harness import Rig

_SEEDS = (11, 12)
_SCALARS = (-2.5, 0.0, 1.0)


def distributions(rig: Rig) -> None:
    """Further seeds, other distributions, and other values of whatever input is a plain number."""
    for seed in _SEEDS:
        pair = rig.pair()
        rig.agree(pair, pair.inputs(seed), f"seed {seed}")
    for name, change in DISTRIBUTIONS.items():
        _ask(rig, name, change)
    pair = rig.pair()
    for scalar in _SCALARS:
        inputs = tuple(scalar if isinstance(value, float) else value for value in pair.inputs(11))
        if any(isinstance(value, float) for value in inputs):
            rig.agree(pair, inputs, f"the number {scalar}")


def non_finite(rig: Rig) -> None:
    """NaN, infinities and denormals: not finite exactly where the reference is not, and of the same kind."""
    for name, change in NON_FINITE.items():
        _ask(rig, name, change)


def _ask(rig: Rig, name: str, change: Change) -> None:
    pair = rig.pair()
    drawn: tuple[Any, ...] = pair.inputs(1)
    rig.agree(pair, tuple(changed(value, change, seed) for seed, value in enumerate(drawn)), name)
