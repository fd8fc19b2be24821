"""KernelBench level 2, problem 64: a linear layer, logsumexp, LeakyReLU twice, GELU twice."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """gelu(gelu(leaky_relu(leaky_relu(logsumexp(linear(x))))))."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.logsumexp(self.linear(x), dim=1, keepdim=True)
        bent = nn.functional.leaky_relu(nn.functional.leaky_relu(total))
        return nn.functional.gelu(nn.functional.gelu(bent))


class ModelNew(blocks.Linear, Model):
    layer = "linear"
    over_rows = "logsumexp"
    finish = "gelu(gelu(leaky_relu(leaky_relu(value))))"
    keepdim = True


batch_size = 1024
in_features = 8192
out_features = 8192


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[object]:
    return [in_features, out_features]
