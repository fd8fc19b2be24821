"""How wrong an answer may be: the one rule that the gate and every other comparison go by.

An output passes when its error against float64, relative to the size of the output, is within the tolerance of its
dtype, or within twice the error that the reference itself makes at its own precision.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

TOLERANCE: Mapping[torch.dtype, float] = {
    torch.float64: 1e-10,
    torch.float32: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 1e-2,
}
"""The largest error relative to the size of the output, by dtype of the output."""

REFERENCE_MULTIPLE = 2.0
"""A variant may also be this many times as wrong as the reference itself."""

FEW_SAMPLES_MULTIPLE = 4.0
"""The same in the full battery. Its questions are about logic: the outputs are small, and the largest of few errors of
rounding is now and then twice another such."""

AGREEMENT: Mapping[torch.dtype, float] = {torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""How far the outputs of two models of equal standing may lie apart, by dtype: the norm of their difference over the
norm of the second's."""


def tolerance_of(dtype: torch.dtype) -> float:
    """The tolerance for outputs of a dtype; integers and the like must be met exactly."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return 0.0
    return TOLERANCE.get(dtype, 1e-4)


def allowed_error(dtype: torch.dtype, reference_error: float) -> float:
    """The error that passes for a dtype where the reference's own error is this; both relative to the same size."""
    return max(tolerance_of(dtype), REFERENCE_MULTIPLE * reference_error)


def allowed_buffer_error(dtype: torch.dtype, reference_error: float) -> float:
    """The same for a module's buffer of a dtype.

    Steps below its rounding do not move a statistic that is held in a half type: with a momentum of 0.1 it rests
    anywhere within some percent of where more bits would take it, and two sound models of equal standing rest apart.
    """
    return max(allowed_error(dtype, reference_error), AGREEMENT.get(dtype, 0.0))
