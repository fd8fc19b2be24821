"""KernelBench level 1, problem 96: the mean of smooth absolute differences."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """The mean of d² / 2 below 1 and of d - 1 / 2 above, of d = |predictions - targets|."""

    def forward(self, predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.smooth_l1_loss(predictions, targets)


class ModelNew(blocks.Rows, Model):
    reductions = {"total": blocks.Sum("auto d = abs(predictions - targets); return d < 1 ? 0.5 * d * d : d - 0.5;")}
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
