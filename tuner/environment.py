"""The software and machine a result was obtained with: what has to be known to judge or repeat it."""

from __future__ import annotations

import platform
import socket
from dataclasses import dataclass

import pynvml
import torch

from tunebench import __version__
from tunebench.tuner.device import Device, DeviceKind


@dataclass(frozen=True)
class Environment:
    """Versions in force while a study ran; None where a thing is not there.

    Attributes:
        driver: NVIDIA driver version.
        cuda: CUDA version torch was built for.
        compiler: the version text of the compiler that built the variants.
    """

    tunebench: str
    python: str
    torch: str
    cuda: str | None
    driver: str | None
    compiler: str
    platform: str
    host: str


def current_environment(device: Device, compiler_version: str) -> Environment:
    """The environment of this process."""
    return Environment(
        tunebench=__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        driver=_driver_version() if device.kind is DeviceKind.CUDA else None,
        compiler=compiler_version,
        platform=platform.platform(),
        host=socket.gethostname(),
    )


def _driver_version() -> str:
    pynvml.nvmlInit()
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    finally:
        pynvml.nvmlShutdown()
