"""Writes the database's confirmed winners beside their kernels, to be shipped with them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tunebench.db.connection.database import Database
from tunebench.db.queries.one_trial import trial_details
from tunebench.db.queries.rows import BestRow, TrialRow
from tunebench.db.queries.trials import best
from tunebench.kernels.runtime.selection import LEAST_OF_A_RANGE
from tunebench.kernels.runtime.shipped import (
    NeighbourTest,
    ShippedResult,
    file_for,
    still_good,
    write_file,
)
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import find_device, is_gpu
from tunebench.tuner.kernel import Kernel
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import Baseline, CacheRegime, Ratio

_DIGITS = 4
_SAME_CONDITIONS = ("torch", "cuda", "cudnn", "driver", "caches")


@dataclass(frozen=True)
class Shipment:
    """One file that was written.

    Attributes:
        results: how many it got now.
        reference_is_faster: for how many of these problems; the file says so, and has no kernel for them.
        better: results that ship already and stay, since they are surely faster than what was found now.
    """

    kernel: str
    device: str
    path: Path
    results: int
    reference_is_faster: int
    better: int


@dataclass(frozen=True)
class RangeTest:
    """A winner at the problem beside its own.

    Attributes:
        problem: where the configuration won.
        neighbour: where it was tested.
        over_reference: how many times faster than the reference it was there; None where it is wrong or fails, or the
            rounds told equals apart.
        message: why there is no ratio.
    """

    kernel: str
    problem: Problem
    neighbour: Problem
    configuration: Configuration
    over_reference: Ratio | None
    message: str = ""

    @property
    def holds(self) -> bool:
        """Whether it was proven not to lose to the reference."""
        return self.over_reference is not None and self.over_reference.low >= LEAST_OF_A_RANGE


def ship(
    database: Database, kernels: Sequence[Kernel], device: str | None = None, tests: Sequence[RangeTest] = ()
) -> list[Shipment]:
    """Write the winners of these kernels, as they are now, one file for each kind of device.

    Only winners of a study's conclusive final rounds are shipped, and only those of the kernel's present source. One
    that ships already stays where a later and shorter search under the same torch, CUDA and driver found nothing as
    fast.

    Args:
        device: a device's name, or `cpu` for that of this machine's; None for every GPU that there are results of.
        tests: of winners at their neighbours' problems: their ranges.

    Raises:
        UserError: a kernel's folder cannot be written.
        DatabaseError: the database cannot be read.
    """
    if device == "cpu":
        device = find_device("cpu").name
    shipments = []
    for kernel in kernels:
        for (name, architecture), by_problem in sorted(winners_of(database, kernel, device).items()):
            slower = {key for key, row in by_problem.items() if row.reference_is_faster}
            found = [
                _with_range(result_of(database, row), [one for one in tests if one.kernel == kernel.name])
                for key, row in by_problem.items()
                if key not in slower
            ]
            present = {result.problem.key: result for result in still_good(kernel, file_for(kernel, name))}
            results = [one for one in found if not _is_surely_faster(present.get(one.problem.key), one)]
            better = len(found) - len(results)
            results += [replace(result_of(database, by_problem[key]), configuration=None) for key in slower]
            path = write_file(kernel, name, architecture, results)
            shipments.append(Shipment(kernel.name, name, path, len(results), len(slower), better))
    return shipments


def _is_surely_faster(present: ShippedResult | None, found: ShippedResult) -> bool:
    """Whether the whole interval of what ships lies above that of what was found, under the same conditions."""
    if present is None or present.configuration in (None, found.configuration):
        return False
    if any(present.conditions.get(name) != found.conditions.get(name) for name in _SAME_CONDITIONS):
        return False
    (_, low, _), (_, _, high) = (one.speedups[Baseline.REFERENCE.value] for one in (present, found))
    return low > high


def winners_of(database: Database, kernel: Kernel, device: str | None) -> dict[tuple[str, str], dict[str, BestRow]]:
    """The confirmed winners of a kernel as it is now, by problem, for each device's name and architecture.

    Args:
        device: its name; None for every GPU.

    Raises:
        DatabaseError: the database cannot be read.
    """
    rows = best(database, kernel=kernel.name, source_digest=kernel.digest, device=device)
    winners: dict[tuple[str, str], dict[str, BestRow]] = defaultdict(dict)
    for row in sorted(rows, key=_rank, reverse=True):
        if row.confirmed and (device is not None or is_gpu(row.architecture)):
            winners[row.device_name, row.architecture][row.problem.key] = row
    return winners


def _with_range(result: ShippedResult, tests: Sequence[RangeTest]) -> ShippedResult:
    """The same with what its configuration did at other problems."""
    found: dict[bool, list[NeighbourTest]] = {True: [], False: []}
    for test in tests:
        if (test.problem, dict(test.configuration)) == (result.problem, result.configuration):
            ratio = test.over_reference
            figures = None if ratio is None else [_rounded(figure) for figure in (ratio.value, ratio.low, ratio.high)]
            found[test.holds].append(NeighbourTest(dict(test.neighbour.axes), figures))
    return replace(result, range=found[True], beyond=found[False])


def _rank(row: BestRow) -> tuple[bool, float]:
    """The best first, as when the database itself is asked: cold caches, then the newest."""
    return row.regime is not CacheRegime.COLD, -(row.confirmed_at or row.recorded_at).timestamp()


def result_of(database: Database, row: TrialRow) -> ShippedResult:
    """A recorded trial as a file of shipped results has it.

    Raises:
        DatabaseError: the database cannot be read.
    """
    details = trial_details(database, row.trial_id)
    errors = details.verdict.errors if details.verdict else None
    # What is not confirmed has no speed-ups: they would be taken for evidence.
    ratios: dict[Baseline, Ratio | None] = (
        {}
        if not row.confirmed
        else {
            Baseline.REFERENCE: row.over_reference,
            Baseline.DEFAULT: row.over_default,
            Baseline.COMPILED: row.over_compiled,
            Baseline.COPY: row.over_copy,
        }
    )
    environment, measurement = details.trial.environment, details.trial.result.measurement
    conditions = {
        "tunebench": environment.tunebench,
        "torch": environment.torch,
        "cuda": environment.cuda,
        "cudnn": environment.cudnn,
        "driver": environment.driver,
        "compiler": environment.compiler,
        "caches": measurement.regime.value if measurement else None,
        "clock": measurement.clock if measurement else None,
        "confirmed_at": row.confirmed_at.isoformat(timespec="seconds") if row.confirmed_at else None,
    }
    return ShippedResult(
        axes=dict(row.problem.axes),
        dtype=row.problem.dtype,
        options=dict(row.problem.options),
        configuration=dict(row.configuration),
        speedups={
            name.value: [_rounded(figure) for figure in (ratio.value, ratio.low, ratio.high)]
            for name, ratio in ratios.items()
            if ratio is not None
        },
        median_ms=_rounded(row.median_ms or 0.0),
        error_multiple=_rounded(errors.multiple_of_reference) if errors and errors.reference_max_relative else None,
        conditions={name: value for name, value in conditions.items() if value is not None},
    )


def _rounded(value: float) -> float:
    """A figure rounded to the digits that mean something; the others would make every diff noisy."""
    return float(f"{value:.{_DIGITS}g}")
