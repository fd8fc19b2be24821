"""KernelBench level 2, problem 4: a convolution, Mish twice."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """mish(mish(conv(x)))."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.mish(nn.functional.mish(self.conv(x)))


class ModelNew(blocks.Conv, Model):
    layer = "conv"
    function = "mish(mish(value))"


batch_size = 64
in_channels = 64
out_channels = 128
height = 256
width = 256
kernel_size = 3


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs() -> list[object]:
    return [in_channels, out_channels, kernel_size]
