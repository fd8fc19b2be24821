"""Linear, minus a vector with one value for each feature, times a number, ReLU."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """Linear, a subtraction, a multiplication, ReLU."""

    def __init__(self, in_features: int, out_features: int, factor: float) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.subtract = nn.Parameter(torch.randn(out_features))
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, in_features) to (batch, out_features)."""
        return torch.relu((self.linear(x) - self.subtract) * self.factor)


class ModelNew(blocks.Linear, Model):
    """`Model`, from the block."""

    layer = "linear"
    function = "relu((value - subtract) * factor)"
    scalars = ("factor",)
    per_feature = ("subtract",)


batch_size = 128
in_features = 1024
out_features = 1024


def get_inputs() -> list[torch.Tensor]:
    """One batch."""
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[object]:
    """The sizes and the factor."""
    return [in_features, out_features, 1.5]
