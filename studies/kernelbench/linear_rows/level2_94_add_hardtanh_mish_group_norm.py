"""KernelBench level 2, problem 94: a linear layer, a learnt bias, hard tanh, Mish, GroupNorm."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """group_norm(mish(hardtanh(linear(x) + bias)))."""

    def __init__(self, in_features: int, out_features: int, bias_shape: tuple[int, ...], num_groups: int) -> None:
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features)
        self.bias = nn.Parameter(torch.randn(bias_shape))
        self.groupnorm = nn.GroupNorm(num_groups, out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bounded = nn.functional.hardtanh(self.gemm(x) + self.bias)
        normalised: torch.Tensor = self.groupnorm(nn.functional.mish(bounded))
        return normalised


class ModelNew(blocks.Linear, Model):
    layer = "gemm"
    function = "mish(clamp(value + bias, -1, 1))"
    per_feature = ("bias",)
    group_norm_at = "groupnorm"


batch_size = 1024
in_features = 8192
out_features = 8192
bias_shape = (out_features,)
num_groups = 256


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[object]:
    return [in_features, out_features, bias_shape, num_groups]
