"""scalar_mul: C = A · s, a kernel that is nothing but memory traffic."""

from __future__ import annotations

import torch

from tunebench import Kernel, Plan, SearchSpace, Tunable, TunedModule, ceil_div, constraints
from tunebench.kernels.scalar_mul.reference import Model
from tunebench.kernels.shared import DTYPES

SPACE = SearchSpace(
    tunables=(
        Tunable("block_size", (64, 128, 256, 512, 1024), default=256),
        Tunable("vector_width", (1, 2, 4, 8)),
        Tunable("items_per_thread", (1, 2, 4, 8)),
        Tunable("unroll", (True, False), when=lambda items_per_thread: items_per_thread > 1),
        Tunable("grid", ("one_shot", "stride")),
        Tunable("waves", (1, 2, 4, 8), when=lambda grid: grid == "stride", host=True),
        Tunable("load_hint", ("normal", "streaming")),
        Tunable("store_hint", ("normal", "streaming")),
    ),
    constraints=(
        constraints.vector_fits("vector_width"),
        constraints.grid_fits("elements", "block_size", "vector_width", "items_per_thread"),
        constraints.block_fits("block_size"),
    ),
)


def _grid(plan: Plan, elements: int) -> tuple[int, int]:
    """Blocks and threads of a launch."""
    threads = plan.integer("block_size")
    blocks = ceil_div(elements, threads * plan.integer("vector_width") * plan.integer("items_per_thread"))
    if plan["grid"] == "stride":
        blocks = min(blocks, plan.integer("waves") * plan.resident_blocks("scalar_mul", threads))
    return blocks, threads


class ModelNew(TunedModule, Model):
    """`Model` of `reference.py`, run by `scalar_mul.cu`."""

    kernel = Kernel.declare(__file__, SPACE, axes={"A": "elements", "return": "elements"}, dtypes=DTYPES)

    def tuned_forward(self, plan: Plan, A: torch.Tensor, s: float) -> torch.Tensor:
        """A · s, in A's layout."""
        C = torch.empty_like(A)
        elements = A.numel()
        blocks, threads = plan.once(_grid, elements)
        plan.launch("scalar_mul", A, C, s, elements, blocks=blocks, threads=threads)
        return C
