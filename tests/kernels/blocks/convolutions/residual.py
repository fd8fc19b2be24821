"""A dilated convolution with a residual, a scale that is a tensor, and a number that is an input."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """relu(Conv2d(x) * scale + residual) * factor."""

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, outputs, 3, padding=(2, 1), dilation=(2, 1))
        self.scale = nn.Parameter(torch.rand(1))

    def forward(self, x: torch.Tensor, residual: torch.Tensor, factor: float) -> torch.Tensor:
        """Images and a residual of the output's shape to images."""
        return torch.relu(self.conv(x) * self.scale + residual) * factor


class ModelNew(blocks.Conv, Model):
    """By the block for convolutions."""

    layer = "conv"
    function = "relu(value * scale + residual) * factor"
    per_tensor = ("scale",)


batch_size = 2
channels = 8
outputs = 12
height = 11
width = 10


def get_inputs() -> list[torch.Tensor | float]:
    """One batch of images, a residual and a factor."""
    return [torch.randn(batch_size, channels, height, width), torch.randn(batch_size, outputs, height, width), 1.5]


def get_init_inputs() -> list[object]:
    """The sizes."""
    return [channels, outputs]
