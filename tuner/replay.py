"""Replay: any strategy on a recorded, exhaustively measured space, without a device, and a score for it.

Read are the T4 results format and Kernel Tuner's cache files, plain or gzipped. The score is that of Willemsen et al.,
"A methodology for comparing optimization algorithms for auto-tuning", 2024: the mean over evaluations 1..L of
(E[random] − best so far) / (E[random] − optimum), where E[random] is what random search without replacement expects to
have found by then, computed exactly. 1 is the optimum from the first evaluation on, 0 is random search.

    python -m tunebench.tuner.replay FILE... --sampler gp --budget 200 --seeds 20
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import optuna
from optuna.trial import TrialState

from tunebench.tuner.errors import UserError
from tunebench.tuner.sampler import SAMPLER_NAMES, PoolSampler, make_sampler
from tunebench.tuner.space import INACTIVE, SearchSpace, Tunable, ValidSpace, Value

Floats = npt.NDArray[np.float64]
Strategy = str | Callable[[ValidSpace, int], PoolSampler]
"""A strategy's name, or a function of a space and a seed that makes its sampler."""

_FAILED_MS = 1e19
"""Kernel Tuner once marked failures with a time of 1e20."""

_MILLISECONDS = {"": 1.0, "ms": 1.0, "milliseconds": 1.0, "miliseconds": 1.0, "s": 1e3, "seconds": 1e3}
_MILLISECONDS |= {"us": 1e-3, "microseconds": 1e-3, "ns": 1e-6, "nanoseconds": 1e-6}


class RecordedSpaceError(UserError):
    """A file that is not a recorded space, or holds no successful configuration."""


@dataclass(frozen=True, eq=False)
class RecordedSpace:
    """A space with the time of every configuration.

    Attributes:
        name: of the file, without its suffixes.
        space: the configurations in the file's order; values of numeric tunables in increasing order.
        times_ms: float64, one per configuration, milliseconds; NaN where it failed.
    """

    name: str
    space: ValidSpace
    times_ms: Floats

    @cached_property
    def optimum_ms(self) -> float:
        """The best time of all."""
        return float(np.nanmin(self.times_ms))

    @cached_property
    def worst_ms(self) -> float:
        """The worst time of all: what a search is charged with before its first success."""
        return float(np.nanmax(self.times_ms))


def load_recorded(path: Path) -> RecordedSpace:
    """Read a recorded space: T4 results or a Kernel Tuner cache file, `.json` or `.json.gz`.

    A cache file that was cut off while it was appended to is read up to its last whole configuration. Of several
    records of one configuration the last counts.

    Raises:
        RecordedSpaceError: the file is unreadable, of another format, or without a success.
    """
    content = _parse(path)
    if isinstance(content.get("results"), list):
        records = list(_t4_records(content))
    elif isinstance(content.get("cache"), dict):
        records = list(_cache_records(content))
    else:
        raise RecordedSpaceError(f"{path} is neither T4 results nor a Kernel Tuner cache file: no 'results' or 'cache'")
    if not any(math.isfinite(record_ms) for _, record_ms in records):
        raise RecordedSpaceError(f"{path} has no configuration with a time")
    space, times_ms = _assemble(records)
    return RecordedSpace(path.name.split(".json")[0], space, times_ms)


def _parse(path: Path) -> dict[str, Any]:
    try:
        text = _decompressed(path.read_bytes()).decode()
    except (OSError, zlib.error, UnicodeDecodeError) as error:
        raise RecordedSpaceError(f"cannot read {path}: {error}") from error
    # A cache file being appended to lacks its last two braces, or ends inside a configuration.
    whole = text[: text.rfind("}") + 1]
    for candidate in (text, whole + "}", whole + "}}"):
        try:
            content = json.loads(candidate)
        except ValueError:
            continue
        if isinstance(content, dict):
            return content
    raise RecordedSpaceError(f"{path} is not a JSON object")


def _decompressed(data: bytes) -> bytes:
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        return gzip.decompress(data)
    except EOFError:
        return zlib.decompressobj(wbits=31).decompress(data)


