"""gemm_sigmoid_residual: Linear, and its output plus a multiple of its sigmoid."""

from tunebench import blocks
from tunebench.kernels.gemm_sigmoid_residual.reference import Model


class ModelNew(blocks.Linear, Model):
    """`Model` of `reference.py`: the product with all that follows in its epilogue, or in a pass behind it."""

    layer = "gemm"
    function = "value + scaling_factor * sigmoid(value)"
    scalars = ("scaling_factor",)
