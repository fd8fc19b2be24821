"""KernelBench level 1, problem 26: GELU."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """x times the normal distribution's cumulative function at x."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(x)


class ModelNew(blocks.Pointwise, Model):
    function = "gelu(x)"


batch_size = 4096
dim = 393216


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, dim)]


def get_init_inputs() -> list[object]:
    return []
