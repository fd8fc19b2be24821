"""Stages about what the inputs hold: seeds, distributions, scalars, values that are not finite."""

from __future__ import annotations

from typing import Any

import torch

from tunebench.tuner.gate.answers import Pair
from tunebench.tuner.gate.distributions import (
    DISTRIBUTIONS,
    NON_FINITE,
    OFFSET,
    InputChange,
    is_integer,
    large_integers,
    other_masks,
    otherwise,
    zeros_among,
)
from tunebench.tuner.gate.faults import FAILURES
from tunebench.tuner.gate.harness import Harness
from tunebench.tuner.gate.model import CallOptions
from tunebench.tuner.gate.stage_log import StageRefused

_IN_ANOTHER_ORDER = 32.0
"""Where large numbers cancel, sums in another order are so many times as wrong as the reference in the worst of some
draws; a formula that loses its digits is worse by the square of the offset."""
_FURTHER = (11, 12)


def distributions(harness: Harness) -> None:
    """Further draws, other distributions, and other values of whatever input is a plain number."""
    for number in _FURTHER:
        pair = harness.pair()
        harness.agree(pair, pair.inputs(number), f"draw {number}")
    for name in harness.draw.shuffled("distributions", DISTRIBUTIONS):
        ask_distribution(harness, harness.pair(), name)
    pair = harness.pair()
    drawn = pair.inputs(1)
    masked = tuple(other_masks(value, harness.draw.seed_of(number)) for number, value in enumerate(drawn))
    if any(one is not other for one, other in zip(drawn, masked, strict=True)):
        harness.agree(pair, masked, "masks in another order")
    pair = harness.pair()
    for scalar in (-2.0 * harness.draw.factor("a number"), 0.0, 1.0):
        inputs = tuple(scalar if isinstance(value, float) else value for value in pair.inputs(11))
        if any(isinstance(value, float) for value in inputs):
            harness.agree(pair, inputs, f"the number {scalar}")
    _ask_about_what_is_alike(harness, pair)
    harness.tell(harness.answers.form(pair.source).words(pair.names(drawn)))


def _ask_about_what_is_alike(harness: Harness, pair: Pair) -> None:
    """Flags, axes, masks and lengths that every draw has alike take other values, one after the other."""
    draws = harness.answers.draws(pair.source)
    drawn, names = draws[0], pair.names(draws[0])
    for number, values in enumerate(zip(*draws, strict=True)):
        for other in otherwise(values, harness.draw.seed_of(number)):
            inputs = (*drawn[:number], other, *drawn[number + 1 :])
            harness.agree(harness.pair(), inputs, f"{names[number]} otherwise than every draw has it")


def _ask_about_large_integers(harness: Harness) -> None:
    """Integers that are data, beyond those that are drawn: the output goes on following them, unlike lengths."""
    drawn = harness.answers.draws(harness.base)[0]
    if not any(map(is_integer, drawn)):
        return
    if harness.device.type != "cpu":
        harness.pass_over("integers beyond those drawn may be indices, which end a process on a GPU")
        return
    pair, plain = harness.pair(), CallOptions(byte=None, guarded=False, seed=0)
    seed = harness.draw.seed_of(0)
    try:
        one, other = (pair.twin().call(large_integers(drawn, n, seed), plain).output.tensors for n in (1, 2))
    except FAILURES:
        harness.pass_over("the reference refuses integers beyond those drawn")
        return
    if list(one) == list(other) and all(torch.equal(one[path], other[path]) for path in one):
        harness.pass_over("integers beyond those drawn are no data")
        return
    harness.agree(pair, large_integers(drawn, 1, seed), "large integers")


def non_finite(harness: Harness) -> None:
    """NaN, infinities and denormals: not finite exactly where the reference is not, and of the same kind. Then integers
    that are large for their type."""
    for name in harness.draw.shuffled("not finite", NON_FINITE):
        ask_distribution(harness, harness.pair(), name)
    _ask_about_large_integers(harness)


def signed_zeros(harness: Harness) -> None:
    """Zeros come out with the sign that the reference gives them, where it gives it by the sign of a zero that went in:
    what is done with them next may be a division."""
    pair = harness.pair()
    inputs = _drawn(harness, pair, zeros_among(-1.0))
    plain = CallOptions(byte=None, guarded=False, seed=0)
    try:
        expected, others = (
            harness.pair().reference.call(given, plain).output.tensors
            for given in (inputs, _drawn(harness, pair, zeros_among(1.0)))
        )
    except FAILURES:
        return
    output = harness.agree(pair, inputs, "-0.0", everywhere=True)
    if output is None or harness.contender.exemptions.rewrites_algebra:
        return
    for path, tensor in output.tensors.items():
        wrong = _lost_signs(tensor, expected.get(path), others.get(path))
        if wrong:
            raise StageRefused(f"-0.0: {wrong} zeros have lost the sign that the reference keeps")


def ask_distribution(harness: Harness, pair: Pair, name: str) -> None:
    """Ask about inputs of one of `DISTRIBUTIONS` or `NON_FINITE`."""
    change, error = DISTRIBUTIONS.get(name) or NON_FINITE[name], 0.0
    if name == OFFSET:
        draws = (_drawn(harness, pair, change, number) for number in (0, 61, 71))
        error = _IN_ANOTHER_ORDER * harness.answers.error_of(pair, name, draws)
    harness.agree(pair, _drawn(harness, pair, change), name, error=error, everywhere=name in NON_FINITE)


def _drawn(harness: Harness, pair: Pair, change: InputChange, number: int = 0) -> tuple[Any, ...]:
    return harness.in_form(pair, pair.changed(pair.inputs(1), change, number))


def _lost_signs(got: torch.Tensor, expected: torch.Tensor | None, other: torch.Tensor | None) -> int:
    """Zeros of another sign than expected, where zeros of the other sign in the inputs make zeros of the other sign."""
    if (
        expected is None
        or other is None
        or not got.is_floating_point()
        or not got.shape == expected.shape == other.shape
    ):
        return 0
    kept = (expected == 0) & (other == 0) & (torch.signbit(expected) != torch.signbit(other)) & (got == 0)
    return int((kept & (torch.signbit(got) != torch.signbit(expected))).sum())
