"""KernelBench level 1, problem 27: SELU."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """The scaled exponential linear unit."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.selu(x)


class ModelNew(blocks.Pointwise, Model):
    function = "selu(x)"


batch_size = 4096
dim = 393216


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, dim)]


def get_init_inputs() -> list[object]:
    return []
