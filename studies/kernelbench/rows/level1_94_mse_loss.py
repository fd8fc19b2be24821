"""KernelBench level 1, problem 94: the mean of squared differences."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """The mean of (predictions - targets)² over all elements."""

    def forward(self, predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.mean((predictions - targets) ** 2)


class ModelNew(blocks.Rows, Model):
    reductions = {"total": blocks.Sum("square(predictions - targets)")}
    function = "total / features"
    row_dimensions = 2


batch_size = 32768
dim = 32768


def get_inputs() -> list[torch.Tensor]:
    return [
        0.01 * (1 - torch.rand(batch_size, dim)) ** (-1 / 1.5) * torch.rand(()),
        0.01 * (1 - torch.rand(batch_size, dim)) ** (-1 / 1.5),
    ]


def get_init_inputs() -> list[object]:
    return []
