"""A convolution with as much padding as keeps the size, a subtraction of a number, mish."""

import torch
from torch import nn
from torch.nn import functional

from tunebench import blocks


class Model(nn.Module):
    """Conv2d, subtraction, mish."""

    def __init__(self, channels: int, outputs: int, less: float) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, outputs, (3, 2), padding="same")
        self.less = less

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images to images of the same size."""
        return functional.mish(self.conv(x) - self.less)


class ModelNew(blocks.Conv, Model):
    """By the block for convolutions."""

    layer = "conv"
    function = "mish(value - less)"
    scalars = ("less",)


batch_size = 2
channels = 8
outputs = 12
height = 11
width = 10
less = 0.5


def get_inputs() -> list[torch.Tensor]:
    """One batch of images."""
    return [torch.randn(batch_size, channels, height, width)]


def get_init_inputs() -> list[object]:
    """The sizes and the number."""
    return [channels, outputs, less]
