"""A 3x3 convolution with padding, then ReLU, then an added bias per channel."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """Conv2d, ReLU, bias."""

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, outputs, 3, padding=1)
        self.bias = nn.Parameter(torch.randn(outputs, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images to images of the same size."""
        return torch.relu(self.conv(x)) + self.bias


class ModelNew(blocks.Conv, Model):
    """By the block for convolutions."""

    layer = "conv"
    function = "relu(value) + bias"
    per_channel = ("bias",)


batch_size = 2
channels = 8
outputs = 12
height = 11
width = 10


def get_inputs() -> list[torch.Tensor]:
    """One batch of images."""
    return [torch.randn(batch_size, channels, height, width)]


def get_init_inputs() -> list[object]:
    """The sizes."""
    return [channels, outputs]