_Record = tuple[Mapping[str, Value], float]


def _t4_records(content: Mapping[str, Any]) -> Iterable[_Record]:
    fallback = str(content.get("metadata", {}).get("timeunit", ""))
    for result in content["results"]:
        value: Any = math.nan
        unit = ""
        if result.get("invalidity", "correct") == "correct":
            value, unit = _t4_time(result)
        scale = _MILLISECONDS.get((unit or fallback).lower(), 1.0)
        yield _scalars(result["configuration"]), _milliseconds(value) * scale


def _t4_time(result: Mapping[str, Any]) -> tuple[Any, str]:
    """The measurement called `time`, or else the first objective, or else the raw run times; with its unit."""
    measurements = {entry["name"]: entry for entry in result.get("measurements", [])}
    for name in ("time", *result.get("objectives", [])[:1]):
        if name in measurements:
            return measurements[name].get("value"), str(measurements[name].get("unit", ""))
    return result.get("times", {}).get("runtimes"), ""


def _cache_records(content: Mapping[str, Any]) -> Iterable[_Record]:
    names = content.get("tune_params_keys") or list(content.get("tune_params", {}))
    for entry in content["cache"].values():
        yield _scalars({name: entry[name] for name in names if name in entry}), _milliseconds(entry.get("time"))


def _milliseconds(value: Any) -> float:
    """A number, or the mean of several; NaN for anything else, such as the name of a failure."""
    if isinstance(value, list):
        return float(np.mean(value)) if value else math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return float(value) if 0 < value < _FAILED_MS else math.nan


def _scalars(configuration: Mapping[str, Any]) -> dict[str, Value]:
    return {
        name: value if isinstance(value, bool | int | float | str) else json.dumps(value)
        for name, value in configuration.items()
    }


def _assemble(records: Sequence[_Record]) -> tuple[ValidSpace, Floats]:
    tunables = _tunables([configuration for configuration, _ in records])
    positions = [{value: index for index, value in enumerate(t.values)} for t in tunables.values()]
    kinds = [type(t.values[0]) for t in tunables.values()]
    times_of: dict[tuple[int, ...], float] = {}
    for configuration, time_ms in records:
        row = tuple(
            position[kind(configuration[name])] if name in configuration else INACTIVE
            for name, position, kind in zip(tunables, positions, kinds, strict=True)
        )
        times_of[row] = time_ms
    space = SearchSpace(tuple(tunables.values()), default={t.name: t.values[0] for t in tunables.values()})
    return ValidSpace(space, np.array(list(times_of), dtype=np.int16)), np.array(list(times_of.values()))


def _tunables(configurations: Sequence[Mapping[str, Value]]) -> dict[str, Tunable]:
    """The tunables by their names in the file, with the values that occur: numbers in order, others as they come."""
    values: dict[str, dict[Value, None]] = {}
    for configuration in configurations:
        for name, value in configuration.items():
            values.setdefault(name, {})[value] = None
    return {name: Tunable(_identifier(name), _one_type(list(seen))) for name, seen in values.items()}


def _identifier(name: str) -> str:
    """The name itself, or what comes nearest to it among the names that a tunable may have."""
    cleaned = "".join(c if c.isalnum() else "_" for c in name)
    return cleaned if cleaned.isidentifier() and cleaned not in ("problem", "device") else f"_{cleaned}"


def _one_type(values: list[Value]) -> tuple[Value, ...]:
    kinds = {type(value) for value in values}
    if kinds <= {int, float}:
        kind = float if float in kinds else int
        return tuple(sorted({kind(value) for value in values}))
    return tuple(values) if len(kinds) == 1 else tuple(dict.fromkeys(str(value) for value in values))


