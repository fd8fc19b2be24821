"""KernelBench level 2, problem 31: a convolution, the minimum with a constant, an added bias, a scale."""

import torch
from torch import nn


class Model(nn.Module):
    """Conv2d, then min(., constant), then plus a learnt bias per channel, then times a scalar."""

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
        """x: (batch, in_channels, height, width) to (batch, out_channels, height', width')."""
        x = self.conv(x)
        x = torch.min(x, torch.tensor(self.constant_value, device=x.device))
        x = x + self.bias
        return x * self.scaling_factor


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
    """One batch of images."""
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs() -> list[object]:
    """The sizes and the constants."""
    return [in_channels, out_channels, kernel_size, constant_value, bias_shape, scaling_factor]
