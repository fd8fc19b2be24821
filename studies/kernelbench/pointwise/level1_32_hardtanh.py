"""KernelBench level 1, problem 32: hard tanh."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """x, between -1 and 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.hardtanh(x)


class ModelNew(blocks.Pointwise, Model):
    function = "clamp(x, -1, 1)"


batch_size = 4096
dim = 393216


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, dim)]


def get_init_inputs() -> list[object]:
    return []
