"""A product with nothing behind it, whose plan belongs to another plan: of a step of training, or between passes."""

from __future__ import annotations

import functools

import torch
from torch import nn

from tunebench.kernels.blocks.linear_pass import LinearCall, elements_space, own_output, pass_over
from tunebench.kernels.blocks.linear_source import LinearSource
from tunebench.kernels.runtime.derived import Keeper
from tunebench.kernels.shared import DTYPES, products, split_product
from tunebench.kernels.shared.products import has_passes, library_product
from tunebench.kernels.shared.split_product import InColumns, RowExponents
from tunebench.tuner.kernel import Kernel, Mode, Plan
from tunebench.tuner.space import SearchSpace


@functools.cache
def kernel_of_product(in_columns: InColumns | None) -> Kernel:
    """Return the kernel of a layer's product, or of a product of two inputs, with no function behind it.

    Args:
        in_columns: how two inputs lie; None of a layer.
    """
    source = LinearSource("product", "value", "value", (), batch_norm=False, inputs=in_columns)
    passes = elements_space()
    of_inputs = () if in_columns is None else split_product.OF_INPUTS
    limits = () if in_columns is None else (*products.limits_of_inputs(in_columns), split_product.SLICES)
    return Kernel.declare(
        __file__,
        SearchSpace(
            (*products.TUNABLES, *of_inputs, *passes.tunables),
            tuple(dict.fromkeys((*products.CONSTRAINTS, *passes.constraints, *limits))),
        ),
        source=source.text(),
        name="product_of_a_layer" if in_columns is None else f"product_of_inputs{lying(in_columns)}",
        texts={},
        axes={},
        modes=(Mode.EVAL, Mode.FROZEN) if in_columns is None else (Mode.EVAL,),
        dtypes=DTYPES,
        bulk_copies=products.BULK_COPIES,
    )


def lying(in_columns: InColumns) -> str:
    """Return how inputs lie, as the end of a kernel's name."""
    return "".join(f"_{name}_in_columns" for name, turned in in_columns._asdict().items() if turned)


def product(
    plan: Plan | None,
    model: Keeper,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    exponents: RowExponents,
    in_columns: InColumns | None = None,
) -> torch.Tensor:
    """Compute x · weightᵀ + bias; by torch where there is no plan.

    Args:
        x: (…, rows, in_features).
        weight: (…, out_features, in_features).
        bias: of a layer.
    """
    if plan is None:
        return nn.functional.linear(x, weight, bias)
    call = LinearCall(plan, x, weight, bias, exponents, (), False, True, model, in_columns)
    if not has_passes(str(plan["product"])):
        return own_output(call).values
    return pass_over(call, library_product(plan, model, weight, bias, x, in_columns), bias)
