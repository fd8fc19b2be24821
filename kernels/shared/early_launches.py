"""Launches of a call that begin before the one in front has ended: `include/early_launches.cuh`."""

from __future__ import annotations

from tunebench.tuner.device import Device
from tunebench.tuner.space import Constraint, Predicate, Tunable

_LEAST_ARCHITECTURE = 90


def early_launches(when: Predicate) -> Tunable:
    """Return the tunable, for sources that include the header; `when` is its condition."""
    return Tunable("early_launches", (False, True), when=when)


def begins_early(device: Device) -> bool:
    """Return whether launches can begin early on a device."""
    return device.is_gpu_from(_LEAST_ARCHITECTURE)


def _device_can(early_launches: bool, device: Device) -> bool:
    return not early_launches or begins_early(device)


BEGINS_EARLY = Constraint("device_begins_launches_early", _device_can)
