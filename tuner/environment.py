"""The software and machine a result was obtained with: what has to be known to judge or repeat it."""

from __future__ import annotations

import platform
import socket
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pynvml

from tunebench import __version__
from tunebench.tuner import nvml
from tunebench.tuner.command import GitError, git
from tunebench.tuner.device import Device, DeviceKind
from tunebench.tuner.versions import Versions

_GIT_SECONDS = 5.0
"""A repository on a file system that does not answer must not hold up a study."""


@dataclass(frozen=True)
class Environment:
    """Versions and device state in force while a study ran; None where there is none, or where the driver does not say.

    Attributes:
        driver: NVIDIA driver version.
        cuda: CUDA version torch was built for.
        compiler: the version text of the compiler that built the variants.
        sm_clock_mhz, memory_clock_mhz: what the card is set to run at under load, not what it idles at.
        power_limit_w: the card's power limit in force.
        throttle: what held the card's clocks back when the run began (see `nvml.throttle_words`).
        kernel_commit: the git commit that the kernel's folder is at, with `+dirty` behind it where files of the folder
            differ from it or are not in it; None where git does not keep the folder.
        cudnn: version of the cuDNN that torch brings, such as `91300`.
        kernel_path: where the kernel's folder or file is; None of one that ships.
        device_uuid: of the very device: those of one model share a study.
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
    kernel_commit: str | None = None
    cudnn: str | None = None
    kernel_path: str | None = None
    device_uuid: str | None = None


def current_environment(
    device: Device, compiler_version: str, kernel_folder: Path | None = None, kernel_path: str | None = None
) -> Environment:
    """Return the environment of this process, and the state of the device.

    Args:
        kernel_folder: of the kernel that the results are of; None where they are of several.
        kernel_path: what names it again, where it does not ship.
    """
    versions = versions_here(device)
    environment = Environment(
        tunebench=__version__,
        python=platform.python_version(),
        torch=versions.torch or "",
        cuda=versions.cuda,
        cudnn=versions.cudnn,
        driver=versions.driver,
        compiler=compiler_version,
        platform=platform.platform(),
        host=socket.gethostname(),
        kernel_commit=None if kernel_folder is None else commit_of(kernel_folder),
        kernel_path=kernel_path,
        device_uuid=device.uuid,
    )
    return _with_card(environment, device.uuid) if device.kind is DeviceKind.CUDA else environment


@cache
def versions_here(device: Device) -> Versions:
    """Return the versions that this process runs a device with."""
    import torch

    found = Versions(torch=str(torch.__version__), cuda=torch.version.cuda)
    if device.kind is not DeviceKind.CUDA:
        return found
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    driver = None if nvml.card(device.uuid) is None else nvml.ask(pynvml.nvmlSystemGetDriverVersion)
    return replace(found, cudnn=None if cudnn is None else str(cudnn), driver=driver)


def commit_of(folder: Path) -> str | None:
    """Return the git commit of a folder, see `Environment.kernel_commit`; None also where git fails or is slow."""
    ask = partial(git, folder, seconds=_GIT_SECONDS)
    try:
        if not ask("ls-files", "--", "."):
            return None  # such as an installed package in a folder that its repository ignores
        return ask("rev-parse", "HEAD") + ("+dirty" if ask("status", "--porcelain", "--", ".") else "")
    except (OSError, GitError):
        return None


def _with_card(environment: Environment, uuid: str) -> Environment:
    """Return the environment with the driver's facts about the card."""
    if (card := nvml.card(uuid)) is None:
        return environment
    milliwatts = nvml.ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, card)
    return replace(
        environment,
        sm_clock_mhz=_clock(card, pynvml.NVML_CLOCK_SM),
        memory_clock_mhz=_clock(card, pynvml.NVML_CLOCK_MEM),
        power_limit_w=None if milliwatts is None else round(milliwatts / 1000),
        throttle=nvml.throttle_words(card),
    )


def _clock(card: Any, clock: int) -> int | None:
    """Return the application clock where the card has one, else the highest that it may reach; MHz."""
    chosen = nvml.ask(pynvml.nvmlDeviceGetApplicationsClock, card, clock)
    return nvml.ask(pynvml.nvmlDeviceGetMaxClockInfo, card, clock) if chosen is None else chosen
