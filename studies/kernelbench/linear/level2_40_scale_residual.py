"""KernelBench level 2, problem 40: a linear layer, and its output plus a multiple of it."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """linear(x) · scaling_factor + linear(x), where the second one has no gradient."""

    def __init__(self, in_features: int, out_features: int, scaling_factor: float) -> None:
        super().__init__()
        self.matmul = nn.Linear(in_features, out_features)
        self.scaling_factor = scaling_factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = self.matmul(x)
        return product * self.scaling_factor + product.clone().detach()


class ModelNew(blocks.Linear, Model):
    layer = "matmul"
    function = "value * scaling_factor + value"
    scalars = ("scaling_factor",)


batch_size = 16384
in_features = 4096
out_features = 4096
scaling_factor = 0.5


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[object]:
    return [in_features, out_features, scaling_factor]
