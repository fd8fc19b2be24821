"""KernelBench level 2, problem 63: a linear layer, ReLU, a constant divisor."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """relu(linear(x)) / divisor."""

    def __init__(self, in_features: int, out_features: int, divisor: float) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.divisor = divisor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) / self.divisor


class ModelNew(blocks.Linear, Model):
    layer = "linear"
    function = "relu(value) / divisor"
    scalars = ("divisor",)


batch_size = 1024
in_features = 8192
out_features = 8192
divisor = 2.0


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[object]:
    return [in_features, out_features, divisor]
