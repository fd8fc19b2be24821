"""KernelBench level 1, problem 24: the logarithm of softmax."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """x minus the logarithm of the sum of exp(x) over a row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(x, dim=1)


class ModelNew(blocks.Rows, Model):
    reductions = {"top": blocks.Max("x"), "total": blocks.Sum("exp(x - top)")}
    function = "x - top - log(total)"


batch_size = 4096
dim = 393216


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, dim)]


def get_init_inputs() -> list[object]:
    return []
