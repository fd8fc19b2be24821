"""KernelBench level 2, problem 81: a linear layer, Swish, half of it, between bounds, tanh, between bounds."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """clamp(tanh(clamp(swish(linear(x)) / 2, -1, 1)), -1, 1)."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = self.gemm(x)
        halved = product * torch.sigmoid(product) / 2.0
        return torch.tanh(halved.clamp(-1.0, 1.0)).clamp(-1.0, 1.0)


class ModelNew(blocks.Linear, Model):
    layer = "gemm"
    function = "clamp(tanh(clamp(swish(value) / 2, -1, 1)), -1, 1)"


batch_size = 1024
in_features = 8192
out_features = 8192


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[object]:
    return [in_features, out_features]
