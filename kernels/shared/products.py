"""Choice of how a linear layer's fp32 product is made, for kernels whose source includes both headers of products.

`product` is `fp32` (torch's own) or `parts` (`include/parts_product.cuh`: the library's products of fewer bits), and a
pass behind them; or a kernel of ours with all that follows inside: `fused` (`include/split_product.cuh`, for half types
`include/half_product.cuh`) or, for a few rows, `stream`: a pass over the weight (`include/stream_product.cuh`, for half
types `include/half_stream.cuh`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from tunebench.kernels.runtime.derived import Keeper
from tunebench.kernels.shared import (
    half_product,
    half_stream,
    parts_product,
    rounded_product,
    split_product,
    stream_product,
)
from tunebench.kernels.shared.split_product import InColumns
from tunebench.tuner.build import Argument
from tunebench.tuner.configuration import Value
from tunebench.tuner.kernel import Plan
from tunebench.tuner.problem import Problem
from tunebench.tuner.space import Constraint, Tunable

BULK_COPIES = (*split_product.BULK_COPIES, "half_stream")


def has_passes(product: str) -> bool:
    """Return whether torch makes the product and a pass of its own does what follows."""
    return product in ("fp32", "parts")


def _splits(product: str, problem: Problem) -> bool:
    return product == "parts" or split_product.splits(product, problem)


TUNABLES = (
    Tunable("product", ("fp32", "fused", "parts", "stream")),
    *split_product.TUNABLES,
    *half_product.TUNABLES,
    *parts_product.TUNABLES,
    *stream_product.TUNABLES,
    *half_stream.TUNABLES,
    Tunable("split_threads", (256, 512, 1024), default=1024, when=_splits),
)
CONSTRAINTS = (
    *split_product.CONSTRAINTS,
    *half_product.CONSTRAINTS,
    *parts_product.CONSTRAINTS,
    *rounded_product.CONSTRAINTS,
    *stream_product.CONSTRAINTS,
    *half_stream.CONSTRAINTS,
)

TILES: Mapping[str, Value] = {"product": "fused", "product_columns": 256, "product_stages": 4, "product_cluster": 2}
_STREAM: Mapping[str, Value] = {
    "product": "stream",
    "stream_unit": "tensor_cores",
    "stream_features": 16,
    "stream_split": 8,
    "stream_unroll": 2,
}
STARTS: tuple[Mapping[str, Value], ...] = (
    {**TILES, "weight_parts": "halves", "split_threads": 512, "early_launches": True},
    {**TILES, "weight_parts": "rounded", "split_threads": 512},
    # Before int8, which the gate refuses often, after half of a short study's time.
    {**TILES, "weight_parts": "fp16", "split_threads": 256, "sum_stages": 32},
    {**TILES, "weight_parts": "int8", "split_threads": 512},
    TILES,
    *({**_STREAM, "stream_corrections": "none", "stream_weight": weight} for weight in ("rounded", "whole")),
    {"product": "stream", "stream_unit": "lanes", "stream_weight": "rounded", "stream_features": 2},
    {"product": "stream"},
    {"product": "stream", "stream_features": 64, "stream_split": 2, "stream_stages": 8},
    *(
        {**TILES, "product_columns": 128, "product_stages": 6, "product_cluster": 1, "weight_parts": parts, **early}
        for parts, early in (("halves", {"early_launches": True}), ("rounded", {}))
    ),
)
"""A study begins with these, where its problem has them: they were the best of the shipped kernels at most sizes."""

ROUNDING = (
    *("product", "weight_parts", "sum_stages"),
    *("part_type", "corrections", "correction_sums", "pieces"),
    *("stream_unit", "stream_corrections", "stream_weight"),
)
"""The tunables that decide how exact a product is; the others decide how long it takes."""


def _vector_is_streamed(product: str, problem: Problem) -> bool:
    """Return whether a product of one row makes no parts, which would cost more than they save."""
    return product in ("fp32", "stream") or problem.axes["rows"] > 1


CONSTRAINTS_OF_INPUTS = (
    *split_product.CONSTRAINTS_OF_INPUTS,
    *parts_product.CONSTRAINTS_OF_INPUTS,
    *rounded_product.CONSTRAINTS_OF_INPUTS,
    *stream_product.CONSTRAINTS_OF_INPUTS,
    Constraint("a_vector_is_not_split", _vector_is_streamed),
)


def _halves_are_of_one_product(product: str, problem: Problem) -> bool:
    return has_passes(product) or problem.dtype == "float32" or problem.axes["products"] == 1


def limits_of_inputs(in_columns: InColumns) -> tuple[Constraint, ...]:
    """Return the constraints of a product of two inputs, for those that lie in columns too."""
    if any(in_columns):
        limits = (*split_product.OF_HALVES, *CONSTRAINTS_OF_INPUTS, *parts_product.CONSTRAINTS_IN_COLUMNS)
        return (*limits, *rounded_product.IN_TILES) if in_columns.x else limits
    return (*CONSTRAINTS_OF_INPUTS, Constraint("halves_are_of_one_product", _halves_are_of_one_product))


def own_product(
    plan: Plan,
    model: Keeper,
    weights: Sequence[torch.Tensor],
    x: torch.Tensor,
    exponents: split_product.RowExponents,
    *epilogue: Argument,
    in_columns: InColumns | None = None,
) -> split_product.Unfit | None:
    """Compute a product by a kernel of ours, with what follows in its epilogue.

    Args:
        weights: of the layer; behind it, for the product of half types, of those that its epilogue joins with it.
        exponents: what is kept of the weight's magnitude.
        epilogue: what the source's kernels take behind the sizes: the bias, the output, and what the functions read.
        in_columns: how two inputs lie; None of a layer.

    Returns:
        the fused product's notes on what it repaired.
    """
    in_rows = plan["weight_parts"] == split_product.HALVES
    if in_columns is not None and (in_rows or plan.problem.dtype != "float32"):
        x, weights = x.flatten(0, -2), [one.flatten(0, -2) for one in weights]  # of one product
    weight = weights[0]
    if half_stream.streams_halves(str(plan["product"]), plan.problem):
        half_stream.half_stream(plan, x, weight, *epilogue)
        return None
    if plan["product"] == "stream":
        stream_product.stream_product(plan, model, weight, x, *epilogue)
        return None
    if plan.problem.dtype != "float32":
        half_product.half_product(plan, x, weights, *epilogue)
        return None
    if in_rows:
        return rounded_product.rounded_product(plan, x, weight, *epilogue, model=model, in_columns=in_columns)
    if in_columns is not None:
        return split_product.product_of_inputs(plan, x, weight, in_columns, *epilogue)
    return split_product.fused_product(plan, x, weight, exponents, *epilogue, model=model)


def library_product(
    plan: Plan,
    model: Keeper,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    x: torch.Tensor,
    in_columns: InColumns | None = None,
) -> parts_product.Product:
    """Compute a product for a pass behind it: whole, with the bias, or partial products from parts.

    The parts of a weight are the model's, which keeps them while it is frozen; those of two inputs nobody's.
    """
    if in_columns is not None:
        if plan["product"] == "fp32":
            return parts_product.Product(torch.matmul(x, weight.mT).flatten(0, -2))
        made = parts_product.parts_of(plan, weight, is_weight=True, in_columns=in_columns.weight)
        return parts_product.parts_product(plan, x, weight, made, in_columns=in_columns)
    if plan["product"] == "fp32":
        return parts_product.Product(nn.functional.linear(x, weight, bias))
    parts = model.derived(
        "weight parts",
        lambda: parts_product.split(plan, weight, is_weight=True),
        (weight,),
        plan.once(parts_product.settings_of),
    )
    return parts_product.parts_product(plan, x, weight, parts)
