"""KernelBench level 1, problem 20: LeakyReLU."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """x, or negative_slope · x below zero."""

    def __init__(self, negative_slope: float = 0.01) -> None:
        super().__init__()
        self.negative_slope = negative_slope

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.leaky_relu(x, self.negative_slope)


class ModelNew(blocks.Pointwise, Model):
    function = "leaky_relu(x, negative_slope)"
    scalars = ("negative_slope",)


batch_size = 4096
dim = 393216


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, dim)]


def get_init_inputs() -> list[object]:
    return []
