"""KernelBench level 2, problem 71: a convolution, a constant divisor, LeakyReLU."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """leaky_relu(conv(x) / divisor)."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, divisor: float) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.divisor = divisor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.leaky_relu(self.conv(x) / self.divisor)


class ModelNew(blocks.Conv, Model):
    layer = "conv"
    function = "leaky_relu(value / divisor, 0.01)"
    scalars = ("divisor",)


batch_size = 128
in_channels = 8
out_channels = 64
height = 128
width = 128
kernel_size = 3
divisor = 2.0


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs() -> list[object]:
    return [in_channels, out_channels, kernel_size, divisor]
