"""Facts about NVIDIA's driver and a card from NVML. A fact that it does not report, here or to this user, is None."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pynvml

_THROTTLES = {
    pynvml.nvmlClocksThrottleReasonApplicationsClocksSetting: "applications_clocks_setting",
    pynvml.nvmlClocksThrottleReasonSwPowerCap: "sw_power_cap",
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "hw_slowdown",
    pynvml.nvmlClocksThrottleReasonSyncBoost: "sync_boost",
    pynvml.nvmlClocksThrottleReasonSwThermalSlowdown: "sw_thermal_slowdown",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "hw_thermal_slowdown",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "hw_power_brake_slowdown",
    pynvml.nvmlClocksThrottleReasonDisplayClockSetting: "display_clock_setting",
}
"""NVML's reasons by bit."""


def ask(question: Callable[..., Any], *arguments: object) -> Any | None:
    """Return the answer to one of NVML's functions."""
    try:
        return question(*arguments)
    except pynvml.NVMLError:
        return None


@cache
def card(uuid: str) -> Any | None:
    """Return NVML's handle of a card."""
    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError:
        return None


def throttle_words(handle: Any) -> str | None:
    """Return the reasons why a card's clocks are held back, such as `hw_thermal_slowdown`, joined by commas.

    `none` where nothing does; idleness does not count.
    """
    reasons = ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    return None if reasons is None else words_of(reasons)


def words_of(reasons: int) -> str:
    """Return NVML's bits of clock throttle reasons, in words; a bit without a name is shown as its number."""
    names = [name for bit, name in _THROTTLES.items() if reasons & bit]
    unknown = reasons & ~(sum(_THROTTLES) | pynvml.nvmlClocksThrottleReasonGpuIdle)
    return ",".join([*names, *([f"{unknown:#x}"] if unknown else [])]) or "none"
