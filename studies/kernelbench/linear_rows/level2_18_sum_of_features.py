"""KernelBench level 2, problem 18: a linear layer, the sum over its features, and what changes nothing more."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """The sum over features; of one number each, maximum, mean and logsumexp are that number."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.sum(self.linear(x), dim=1, keepdim=True)
        mean = torch.mean(torch.max(total, dim=1, keepdim=True)[0], dim=1, keepdim=True)
        return torch.logsumexp(torch.logsumexp(mean, dim=1, keepdim=True), dim=1, keepdim=True)


class ModelNew(blocks.Linear, Model):
    layer = "linear"
    over_rows = "sum"
    keepdim = True


batch_size = 1024
in_features = 8192
out_features = 8192


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[object]:
    return [in_features, out_features]
