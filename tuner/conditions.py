"""The state of a device right now, as NVML tells it. A CPU has none to tell."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pynvml

from tunebench.tuner.device import Device, DeviceKind
from tunebench.tuner.result import Conditions

_REASONS = {
    0x1: "idle",
    0x2: "application_clocks",
    0x4: "power_cap",
    0x8: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "thermal_slowdown",
    0x40: "hardware_thermal_slowdown",
    0x80: "power_brake",
    0x100: "display_clocks",
}


def read_conditions(device: Device) -> Conditions:
    """Clocks, temperature, reasons for a lower clock and other processes; what NVML does not tell here is None."""
    if device.kind is not DeviceKind.CUDA or (handle := _handle(device.uuid)) is None:
        return Conditions()
    reasons = _ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    processes = _ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    return Conditions(
        sm_clock_mhz=_ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
        memory_clock_mhz=_ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM),
        temperature_c=_ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        throttle_reasons=None if reasons is None else reason_names(reasons),
        # This process is one of them, under a number of its own inside a container.
        foreign_processes=None if processes is None else max(0, len(processes) - 1),
    )


def reason_names(mask: int) -> str:
    """NVML's bits in words; a bit without a name is shown as its number."""
    bits = (1 << position for position in range(mask.bit_length()) if mask >> position & 1)
    return " ".join(_REASONS.get(bit, f"{bit:#x}") for bit in bits)


@cache
def _handle(uuid: str) -> Any | None:
    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError:
        return None


def _ask(question: Callable[..., Any], *arguments: Any) -> Any | None:
    try:
        return question(*arguments)
    except pynvml.NVMLError:
        return None
