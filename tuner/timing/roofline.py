"""The time below which a measurement cannot be true: what the memory needs for the bytes that must move."""

from __future__ import annotations

import statistics

from tunebench.tuner.ceilings import GENEROSITY
from tunebench.tuner.device import Device
from tunebench.tuner.problem import Work
from tunebench.tuner.timing.measure import Clock, copy_of

_SMALLEST_COPY_BYTES = 1 << 28
_CACHES = 8  # a copy of so many times the last-level cache shows what the memory does
_SAMPLES = 5


def floor_ms(work: Work, device: Device, clock: Clock) -> float:
    """Return the least time that a problem of that work can take on a device, from a copy timed now.

    As many bytes as the last-level cache holds may have been there before, or stay there afterwards; a problem that
    fits into it has no floor. Where memory has no room for the copy, there is none either.
    """
    beyond_cache = work.bytes - device.l2_bytes
    if beyond_cache <= 0:
        return 0.0
    moved = min(work.bytes, max(_CACHES * device.l2_bytes, _SMALLEST_COPY_BYTES))
    if (copy := copy_of(moved, device)) is None:
        return 0.0
    clock.warm_up(copy)
    fastest = min(statistics.median(clock.sample([copy] * _SAMPLES)) for _ in range(2))
    return fastest / moved * beyond_cache / GENEROSITY
