"""How the fp32 product of a linear layer is made, for kernels whose source includes both headers of products.

`product` is `fp32` (torch's own), `fused` (`include/split_product.cuh`: a kernel of ours with all that follows inside),
`parts` (`include/parts_product.cuh`: the library's products of fewer bits, and a pass behind them) or, of few rows,
`stream` (`include/stream_product.cuh`: a pass of ours over the weight, and one behind it).
"""

from __future__ import annotations

import torch
from torch import nn

from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.kernels.shared import parts_product, split_product, stream_product
from tunebench.tuner.kernel import Plan
from tunebench.tuner.space import Tunable

BULK_COPIES = split_product.BULK_COPIES


def has_passes(product: str) -> bool:
    """Whether torch makes the product and a pass of its own does what follows."""
    return product != "fused"


def _splits(product: str) -> bool:
    return product in ("fused", "parts")


TUNABLES = (
    Tunable("product", ("fp32", "fused", "parts", "stream")),
    *split_product.TUNABLES,
    *parts_product.TUNABLES,
    *stream_product.TUNABLES,
    Tunable("split_threads", (256, 512, 1024), default=1024, when=_splits),
)
CONSTRAINTS = (*split_product.CONSTRAINTS, *parts_product.CONSTRAINTS, *stream_product.CONSTRAINTS)


def library_product(
    plan: Plan, model: TunedModule, weight: torch.Tensor, bias: torch.Tensor | None, x: torch.Tensor
) -> parts_product.Product:
    """A linear layer's product for a pass behind it: whole, with the bias, or partial products from parts.

    The parts of the weight are the model's, which keeps them while it is frozen.
    """
    if plan["product"] == "fp32":
        return parts_product.Product(nn.functional.linear(x, weight, bias))
    if plan["product"] == "stream":
        return parts_product.Product(stream_product.stream_product(plan, model, weight, bias, x))
    parts = model.derived(
        "weight parts",
        lambda: parts_product.split(plan, weight, is_weight=True),
        (weight,),
        plan.once(parts_product.settings_of),
    )
    return parts_product.parts_product(plan, x, weight, parts)
