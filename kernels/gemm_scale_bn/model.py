"""gemm_scale_bn: Linear, a scale per feature, BatchNorm1d; everything behind the product in one pass."""

from tunebench import blocks
from tunebench.kernels.gemm_scale_bn.reference import Model


class ModelNew(blocks.Linear, Model):
    """`Model` of `reference.py`: the product with all that follows in its epilogue, or in a pass behind it."""

    layer = "gemm"
    function = "value * scale"
    per_feature = ("scale",)
    batch_norm_at = "bn"
