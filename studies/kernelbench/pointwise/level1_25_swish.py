"""KernelBench level 1, problem 25: Swish."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """x · sigmoid(x)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(x)


class ModelNew(blocks.Pointwise, Model):
    function = "swish(x)"


batch_size = 4096
dim = 393216


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, dim)]


def get_init_inputs() -> list[object]:
    return []
