"""The lower triangle of the product of two inputs, the second transposed, with a factor per row behind it."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return torch.tril(x @ y.T) * scale


class ModelNew(blocks.Linear, Model):
    layer = "x @ y.T"
    triangle = "lower"
    function = "value * scale"
    per_row = ("scale",)


batch_size = 20
in_features = 64
out_features = 48


def get_inputs() -> list[torch.Tensor]:
    x, y = torch.rand(batch_size, in_features), torch.rand(out_features, in_features)
    return [x, y, torch.rand(batch_size, 1)]


def get_init_inputs() -> list[object]:
    return []