def expected_random_best(times_ms: Floats, budget: int) -> Floats:
    """What random search without replacement expects to have found after 1..budget evaluations, exactly.

    With the N configurations' times sorted, a sample of n has none of the i best with probability
    C(N − i, n) / C(N, n); the expectation is the sum of the gaps between successive times weighted with these. A
    failure (NaN) leaves the best so far as it is; before the first success it is the worst time.

    Args:
        times_ms: the time of every configuration, at least one of them a number.

    Returns:
        `budget` values in milliseconds; the optimum from N evaluations on.
    """
    ordered = np.sort(times_ms[np.isfinite(times_ms)])
    gaps = np.diff(ordered)
    total = len(times_ms)
    left = total - np.arange(1.0, len(ordered))
    none_of_the_best = np.ones(len(gaps))
    expected = np.empty(budget)
    for drawn in range(budget):
        none_of_the_best *= np.maximum(left - drawn, 0.0) / max(total - drawn, 1)
        expected[drawn] = ordered[0] + gaps @ none_of_the_best
    return expected


@dataclass(frozen=True)
class ReplayRun:
    """One search with one seed.

    Attributes:
        best_ms: the best time so far after each evaluation, milliseconds; the worst of the space before any success.
        score: see the module's description.
        failures: evaluations of configurations that failed.
        sampler_seconds: what asking and telling took altogether.
    """

    seed: int
    best_ms: tuple[float, ...]
    score: float
    failures: int
    sampler_seconds: float

    def evaluations_to(self, target_ms: float) -> int | None:
        """How many evaluations it took to find this time or a better one; None if it was not found."""
        return next((n for n, best_ms in enumerate(self.best_ms, start=1) if best_ms <= target_ms), None)


@dataclass(frozen=True)
class ReplayReport:
    """One strategy on one recorded space: every seed's search, and what they have in common.

    Attributes:
        budget: evaluations per search; the size of the space if that is smaller.
        random_ms: E[random] after each evaluation, milliseconds.
    """

    space: str
    strategy: str
    budget: int
    batch: int
    optimum_ms: float
    random_ms: tuple[float, ...]
    runs: tuple[ReplayRun, ...]

    @property
    def scores(self) -> tuple[float, ...]:
        """Every seed's score."""
        return tuple(run.score for run in self.runs)

    @property
    def score(self) -> float:
        """The mean score over the seeds."""
        return float(np.mean(self.scores))

    @property
    def score_error(self) -> float:
        """The standard error of the mean score; 0 for a single seed."""
        return float(np.std(self.scores, ddof=1) / math.sqrt(len(self.scores))) if len(self.scores) > 1 else 0.0

    @property
    def sampler_seconds(self) -> float:
        """The mean over the seeds of the seconds that the sampler took for its whole search."""
        return float(np.mean([run.sampler_seconds for run in self.runs]))

    def quantile(self, q: float) -> Floats:
        """The q-quantile over the seeds of best so far / optimum, after each evaluation."""
        best = np.array([run.best_ms for run in self.runs])
        result: Floats = np.quantile(best / self.optimum_ms, q, axis=0)
        return result

    def ratio_after(self, evaluations: int) -> float:
        """The median over the seeds of best / optimum after so many evaluations (or after all, if they were fewer)."""
        return float(self.quantile(0.5)[min(evaluations, self.budget) - 1])

    def evaluations_to(self, share: float) -> float:
        """The median over the seeds of the evaluations to within `share` of the optimum; infinite if half never did."""
        needed = [run.evaluations_to(self.optimum_ms * (1 + share)) for run in self.runs]
        return float(np.median([math.inf if n is None else n for n in needed]))


def replay(
    recorded: RecordedSpace, strategy: Strategy, budget: int = 200, seeds: Iterable[int] = range(20), batch: int = 1
) -> ReplayReport:
    """Search a recorded space with a strategy, once for each seed, through Optuna's ask and tell.

    Args:
        budget: evaluations per search.
        batch: how many configurations are asked for before the first of them is told, as with several workers.

    Raises:
        UnknownNameError: there is no strategy of that name.
    """
    budget = min(budget, len(recorded.space))
    random_ms = expected_random_best(recorded.times_ms, budget)
    runs = tuple(_search(recorded, strategy, budget, seed, batch, random_ms) for seed in seeds)
    name = strategy if isinstance(strategy, str) else getattr(strategy, "__name__", str(strategy))
    return ReplayReport(recorded.name, name, budget, batch, recorded.optimum_ms, tuple(random_ms.tolist()), runs)


