"""KernelBench level 2, problem 57: a convolution, ReLU, hard swish."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """y · clamp((y + 3) / 6, 0, 1) of y = relu(conv(x))."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positive = torch.relu(self.conv(x))
        return positive * torch.clamp((positive + 3) / 6, 0, 1)


class ModelNew(blocks.Conv, Model):
    layer = "conv"
    function = "hardswish(relu(value))"


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
