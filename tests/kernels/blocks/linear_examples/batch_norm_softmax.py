"""Linear, BatchNorm, a learnt factor and a softmax of each row."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """Linear, BatchNorm1d, a factor, softmax."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features)
        self.bn = nn.BatchNorm1d(out_features)
        self.factor = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, in_features) to (batch, out_features)."""
        return torch.softmax(self.factor * self.bn(self.gemm(x)), dim=1)


class ModelNew(blocks.Linear, Model):
    """`Model`, from the block."""

    layer = "gemm"
    batch_norm_at = "bn"
    reductions = {"top": blocks.Max("factor * value"), "total": blocks.Sum("exp(factor * value - top)")}  # noqa: RUF012
    finish = "exp(factor * value - top) / total"
    per_tensor = ("factor",)


batch_size = 128
in_features = 1024
out_features = 1024


def get_inputs() -> list[torch.Tensor]:
    """One batch."""
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[object]:
    """The sizes."""
    return [in_features, out_features]
