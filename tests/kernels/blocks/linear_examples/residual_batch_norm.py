"""A product with a parameter, leaky ReLU, BatchNorm, and behind it a gate for each row and a residual."""

import torch
from torch import nn
from torch.nn import functional

from tunebench import blocks


class Model(nn.Module):
    """x · weight, leaky ReLU, BatchNorm1d, times a gate, plus a residual."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(in_features, out_features) * 0.1)
        self.norm = nn.BatchNorm1d(out_features)

    def forward(self, x: torch.Tensor, residual: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """x: (batch, in_features), residual: (batch, out_features), gate: (batch, 1); to (batch, out_features)."""
        return self.norm(functional.leaky_relu(x @ self.weight)) * gate + residual


class ModelNew(blocks.Linear, Model):
    """`Model`, from the block."""

    layer = "x @ weight"
    function = "leaky_relu(value)"
    batch_norm_at = "norm"
    finish = "value * gate + residual"
    per_row = ("gate",)


batch_size = 96
in_features = 40
out_features = 72


def get_inputs() -> list[torch.Tensor]:
    """One batch, a residual and a gate."""
    return [torch.randn(batch_size, in_features), torch.randn(batch_size, out_features), torch.rand(batch_size, 1)]


def get_init_inputs() -> list[object]:
    """The sizes."""
    return [in_features, out_features]
