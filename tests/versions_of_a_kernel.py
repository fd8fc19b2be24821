"""A git repository with a small CPU-bound kernel, and commits that change what a run of it costs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

REFERENCE = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.sqrt(x * x + 1)

rows = 64
columns = 128

def get_inputs():
    return [torch.rand(rows, columns)]

def get_init_inputs():
    return []
"""

SOURCE = """
// Newton's iteration: the same root after any number of turns beyond the first few, in time that the turns decide.
extern "C" __global__ void __launch_bounds__(block_size) root(const scalar_t* x, scalar_t* y, long long n) {
    const long long step = static_cast<long long>(gridDim.x) * block_size;
    for (long long i = blockIdx.x * static_cast<long long>(block_size) + threadIdx.x; i < n; i += step) {
        const scalar_t square = x[i] * x[i] + scalar_t(1);
        scalar_t value = square;
        for (int turn = 0; turn < 100; ++turn) {
            value = scalar_t(0.5) * (value + square / value);
        }
        y[i] = value;
    }
}
"""

MODEL = """
import torch
from tunebench import Kernel, SearchSpace, Tunable, TunedModule
from .reference import Model

SPACE = SearchSpace(tunables=(Tunable("block_size", (64, 128), default=64),))

class ModelNew(TunedModule, Model):
    kernel = Kernel.declare(__file__, SPACE, axes={"x": ("rows", "columns")})

    def problem(self, x):
        return super().problem(x) if x.is_contiguous() else self.unserved("x has holes")

    def tuned_forward(self, plan, x):
        y = torch.empty_like(x)
        plan.launch("root", x, y, x.numel(), blocks=4, threads=plan.integer("block_size"))
        return y
"""


class Repository:
    """A repository with the kernel `root` in a folder of its own, at its first commit.

    Attributes:
        kernel: the kernel's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kernel = folder / "root"
        self.kernel.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")
        for name, text in (("reference.py", REFERENCE), ("root.cu", SOURCE), ("model.py", MODEL)):
            (self.kernel / name).write_text(text, encoding="utf-8")
        self.commit("the kernel")

    def git(self, *arguments: str) -> str:
        """What git answers."""
        author = ("-c", "user.name=Nobody", "-c", "user.email=nobody@example.com", "-c", "commit.gpgsign=false")
        command = ["git", "-C", str(self.folder), *author, *arguments]
        return subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout.strip()

    def edit(self, name: str, old: str, new: str) -> None:
        """Change a file of the kernel."""
        file = self.kernel / name
        text = file.read_text(encoding="utf-8")
        assert old in text
        file.write_text(text.replace(old, new), encoding="utf-8")

    def commit(self, message: str) -> str:
        """Commit everything; returns the commit."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)
        return self.git("rev-parse", "HEAD")

    def turns(self, number: int) -> str:
        """Commit a kernel that does so many turns."""
        (before,) = re.findall(r"turn < \d+", (self.kernel / "root.cu").read_text(encoding="utf-8"))
        self.edit("root.cu", before, f"turn < {number}")
        return self.commit(f"{number} turns")

    def same_work(self) -> str:
        """Commit another text that does the same."""
        self.edit("root.cu", "value + square / value", "square / value + value")
        return self.commit("the sum the other way round")
