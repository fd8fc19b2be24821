"""A Hopper card that is not here, for what is compiled without one."""

from __future__ import annotations

from tunebench.tuner.device import Device, DeviceKind

HOPPER = Device(DeviceKind.CUDA, 0, "a Hopper card", "sm_90", "GPU-0", 132, 141 << 30, 60 << 20, 1024, 232448)
