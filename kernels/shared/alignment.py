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


def has_aligned_rows(matrices: torch.Tensor) -> bool:
    """Return whether they can begin with each row of matrices."""
    return is_aligned(matrices) and matrices.stride(-2) * matrices.element_size() % _BYTES == 0


def in_aligned_rows(matrices: torch.Tensor) -> torch.Tensor:
    """Return a copy of matrices whose rows they can begin with, each with as much room as that takes."""
    *others, length = matrices.shape
    items = _BYTES // matrices.element_size()
    room = matrices.new_empty(*others, -(-length // items) * items)
    return room[..., :length].copy_(matrices)
