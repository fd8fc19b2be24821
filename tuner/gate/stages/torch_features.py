"""Stages about features of torch that a caller combines a model with: dtypes, gradients, autocast, torch.compile."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from tunebench.tuner.gate.comparison import compare, scale_of
from tunebench.tuner.gate.harness import Harness
from tunebench.tuner.gate.party import Manner
from tunebench.tuner.gate.stage_log import StageRefused
from tunebench.tuner.gate.tolerance import allowed_error

_DTYPES = (torch.float16, torch.bfloat16, torch.float64)


def dtypes(harness: Harness) -> None:
    """Module and inputs in float16, bfloat16 and float64."""
    for dtype in _DTYPES:
        pair = harness.pair()
        pair.both(lambda party, dtype=dtype: party.to(dtype))  # type: ignore[misc]
        inputs = tuple(
            value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
            for value in pair.inputs(1)
        )
        harness.agree(pair, inputs, str(dtype).removeprefix("torch."))


def autocast(harness: Harness) -> None:
    """Under autocast: the reference's dtype, and its values as near as the reference's own."""
    device = harness.device.type
    for dtype in (torch.bfloat16,) if device == "cpu" else (torch.float16, torch.bfloat16):
        pair = harness.pair()
        name = f"autocast to {str(dtype).removeprefix('torch.')}"
        harness.agree(pair, pair.inputs(1), name, Manner(autocast=dtype))


def gradients(harness: Harness) -> None:
    """Gradients of inputs and parameters equal the reference's; a result is never silently detached."""
    pair = harness.pair()
    drawn = pair.inputs(1)
    for label, of_inputs in (("of inputs and parameters", True), ("of parameters", False)):
        expected = pair.reference.gradients(drawn, of_inputs=of_inputs)
        if not expected:
            harness.pass_over("the reference has no such gradients")
            continue
        with harness.refusing(f"gradients {label}"), torch.no_grad():
            if (reason := pair.candidate.ready(drawn)) is not None:
                harness.pass_over(reason)
                continue
        with harness.refusing(f"gradients {label}"):
            got = pair.candidate.gradients(drawn, of_inputs=of_inputs)
        harness.count()
        _judge_gradients(expected, got, pair.reference.gradients(drawn, of_inputs=of_inputs, exact=True))


def _judge_gradients(
    expected: Mapping[str, torch.Tensor], got: Mapping[str, torch.Tensor], exact: Mapping[str, torch.Tensor]
) -> None:
    if not got:
        raise StageRefused("the output is detached: no gradient reaches inputs or parameters")
    if set(got) != set(expected):
        missing = ", ".join(sorted(set(expected) ^ set(got)))
        raise StageRefused(f"gradients are there for other tensors than the reference's: {missing}")
    for name, gradient in expected.items():
        scale = scale_of(exact[name])
        own = compare(gradient, exact[name], scale, math.inf).max_relative
        bound = allowed_error(gradient.dtype, own)
        error = compare(got[name], exact[name], scale, bound).max_relative
        if not error <= bound:
            raise StageRefused(f"the gradient of {name} is off by {error:.2e} of its size, allowed {bound:.2e}")


def compiled(harness: Harness) -> None:
    """Traced by torch.compile; the graph runs eagerly, since it is the tracing that a model can break."""
    pair = harness.pair()
    for seed in (1, 2):
        manner = Manner(byte=None, compiled=True)
        harness.agree(pair, pair.inputs(seed), f"call {seed} under torch.compile", manner)
