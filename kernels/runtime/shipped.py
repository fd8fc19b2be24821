"""Results that ship with a kernel: `tuned/<device>.json` beside its model.py, one configuration for each problem.

A file belongs to one version of the kernel, by its digest: results of an edited kernel are never served. It is data:
which configuration, never what to compile.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from tunebench.tuner.device import Device, is_gpu
from tunebench.tuner.errors import TunebenchError, UserError
from tunebench.tuner.files import whole_file
from tunebench.tuner.kernel import Kernel
from tunebench.tuner.problem import Problem
from tunebench.tuner.search.warm_start import EarlierStudy, EarlierTrial, distance
from tunebench.tuner.typed_json import parse

_KERNELS = Path(__file__).parent.parent


class ShippedFileError(TunebenchError):
    """A file of shipped results that is not one."""


@dataclass(frozen=True)
class NeighbourTest:
    """A winner timed at a neighbouring problem.

    Attributes:
        axes: of that problem; its dtype and options are the winner's.
        over_reference: how many times faster than the reference it was there, and the interval of that; None where
            that was not found out, or it was wrong or failed.
    """

    axes: dict[str, int]
    over_reference: list[float] | None


@dataclass(frozen=True)
class ShippedResult:
    """The configuration that won for one problem, and how it was measured.

    Attributes:
        axes, dtype, options: of the problem.
        configuration: None where the reference was faster than the winner, whose figures the others are.
        speedups: of the winner over each baseline in the final rounds: the ratio and its 95 % interval.
        median_ms: of the winner when it was a trial; absolute times belong to the very card.
        error_multiple: its error against float64 as a multiple of the reference's own; None where that is exact.
        conditions: what it was measured under: versions, clock, caches, moment.
        range: neighbouring problems at which the configuration was proven not to lose to the reference; it serves
            whatever lies between its own problem and one of them.
        beyond: those at which that was tried and not proven.
    """

    axes: dict[str, int]
    dtype: str
    options: dict[str, str]
    configuration: dict[str, bool | int | float | str] | None
    speedups: dict[str, list[float]]
    median_ms: float
    error_multiple: float | None
    conditions: dict[str, str]
    range: list[NeighbourTest] = field(default_factory=list)
    beyond: list[NeighbourTest] = field(default_factory=list)

    @property
    def problem(self) -> Problem:
        """The problem it was measured for."""
        return Problem(self.axes, self.dtype, self.options)


@dataclass(frozen=True)
class ShippedFile:
    """One kernel's results on one kind of device.

    Attributes:
        digest: of the kernel that was measured.
        block: that it is made from (see `Kernel.block`).
    """

    kernel: str
    digest: str
    device: str
    architecture: str
    results: list[ShippedResult]
    block: str = ""


def file_for(kernel: Kernel, device_name: str) -> Path:
    """Return where a kernel's results on a kind of device are."""
    name = re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")
    return kernel.results_folder / f"{name or 'device'}.json"


def read_file(path: Path) -> ShippedFile:
    """Return the results of one file.

    Raises:
        ShippedFileError: it cannot be read, or is not such a file.
    """
    try:
        return _said_by(path.read_bytes())
    except ValueError as error:
        raise ShippedFileError(f"{path}: not shipped results: {error}") from error
    except OSError as error:
        raise ShippedFileError(f"{path}: cannot be read: {error.strerror}") from error


@lru_cache(maxsize=64)
def _said_by(content: bytes) -> ShippedFile:
    """Parse a content once: each problem's first call looks at the kernel's files, and a duel at its block's."""
    return parse(ShippedFile, content)


def files_of(kernel: Kernel) -> list[Path]:
    """Return the files that ship with a kernel, stale ones too."""
    return sorted(kernel.results_folder.glob("*.json"))


