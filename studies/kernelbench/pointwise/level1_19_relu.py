"""KernelBench level 1, problem 19: ReLU."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """max(x, 0)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)


class ModelNew(blocks.Pointwise, Model):
    function = "relu(x)"


batch_size = 4096
dim = 393216


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, dim)]


def get_init_inputs() -> list[object]:
    return []
