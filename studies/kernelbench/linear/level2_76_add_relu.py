"""KernelBench level 2, problem 76: a linear layer without bias, a learnt bias, ReLU."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """relu(linear(x) + bias)."""

    def __init__(self, in_features: int, out_features: int, bias_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features, bias=False)
        self.bias = nn.Parameter(torch.randn(bias_shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.gemm(x) + self.bias)


class ModelNew(blocks.Linear, Model):
    layer = "gemm"
    function = "relu(value + bias)"
    per_feature = ("bias",)


batch_size = 1024
in_features = 8192
out_features = 8192
bias_shape = (out_features,)


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[object]:
    return [in_features, out_features, bias_shape]
