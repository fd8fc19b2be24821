"""Addresses of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_BYTES = 16
"""The copy engine and the widest accesses begin at multiples of so many bytes."""


def is_aligned(tensor: torch.Tensor) -> bool:
    """Return whether the copy engine and the widest accesses can begin with a tensor."""
    return tensor.data_ptr() % _BYTES == 0


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor where they can begin, with its strides: itself, or a copy."""
    return tensor if is_aligned(tensor) else tensor.clone()
