"""A strided 3x3 convolution in groups, without a bias, then hardswish."""

import torch
from torch import nn
from torch.nn import functional

from tunebench import blocks


class Model(nn.Module):
    """Conv2d in groups, hardswish."""

    def __init__(self, channels: int, outputs: int, groups: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, outputs, 3, stride=2, padding=1, groups=groups, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images to images of half the height and width."""
        return functional.hardswish(self.conv(x))


class ModelNew(blocks.Conv, Model):
    """By the block for convolutions."""

    layer = "conv"
    function = "hardswish(value)"


batch_size = 2
channels = 8
outputs = 12
height = 11
width = 10
groups = 4


def get_inputs() -> list[torch.Tensor]:
    """One batch of images."""
    return [torch.randn(batch_size, channels, height, width)]


def get_init_inputs() -> list[object]:
    """The sizes."""
    return [channels, outputs, groups]
