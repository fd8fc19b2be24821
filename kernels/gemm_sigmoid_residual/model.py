"""gemm_sigmoid_residual: Linear, and its output plus a multiple of its sigmoid."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tunebench.kernels.gemm_sigmoid_residual.reference import Model
from tunebench.kernels.runtime.tuned_module import TunedModule, is_plain
from tunebench.kernels.shared import DTYPES, products
from tunebench.kernels.shared.parts_product import Product, form_of, parts_product, split
from tunebench.kernels.shared.products import has_passes
from tunebench.kernels.shared.split_product import RowExponents, fused_product
from tunebench.tuner.device import Device
from tunebench.tuner.kernel import Kernel, Plan
from tunebench.tuner.problem import ITEM_BYTES, Problem, Work
from tunebench.tuner.space import Constraint, SearchSpace, Tunable

_MAX_GRID_X = 2**31 - 1


def _fits_vector(vector_width: int, problem: Problem) -> bool:
    """A vector access moves 16 bytes at most."""
    return vector_width * ITEM_BYTES[problem.dtype] <= 16


def _block_runs(block_size: int, device: Device) -> bool:
    return block_size <= device.max_threads_per_block


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
        Constraint("vector_is_at_most_16_bytes", _fits_vector),
        Constraint("block_within_limit", _block_runs),
        Constraint("fast_exponential_is_not_for_float64", _is_precise_enough),
    ),
)


def work(problem: Problem) -> Work:
    """x, W and y cross memory once; the product has 2·rows·in·out operations, the rest a few per element."""
    rows, inputs, outputs = (problem.axes[name] for name in ("rows", "in_features", "out_features"))
    elements = rows * inputs + inputs * outputs + rows * outputs
    return Work(bytes=elements * ITEM_BYTES[problem.dtype], operations=2 * rows * inputs * outputs)


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
        work=work,
        bulk_copies=products.BULK_COPIES,
        modes=("eval", "frozen"),
        dtypes=DTYPES,
    )

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._exponents = RowExponents()

    def problem(self, *inputs: Any) -> Problem | None:
        """2-d batches of at least one row, on the parameters' device."""
        (x,) = inputs
        if not isinstance(x, torch.Tensor) or x.dim() != 2 or x.shape[1] != self.gemm.in_features:
            return None
        if not is_plain(self.gemm, nn.Linear) or x.numel() == 0 or 0 in self.gemm.weight.shape:
            return None
        dtype = str(x.dtype).removeprefix("torch.")
        parameters = [value for value in (self.gemm.weight, self.gemm.bias) if value is not None]
        if dtype not in self.kernel.dtypes or any(p.dtype != x.dtype or p.device != x.device for p in parameters):
            return None
        axes = {"rows": x.shape[0], "in_features": x.shape[1], "out_features": self.gemm.out_features}
        return Problem(axes, dtype, {"mode": self.mode()})

    def tuned_forward(self, plan: Plan, *inputs: Any) -> torch.Tensor:
        """(rows, in_features) to (rows, out_features)."""
        (x,) = inputs
        configuration = plan.configuration
        if configuration["product"] == "fused":
            weight, bias = self.gemm.weight, self.gemm.bias
            output: torch.Tensor = x.new_empty(len(x), len(weight))
            offset = None if bias is None else bias.contiguous()
            fused_product(plan, x, weight, self._exponents, offset, output, self.scaling_factor)
            return output
        made = self._product(plan, x)
        output = made.memory if configuration["in_place"] else torch.empty_like(made.memory)
        block_size = configuration.integer("block_size")
        elements = configuration.integer("vector_width") * configuration.integer("vectors_per_thread")
        blocks = min(-(-output.numel() // (block_size * elements)), _MAX_GRID_X)
        arguments = (*made.arguments(self.gemm.bias), output, self.scaling_factor, *output.shape)
        plan.launch("add_sigmoid", *arguments, blocks=blocks, threads=block_size)
        return output

    def _product(self, plan: Plan, x: torch.Tensor) -> Product:
        """By torch, in one or in parts."""
        if plan.configuration["product"] == "fp32":
            return Product(self.gemm(x))
        weight = self.gemm.weight
        settings = form_of(plan.configuration)
        parts = self.kept("weight parts", lambda: split(plan, weight, is_weight=True), (weight,), settings)
        return parts_product(plan, x, weight, parts)
