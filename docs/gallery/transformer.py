"""Tune a module of a transformer: write its kernel with `tunebench new`, tune it, and put it into the model.

The module is the gate of a feed-forward layer, `silu(a) * b`, which PyTorch runs as two kernels. Its problem is a
file in KernelBench's form; the kernel is written from the operations in it. The tuned module takes the place of the
old one, with the same parameters and gradients.
"""

import os
import tempfile
from pathlib import Path

import torch
from torch import nn

import tunebench

PROBLEM = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return nn.functional.silu(a) * b


tokens, features = 64, 96


def get_inputs():
    return [torch.randn(tokens, features), torch.randn(tokens, features)]


def get_init_inputs():
    return []
"""


class Gate(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return nn.functional.silu(a) * b


class FeedForward(nn.Module):
    def __init__(self, width: int, features: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, features), nn.Linear(width, features)
        self.down = nn.Linear(features, width)
        self.activation: nn.Module = Gate()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.activation(self.gate(x), self.up(x)))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("problem.py").write_text(PROBLEM, encoding="utf-8")
        made = tunebench.new("silu_gate", problem="problem.py")
        print("made of the block", made.block)
        tunebench.tune("silu_gate", trials=2)
        layer, x = FeedForward(32, 96).eval(), torch.randn(64, 32)
        with torch.no_grad():
            wanted = layer(x)
            layer.activation = tunebench.load("silu_gate")().eval()
            found = layer(x)
        torch.testing.assert_close(found, wanted)
        print("the layer's output is the same;", *(choice.reason for choice in layer.activation.choices.values()))
