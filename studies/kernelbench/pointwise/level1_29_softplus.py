"""KernelBench level 1, problem 29: Softplus."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """log(1 + exp(x))."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.softplus(x)


class ModelNew(blocks.Pointwise, Model):
    function = "softplus(x)"


batch_size = 4096
dim = 393216


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, dim)]


def get_init_inputs() -> list[object]:
    return []