def readable_files(kernel: Kernel) -> Iterator[ShippedFile]:
    """Yield the files that ship with a kernel, stale or not; one that cannot be read is left out."""
    for path in files_of(kernel):
        with suppress(ShippedFileError):
            yield read_file(path)


def related_files(kernel: Kernel) -> Iterator[ShippedFile]:
    """Yield the files that ship with other kernels of a kernel's block, stale or not: what won there may do so here."""
    for path in sorted(_KERNELS.glob("*/tuned/*.json")) if kernel.block else ():
        with suppress(ShippedFileError):
            file = read_file(path)
            if file.block == kernel.block and file.kernel != kernel.name:
                yield file


def is_stale(kernel: Kernel, file: ShippedFile) -> bool:
    """Return whether a file belongs to another version of the kernel, so that it is not served."""
    return (file.kernel, file.digest) != (kernel.name, kernel.digest)


def shipped_studies(kernel: Kernel, problem: Problem, device: Device) -> list[EarlierStudy]:
    """Return what ships with a kernel, in any version of it, as studies of one trial each.

    Other kernels of its block count as farther away. All results are of the same kind of device, GPU or CPU.
    """
    studies = []
    for file in (*readable_files(kernel), *related_files(kernel)):
        if is_gpu(file.architecture) != is_gpu(device.architecture):
            continue
        for result in file.results:
            away = distance(
                result.problem,
                problem,
                same_device=file.device == device.name,
                same_architecture=file.architecture == device.architecture,
                same_source=not is_stale(kernel, file),
            )
            if result.configuration is None:
                continue
            trial = EarlierTrial("shipped", result.configuration, result.median_ms)
            of_another = "" if file.kernel == kernel.name else f"{file.kernel}, "
            studies.append(EarlierStudy(f"{of_another}{result.problem} on {file.device}", away, [trial]))
    return studies


def require_shipping(kernel: Kernel) -> None:
    """Refuse a kernel beside which nothing can be written, before anything takes long.

    Raises:
        UserError: its folder cannot be written.
    """
    folder = kernel.results_folder
    place = folder if folder.exists() else folder.parent
    if not os.access(place, os.W_OK):
        raise UserError(f"{place}: cannot be written: ship from a checkout")


def write_file(
    kernel: Kernel, device: str, architecture: str, results: Sequence[ShippedResult], *, keeps: bool = True
) -> Path:
    """Write a kernel's results on a kind of device: sorted, so that a change shows as one.

    Earlier results for other problems stay where they are of the same version of the kernel; so does the range of a
    winner that is still the same, where nothing new is known of it.

    Args:
        keeps: whether earlier results for other problems stay.

    Raises:
        UserError: the folder cannot be written.
    """
    path = file_for(kernel, device)
    earlier = {result.problem.key: result for result in still_good(kernel, path)}
    kept = earlier if keeps else {}
    kept |= {result.problem.key: _with_range(result, earlier.get(result.problem.key)) for result in results}
    file = ShippedFile(
        kernel.name, kernel.digest, device, architecture, [kept[key] for key in sorted(kept)], kernel.block
    )
    try:
        path.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"{path.parent}: cannot be written ({error.strerror}): ship from a checkout") from error
    content = asdict(file)
    for result in content["results"]:
        for name in ("range", "beyond"):
            if not result[name]:
                del result[name]
    with whole_file(path) as stream:
        stream.write(json.dumps(content, indent=1, sort_keys=True).encode() + b"\n")
    return path


def _with_range(result: ShippedResult, before: ShippedResult | None) -> ShippedResult:
    if before is None or before.configuration != result.configuration or result.range or result.beyond:
        return result
    return replace(result, range=before.range, beyond=before.beyond)


def still_good(kernel: Kernel, path: Path) -> list[ShippedResult]:
    """Return the results of a file that are of the kernel as it is; none of a file that is missing or unreadable."""
    try:
        file = read_file(path)
    except ShippedFileError:
        return []
    return [] if is_stale(kernel, file) else file.results
