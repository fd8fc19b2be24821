"""KernelBench level 2, problem 33: a linear layer, a scale per feature, batch normalisation."""

import torch
from torch import nn


class Model(nn.Module):
    """Linear, then times a learnt scale, then BatchNorm1d."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        scale_shape: tuple[int, ...],
        eps: float = 1e-5,
        momentum: float | None = 0.1,
    ) -> None:
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features)
        self.scale = nn.Parameter(torch.randn(scale_shape))
        self.bn = nn.BatchNorm1d(out_features, eps=eps, momentum=momentum)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, in_features) to (batch, out_features)."""
        output: torch.Tensor = self.bn(self.gemm(x) * self.scale)
        return output


batch_size = 1024
in_features = 8192
out_features = 8192
scale_shape = (out_features,)


def get_inputs() -> list[torch.Tensor]:
    """One batch."""
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[object]:
    """The sizes."""
    return [in_features, out_features, scale_shape]
