"""Linear, GELU and a softmax of each row."""

import torch
from torch import nn
from torch.nn import functional

from tunebench import blocks


class Model(nn.Module):
    """Linear, GELU, softmax."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, in_features) to (batch, out_features)."""
        return torch.softmax(functional.gelu(self.linear(x)), dim=1)


class ModelNew(blocks.Linear, Model):
    """`Model`, from the block."""

    layer = "linear"
    function = "gelu(value)"
    over_rows = "softmax"


batch_size = 128
in_features = 1024
out_features = 1024


def get_inputs() -> list[torch.Tensor]:
    """One batch."""
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[object]:
    """The sizes."""
    return [in_features, out_features]
