"""KernelBench level 2, problem 33: a linear layer, a scale per feature, BatchNorm."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """batch_norm(linear(x) · scale)."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        scale_shape: tuple[int, ...],
        eps: float = 1e-5,
        momentum: float = 0.1,
    ) -> None:
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features)
        self.scale = nn.Parameter(torch.randn(scale_shape))
        self.bn = nn.BatchNorm1d(out_features, eps=eps, momentum=momentum)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normalised: torch.Tensor = self.bn(self.gemm(x) * self.scale)
        return normalised


class ModelNew(blocks.Linear, Model):
    layer = "gemm"
    function = "value * scale"
    per_feature = ("scale",)
    batch_norm_at = "bn"


batch_size = 1024
in_features = 8192
out_features = 8192
scale_shape = (out_features,)


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[object]:
    return [in_features, out_features, scale_shape]
