"""Limits of a GPU's multiprocessors by architecture: what they compute in a cycle, and what fits on one at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tunebench.tuner.device import Device

GENEROSITY = 1.25
"""A write-only kernel moves bytes 1.1 times as fast as a copy; nothing moves them so many times as fast."""

FP32, TENSOR = "fp32", "half tensor cores"


class _Multiprocessor(NamedTuple):
    """Operations a clock cycle of single precision and of dense half products on tensor cores; resident blocks."""

    fp32: int
    tensor: int
    blocks: int


_MULTIPROCESSORS = {
    "sm_75": _Multiprocessor(128, 1024, 16),
    "sm_80": _Multiprocessor(128, 2048, 32),
    "sm_86": _Multiprocessor(256, 1024, 16),
    "sm_89": _Multiprocessor(256, 1024, 24),
    "sm_90": _Multiprocessor(256, 4096, 32),
    "sm_100": _Multiprocessor(256, 8192, 32),
    "sm_103": _Multiprocessor(256, 8192, 32),
    "sm_120": _Multiprocessor(256, 1024, 24),
}
"""From NVIDIA's papers on each architecture; a fused multiply and add counts as two operations."""

_PARTITIONS, _PARTITION_REGISTERS = 4, 16384
_REGISTER_UNIT = 256  # registers are given to a warp in such pieces
_SHARED_UNIT = 128
_RESERVED_SHARED = 1024  # bytes that the system keeps of each block's shared memory, from sm_80 on


def arithmetic_roofs(device: Device, clock_mhz: float | None) -> Mapping[str, float]:
    """Return the operations a second that a GPU computes at most, by kind; empty where that is not known here.

    Args:
        clock_mhz: the clock of its multiprocessors while it was timed.
    """
    one = _MULTIPROCESSORS.get(device.architecture)
    if one is None or not clock_mhz:
        return {}
    cycles = device.multiprocessors * clock_mhz * 1e6
    return {FP32: one.fp32 * cycles, TENSOR: one.tensor * cycles}


@dataclass(frozen=True)
class Occupancy:
    """The blocks that one multiprocessor holds at once.

    Attributes:
        share: of the threads that it can hold.
        bound: what allows no more of them: `registers`, `shared memory`, `threads` or `blocks`.
    """

    blocks: int
    share: float
    bound: str


def occupancy(device: Device, threads: int, registers: int | None, shared: int | None) -> Occupancy | None:
    """Return how much of a multiprocessor a launch can fill; None for a device whose limits are not known here.

    Args:
        threads: of a block.
        registers: of a thread; None where the compiler does not say.
        shared: bytes of a block, static and dynamic; None likewise.
    """
    one = _MULTIPROCESSORS.get(device.architecture)
    if one is None or threads <= 0:
        return None
    warps = math.ceil(threads / device.warp_size)
    limits = {"threads": device.max_threads_per_multiprocessor // (warps * device.warp_size), "blocks": one.blocks}
    if registers:
        by_warp = _rounded_up(registers * device.warp_size, _REGISTER_UNIT)
        limits["registers"] = _PARTITIONS * (_PARTITION_REGISTERS // by_warp) // warps
    if shared is not None:
        reserved = _RESERVED_SHARED if device.is_gpu_from(80) else 0
        by_block = _rounded_up(shared, _SHARED_UNIT) + reserved
        limits["shared memory"] = (device.max_shared_bytes + reserved) // by_block if by_block else one.blocks
    bound = min(limits, key=limits.__getitem__)
    held = limits[bound] * warps * device.warp_size
    return Occupancy(limits[bound], held / device.max_threads_per_multiprocessor, bound)


def _rounded_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
