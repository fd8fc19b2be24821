"""KernelBench level 2, problem 68: a linear layer, the minimum with a learnt number, that number subtracted."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """min(linear(x), constant) - constant."""

    def __init__(self, in_features: int, out_features: int, constant: float) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.constant = nn.Parameter(torch.tensor(constant))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.min(self.linear(x), self.constant) - self.constant


class ModelNew(blocks.Linear, Model):
    layer = "linear"
    function = "min(value, constant) - constant"
    per_tensor = ("constant",)


batch_size = 128
in_features = 16384
out_features = 16384
constant = 2.0


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[object]:
    return [in_features, out_features, constant]
