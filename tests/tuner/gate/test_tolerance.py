"""The one rule of how wrong an answer may be."""

import pytest
import torch

from tunebench.tuner.gate.tolerance import allowed_error


@pytest.mark.parametrize(
    ("dtype", "own", "allowed"),
    [
        (torch.float32, 0.0, 1e-4),
        (torch.float32, 4e-5, 1e-4),
        (torch.float32, 3e-4, 6e-4),
        (torch.bfloat16, 4e-3, 1e-2),
        (torch.int64, 0.0, 0.0),
        (torch.complex64, 0.0, 1e-4),
    ],
)
def test_the_tolerance_of_the_dtype_or_twice_the_references_own_error(
    dtype: torch.dtype, own: float, allowed: float
) -> None:
    assert allowed_error(dtype, own) == allowed
