"""Kernels whose source is Triton, as a user would write them, and what tests need to build and break them."""

from __future__ import annotations

from pathlib import Path

SOFTMAX = """
import torch
import triton
import triton.language as tl
from torch import nn

from tunebench import Constraint, Kernel, SearchSpace, Tunable, TunedModule


@triton.jit
def exponentials(row, largest):
    return tl.exp(row - largest)


@triton.jit
def softmax(x, y, columns: tl.int32, width: tl.constexpr):
    at = tl.arange(0, width)
    inside = at < columns
    start = tl.program_id(0).to(tl.int64) * columns
    row = tl.load(x + start + at, mask=inside, other=-float("inf")).to(tl.float32)
    shares = exponentials(row, tl.max(row, 0))
    tl.store(y + start + at, (shares / tl.sum(shares, 0)).to(y.dtype.element_ty), mask=inside)


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)


class ModelNew(TunedModule, Model):
    kernel = Kernel.declare(
        __file__,
        SearchSpace(
            (Tunable("width", (128, 512)), Tunable("num_warps", (1, 4), default=4)),
            (Constraint("a_row_fits", lambda width, problem: problem.axes["columns"] <= width),),
        ),
        axes={"x": ("rows", "columns"), "return": ("rows", "columns")},
        dtypes=("float32", "float16", "bfloat16"),
    )

    def tuned_forward(self, plan, x):
        y = torch.empty_like(x)
        plan.launch("softmax", x, y, x.shape[1], blocks=x.shape[0])
        return y


rows = 4
columns = 80


def get_inputs():
    return [torch.rand(rows, columns)]


def get_init_inputs():
    return []
"""

TWO_SOURCES = '''
import torch
import triton
import triton.language as tl
from torch import nn

from tunebench import Kernel, SearchSpace, Tunable, TunedModule, ceil_div

SOURCE = """
extern "C" __global__ void __launch_bounds__(block_size) twice(const scalar_t* x, scalar_t* y, long long n) {
    const long long i = blockIdx.x * static_cast<long long>(block_size) + threadIdx.x;
    if (i < n) {
        y[i] = 2 * x[i];
    }
}
"""


@triton.jit
def twice(x, y, n: tl.int64, block_size: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * block_size + tl.arange(0, block_size)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


class Model(nn.Module):
    def forward(self, x):
        return 2 * x


class ModelNew(TunedModule, Model):
    kernel = Kernel.declare(
        __file__,
        SearchSpace(
            (
                Tunable("source", ("cuda", "triton")),
                Tunable("block_size", (64, 128)),
                Tunable("num_warps", (1, 4), when=lambda source: source == "triton"),
            )
        ),
        source=SOURCE,
        axes={"x": "n", "return": "n"},
    )

    def tuned_forward(self, plan, x):
        y, threads = torch.empty_like(x), plan.integer("block_size")
        given = threads if plan["source"] == "cuda" else None
        plan.launch("twice", x, y, x.numel(), blocks=ceil_div(x.numel(), threads), threads=given)
        return y


n = 300


def get_inputs():
    return [torch.rand(n)]


def get_init_inputs():
    return []
'''


def write(file: Path, text: str, changes: dict[str, str] | None = None) -> Path:
    """Write a kernel in one file, with text replaced."""
    for old, new in (changes or {}).items():
        assert old in text
        text = text.replace(old, new)
    file.write_text(text, encoding="utf-8")
    return file
