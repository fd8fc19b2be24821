"""KernelBench level 2, problem 31: a convolution, the minimum with a constant, a learnt bias per channel, a scale."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """(min(conv(x), constant_value) + bias) · scaling_factor."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        constant_value: float,
        bias_shape: tuple[int, ...],
        scaling_factor: float,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.constant_value = constant_value
        self.bias = nn.Parameter(torch.randn(bias_shape))
        self.scaling_factor = scaling_factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        least = torch.min(self.conv(x), torch.tensor(self.constant_value, device=x.device))
        return (least + self.bias) * self.scaling_factor


class ModelNew(blocks.Conv, Model):
    layer = "conv"
    function = "(min(value, constant_value) + bias) * scaling_factor"
    scalars = ("constant_value", "scaling_factor")
    per_channel = ("bias",)


batch_size = 128
in_channels = 64
out_channels = 128
height = 128
width = 128
kernel_size = 3
constant_value = 0.5
bias_shape = (out_channels, 1, 1)
scaling_factor = 2.0


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs() -> list[object]:
    return [in_channels, out_channels, kernel_size, constant_value, bias_shape, scaling_factor]
