"""KernelBench level 1, problem 5: a matrix times a scalar."""

import torch
from torch import nn


class Model(nn.Module):
    """C = A * s."""

    def __init__(self) -> None:
        super().__init__()

    def forward(self, A: torch.Tensor, s: float) -> torch.Tensor:
        """A of any shape times the scalar s."""
        return A * s


M = 16384 * 4
N = 4096 * 4


def get_inputs() -> list[torch.Tensor | float]:
    """One matrix and the scalar."""
    return [torch.rand(M, N), 3.14]


def get_init_inputs() -> list[object]:
    """The model takes no arguments."""
    return []
