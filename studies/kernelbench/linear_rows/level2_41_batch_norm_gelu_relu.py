"""KernelBench level 2, problem 41: a linear layer, BatchNorm, GELU, ReLU."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """relu(gelu(batch_norm(linear(x))))."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features)
        self.batch_norm = nn.BatchNorm1d(out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(nn.functional.gelu(self.batch_norm(self.gemm(x))))


class ModelNew(blocks.Linear, Model):
    layer = "gemm"
    batch_norm_at = "batch_norm"
    finish = "relu(gelu(value))"


batch_size = 16384
in_features = 4096
out_features = 4096


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[object]:
    return [in_features, out_features]
