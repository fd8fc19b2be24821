"""KernelBench level 2, problem 12: a linear layer, a constant factor, LeakyReLU."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """leaky_relu(linear(x) · multiplier)."""

    def __init__(self, in_features: int, out_features: int, multiplier: float, negative_slope: float) -> None:
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features)
        self.multiplier = multiplier
        self.leaky_relu = nn.LeakyReLU(negative_slope)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        activated: torch.Tensor = self.leaky_relu(self.gemm(x) * self.multiplier)
        return activated


class ModelNew(blocks.Linear, Model):
    layer = "gemm"
    function = "leaky_relu(value * multiplier, negative_slope)"
    scalars = {"multiplier": "multiplier", "negative_slope": "leaky_relu.negative_slope"}


batch_size = 1024
in_features = 8192
out_features = 8192
multiplier = 2.0
negative_slope = 0.1


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[object]:
    return [in_features, out_features, multiplier, negative_slope]
