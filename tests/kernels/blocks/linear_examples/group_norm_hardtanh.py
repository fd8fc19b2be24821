"""Linear, GroupNorm, and a hard tanh with limits of its own."""

import torch
from torch import nn
from torch.nn import functional

from tunebench import blocks


class Model(nn.Module):
    """Linear, GroupNorm, hardtanh."""

    def __init__(self, in_features: int, out_features: int, num_groups: int, low: float, high: float) -> None:
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features)
        self.group_norm = nn.GroupNorm(num_groups, out_features)
        self.low, self.high = low, high

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, in_features) to (batch, out_features)."""
        return functional.hardtanh(self.group_norm(self.gemm(x)), self.low, self.high)


class ModelNew(blocks.Linear, Model):
    """`Model`, from the block."""

    layer = "gemm"
    group_norm_at = "group_norm"
    finish = "hardtanh(value, low, high)"
    scalars = ("low", "high")


batch_size = 128
in_features = 1024
out_features = 1024


def get_inputs() -> list[torch.Tensor]:
    """One batch."""
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[object]:
    """The sizes, the groups and the limits."""
    return [in_features, out_features, 8, -0.8, 1.2]
