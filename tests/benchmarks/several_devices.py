"""A study on one device and on several: `python -m tests.benchmarks.several_devices --devices cuda:0,cuda:1`.

Both try the same configurations of scalar_mul, by the strategy `exhaustive`, each with an empty database; builds are
there already, so that devices are what a trial waits for, and a study ends with its last trial. Printed, for each run:
trials a second of the search, from when every device has recorded its first one (and beside it from the first of all,
which has the start of the other workers in it); milliseconds of a trial by what it did, and between trials of one
device, which is where time goes that a second device does not save; the same of each device, of trials without the full
battery, and how many trials went through that; the times that the same configurations have in both, what a device in
company tells of them over what one alone tells; and the best that was found in as many trials. What a strategy that
learns loses by having more pending is `tunebench replay --batch`'s to say: one device and two have as many.

`--seconds` is for the whole: a study that is cut off counts with the trials that it has, of both as many, and no run
begins that would not end in time. `--output` is written anew after each run. With `--target` it exits with 1 where the
median of the runs has fewer times as many trials a second, where what company tells is more than 1 % off, or where no
run can tell. Without a GPU: `--workers 2`, where only the counts mean something.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from tests.benchmarks.in_time import Stopwatch, ended_after

from tunebench.db.connection.database import open_database
from tunebench.db.queries.one_trial import trial_details
from tunebench.db.queries.rows import TrialRow
from tunebench.db.queries.trials import trials
from tunebench.kernels.runtime.registry import load_model
from tunebench.studies.tuning.for_problem import problem_of
from tunebench.studies.tuning.on_this_machine import Lane, lanes_of
from tunebench.studies.tuning.resolved import Resolved, resolve
from tunebench.studies.tuning.study_file import request_of
from tunebench.studies.tuning.tune import Announcement, tune
from tunebench.tuner.compile.building import BuildQueue
from tunebench.tuner.study.outcome import Progress

_WITHIN = 0.01
_LINES_SECONDS = 5.0
_FEWEST = 4
"""Trials after every device is up, to tell a rate."""


def build_ahead(resolved: Resolved, count: int) -> int:
    """Build what the first configurations need, on all cores; how many builds that were."""
    mode, kernel = resolved.modes[0], resolved.kernel
    problem = problem_of(load_model(resolved.request.kernel), resolved.reference, mode)
    assert problem is not None
    queue = BuildQueue(resolved.compiler, workers=len(os.sched_getaffinity(0)))
    space = resolved.space.enumerate(problem, resolved.device)
    wanted = [space[space.default], *islice(space, count)]
    builds = {queue.submit(kernel, configuration, problem, resolved.device) for configuration in wanted}
    for build in builds:
        build.result()
    return len(builds)


@dataclass(frozen=True)
class Run:
    """A study's trials, in the order in which they were recorded.

    Attributes:
        seconds: of each trial by phase, as the database has them.
        proven: whether each went through the full battery.
        places: how many evaluated.
    """

    rows: list[TrialRow]
    seconds: list[Mapping[str, float]]
    proven: list[bool]
    places: int

    def first(self, count: int) -> Run:
        """The first trials."""
        return Run(self.rows[:count], self.seconds[:count], self.proven[:count], self.places)

    def milliseconds(self) -> Mapping[str, float]:
        """Of a trial, on average, by phase; `between` is what its device did not spend on any."""
        began = all_up(self.rows)
        parts = self._mean_seconds([number for number, row in enumerate(self.rows) if row.recorded_at > began])
        parts["between"] = self.places / per_second(self.rows, began) - sum(parts.values())
        return _rounded(parts)

    def milliseconds_unproven(self) -> list[Mapping[str, float]]:
        """The same of each device, of trials without the full battery, which cost alike."""
        began = all_up(self.rows)
        of_device: dict[str, list[int]] = {}
        for number, row in enumerate(self.rows):
            if row.recorded_at > began and not self.proven[number]:
                of_device.setdefault(row.device_uuid, []).append(number)
        return [_rounded(self._mean_seconds(numbers)) for numbers in of_device.values()]

    def _mean_seconds(self, numbers: list[int]) -> dict[str, float]:
        spent: Counter[str] = Counter()
        for number in numbers:
            spent.update(self.seconds[number])
        return {phase: seconds / len(numbers) for phase, seconds in spent.items() if phase != "compile"}


def _rounded(seconds: Mapping[str, float]) -> Mapping[str, float]:
    return {phase: round(taken * 1e3, 1) for phase, taken in sorted(seconds.items())}


def run_once(place: Path, resolved: Resolved, lane: Lane, watch: Stopwatch) -> Run:
    """A study in a new database."""
    said = watch.seconds

    def announce(announcement: Announcement) -> Callable[[Progress], None]:
        watch.say(f"  {place.stem}: the first worker is up, {announcement.slots} in all")
        return show

    def show(progress: Progress) -> None:
        nonlocal said
        if watch.seconds - said > _LINES_SECONDS:
            said = watch.seconds
            watch.say(f"  {place.stem}: {progress.done}/{progress.planned} trials")
        if progress.done >= resolved.request.trials or progress.phase is not None:
            raise KeyboardInterrupt  # the final comparison is no part of what is measured

    devices = [one.device for one in lane.places]
    with open_database(place) as database:
        tune(replace(resolved, lane=lane, devices=devices), database, announce)
        rows = sorted(trials(database, limit=None), key=lambda row: row.number)
        details = [trial_details(database, row.trial_id) for row in rows]
    stages = [() if one.verdict is None else one.verdict.stages for one in details]
    proven = [any(stage.name == "sizes" for stage in of) for of in stages]
    return Run(rows, [one.trial.result.seconds for one in details], proven, len(lane.places))


def per_second(rows: list[TrialRow], began: datetime) -> float:
    """Trials a second from that moment to the last one."""
    return sum(row.recorded_at > began for row in rows) / (rows[-1].recorded_at - began).total_seconds()


def all_up(rows: list[TrialRow]) -> datetime:
    """When every device has recorded its first trial."""
    first: dict[str, datetime] = {}
    for row in rows:
        first.setdefault(row.device_uuid, row.recorded_at)
    return max(first.values())


def _statuses(rows: list[TrialRow]) -> Counter[str]:
    return Counter(row.status if row.message is None else f"{row.status} ({row.message[:90]})" for row in rows)


def _devices(rows: list[TrialRow]) -> int:
    return len({row.device_uuid for row in rows})


def best_of(rows: list[TrialRow]) -> float:
    """The best time that was found, milliseconds."""
    return min(row.median_ms for row in rows if row.status == "correct" and row.median_ms is not None)


def compared(alone: Run, company: Run) -> Mapping[str, object] | str:
    """The figures of a run, from as many trials of both; or what there is too little of to tell."""
    count = min(len(alone.rows), len(company.rows))
    runs = alone.first(count), company.first(count)
    both = [run.rows for run in runs]
    if count == 0:
        return f"{len(alone.rows)} trials alone, {len(company.rows)} in company"
    for where, rows in zip(("alone", "in company"), both, strict=True):
        if (after := sum(row.recorded_at > all_up(rows) for row in rows)) < _FEWEST:
            return f"{after} of {count} trials {where} after each of {_devices(rows)} devices had recorded one"
    times = {row.configuration: row.median_ms for row in both[0] if row.status == "correct"}
    ratios = [
        row.median_ms / times[row.configuration]
        for row in both[1]
        if row.status == "correct" and row.configuration in times
    ]
    if not ratios:
        told = [", ".join(f"{number} {status}" for status, number in _statuses(rows).items()) for rows in both]
        return f"no configuration is right in both: {told[0]} alone, {told[1]} in company"
    rates = [per_second(rows, all_up(rows)) for rows in both]
    with_start = [per_second(rows, rows[0].recorded_at) for rows in both]
    return {
        "trials": count,
        "alone_per_second": round(rates[0], 3),
        "company_per_second": round(rates[1], 3),
        "times_as_many": round(rates[1] / rates[0], 3),
        "times_as_many_with_the_start": round(with_start[1] / with_start[0], 3),
        "milliseconds_alone": runs[0].milliseconds(),
        "milliseconds_in_company": runs[1].milliseconds(),
        "milliseconds_unproven_alone": runs[0].milliseconds_unproven(),
        "milliseconds_unproven_in_company": runs[1].milliseconds_unproven(),
        "proven_alone": sum(runs[0].proven),
        "proven_in_company": sum(runs[1].proven),
        "devices": _devices(both[1]),
        "timed_alone": sum(row.status.timed for row in both[0]),
        "timed_in_company": sum(row.status.timed for row in both[1]),
        "compared": len(ratios),
        "time_in_company_over_alone": round(statistics.median(ratios), 4),
        "within_1_percent": round(sum(abs(one - 1) <= _WITHIN for one in ratios) / len(ratios), 3),
        "best_in_company_over_alone": round(best_of(both[1]) / best_of(both[0]), 4),
    }


def main(
    devices: Annotated[str | None, typer.Option(help="GPUs of one model, such as cuda:0,cuda:1.")] = None,
    workers: Annotated[int, typer.Option(help="Without GPUs: shares of the CPU.")] = 2,
    count: Annotated[int, typer.Option("--trials")] = 200,
    elements: Annotated[int, typer.Option(help="Rows of 1024 elements.")] = 65536,
    runs: Annotated[int, typer.Option(help="How often each, as far as there is time.")] = 3,
    seconds: Annotated[float, typer.Option(help="For all of it.")] = 300.0,
    target: Annotated[float | None, typer.Option(help="So many times the trials a second are wanted.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write the figures here after each run, as JSON.")] = None,
) -> None:
    """Print the figures as JSON."""
    watch = Stopwatch()
    where = {"devices": devices.split(",")} if devices else {"device": "cpu", "workers": workers}
    asked = {**where, "sampler": "exhaustive", "trials": count, "sizes": {"M": elements, "N": 1024}}
    found: list[Mapping[str, Any]] = []
    try:
        with ended_after(seconds), tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            os.environ["TUNEBENCH_CACHE"] = str(folder / "builds")
            resolved = resolve(request_of("scalar_mul", asked))
            # Alone means: on one of the same devices, with the same cores.
            places = workers if devices is None else len(resolved.devices)
            (several,), one = (
                lanes_of(resolved.request, resolved.devices),
                lanes_of(resolved.request, resolved.devices, places)[0],
            )
            watch.say(f"{len(several.places)} × {resolved.device.name}: building ahead")
            watch.say(f"{build_ahead(resolved, count)} builds are there")
            for run in range(runs):
                began = watch.seconds
                alone, company = [
                    run_once(folder / f"{which}{run}.db", resolved, lane, watch)
                    for which, lane in (("alone", one), ("company", several))
                ]
                figures = compared(alone, company)
                if isinstance(figures, str):
                    watch.say(f"run {run}: too little to tell: {figures}")
                    break
                found.append(figures)
                watch.say(f"run {run}: {json.dumps(figures)}")
                if output is not None:
                    output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
                took = watch.seconds - began
                if run + 1 < runs and watch.seconds + took > seconds:
                    watch.say(f"no run more: it would take {took:.0f} s of {seconds - watch.seconds:.0f}")
                    break
    except KeyboardInterrupt:
        watch.say("interrupted, or out of time")
    print(json.dumps(found, indent=2), flush=True)
    if target is not None:
        if not found:
            sys.exit(1)
        times_as_many, told = (
            statistics.median(figures[name] for figures in found)
            for name in ("times_as_many", "time_in_company_over_alone")
        )
        sys.exit(times_as_many < target or abs(told - 1) > _WITHIN)


if __name__ == "__main__":
    typer.run(main)
