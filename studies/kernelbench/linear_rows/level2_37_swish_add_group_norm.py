"""KernelBench level 2, problem 37: a linear layer, Swish, a learnt bias, GroupNorm."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """group_norm(swish(linear(x)) + bias)."""

    def __init__(self, in_features: int, out_features: int, num_groups: int, bias_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.matmul = nn.Linear(in_features, out_features)
        self.bias = nn.Parameter(torch.randn(bias_shape))
        self.group_norm = nn.GroupNorm(num_groups, out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = self.matmul(x)
        normalised: torch.Tensor = self.group_norm(torch.sigmoid(product) * product + self.bias)
        return normalised


class ModelNew(blocks.Linear, Model):
    layer = "matmul"
    function = "swish(value) + bias"
    per_feature = ("bias",)
    group_norm_at = "group_norm"


batch_size = 32768
in_features = 1024
out_features = 4096
num_groups = 64
bias_shape = (out_features,)


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[object]:
    return [in_features, out_features, num_groups, bias_shape]
