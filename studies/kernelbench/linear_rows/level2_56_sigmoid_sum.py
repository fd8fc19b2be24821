"""KernelBench level 2, problem 56: a linear layer, its sigmoid, the sum over features."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """The sum over features of sigmoid(linear(x))."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(input_size, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sum(torch.sigmoid(self.linear(x)), dim=1, keepdim=True)


class ModelNew(blocks.Linear, Model):
    layer = "linear"
    function = "sigmoid(value)"
    over_rows = "sum"
    keepdim = True


batch_size = 128
input_size = 32768
hidden_size = 32768


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, input_size)]


def get_init_inputs() -> list[object]:
    return [input_size, hidden_size]
