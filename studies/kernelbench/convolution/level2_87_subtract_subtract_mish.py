"""KernelBench level 2, problem 87: a convolution, two constants subtracted, Mish."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """mish(conv(x) - subtract_value_1 - subtract_value_2)."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, subtract_value_1: float, subtract_value_2: float
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.subtract_value_1 = subtract_value_1
        self.subtract_value_2 = subtract_value_2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.mish(self.conv(x) - self.subtract_value_1 - self.subtract_value_2)


class ModelNew(blocks.Conv, Model):
    layer = "conv"
    function = "mish(value - subtract_value_1 - subtract_value_2)"
    scalars = ("subtract_value_1", "subtract_value_2")


batch_size = 128
in_channels = 8
out_channels = 64
height = 256
width = 256
kernel_size = 3
subtract_value_1 = 0.5
subtract_value_2 = 0.2


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs() -> list[object]:
    return [in_channels, out_channels, kernel_size, subtract_value_1, subtract_value_2]
