"""Three linear layers of one input, joined, and a softmax of each row."""

import torch
from torch import nn
from torch.nn import functional

from tunebench import blocks


class Model(nn.Module):
    """Gates of two kinds, softmax."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.value = nn.Linear(in_features, out_features)
        self.gate = nn.ModuleList(nn.Linear(in_features, out_features) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, in_features) to (batch, out_features)."""
        value = self.value(x) * torch.sigmoid(self.gate[0](x))
        return torch.softmax(value + functional.gelu(self.gate[1](x)), dim=1)


class ModelNew(blocks.Linear, Model):
    """`Model`, from the block."""

    layer = "value"
    other_layers = {"gate": "gate.0", "added": "gate.1"}  # noqa: RUF012
    function = "value * sigmoid(gate) + gelu(added)"
    over_rows = "softmax"


batch_size = 128
in_features = 1024
out_features = 1024


def get_inputs() -> list[torch.Tensor]:
    """One batch."""
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[object]:
    """The sizes."""
    return [in_features, out_features]
