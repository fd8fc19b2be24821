"""KernelBench level 2, problem 70: a linear layer, and its output plus a multiple of its sigmoid."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """sigmoid(linear(x)) · scaling_factor + linear(x)."""

    def __init__(self, input_size: int, hidden_size: int, scaling_factor: float) -> None:
        super().__init__()
        self.gemm = nn.Linear(input_size, hidden_size)
        self.scaling_factor = scaling_factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = self.gemm(x)
        return torch.sigmoid(product) * self.scaling_factor + product


class ModelNew(blocks.Linear, Model):
    layer = "gemm"
    function = "sigmoid(value) * scaling_factor + value"
    scalars = ("scaling_factor",)


batch_size = 1024
input_size = 8192
hidden_size = 8192
scaling_factor = 2.0


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, input_size)]


def get_init_inputs() -> list[object]:
    return [input_size, hidden_size, scaling_factor]
