"""KernelBench level 2, problem 14: a matrix product, halved, summed over its features and scaled."""

import torch
from torch import nn


class Model(nn.Module):
    """x times the transposed weight, divided by 2, summed over the rows of the weight, times a scalar."""

    def __init__(self, input_size: int, hidden_size: int, scaling_factor: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(hidden_size, input_size))
        self.scaling_factor = scaling_factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, input_size) to (batch, 1)."""
        x = torch.matmul(x, self.weight.T)
        x = x / 2
        x = torch.sum(x, dim=1, keepdim=True)
        return x * self.scaling_factor


batch_size = 1024
input_size = 8192
hidden_size = 8192
scaling_factor = 1.5


def get_inputs() -> list[torch.Tensor]:
    """One batch."""
    return [torch.rand(batch_size, input_size)]


def get_init_inputs() -> list[object]:
    """The sizes and the factor."""
    return [input_size, hidden_size, scaling_factor]
