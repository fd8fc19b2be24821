"""KernelBench level 2, problem 99: a linear layer, GELU, softmax."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """softmax(gelu(linear(x)))."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(nn.functional.gelu(self.linear(x)), dim=1)


class ModelNew(blocks.Linear, Model):
    layer = "linear"
    function = "gelu(value)"
    over_rows = "softmax"


batch_size = 1024
in_features = 8192
out_features = 8192


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[object]:
    return [in_features, out_features]
