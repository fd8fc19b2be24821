"""KernelBench level 1, problem 23: softmax."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """exp(x), divided by its sum over a row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=1)


class ModelNew(blocks.Rows, Model):
    reductions = {"top": blocks.Max("x"), "total": blocks.Sum("exp(x - top)")}
    function = "exp(x - top) / total"


batch_size = 4096
dim = 393216


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, dim)]


def get_init_inputs() -> list[object]:
    return []
