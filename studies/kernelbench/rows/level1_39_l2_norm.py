"""KernelBench level 1, problem 39: rows divided by their Euclidean norm."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """x divided by the root of the sum of its squares over a row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length: torch.Tensor = torch.norm(x, p=2, dim=1, keepdim=True)
        return x / length


class ModelNew(blocks.Rows, Model):
    reductions = {"squares": blocks.Sum("x * x")}
    function = "x / sqrt(squares)"


batch_size = 32768
dim = 65535


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, dim)]


def get_init_inputs() -> list[object]:
    return []
