"""KernelBench level 1, problem 40: LayerNorm over whole images."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """x to mean 0 and variance 1 over its last three dimensions, times a weight, plus a bias."""

    def __init__(self, normalized_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(normalized_shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normalised: torch.Tensor = self.ln(x)
        return normalised


class ModelNew(blocks.Rows, Model):
    reductions = {"total": blocks.Sum("x"), "squares": blocks.Sum("square(x - total / features)")}
    function = "(x - total / features) * rsqrt(squares / features + eps) * weight + bias"
    scalars = {"eps": "ln.eps"}
    per_feature = {"weight": "ln.weight", "bias": "ln.bias"}
    row_dimensions = 3


batch_size = 16
features = 64
dim1 = 256
dim2 = 256


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, features, dim1, dim2)]


def get_init_inputs() -> list[object]:
    return [(features, dim1, dim2)]
