"""KernelBench level 2, problem 86: a linear layer, a constant divisor, GELU."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """gelu(linear(x) / divisor)."""

    def __init__(self, input_size: int, output_size: int, divisor: float) -> None:
        super().__init__()
        self.linear = nn.Linear(input_size, output_size)
        self.divisor = divisor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(self.linear(x) / self.divisor)


class ModelNew(blocks.Linear, Model):
    layer = "linear"
    function = "gelu(value / divisor)"
    scalars = ("divisor",)


batch_size = 1024
input_size = 8192
output_size = 8192
divisor = 10.0


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, input_size)]


def get_init_inputs() -> list[object]:
    return [input_size, output_size, divisor]
