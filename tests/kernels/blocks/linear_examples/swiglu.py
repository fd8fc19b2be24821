"""Two linear layers of one input, one of which gates the other, beside a residual and a learnt factor."""

import torch
from torch import nn
from torch.nn import functional

from tunebench import blocks


class Model(nn.Module):
    """SwiGLU, scaled, and a residual."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.gate = nn.Linear(in_features, out_features, bias=False)
        self.up = nn.Linear(in_features, out_features)
        self.scale = nn.Parameter(torch.ones(out_features))

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """x: (batch, in_features), residual: (batch, out_features)."""
        return functional.silu(self.gate(x)) * self.up(x) * self.scale + residual


class ModelNew(blocks.Linear, Model):
    """`Model`, from the block."""

    layer = "gate"
    other_layers = ("up",)
    function = "silu(value) * up * scale + residual"
    per_feature = ("scale",)


batch_size = 128
in_features = 1024
out_features = 1024


def get_inputs() -> list[torch.Tensor]:
    """One batch."""
    return [torch.rand(batch_size, in_features), torch.rand(batch_size, out_features)]


def get_init_inputs() -> list[object]:
    """The sizes."""
    return [in_features, out_features]
