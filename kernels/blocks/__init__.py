"""Building blocks: kernels that are made from a device function and a few attributes of a class (docs/blocks.md)."""

from tunebench.kernels.blocks.attention import Attention
from tunebench.kernels.blocks.block import Block, Passes
from tunebench.kernels.blocks.conv import Conv
from tunebench.kernels.blocks.linear import Linear
from tunebench.kernels.blocks.pointwise import Pointwise
from tunebench.kernels.blocks.reductions import Max, Min, Product, Sum
from tunebench.kernels.blocks.rows import Rows

__all__ = ["Attention", "Block", "Conv", "Linear", "Max", "Min", "Passes", "Pointwise", "Product", "Rows", "Sum"]
