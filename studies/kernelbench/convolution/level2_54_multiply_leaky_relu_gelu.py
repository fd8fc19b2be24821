"""KernelBench level 2, problem 54: a convolution, a learnt factor per channel, LeakyReLU, GELU."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """gelu(leaky_relu(conv(x) · multiplier))."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, multiplier_shape: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.multiplier = nn.Parameter(torch.randn(multiplier_shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(nn.functional.leaky_relu(self.conv(x) * self.multiplier))


class ModelNew(blocks.Conv, Model):
    layer = "conv"
    function = "gelu(leaky_relu(value * multiplier, 0.01))"
    per_channel = ("multiplier",)


batch_size = 64
in_channels = 64
out_channels = 64
height = 256
width = 256
kernel_size = 3
multiplier_shape = (out_channels, 1, 1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs() -> list[object]:
    return [in_channels, out_channels, kernel_size, multiplier_shape]
