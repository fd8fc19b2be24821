"""Stages about features of torch that a caller combines a model with: dtypes, autocast, torch.compile."""

from __future__ import annotations

import torch

from tunebench.tuner.gate.harness import Harness
from tunebench.tuner.gate.model import CallOptions
from tunebench.tuner.gate.values import in_type, mapped, tensors_in

DTYPES = (torch.float16, torch.bfloat16, torch.float64)


def dtypes(harness: Harness) -> None:
    """Module and inputs in float16, bfloat16 and float64; then integers of 32 bits in place of 64, or the other way."""
    for dtype in DTYPES:
        ask_dtype(harness, dtype)
    drawn = harness.answers.draws(harness.base)[0]
    others = tuple(mapped(value, _of_other_width) for value in drawn)
    if any(one is not other for one, other in zip(tensors_in(drawn), tensors_in(others), strict=True)):
        harness.agree(harness.pair(), others, "integers of 32 bits in place of 64, or the other way")


def _of_other_width(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype is torch.int32:
        return tensor.long()
    fits = tensor.dtype is torch.int64 and bool((tensor.int() == tensor).all())
    return tensor.int() if fits else tensor


def ask_dtype(harness: Harness, dtype: torch.dtype) -> None:
    """Ask about module and inputs in one type."""
    pair = harness.pair()
    pair.both(lambda model: model.to(dtype))
    inputs = tuple(mapped(value, in_type(dtype)) for value in pair.inputs(1))
    harness.agree(pair, inputs, str(dtype).removeprefix("torch."))


def autocast(harness: Harness) -> None:
    """Under autocast: the reference's dtype, and its values as near as the reference's own."""
    device = harness.device.type
    for dtype in (torch.bfloat16,) if device == "cpu" else (torch.float16, torch.bfloat16):
        pair = harness.pair()
        name = f"autocast to {str(dtype).removeprefix('torch.')}"
        harness.agree(pair, pair.inputs(1), name, CallOptions(autocast=dtype))


def compiled(harness: Harness) -> None:
    """Traced by torch.compile; the graph runs eagerly, since it is the tracing that a model can break."""
    pair = harness.pair()
    for seed in (1, 2):
        options = CallOptions(byte=None, compiled=True)
        harness.agree(pair, pair.inputs(seed), f"call {seed} under torch.compile", options)
