"""KernelBench level 1, problem 37: a tensor divided by its Frobenius norm."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """x divided by the root of the sum of all its squares."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length: torch.Tensor = torch.norm(x, p="fro")
        return x / length


class ModelNew(blocks.Rows, Model):
    reductions = {"squares": blocks.Sum("x * x")}
    function = "x / sqrt(squares)"
    row_dimensions = 4


batch_size = 112
features = 64
dim1 = 512
dim2 = 512


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, features, dim1, dim2)]


def get_init_inputs() -> list[object]:
    return []
