"""The product of two inputs, the first transposed, with a bias and GELU behind it."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    def __init__(self, out_features: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.rand(out_features))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(x.T @ y + self.bias)


class ModelNew(blocks.Linear, Model):
    layer = "x.T @ y"
    function = "gelu(value + bias)"
    per_feature = ("bias",)


batch_size = 20
in_features = 64
out_features = 48


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(in_features, batch_size), torch.rand(in_features, out_features)]


def get_init_inputs() -> list[object]:
    return [out_features]
