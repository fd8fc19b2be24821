"""KernelBench level 1, problem 88: GELU in its tanh form, as in BERT and GPT."""

import math

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """x · (1 + tanh(√(2 / π) · (x + 0.044715 · x³))) / 2."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class ModelNew(blocks.Pointwise, Model):
    function = "gelu_tanh(x)"


batch_size = 8192
dim = 8192


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, dim)]


def get_init_inputs() -> list[object]:
    return []
