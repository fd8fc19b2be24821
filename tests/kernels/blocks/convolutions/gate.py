"""A 1x1 convolution whose sigmoid is a gate for its input."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """sigmoid(Conv2d(x)) * x."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(nn.Conv2d(channels, channels, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images to images of the same shape."""
        gate: torch.Tensor = self.gate[0](x)
        return torch.sigmoid(gate) * x


class ModelNew(blocks.Conv, Model):
    """By the block for convolutions."""

    layer = "gate.0"
    function = "sigmoid(value) * x"


batch_size = 2
channels = 8
height = 11
width = 10


def get_inputs() -> list[torch.Tensor]:
    """One batch of images."""
    return [torch.randn(batch_size, channels, height, width)]


def get_init_inputs() -> list[object]:
    """The sizes."""
    return [channels]
