"""Energy of a call: NVML's counter of the whole card, between two of its steps, while the call runs back to back."""

from __future__ import annotations

import time
from collections.abc import Callable

import pynvml

from tunebench.tuner import nvml
from tunebench.tuner.device import Device, DeviceKind

_SECONDS = 0.5
"""Length of one measurement, at least. The counter steps every 20 to 100 ms, and is read where it steps."""

_LONGEST_SECONDS = 5.0
_BATCH_SECONDS = 0.004


def counter_of(device: Device) -> Callable[[], int | None] | None:
    """Return what reads a card's energy in millijoules so far; None where NVML has no such counter.

    A card before Volta has none, and a part of a divided card may not read the whole one's.
    """
    card = nvml.card(device.uuid) if device.kind is DeviceKind.CUDA else None
    if card is None or nvml.ask(pynvml.nvmlDeviceGetTotalEnergyConsumption, card) is None:
        return None
    return lambda: nvml.ask(pynvml.nvmlDeviceGetTotalEnergyConsumption, card)


def energy_mj(
    call: Callable[[], object], counter: Callable[[], int | None], synchronise: Callable[[], None]
) -> float | None:
    """Return the energy of one call in millijoules, with warm caches, and what the card takes at rest included.

    Args:
        synchronise: waits for what the call has queued.

    Returns:
        None where the counter stands still, or is not read any more.
    """

    def run(calls: int) -> None:
        for _ in range(calls):
            call()
        synchronise()

    run(1)
    started = time.perf_counter()
    run(1)
    batch = max(1, int(_BATCH_SECONDS / max(time.perf_counter() - started, 1e-6)))
    begun: int | None = None  # the counter at its first step
    last, calls, began_at = counter(), 0, 0.0
    deadline = time.perf_counter() + _LONGEST_SECONDS
    while last is not None and time.perf_counter() < deadline:
        run(batch)
        now = counter()
        if begun is not None:
            calls += batch
        if now is None or now == last:
            continue
        if begun is None:
            begun, began_at = now, time.perf_counter()
        elif time.perf_counter() - began_at >= _SECONDS:
            return (now - begun) / calls
        last = now
    return None
