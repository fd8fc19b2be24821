"""A problem in KernelBench's form for each block, where nobody has one of their own yet."""

from __future__ import annotations

_HEAD = """import torch
from torch import nn

"""

_POINTWISE = '''
class Model(nn.Module):
    """x · sigmoid(x), times a number: write your own operations here."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(x) * self.scale


rows = 512
columns = 1024
scale = 1.5


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(rows, columns)]


def get_init_inputs() -> list[object]:
    return [scale]
'''

_ROWS = '''
class Model(nn.Module):
    """RMSNorm over the last dimension: write your own operations here."""

    def __init__(self, features: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(features) + 0.5)
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


rows = 512
features = 1024
eps = 1e-5


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(rows, features)]


def get_init_inputs() -> list[object]:
    return [features, eps]
'''

_LINEAR = '''
class Model(nn.Module):
    """A linear layer with SiLU and a factor behind it: write your own operations here."""

    def __init__(self, in_features: int, out_features: int, scale: float) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.silu(self.linear(x)) * self.scale


batch_size = 128
in_features = 512
out_features = 256
scale = 1.5


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[object]:
    return [in_features, out_features, scale]
'''

_CONV = '''
class Model(nn.Module):
    """A convolution with ReLU and a bias per channel behind it: write your own operations here."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.bias = nn.Parameter(torch.randn(out_channels, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x)) + self.bias


batch_size = 16
in_channels = 8
out_channels = 16
kernel_size = 3
height = 32
width = 32


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs() -> list[object]:
    return [in_channels, out_channels, kernel_size]
'''

SAMPLES = {
    name: _HEAD + text
    for name, text in (("pointwise", _POINTWISE), ("rows", _ROWS), ("linear", _LINEAR), ("conv", _CONV))
}
"""By the block that fits."""
