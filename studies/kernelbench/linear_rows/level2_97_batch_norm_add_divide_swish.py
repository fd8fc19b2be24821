"""KernelBench level 2, problem 97: a linear layer, BatchNorm, a learnt term, a constant divisor, Swish."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """swish((batch_norm(linear(x)) + bias) / divide_value)."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bn_eps: float,
        bn_momentum: float,
        bias_shape: tuple[int, ...],
        divide_value: float,
    ) -> None:
        super().__init__()
        self.matmul = nn.Linear(in_features, out_features)
        self.bn = nn.BatchNorm1d(out_features, eps=bn_eps, momentum=bn_momentum)
        self.bias = nn.Parameter(torch.randn(bias_shape))
        self.divide_value = divide_value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        divided: torch.Tensor = (self.bn(self.matmul(x)) + self.bias) / self.divide_value
        return divided * torch.sigmoid(divided)


class ModelNew(blocks.Linear, Model):
    layer = "matmul"
    batch_norm_at = "bn"
    finish = "swish((value + bias) / divide_value)"
    per_tensor = ("bias",)
    scalars = ("divide_value",)


batch_size = 1024
in_features = 8192
out_features = 8192
bn_eps = 1e-5
bn_momentum = 0.1
bias_shape = (1,)
divide_value = 1.0


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[object]:
    return [in_features, out_features, bn_eps, bn_momentum, bias_shape, divide_value]
