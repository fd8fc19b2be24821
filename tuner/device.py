"""Devices: the facts that constraints, cache keys and results depend on."""

from __future__ import annotations

import enum
import hashlib
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tunebench.tuner.errors import DeviceMissingError, UserError

if TYPE_CHECKING:
    import torch


MOST_BLOCKS = 2**31 - 1
"""Upper limit of a grid's first extent in blocks, by CUDA."""
MOST_BLOCKS_ACROSS = 65535
"""Upper limit of its second and its third extent, in blocks."""

_LIMITS = {
    "sm_75": (64, 1024),
    "sm_80": (163, 2048),
    "sm_86": (99, 1536),
    "sm_89": (99, 1536),
    "sm_90": (227, 2048),
    "sm_100": (227, 2048),
    "sm_103": (227, 2048),
    "sm_120": (99, 1536),
}
"""Limits by architecture: shared memory that a block can opt in to, KiB; resident threads of a multiprocessor."""


def is_gpu(architecture: str) -> bool:
    """Return whether an architecture is a GPU's, such as `sm_90`."""
    return architecture.startswith("sm_")


class DeviceKind(enum.StrEnum):
    """The kind of device that a kernel runs on."""

    CUDA = "cuda"
    CPU = "cpu"


@dataclass(frozen=True)
class Device:
    """One device and its limits. A CPU is described in the same words: a core is a multiprocessor.

    Attributes:
        index: CUDA device index; 0 for the CPU.
        name: as the vendor spells it, such as `NVIDIA H200`.
        architecture: what binaries are compiled for, such as `sm_90` or `x86_64`.
        uuid: identity of the very card; for a CPU a digest of its model and instruction sets.
        multiprocessors: streaming multiprocessors, or cores this process may use.
        memory_bytes, l2_bytes: device memory; last-level cache.
        max_threads_per_block, max_shared_bytes: limits of one block; shared memory is the opt-in maximum.
        max_threads_per_multiprocessor: resident threads one multiprocessor holds.
    """

    kind: DeviceKind
    index: int
    name: str
    architecture: str
    uuid: str
    multiprocessors: int
    memory_bytes: int
    l2_bytes: int
    max_threads_per_block: int = 1024
    max_shared_bytes: int = 48 * 1024
    max_threads_per_multiprocessor: int = 2048
    warp_size: int = 32

    @property
    def torch_device(self) -> torch.device:
        """The device as torch names it."""
        import torch

        return torch.device(self.kind.value, self.index) if self.kind is DeviceKind.CUDA else torch.device("cpu")

    @property
    def model(self) -> tuple[tuple[str, object], ...]:
        """The facts that devices have in common whose times make one ranking, by their names here.

        A GPU's identity is not one of them. What CPUs of one model have for an identity says what instructions they
        know, and with fewer cores a CPU is another one.
        """
        names = ["kind", "name", "architecture", "multiprocessors", "l2_bytes"]
        names += ["uuid"] * (self.kind is DeviceKind.CPU)
        return tuple((name, getattr(self, name)) for name in names)

    def is_gpu_from(self, number: int) -> bool:
        """Return whether it is a GPU of that architecture or a later one: 90 for `sm_90`."""
        return is_gpu(self.architecture) and int(self.architecture.removeprefix("sm_")) >= number

    def __hash__(self) -> int:
        return hash((self.uuid, self.index))

    def __str__(self) -> str:
        return f"{self.name} ({self.architecture}, {self.multiprocessors} multiprocessors)"


def find_device(name: str | None = None) -> Device:
    """Return the device of that name: `cuda`, `cuda:1`, `cpu`; None takes a GPU where there is one, else the CPU.

    Raises:
        DeviceMissingError: it is not here, or the name is none of these.
    """
    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", name or "cuda")
    if match is None:
        raise DeviceMissingError(f"'{name}' is no device: use cuda, cuda:INDEX or cpu")
    if name == "cpu":
        return _cpu()
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name is None and not count:
        return _cpu()
    index = int(match.group(1) or 0)
    if index >= count:
        reason = "torch is a CPU build" if torch.version.cuda is None else f"torch sees {count} CUDA device(s)"
        raise DeviceMissingError(f"device '{name}' is not on this machine ({reason}): use --device cpu, or install it")
    return _cuda(index)


