"""Linear, swish, and a scale: as KernelBench's level 2 has it."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """Linear, swish, times a number."""

    def __init__(self, in_features: int, out_features: int, scaling_factor: float) -> None:
        super().__init__()
        self.matmul = nn.Linear(in_features, out_features)
        self.scaling_factor = scaling_factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, in_features) to (batch, out_features)."""
        x = self.matmul(x)
        return x * torch.sigmoid(x) * self.scaling_factor


class ModelNew(blocks.Linear, Model):
    """`Model`, from the block."""

    layer = "matmul"
    function = "swish(value) * scaling_factor"
    scalars = ("scaling_factor",)


batch_size = 128
in_features = 1024
out_features = 1024


def get_inputs() -> list[torch.Tensor]:
    """One batch."""
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[object]:
    """The sizes and the factor."""
    return [in_features, out_features, 2.0]
