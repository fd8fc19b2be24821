"""KernelBench level 2, problem 69: a convolution, hard swish, ReLU."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """relu(hardswish(conv(x)))."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(nn.functional.hardswish(self.conv(x)))


class ModelNew(blocks.Conv, Model):
    layer = "conv"
    function = "relu(hardswish(value))"


batch_size = 128
in_channels = 8
out_channels = 64
height = 128
width = 128
kernel_size = 3


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs() -> list[object]:
    return [in_channels, out_channels, kernel_size]
