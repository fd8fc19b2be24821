"""KernelBench level 2, problem 84: a linear layer, BatchNorm, a learnt factor, softmax."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """softmax(scale · batch_norm(linear(x)))."""

    def __init__(
        self, in_features: int, out_features: int, bn_eps: float, bn_momentum: float, scale_shape: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features)
        self.bn = nn.BatchNorm1d(out_features, eps=bn_eps, momentum=bn_momentum)
        self.scale = nn.Parameter(torch.ones(scale_shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.scale * self.bn(self.gemm(x)), dim=1)


class ModelNew(blocks.Linear, Model):
    layer = "gemm"
    batch_norm_at = "bn"
    reductions = {"top": blocks.Max("scale * value"), "total": blocks.Sum("exp(scale * value - top)")}
    finish = "exp(scale * value - top) / total"
    per_tensor = ("scale",)


batch_size = 1024
in_features = 8192
out_features = 8192
bn_eps = 1e-5
bn_momentum = 0.1
scale_shape = (1,)


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[object]:
    return [in_features, out_features, bn_eps, bn_momentum, scale_shape]
