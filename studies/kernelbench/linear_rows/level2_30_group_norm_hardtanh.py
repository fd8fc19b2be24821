"""KernelBench level 2, problem 30: a linear layer, GroupNorm, hard tanh."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """hardtanh(group_norm(linear(x)))."""

    def __init__(
        self, in_features: int, out_features: int, num_groups: int, hardtanh_min: float, hardtanh_max: float
    ) -> None:
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features)
        self.group_norm = nn.GroupNorm(num_groups, out_features)
        self.hardtanh = nn.Hardtanh(hardtanh_min, hardtanh_max)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bounded: torch.Tensor = self.hardtanh(self.group_norm(self.gemm(x)))
        return bounded


class ModelNew(blocks.Linear, Model):
    layer = "gemm"
    group_norm_at = "group_norm"
    finish = "clamp(value, low, high)"
    scalars = {"low": "hardtanh.min_val", "high": "hardtanh.max_val"}


batch_size = 1024
in_features = 8192
out_features = 8192
num_groups = 16
hardtanh_min = -2.0
hardtanh_max = 2.0


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[object]:
    return [in_features, out_features, num_groups, hardtanh_min, hardtanh_max]