def _search(
    recorded: RecordedSpace, strategy: Strategy, budget: int, seed: int, batch: int, random_ms: Floats
) -> ReplayRun:
    space = recorded.space
    sampler = make_sampler(strategy, space, seed) if isinstance(strategy, str) else strategy(space, seed)
    study = _quiet_study(sampler)
    best_ms: list[float] = []
    failures = 0
    started = time.perf_counter()
    while len(best_ms) < budget:
        pending = [sampler.ask(study) for _ in range(min(batch, budget - len(best_ms)))]
        for trial, number in pending:
            time_ms = float(recorded.times_ms[number])
            if math.isnan(time_ms):
                failures += 1
                trial.set_constraint("valid", 1.0)
                study.tell(trial, state=TrialState.PRUNED)
            else:
                study.tell(trial, time_ms)
            best_ms.append(np.fmin(best_ms[-1] if best_ms else recorded.worst_ms, time_ms).item())
    seconds = time.perf_counter() - started
    return ReplayRun(seed, tuple(best_ms), _score(np.array(best_ms), random_ms, recorded), failures, seconds)


def _quiet_study(sampler: PoolSampler) -> optuna.Study:
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.create_study(sampler=sampler)
    finally:
        optuna.logging.set_verbosity(verbosity)


def _score(best_ms: Floats, random_ms: Floats, recorded: RecordedSpace) -> float:
    """The mean share of the way from E[random] to the optimum; where there is no way, nothing is won or lost."""
    possible = random_ms - recorded.optimum_ms
    # With the whole space evaluated, random search has the optimum as well.
    counted = possible > 1e-12 * recorded.optimum_ms
    return float(np.mean((random_ms - best_ms)[counted] / possible[counted])) if counted.any() else 0.0


def _main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tunebench.tuner.replay", description="Search recorded spaces.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="T4 or Kernel Tuner cache file")
    parser.add_argument("--sampler", nargs="+", default=["gp"], choices=SAMPLER_NAMES)
    parser.add_argument("--budget", type=int, default=200, help="evaluations per search")
    parser.add_argument("--seeds", type=int, default=20, help="searches per file")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=1, help="configurations asked for at once")
    parser.add_argument("--json", action="store_true", help="print every run as JSON and nothing else")
    chosen = parser.parse_args(arguments)
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.seeds)
    spaces = [load_recorded(path) for path in chosen.files]
    reports = {
        name: [replay(space, name, chosen.budget, seeds, chosen.batch) for space in spaces] for name in chosen.sampler
    }
    if chosen.json:
        print(json.dumps([asdict(report) | {"score": report.score} for each in reports.values() for report in each]))
        return
    for name, each in reports.items():
        for report in each:
            print(describe(report))
        geometric = math.exp(float(np.mean([math.log(report.ratio_after(100)) for report in each])))
        average = float(np.mean([report.score for report in each]))
        print(f"{name}: average score {average:.3f}, geometric mean of best/optimum after 100: {geometric:.3f}\n")


def describe(report: ReplayReport) -> str:
    """A report as a few lines of text, every seed's score among them."""
    after = [n for n in (25, 50, 100, 150, 200) if n <= report.budget]
    ratios = "  ".join(
        f"{n}: {report.ratio_after(n):.3f} ({report.quantile(0.25)[n - 1]:.3f} to {report.quantile(0.75)[n - 1]:.3f})"
        for n in after
    )
    return "\n".join(
        [
            f"{report.space}, {report.strategy}: score {report.score:.3f} ± {report.score_error:.3f}, "
            f"{report.sampler_seconds:.2f} s of sampler for {report.budget} evaluations, batches of {report.batch}",
            f"  best/optimum after evaluations, median (quartiles): {ratios}",
            f"  evaluations to 5 %: {report.evaluations_to(0.05):g}, to 1 %: {report.evaluations_to(0.01):g} (median)",
            f"  scores by seed from {report.runs[0].seed}: " + " ".join(f"{score:.2f}" for score in report.scores),
        ]
    )


if __name__ == "__main__":
    _main()
