"""conv_min_add_mul: Conv2d, min with a constant, a bias per channel and a scale, in few passes or in one kernel."""

from __future__ import annotations

from functools import lru_cache

import torch

from tunebench import blocks
from tunebench.kernels.conv_min_add_mul.reference import Model


class ModelNew(blocks.Conv, Model):
    """The `Model` of `reference.py`, by the block for convolutions, which documents layouts, precision and range."""

    layer = "conv"
    function = "(min(constant, value) + bias) * scaling_factor"
    per_channel = ("bias",)
    scalars = ("constant", "scaling_factor")

    @property
    def constant(self) -> object:
        """`constant_value`, rounded as the reference rounds it: to the default dtype."""
        return _rounded(self.constant_value, torch.get_default_dtype())


@lru_cache
def _rounded(number: object, dtype: torch.dtype) -> object:
    return float(torch.tensor(number, dtype=dtype, device="cpu")) if isinstance(number, int | float) else number
