"""A model whose products stand between passes: of a layer, of two tensors in stacks, and with a matrix in columns."""

from pathlib import Path

from tunebench.kernels.runtime.registry import load_model
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.writing.new.write_new import write_new

MODEL = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features, heads):
        super().__init__()
        self.first, self.last = nn.Linear(features, features), nn.Linear(features, 2 * features, bias=False)
        self.mix = nn.Parameter(torch.randn(features, features) / features**0.5)
        self.heads = heads

    def forward(self, x):
        y = torch.softmax(self.first(x), -1).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        z = torch.softmax(y @ y.mT, -1) @ y
        return torch.tanh(self.last(torch.sin(z.transpose(1, 2).flatten(2) @ self.mix) + x))


batch_size = 3
rows = 16
features = 64
heads = 2


def get_inputs():
    return [torch.randn(batch_size, rows, features)]


def get_init_inputs():
    return [features, heads]
"""


def between_passes(folder: Path) -> type[TunedModule]:
    """Write its kernel, and return the model."""
    problem = folder / "problem.py"
    problem.write_text(MODEL, encoding="utf-8")
    made = write_new(folder / "between", problem)
    assert made.block == "Linear and passes", made
    return load_model(str(folder / "between"))
