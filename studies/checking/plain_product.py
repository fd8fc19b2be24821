"""The kernel of a linear product alone, x · weightᵀ, by whatever the block `Linear` has for it."""

from __future__ import annotations

import torch
from torch import nn

from tunebench import blocks

rows = 1024
in_features = 8192
out_features = 8192


class Model(nn.Module):
    """A linear layer without a bias."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x · weightᵀ."""
        product: torch.Tensor = self.linear(x)
        return product


class ModelNew(blocks.Linear, Model):
    """The same by the block's products."""

    layer = "linear"


def get_inputs() -> list[torch.Tensor]:
    """Draw x from the normal distribution."""
    return [torch.randn(rows, in_features)]


def get_init_inputs() -> list[int]:
    """Return the sizes of the weight."""
    return [in_features, out_features]
