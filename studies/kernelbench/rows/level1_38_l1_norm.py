"""KernelBench level 1, problem 38: rows divided by the mean of their magnitudes."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """x divided by the mean of |x| over a row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / torch.mean(torch.abs(x), dim=1, keepdim=True)


class ModelNew(blocks.Rows, Model):
    reductions = {"total": blocks.Sum("abs(x)")}
    function = "x / (total / features)"


batch_size = 32768
dim = 65535


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, dim)]


def get_init_inputs() -> list[object]:
    return []
