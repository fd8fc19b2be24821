"""Linear, doubled and clamped, the logsumexp of each row, and what mish makes of that."""

import torch
from torch import nn
from torch.nn import functional

from tunebench import blocks


class Model(nn.Module):
    """Linear, a scale, a residual, a clamp, logsumexp, x · mish(x)."""

    def __init__(self, in_features: int, out_features: int, scale: float, low: float, high: float) -> None:
        super().__init__()
        self.matmul = nn.Linear(in_features, out_features)
        self.scale, self.low, self.high = scale, low, high

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, in_features) to (batch, 1)."""
        x = self.matmul(x) * self.scale
        x = torch.clamp(x + x, self.low, self.high)
        x = torch.logsumexp(x, dim=1, keepdim=True)
        return x * functional.mish(x)


class ModelNew(blocks.Linear, Model):
    """`Model`, from the block."""

    layer = "matmul"
    function = "clamp(2 * value * scale, low, high)"
    over_rows = "logsumexp"
    finish = "value * mish(value)"
    keepdim = True
    scalars = ("scale", "low", "high")


batch_size = 128
in_features = 1024
out_features = 1024


def get_inputs() -> list[torch.Tensor]:
    """One batch."""
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[object]:
    """The sizes, the factor and the limits."""
    return [in_features, out_features, 2.0, -10.0, 10.0]
