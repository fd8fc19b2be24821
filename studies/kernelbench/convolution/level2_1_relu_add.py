"""KernelBench level 2, problem 1: a convolution, ReLU, a learnt bias per channel."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """relu(conv(x)) + bias."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, bias_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.bias = nn.Parameter(torch.randn(bias_shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x)) + self.bias


class ModelNew(blocks.Conv, Model):
    layer = "conv"
    function = "relu(value) + bias"
    per_channel = ("bias",)


batch_size = 128
in_channels = 64
out_channels = 128
height = 128
width = 128
kernel_size = 3
bias_shape = (out_channels, 1, 1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs() -> list[object]:
    return [in_channels, out_channels, kernel_size, bias_shape]
