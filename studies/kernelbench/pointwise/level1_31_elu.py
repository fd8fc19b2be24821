"""KernelBench level 1, problem 31: ELU."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """x, or alpha · (exp(x) - 1) below zero."""

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.elu(x, alpha=self.alpha)


class ModelNew(blocks.Pointwise, Model):
    function = "elu(x, alpha)"
    scalars = ("alpha",)


batch_size = 4096
dim = 393216


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, dim)]


def get_init_inputs() -> list[object]:
    return []
