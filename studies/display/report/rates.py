"""Rates of trials: bytes and operations a second, against the ceilings that are known of a device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tunebench.db.entries.entry import RecordedTrial
from tunebench.studies.display.report.style import number
from tunebench.tuner.build import KernelFigures
from tunebench.tuner.ceilings import GENEROSITY, Occupancy, arithmetic_roofs, occupancy
from tunebench.tuner.device import Device
from tunebench.tuner.problem import Work
from tunebench.tuner.result import Baseline, Comparison


@dataclass(frozen=True)
class Ceilings:
    """The rates that nothing on a device exceeds, as far as they are known.

    Attributes:
        bytes_per_second: of the memory; None where that is not known.
        roofs: operations a second by kind of arithmetic.
        account: where they are from; or why none is known.
    """

    bytes_per_second: float | None
    account: str
    roofs: Mapping[str, float] = field(default_factory=dict)


def ceilings(device: Device, comparison: Comparison, work: Work, clock_mhz: float | None) -> Ceilings:
    """Return a device's ceilings as a comparison found them.

    Args:
        clock_mhz: of the multiprocessors, as recorded; None where it was not.
    """
    if device.kind != "cuda":
        return Ceilings(
            None,
            "No ceiling is known of a CPU, where caches are warm and no copy measures one: the table has rates alone.",
        )
    copy_ms = comparison.medians_ms.get(Baseline.COPY)
    if copy_ms is None:
        return Ceilings(None, "This comparison has no plain copy, which measures the memory's ceiling.")
    roofs = arithmetic_roofs(device, clock_mhz)
    account = "The memory's ceiling is that of a plain copy of as many bytes, timed in the same rounds; "
    account += (
        f"the arithmetic roofs are what {device.multiprocessors} multiprocessors of {device.architecture} compute at "
        f"the {clock_mhz:g} MHz that were recorded. A fused multiply and add counts as two operations."
        if roofs
        else f"the arithmetic roof of {device.architecture} at its clock is not known here and not drawn."
    )
    return Ceilings(work.bytes / copy_ms * 1e3, account, roofs)


def share_words(rate: float, intensity: float, known: Ceilings) -> str:
    """Return the share of the lowest ceiling above it that a rate of operations reaches, in words.

    A rate beyond the memory's or every arithmetic ceiling is no share of one: what is so fast moves or computes less
    than the work says, or finds it in a cache.
    """
    assert known.bytes_per_second is not None
    memory = intensity * known.bytes_per_second
    above = {name: roof for name, roof in known.roofs.items() if rate <= roof <= memory}
    name, limit = min(above.items(), key=lambda item: item[1], default=("memory", memory))
    if rate > GENEROSITY * limit or (known.roofs and rate > max(known.roofs.values())):
        return "beyond the ceilings: less work than stated, or caches"
    return f"{number(100 * rate / limit, 3)} % of {name}"


@dataclass(frozen=True)
class Resources:
    """A variant's use of a multiprocessor: the largest figures over its entry points; None where not reported.

    Attributes:
        registers: of a thread.
        spills: bytes a thread stores and loads because registers ran out.
        shared: bytes of a block, dynamic ones included where launches were recorded.
        occupancy: the least over its launches; None where launches were not recorded.
    """

    registers: int | None = None
    spills: int | None = None
    shared: int | None = None
    occupancy: Occupancy | None = None


def resources(trial: RecordedTrial, device: Device) -> Resources:
    """Return what a trial's launches take, else what its build says of all entry points."""
    figures = trial.build.figures if trial.build else {}
    launches = trial.result.launches
    used = {one.entry_point for one in launches} & figures.keys() or set(figures)
    found = [figures[name] for name in used]
    shared = [(one, _sum(figures.get(one.entry_point, KernelFigures()).shared, one.shared)) for one in launches]
    held = [
        occupancy(device, one.threads, figures.get(one.entry_point, KernelFigures()).registers, total)
        for one, total in shared
    ]
    known = [one for one in held if one is not None]
    return Resources(
        _largest(one.registers for one in found),
        _largest(_sum(one.spill_stores, one.spill_loads) for one in found),
        _largest(total for _, total in shared) if launches else _largest(one.shared for one in found),
        min(known, key=lambda one: one.share) if known else None,
    )


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None and other is None else (one or 0) + (other or 0)


def _largest(numbers: Iterable[int | None]) -> int | None:
    return max((one for one in numbers if one is not None), default=None)
