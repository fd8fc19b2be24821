"""KernelBench level 1, problem 34: InstanceNorm of images."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """x to mean 0 and variance 1 over each image of each channel."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.inorm = nn.InstanceNorm2d(num_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normalised: torch.Tensor = self.inorm(x)
        return normalised


class ModelNew(blocks.Rows, Model):
    reductions = {"total": blocks.Sum("x"), "squares": blocks.Sum("square(x - total / features)")}
    function = "(x - total / features) * rsqrt(squares / features + eps)"
    scalars = {"eps": "inorm.eps"}
    row_dimensions = 2


batch_size = 112
features = 64
dim1 = 512
dim2 = 512


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, features, dim1, dim2)]


def get_init_inputs() -> list[object]:
    return [features]
