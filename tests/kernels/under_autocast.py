"""A tuned model and its reference under autocast, and how far both are from float64."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

SIZES: dict[str, dict[str, int | float]] = {
    "scalar_mul": {"M": 48, "N": 41},
    "conv_min_add_mul": {"batch_size": 3, "in_channels": 8, "out_channels": 16, "height": 10, "width": 18},
    "gemm_div_sum_scale": {"batch_size": 21, "input_size": 96, "hidden_size": 40},
    "gemm_scale_bn": {"batch_size": 21, "in_features": 96, "out_features": 40},
    "gemm_sigmoid_residual": {"batch_size": 21, "input_size": 96, "hidden_size": 40},
}
_MULTIPLE = 4
"""Parameters and the output are rounded too, which takes at most so many times the reference's own error."""


def require_as_exact(model: nn.Module, tuned: nn.Module, inputs: tuple[Any, ...], dtype: torch.dtype) -> None:
    """A tuned model's result has the type of its reference's, and an error of the same size."""
    device = inputs[0].device.type
    doubles = [one.double() if isinstance(one, torch.Tensor) else one for one in inputs]
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(*doubles)
        with torch.autocast(device, dtype):
            wanted, found = model(*inputs), tuned(*inputs)
    assert found.dtype == wanted.dtype
    allowed, off = (float(torch.linalg.vector_norm(one.double() - exact)) for one in (wanted, found))
    assert off <= _MULTIPLE * allowed, f"error {off:.1e}, the reference's {allowed:.1e}"
