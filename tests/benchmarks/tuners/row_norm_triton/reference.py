"""RMSNorm over rows."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(features) + 0.5)
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(1, keepdim=True) + self.eps) * self.weight


rows = 8192
features = 4096
eps = 1e-5


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(rows, features)]


def get_init_inputs() -> list[object]:
    return [features, eps]
