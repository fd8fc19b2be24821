"""KernelBench level 1, problem 22: the hyperbolic tangent."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """tanh(x)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x)


class ModelNew(blocks.Pointwise, Model):
    function = "tanh(x)"


batch_size = 4096
dim = 393216


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, dim)]


def get_init_inputs() -> list[object]:
    return []
