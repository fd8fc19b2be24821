"""KernelBench level 2, problem 59: a linear layer, Swish, a constant factor."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """swish(linear(x)) · scaling_factor."""

    def __init__(self, in_features: int, out_features: int, scaling_factor: float) -> None:
        super().__init__()
        self.matmul = nn.Linear(in_features, out_features)
        self.scaling_factor = scaling_factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = self.matmul(x)
        return product * torch.sigmoid(product) * self.scaling_factor


class ModelNew(blocks.Linear, Model):
    layer = "matmul"
    function = "swish(value) * scaling_factor"
    scalars = ("scaling_factor",)


batch_size = 128
in_features = 32768
out_features = 32768
scaling_factor = 2.0


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[object]:
    return [in_features, out_features, scaling_factor]
