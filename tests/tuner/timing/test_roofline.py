"""The time below which a measurement cannot be true, from a copy on a simulated clock."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.benchmarks.statistics import SimulatedClock
from tests.tuner.timing.test_confirm import QUIET

from tunebench.tuner.device import find_device
from tunebench.tuner.problem import Work
from tunebench.tuner.timing.measure import Call
from tunebench.tuner.timing.roofline import GENEROSITY, floor_ms

CACHE = 1 << 20
COPY_MS = 2.0


def test_the_floor_is_that_of_the_bytes_beyond_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []

    def copy_of(size: int, _: object) -> Call:
        moved.append(size)
        return lambda: COPY_MS

    monkeypatch.setattr("tunebench.tuner.timing.roofline.copy_of", copy_of)
    device = replace(find_device("cpu"), l2_bytes=CACHE)
    clock = SimulatedClock(QUIET, 0)
    for size in (CACHE, CACHE + 1, 3 * CACHE):
        floor = floor_ms(Work(size, 0), device, clock)
        assert floor == pytest.approx((size - CACHE) / size * COPY_MS / GENEROSITY, rel=0.01)
    assert moved == [CACHE + 1, 3 * CACHE], "what fits into the cache has no floor, and no copy is timed for it"
