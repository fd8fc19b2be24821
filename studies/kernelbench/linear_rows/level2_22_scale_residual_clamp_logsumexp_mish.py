"""KernelBench level 2, problem 22: a linear layer, a scale, doubled, between bounds, logsumexp, times its Mish."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """y · mish(y) of y = logsumexp(clamp(2 · scale_factor · linear(x)))."""

    def __init__(
        self, input_size: int, hidden_size: int, scale_factor: float, clamp_min: float, clamp_max: float
    ) -> None:
        super().__init__()
        self.matmul = nn.Linear(input_size, hidden_size)
        self.scale_factor = scale_factor
        self.clamp_min = clamp_min
        self.clamp_max = clamp_max

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled = self.matmul(x) * self.scale_factor
        total = torch.logsumexp((scaled + scaled).clamp(self.clamp_min, self.clamp_max), dim=1, keepdim=True)
        return total * nn.functional.mish(total)


class ModelNew(blocks.Linear, Model):
    layer = "matmul"
    function = "clamp(value * scale_factor * 2, clamp_min, clamp_max)"
    scalars = ("scale_factor", "clamp_min", "clamp_max")
    over_rows = "logsumexp"
    finish = "value * mish(value)"
    keepdim = True


batch_size = 1024
input_size = 8192
hidden_size = 8192
scale_factor = 2.0
clamp_min = -10.0
clamp_max = 10.0


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, input_size)]


def get_init_inputs() -> list[object]:
    return [input_size, hidden_size, scale_factor, clamp_min, clamp_max]
