"""Products of two stacks of matrices, with a residual and softmax behind them."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ y.mT + residual, -1)


class ModelNew(blocks.Linear, Model):
    layer = "x @ y.T"
    function = "value + residual"
    over_rows = "softmax"


batch_size = 20
in_features = 64
out_features = 48


def get_inputs() -> list[torch.Tensor]:
    x, y = torch.rand(3, batch_size, in_features), torch.rand(3, out_features, in_features)
    return [x, y, torch.rand(3, batch_size, out_features)]


def get_init_inputs() -> list[object]:
    return []
