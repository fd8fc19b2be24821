"""KernelBench level 2, problem 29: a linear layer, Mish twice."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """mish(mish(linear(x)))."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.mish(nn.functional.mish(self.linear(x)))


class ModelNew(blocks.Linear, Model):
    layer = "linear"
    function = "mish(mish(value))"


batch_size = 1024
in_features = 8192
out_features = 8192


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[object]:
    return [in_features, out_features]
