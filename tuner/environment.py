"""The software and machine a result was obtained with: what has to be known to judge or repeat it."""

from __future__ import annotations

import platform
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace

import pynvml
import torch

from tunebench import __version__
from tunebench.tuner.device import Device, DeviceKind


@dataclass(frozen=True)
class Environment:
    """Versions and device state in force while a study ran; None where a thing is not there, or the driver is silent.

    Attributes:
        driver: NVIDIA driver version.
        cuda: CUDA version torch was built for.
        compiler: the version text of the compiler that built the variants.
        sm_clock_mhz, memory_clock_mhz: what the card is set to run at under load, not what it idles at.
        power_limit_w: the card's power limit in force.
        throttle: what held the card's clocks back when the run began, such as `hw_thermal_slowdown`, in the driver's
            words joined by commas; `none` where nothing did. Idleness does not count.
    """

    tunebench: str
    python: str
    torch: str
    cuda: str | None
    driver: str | None
    compiler: str
    platform: str
    host: str
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_limit_w: int | None = None
    throttle: str | None = None


def current_environment(device: Device, compiler_version: str) -> Environment:
    """The environment of this process, and the state of the device."""
    environment = Environment(
        tunebench=__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        driver=None,
        compiler=compiler_version,
        platform=platform.platform(),
        host=socket.gethostname(),
    )
    return _with_driver(environment, device.uuid) if device.kind is DeviceKind.CUDA else environment


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


def throttle_words(reasons: int) -> str:
    """NVML's bits of what holds the clocks back, in words; `none` for no bit but idleness."""
    names = [name for bit, name in _THROTTLES.items() if reasons & bit]
    unknown = reasons & ~(sum(_THROTTLES) | pynvml.nvmlClocksThrottleReasonGpuIdle)
    return ",".join([*names, *([f"{unknown:#x}"] if unknown else [])]) or "none"


def _with_driver(environment: Environment, uuid: str) -> Environment:
    """The environment with what the driver says of itself and of the card."""
    pynvml.nvmlInit()
    try:
        card = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        milliwatts = _said(pynvml.nvmlDeviceGetEnforcedPowerLimit, card)
        reasons = _said(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, card)
        return replace(
            environment,
            driver=str(pynvml.nvmlSystemGetDriverVersion()),
            sm_clock_mhz=_clock(card, pynvml.NVML_CLOCK_SM),
            memory_clock_mhz=_clock(card, pynvml.NVML_CLOCK_MEM),
            power_limit_w=None if milliwatts is None else round(milliwatts / 1000),
            throttle=None if reasons is None else throttle_words(reasons),
        )
    finally:
        pynvml.nvmlShutdown()


def _clock(card: object, clock: int) -> int | None:
    """The application clock where the card has one, else the highest that it may reach; MHz."""
    chosen = _said(pynvml.nvmlDeviceGetApplicationsClock, card, clock)
    return _said(pynvml.nvmlDeviceGetMaxClockInfo, card, clock) if chosen is None else chosen


def _said(question: Callable[..., int], *arguments: object) -> int | None:
    """What the driver answers; None where this card or this user gets no answer."""
    try:
        return int(question(*arguments))
    except pynvml.NVMLError:
        return None
