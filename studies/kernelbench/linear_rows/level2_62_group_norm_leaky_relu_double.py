"""KernelBench level 2, problem 62: a linear layer, GroupNorm, LeakyReLU, doubled."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """2 · leaky_relu(group_norm(linear(x)))."""

    def __init__(
        self, input_size: int, hidden_size: int, num_groups: int, eps: float = 1e-5, negative_slope: float = 0.01
    ) -> None:
        super().__init__()
        self.fc = nn.Linear(input_size, hidden_size)
        self.gn = nn.GroupNorm(num_groups, hidden_size, eps=eps)
        self.leaky_relu = nn.LeakyReLU(negative_slope)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        activated: torch.Tensor = self.leaky_relu(self.gn(self.fc(x)))
        return activated + activated


class ModelNew(blocks.Linear, Model):
    layer = "fc"
    group_norm_at = "gn"
    finish = "2 * leaky_relu(value, negative_slope)"
    scalars = {"negative_slope": "leaky_relu.negative_slope"}


batch_size = 1024
input_size = 8192
hidden_size = 8192
num_groups = 512


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, input_size)]


def get_init_inputs() -> list[object]:
    return [input_size, hidden_size, num_groups]
