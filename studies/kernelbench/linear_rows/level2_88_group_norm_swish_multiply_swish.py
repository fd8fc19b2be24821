"""KernelBench level 2, problem 88: a linear layer, GroupNorm, Swish, a learnt factor, Swish."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """swish(swish(group_norm(linear(x))) · multiply_weight)."""

    def __init__(
        self, in_features: int, out_features: int, num_groups: int, multiply_weight_shape: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features)
        self.group_norm = nn.GroupNorm(num_groups, out_features)
        self.multiply_weight = nn.Parameter(torch.randn(multiply_weight_shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normalised: torch.Tensor = self.group_norm(self.gemm(x))
        weighted = normalised * torch.sigmoid(normalised) * self.multiply_weight
        return weighted * torch.sigmoid(weighted)


class ModelNew(blocks.Linear, Model):
    layer = "gemm"
    group_norm_at = "group_norm"
    finish = "swish(swish(value) * multiply_weight)"
    per_feature = ("multiply_weight",)


batch_size = 1024
in_features = 8192
out_features = 8192
num_groups = 256
multiply_weight_shape = (out_features,)


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[object]:
    return [in_features, out_features, num_groups, multiply_weight_shape]
