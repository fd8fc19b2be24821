"""scalar_mul: C = A · s, a kernel that is nothing but memory traffic."""

from tunebench import blocks
from tunebench.kernels.scalar_mul.reference import Model


class ModelNew(blocks.Pointwise, Model):
    """`Model` of `reference.py`, in one pass."""

    function = "A * s"
