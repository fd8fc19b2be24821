"""Choice of how a linear layer's fp32 product is made, for kernels whose source includes both headers of products.

`product` is `fp32` (torch's own) or `parts` (`include/parts_product.cuh`: the library's products of fewer bits), and a
pass behind them; or a kernel of ours with all that follows inside: `fused` (`include/split_product.cuh`, for half types
`include/half_product.cuh`) or, for a few rows, `stream` (`include/stream_product.cuh`: a pass over the weight).
"""

from __future__ import annotations

import torch
from torch import nn

from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.kernels.shared import half_product, parts_product, split_product, stream_product
from tunebench.tuner.build import Argument
from tunebench.tuner.kernel import Plan
from tunebench.tuner.problem import Problem
from tunebench.tuner.space import Tunable

BULK_COPIES = split_product.BULK_COPIES


def has_passes(product: str) -> bool:
    """Return whether torch makes the product and a pass of its own does what follows."""
    return product in ("fp32", "parts")


def _splits(product: str, problem: Problem) -> bool:
    return product == "parts" or (product == "fused" and problem.dtype == "float32")


TUNABLES = (
    Tunable("product", ("fp32", "fused", "parts", "stream")),
    *split_product.TUNABLES,
    *half_product.TUNABLES,
    *parts_product.TUNABLES,
    *stream_product.TUNABLES,
    Tunable("split_threads", (256, 512, 1024), default=1024, when=_splits),
)
CONSTRAINTS = (
    *split_product.CONSTRAINTS,
    *half_product.CONSTRAINTS,
    *parts_product.CONSTRAINTS,
    *stream_product.CONSTRAINTS,
)

ROUNDING = (
    *("product", "weight_parts", "sum_stages"),
    *("part_type", "corrections", "correction_sums", "pieces"),
    *("stream_unit", "stream_corrections", "stream_weight"),
)
"""The tunables that decide how exact a product is; the others decide how long it takes."""


def own_product(
    plan: Plan,
    model: TunedModule,
    weight: torch.Tensor,
    x: torch.Tensor,
    exponents: split_product.RowExponents,
    *epilogue: Argument,
) -> split_product.Unfit | None:
    """Compute a linear layer's product by a kernel of ours, with what follows in its epilogue.

    Args:
        exponents: what is kept of the weight's magnitude.
        epilogue: what the source's kernels take behind the sizes: the bias, the output, and what the functions read.

    Returns:
        the fused product's notes on what it repaired.
    """
    if plan["product"] == "stream":
        stream_product.stream_product(plan, model, weight, x, *epilogue)
        return None
    if plan.problem.dtype != "float32":
        half_product.half_product(plan, x, weight, *epilogue)
        return None
    return split_product.fused_product(plan, x, weight, exponents, *epilogue, model=model)


def library_product(
    plan: Plan, model: TunedModule, weight: torch.Tensor, bias: torch.Tensor | None, x: torch.Tensor
) -> parts_product.Product:
    """Compute a linear layer's product for a pass behind it: whole, with the bias, or partial products from parts.

    The parts of the weight are the model's, which keeps them while it is frozen.
    """
    if plan["product"] == "fp32":
        return parts_product.Product(nn.functional.linear(x, weight, bias))
    parts = model.derived(
        "weight parts",
        lambda: parts_product.split(plan, weight, is_weight=True),
        (weight,),
        plan.once(parts_product.settings_of),
    )
    return parts_product.parts_product(plan, x, weight, parts)