def find_devices(names: Sequence[str | None]) -> list[Device]:
    """Return the devices of these names, see `find_device`; `all` are all GPUs.

    Raises:
        DeviceMissingError: one is not here, or the name is none of these.
        UserError: one is named twice, or they are not of one model.
    """
    if "all" in names:
        import torch

        names = [f"cuda:{index}" for index in range(torch.cuda.device_count())] or ["cuda"]
    devices = [find_device(name) for name in names]
    if len(set(devices)) < len(devices):
        raise UserError(f"the devices {', '.join(map(str, names))} are named twice: name each once")
    require_one_model(devices)
    return devices


def require_one_model(devices: Sequence[Device]) -> None:
    """Refuse devices whose times make no one ranking.

    Raises:
        UserError: they are of several models; it says which belong together.
    """
    by_model: dict[tuple[object, ...], list[Device]] = {}
    for device in devices:
        by_model.setdefault(device.model, []).append(device)
    if len(by_model) > 1:
        groups = [
            f"--devices {','.join(f'cuda:{one.index}' for one in group)} ({group[0].name})"
            for group in by_model.values()
        ]
        raise UserError(f"devices of several models make no one ranking: tune {', then '.join(groups)}")


def any_gpu(architecture: str) -> Device:
    """Return what all GPUs of an architecture have in common, to build for one elsewhere; the rest is generous.

    Raises:
        DeviceMissingError: the architecture is not known.
    """
    if architecture not in _LIMITS:
        raise DeviceMissingError(f"'{architecture}' is no architecture known here: use one of {', '.join(_LIMITS)}")
    shared_kib, threads = _LIMITS[architecture]
    return Device(
        kind=DeviceKind.CUDA,
        index=0,
        name=architecture,
        architecture=architecture,
        uuid=architecture,
        multiprocessors=1,
        memory_bytes=1 << 40,
        l2_bytes=1 << 20,
        max_shared_bytes=shared_kib << 10,
        max_threads_per_multiprocessor=threads,
    )


@cache
def device_of(torch_device: torch.device) -> Device:
    """Return the description of the device a tensor lives on.

    Raises:
        DeviceMissingError: the device is neither a CUDA device nor the CPU.
    """
    if torch_device.type == "cuda":
        return _cuda(torch_device.index or 0)
    return find_device(str(torch_device))


@cache
def _cuda(index: int) -> Device:
    """Describe a GPU by the driver and NVML; neither puts a context on the device, which a mere query must not hold."""
    import pynvml
    from cuda.core import Device as CudaDevice

    device = CudaDevice(index)
    properties = device.properties
    major, minor = device.compute_capability
    uuid = f"GPU-{device.uuid.removeprefix('GPU-')}"
    pynvml.nvmlInit()
    try:
        memory_bytes = int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(uuid)).total)
    finally:
        pynvml.nvmlShutdown()
    return Device(
        kind=DeviceKind.CUDA,
        index=index,
        name=device.name,
        architecture=f"sm_{major}{minor}",
        uuid=uuid,
        multiprocessors=properties.multiprocessor_count,
        memory_bytes=memory_bytes,
        l2_bytes=properties.l2_cache_size,
        max_threads_per_block=properties.max_threads_per_block,
        max_shared_bytes=properties.max_shared_memory_per_block_optin,
        max_threads_per_multiprocessor=properties.max_threads_per_multiprocessor,
        warp_size=properties.warp_size,
    )


def host_memory_bytes() -> int:
    """Return the bytes of this machine's main memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@cache
def _cpu() -> Device:
    name, flags = _cpu_model()
    identity = hashlib.sha256(f"{name}\n{flags}".encode()).hexdigest()[:16]
    return Device(
        kind=DeviceKind.CPU,
        index=0,
        name=name,
        architecture=platform.machine(),
        uuid=f"CPU-{identity}",
        multiprocessors=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=host_memory_bytes(),
        l2_bytes=_last_level_cache_bytes(),
    )


def _cpu_model() -> tuple[str, str]:
    """Return model name and instruction-set flags of the CPU; those of `platform` where /proc/cpuinfo is missing."""
    path = Path("/proc/cpuinfo")
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    fields = dict(re.findall(r"^([^\t:]+?)\s*: (.*)$", text.split("\n\n", maxsplit=1)[0], flags=re.MULTILINE))
    name = fields.get("model name") or platform.processor() or platform.machine()
    return name, fields.get("flags") or fields.get("Features", "")


def _last_level_cache_bytes() -> int:
    """Return the size of the largest cache that the kernel reports for the first CPU; 32 MiB where it reports none."""
    sizes = [32 << 10]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        if match := re.fullmatch(r"(\d+)([KM])", path.read_text(encoding="utf-8").strip()):
            sizes.append(int(match.group(1)) << (10 if match.group(2) == "K" else 20))
    return max(sizes) if len(sizes) > 1 else 32 << 20
