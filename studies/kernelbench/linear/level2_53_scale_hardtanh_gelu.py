"""KernelBench level 2, problem 53: a linear layer, a constant factor, hard tanh, GELU."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """gelu(linear(x) · scaling_factor, between two bounds)."""

    def __init__(
        self, in_features: int, out_features: int, scaling_factor: float, hardtanh_min: float, hardtanh_max: float
    ) -> None:
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features)
        self.scaling_factor = scaling_factor
        self.hardtanh = nn.Hardtanh(hardtanh_min, hardtanh_max)
        self.gelu = nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        activated: torch.Tensor = self.gelu(self.hardtanh(self.gemm(x) * self.scaling_factor))
        return activated


class ModelNew(blocks.Linear, Model):
    layer = "gemm"
    function = "gelu(clamp(value * scaling_factor, low, high))"
    scalars = {"scaling_factor": "scaling_factor", "low": "hardtanh.min_val", "high": "hardtanh.max_val"}


batch_size = 2048
in_features = 8192
out_features = 8192
scaling_factor = 0.5
hardtanh_min = -2.0
hardtanh_max = 2.0


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[object]:
    return [in_features, out_features, scaling_factor, hardtanh_min, hardtanh_max]
