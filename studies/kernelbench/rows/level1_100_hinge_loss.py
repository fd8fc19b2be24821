"""KernelBench level 1, problem 100: the mean of hinge losses."""

import torch
from torch import nn

from tunebench import Plan, blocks


class Model(nn.Module):
    """The mean of max(1 - predictions · targets, 0) over all elements."""

    def forward(self, predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.mean(torch.clamp(1 - predictions * targets, min=0))


class ModelNew(blocks.Rows, Model):
    reductions = {"total": blocks.Sum("max(1 - predictions * targets, 0)")}
    function = "total / features"
    per_feature = ("targets",)

    def tuned_forward(self, plan: Plan, predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return super().tuned_forward(plan, predictions, targets).mean()


batch_size = 32768
dim = 32768


def get_inputs() -> list[torch.Tensor]:
    return [0.01 * (1 - torch.rand(batch_size, dim)) ** (-1 / 1.5), torch.randint(0, 2, (dim,)).float() * 2 - 1]


def get_init_inputs() -> list[object]:
    return []
