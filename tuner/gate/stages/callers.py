"""Stages about what a program does with any module: hooks, calls by keyword, training loops."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from tunebench.tuner.gate.changes import HOOKS
from tunebench.tuner.gate.comparison import compare, scale_of
from tunebench.tuner.gate.distributions import DISTRIBUTIONS, all_changed
from tunebench.tuner.gate.faults import FAILURES
from tunebench.tuner.gate.gradients import OUTPUT, Backward, Incoming, Trained
from tunebench.tuner.gate.harness import Harness, Pair
from tunebench.tuner.gate.party import Manner
from tunebench.tuner.gate.stage_log import StageRefused
from tunebench.tuner.gate.tolerance import FEW_SAMPLES_MULTIPLE, allowed_error

_MOSTLY_ROUNDING = 0.1
_OF_ROUNDING = 32.0
_OPTION = 1.5


def hooks(harness: Harness) -> None:
    """Forward hooks and pre-hooks of the model fire, and what they return counts.

    Those of its parts are not asked about: a forward that is one kernel calls none of them.
    """
    for name in HOOKS:
        pair = harness.pair()
        inputs = pair.inputs(1)
        harness.agree(pair, inputs, f"before {name}")
        pair.change(name)
        harness.agree(pair, inputs, f"with {name}")


def keywords(harness: Harness) -> None:
    """Called with its inputs by their names in the reference's signature, and with a number for each that the reference
    does without."""
    pair = harness.pair()
    inputs = pair.inputs(1)
    names = tuple(pair.reference.input_names(len(inputs)))
    if not names:
        harness.pass_over("the reference's inputs have no names")
        return
    harness.agree(pair, inputs, f"called with {', '.join(names)} by name", Manner(keywords=names))
    for option in pair.reference.options(len(inputs)):
        names, inputs = (*names, option), (*inputs, _OPTION)
        harness.agree(harness.pair(), inputs, f"with {option} = {_OPTION}", Manner(keywords=names))


GRADIENTS: Mapping[str, Backward] = {
    "of inputs and parameters": Backward(),
    "of parameters": Backward(inputs=False),
}
TRAINING: Mapping[str, Backward] = {
    "of inputs alone": Backward(parameters=Trained.NONE),
    "with some weights frozen": Backward(parameters=Trained.SOME),
    "for a strided gradient of the output": Backward(incoming=Incoming.STRIDED),
    "for an expanded gradient of the output": Backward(incoming=Incoming.EXPANDED),
    "of two backwards, added up": Backward(times=2),
    "after a call in inference mode": Backward(after_inference=True),
    "of gradients": Backward(second=True),
}


def gradients(harness: Harness) -> None:
    """Gradients of inputs and parameters equal the reference's, and so does the output where they are recorded; a
    result is never silently detached. First comes a call as most programs make it, which nothing watches."""
    pair = harness.pair()
    plainly = Manner(byte=None, guarded=False, recording=True)
    harness.agree(pair, pair.inputs(1), "a call where gradients are recorded", plainly)
    _ask(harness, GRADIENTS)


def training(harness: Harness) -> None:
    """Gradients as training loops ask for them: weights frozen, gradients added up, gradients of gradients."""
    _ask(harness, TRAINING)


def _ask(harness: Harness, ways: Mapping[str, Backward]) -> None:
    for label, how in ways.items():
        pair = harness.pair()
        drawn = pair.inputs(1)
        normal = all_changed(drawn, DISTRIBUTIONS["normal"])
        # Of both signs, where the reference is made for them.
        asked = next((one for one in map(partial(_Asked.of, pair, how), (normal, drawn)) if one is not None), None)
        if asked is None:
            harness.pass_over("the reference has no such gradients")
            continue
        with harness.refusing(f"gradients {label}"):
            with torch.no_grad():
                reason = pair.candidate.ready(asked.inputs)
            if reason is not None:
                harness.pass_over(reason)
                continue
            got = pair.candidate.gradients(asked.inputs, how)
        harness.count()
        try:
            _judge(asked.expected, _with_zeros(got, asked.expected) if how.second else got, asked.exact)
        except StageRefused as refusal:
            raise StageRefused(f"gradients {label}: {refusal}") from refusal


@dataclass(frozen=True)
class _Asked:
    """Inputs with the reference's gradients, at its own precision and in float64."""

    inputs: tuple[Any, ...]
    expected: Mapping[str, torch.Tensor]
    exact: Mapping[str, torch.Tensor]

    @classmethod
    def of(cls, pair: Pair, how: Backward, inputs: tuple[Any, ...]) -> _Asked | None:
        """None where the reference has none, or none that are finite."""
        try:
            exact = pair.reference.gradients(inputs, how, exact=True)
            expected = pair.reference.gradients(inputs, how)
        except FAILURES:
            return None
        if set(exact) != set(expected):
            return None
        finite = {name for name in exact if _is_finite(exact[name]) and _is_finite(expected[name])}
        names = [name for name in expected if name in finite or not name.startswith(OUTPUT)]
        if all(name.startswith(OUTPUT) for name in names) or not finite.issuperset(names):
            return None
        return cls(inputs, {name: expected[name] for name in names}, exact)


def _is_finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def _with_zeros(got: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The gradients with zeros for those that a graph does not reach: it does not say whether it knows that."""
    return {name: torch.zeros_like(gradient) for name, gradient in expected.items()} | dict(got)


def _judge(
    expected: Mapping[str, torch.Tensor], got: Mapping[str, torch.Tensor], exact: Mapping[str, torch.Tensor]
) -> None:
    if not got:
        raise StageRefused("the output is detached: no gradient reaches inputs or parameters")
    missing = ", ".join(sorted(name for name in set(expected) ^ set(got) if not name.startswith(OUTPUT)))
    if missing:
        raise StageRefused(f"gradients are there for other tensors than the reference's: {missing}")
    for name, gradient in expected.items():
        what = f"{name}, where gradients are recorded," if name.startswith(OUTPUT) else f"the gradient of {name}"
        if name not in got or got[name].shape != gradient.shape or got[name].dtype != gradient.dtype:
            raise StageRefused(f"{what} has another shape or type than the reference's")
        scale = scale_of(exact[name])
        own = compare(gradient, exact[name], scale, math.inf).max_relative
        # A gradient that is zero, such as that of a bias before a normalisation, is what is left of rounding.
        multiple = FEW_SAMPLES_MULTIPLE if own < _MOSTLY_ROUNDING else _OF_ROUNDING
        bound = max(allowed_error(gradient.dtype, own), multiple * own)
        error = compare(got[name], exact[name], scale, bound).max_relative
        if not error <= bound:
            raise StageRefused(f"{what} is off by {error:.2e} of its size, allowed {bound:.2e}")
