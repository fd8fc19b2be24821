"""How the fp32 product of a linear layer is made, for kernels whose source includes both headers of products.

`product` is `fp32` (torch's own), `fused` (`include/split_product.cuh`: a kernel of ours, with all that follows inside)
or `parts` (`include/parts_product.cuh`: the library's half-precision products, and a pass behind them).
"""

from __future__ import annotations

from tunebench.kernels.shared import parts_product, split_product
from tunebench.tuner.space import Tunable

BULK_COPIES = split_product.BULK_COPIES


def has_passes(product: str) -> bool:
    """Whether torch makes the product and a pass of its own does what follows."""
    return product != "fused"


def _splits(product: str) -> bool:
    return product != "fp32"


TUNABLES = (
    Tunable("product", ("fp32", "fused", "parts")),
    *split_product.TUNABLES,
    *parts_product.TUNABLES,
    Tunable("split_threads", (256, 512, 1024), default=1024, when=_splits),
)
CONSTRAINTS = (*split_product.CONSTRAINTS, *parts_product.CONSTRAINTS)
