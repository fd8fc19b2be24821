"""scalar_mul: C = A · s, a kernel that is nothing but memory traffic."""

from __future__ import annotations

from typing import Any

import torch

from tunebench.kernels.runtime.tuned_module import ITEM_BYTES, TunedModule
from tunebench.kernels.shared import DTYPES, INCLUDE
from tunebench.tuner.device import Device
from tunebench.tuner.kernel import Kernel, Plan
from tunebench.tuner.problem import Problem, Work
from tunebench.tuner.space import Constraint, SearchSpace, Tunable

_MAX_GRID = 2**31 - 1


def _fits_vector(vector_width: int, problem: Problem) -> bool:
    """A vector access moves 16 bytes at most."""
    return vector_width * ITEM_BYTES[problem.dtype] <= 16


def _fits_grid(block_size: int, vector_width: int, items_per_thread: int, problem: Problem) -> bool:
    return problem.axes["elements"] <= _MAX_GRID * block_size * vector_width * items_per_thread


def _block_runs(block_size: int, device: Device) -> bool:
    return block_size <= device.max_threads_per_block


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
        Constraint("vector_is_at_most_16_bytes", _fits_vector),
        Constraint("grid_within_limit", _fits_grid),
        Constraint("block_within_limit", _block_runs),
    ),
)


def work(problem: Problem) -> Work:
    """Every element is read once, multiplied once and written once."""
    elements = problem.axes["elements"]
    return Work(bytes=2 * elements * ITEM_BYTES[problem.dtype], operations=elements)


class ModelNew(TunedModule):
    """`Model` of `reference.py`, run by `scalar_mul.cu`."""

    kernel = Kernel.declare(__file__, space=SPACE, work=work, include=INCLUDE, dtypes=DTYPES)

    def problem(self, *inputs: Any) -> Problem | None:
        """Tensors whose elements fill their memory, times a Python number."""
        A, s = inputs
        if not isinstance(A, torch.Tensor) or not isinstance(s, int | float) or A.numel() == 0:
            return None
        dtype = str(A.dtype).removeprefix("torch.")
        # A product has A's strides exactly where A's elements fill one block of memory.
        if dtype not in self.kernel.dtypes or torch.empty_like(A, device="meta").stride() != A.stride():
            return None
        return Problem({"elements": A.numel()}, dtype)

    def tuned_forward(self, plan: Plan, *inputs: Any) -> torch.Tensor:
        """A · s, in A's layout."""
        A, s = inputs
        C = torch.empty_like(A)
        configuration = plan.configuration
        block_size = configuration.integer("block_size")
        vectors = -(-A.numel() // configuration.integer("vector_width"))
        blocks = -(-vectors // (block_size * configuration.integer("items_per_thread")))
        if configuration["grid"] == "stride":
            resident = plan.resident_blocks("scalar_mul", block_size)
            blocks = min(blocks, configuration.integer("waves") * resident)
        plan.launch("scalar_mul", A, C, s, A.numel(), blocks=blocks, threads=block_size)
        return C

    def reference_forward(self, *inputs: Any) -> torch.Tensor:
        """The reference's operation."""
        A, s = inputs
        product: torch.Tensor = A * s
        return product
