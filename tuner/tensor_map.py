"""Tensors as the copy engine of a GPU knows them: the argument of a launch for a parameter `TensorMap`."""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

MAP_BYTES = 128
"""Size of a CUtensorMap."""

_TYPES = {1: 0, 2: 1, 4: 2, 8: 4}
"""CUtensorMapDataType by an element's bytes: whole numbers, for nothing is computed with them."""
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_L2_PROMOTION_256B = 3


class Windows(NamedTuple):
    """Windows over images, each copy what neighbouring ones see at a place of theirs (the copy engine's im2col mode).

    Attributes, each by the images' sides, the innermost first:
        lower: where the first window begins; negative in padding.
        upper: where the last one begins, from the image's last element on.
        steps: from window to window.
    """

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    steps: tuple[int, ...]


class MapLayout(NamedTuple):
    """The layout of a tensor for the copy engine, and what one copy moves.

    Attributes:
        item_bytes: of an element.
        sizes: in elements, the dimension first whose elements lie side by side.
        strides: of the other dimensions, in bytes, multiples of 16.
        box: the elements of one copy in each dimension; with windows, of channels and of windows.
        swizzle: the bytes of a row of shared memory whose pieces of 16 are swapped: 0 (none), 32, 64 or 128.
        windows: over the dimensions between the first, of channels, and the last, of samples; None for boxes.
    """

    item_bytes: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    windows: Windows | None = None


class TensorMap(NamedTuple):
    """A tensor whose memory is laid out so; it begins at a multiple of 16 bytes."""

    tensor: torch.Tensor
    layout: MapLayout

    @property
    def address(self) -> int:
        """Where its CUtensorMap is in the host's memory, for a launch at once."""
        kept = encoded_map(self.tensor.data_ptr(), self.layout)
        return ctypes.cast(ctypes.c_char_p(kept), ctypes.c_void_p).value or 0


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@functools.lru_cache(maxsize=4096)
def encoded_map(address: int, layout: MapLayout) -> bytes:
    """Return the CUtensorMap of memory at an address, made once.

    Raises:
        ValueError: the driver makes none of that address or layout.
    """
    rank = len(layout.sizes)
    memory = ctypes.create_string_buffer(MAP_BYTES + 64)
    begin = -ctypes.addressof(memory) % 64
    tensor = (
        ctypes.byref(memory, begin),
        _TYPES[layout.item_bytes],
        rank,
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*layout.sizes),
        (ctypes.c_uint64 * (rank - 1))(*layout.strides),
    )
    rest = (0, _SWIZZLES[layout.swizzle], _L2_PROMOTION_256B, 0)
    steps = ctypes.c_uint32 * rank
    if layout.windows is None:
        box = (ctypes.c_uint32 * rank)(*layout.box)
        status = _driver().cuTensorMapEncodeTiled(*tensor, box, steps(*[1] * rank), *rest)
    else:
        corner, windows = ctypes.c_int * (rank - 2), layout.windows
        corners = (corner(*windows.lower), corner(*windows.upper))
        along = steps(1, *windows.steps, 1)
        status = _driver().cuTensorMapEncodeIm2col(*tensor, *corners, *map(ctypes.c_uint32, layout.box), along, *rest)
    if status:
        raise ValueError(f"the driver makes no tensor map of {layout} at {address:#x}: CUDA error {status}")
    return memory.raw[begin : begin + MAP_BYTES]
