"""gemm_sigmoid_residual: Linear, and its output plus a multiple of its sigmoid."""

from __future__ import annotations

from typing import Any

import torch

from tunebench import Constraint, Kernel, Plan, Problem, SearchSpace, Tunable, TunedModule, ceil_div, constraints
from tunebench.kernels.gemm_sigmoid_residual.reference import Model
from tunebench.kernels.runtime.tuned_module import own_tensors
from tunebench.kernels.shared import DTYPES, products
from tunebench.kernels.shared.products import has_passes, library_product
from tunebench.kernels.shared.split_product import RowExponents, fused_product

_MAX_GRID_X = 2**31 - 1


def _is_precise_enough(exponential: str, problem: Problem) -> bool:
    """The fast exponential is fp32's, which half types are computed in too."""
    return exponential == "exact" or problem.dtype != "float64"


SPACE = SearchSpace(
    tunables=(
        *products.TUNABLES,
        Tunable("exponential", ("exact", "fast")),
        Tunable("block_size", (64, 128, 256, 512, 1024), default=256, when=has_passes),
        Tunable("vector_width", (1, 2, 4, 8), when=has_passes),
        Tunable("vectors_per_thread", (1, 2, 4), when=has_passes),
        Tunable("in_place", (False, True), when=has_passes, host=True),
    ),
    constraints=(
        *products.CONSTRAINTS,
        constraints.vector_fits("vector_width"),
        constraints.block_fits("block_size"),
        Constraint("fast_exponential_is_not_for_float64", _is_precise_enough),
    ),
)


class ModelNew(TunedModule, Model):
    """`Model` of `reference.py`: a product by torch, in fp32 or from parts, and a pass behind it; or one fused product.

    Frozen, the parts of the weight are kept between calls (see `freeze` for how a change of the weight is noticed, and
    its cost). Not frozen, nothing that a result depends on is kept. The fused product keeps a guess at the magnitude of
    the weight's rows, frozen or not, which it verifies whenever it reads the weight (see `RowExponents`): a change is
    noticed in the call that meets it, however it was made, also through `.data`. The verification costs no time beside
    the product.
    """

    kernel = Kernel.declare(
        __file__,
        SPACE,
        axes=products.AXES,
        work=products.work,
        bulk_copies=products.BULK_COPIES,
        modes=("eval", "frozen"),
        dtypes=DTYPES,
    )

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._exponents = RowExponents()

    def accepts_layout(self, name: str, tensor: torch.Tensor) -> bool:  # noqa: ARG002
        """Any: what is read by a kernel is made contiguous first."""
        return True

    def tuned_forward(self, plan: Plan, x: torch.Tensor) -> torch.Tensor:
        """(rows, in_features) to (rows, out_features)."""
        weight, bias = own_tensors(self.gemm)
        if plan["product"] == "fused":
            output: torch.Tensor = x.new_empty(x.shape[0], weight.shape[0])
            offset = None if bias is None else bias.contiguous()
            fused_product(plan, x, weight, self._exponents, offset, output, self.scaling_factor)
            return output
        product = library_product(plan, self, weight, bias, x)
        output = product.memory if plan["in_place"] else torch.empty_like(product.memory)
        blocks, threads = plan.once(_grid, output.numel())
        arguments = (*product.arguments(bias), output, self.scaling_factor, *output.shape)
        plan.launch("add_sigmoid", *arguments, blocks=blocks, threads=threads)
        return output


def _grid(plan: Plan, elements: int) -> tuple[int, int]:
    """Blocks and threads of the pass behind a product."""
    threads = plan.integer("block_size")
    of_block = threads * plan.integer("vector_width") * plan.integer("vectors_per_thread")
    return min(ceil_div(elements, of_block), _MAX_GRID_X), threads
