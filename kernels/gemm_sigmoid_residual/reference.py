"""KernelBench level 2, problem 70: a linear layer, and its output plus a multiple of its sigmoid."""

import torch
from torch import nn


class Model(nn.Module):
    """Linear, then y + scaling_factor · sigmoid(y)."""

    def __init__(self, input_size: int, hidden_size: int, scaling_factor: float) -> None:
        super().__init__()
        self.gemm = nn.Linear(input_size, hidden_size)
        self.scaling_factor = scaling_factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, input_size) to (batch, hidden_size)."""
        product: torch.Tensor = self.gemm(x)
        return torch.sigmoid(product) * self.scaling_factor + product


batch_size = 1024
input_size = 8192
hidden_size = 8192
scaling_factor = 2.0


def get_inputs() -> list[torch.Tensor]:
    """One batch."""
    return [torch.rand(batch_size, input_size)]


def get_init_inputs() -> list[object]:
    """The sizes and the factor."""
    return [input_size, hidden_size, scaling_factor]
