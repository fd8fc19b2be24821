"""The state of a device right now, as NVML tells it. A CPU has none to tell."""

from __future__ import annotations

import pynvml

from tunebench.tuner import nvml
from tunebench.tuner.device import Device, DeviceKind
from tunebench.tuner.result import Conditions


def read_conditions(device: Device) -> Conditions:
    """Return clocks, temperature, throttle reasons and other processes; None for what NVML does not tell here."""
    if device.kind is not DeviceKind.CUDA or (card := nvml.card(device.uuid)) is None:
        return Conditions()
    processes = nvml.ask(pynvml.nvmlDeviceGetComputeRunningProcesses, card)
    return Conditions(
        sm_clock_mhz=nvml.ask(pynvml.nvmlDeviceGetClockInfo, card, pynvml.NVML_CLOCK_SM),
        memory_clock_mhz=nvml.ask(pynvml.nvmlDeviceGetClockInfo, card, pynvml.NVML_CLOCK_MEM),
        temperature_c=nvml.ask(pynvml.nvmlDeviceGetTemperature, card, pynvml.NVML_TEMPERATURE_GPU),
        throttle_reasons=nvml.throttle_words(card),
        # This process is one of them, under a number of its own inside a container.
        foreign_processes=None if processes is None else max(0, len(processes) - 1),
    )
