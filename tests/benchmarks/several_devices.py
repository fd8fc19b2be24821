"""A study on one device and on several: `python -m tests.benchmarks.several_devices --devices cuda:0,cuda:1`.

Both try the same configurations of scalar_mul, by the strategy `exhaustive`, each with an empty database; builds are
there already, so that devices are what a trial waits for, and a run ends with its last trial. Printed, for each run:
trials a second of the search, from when every device has recorded its first one (and beside it from the first of all,
which has the start of the other workers in it); the times that the same configurations have in both, what a device in
company tells of them over what one alone tells; and the best that was found in as many trials. What a strategy that
learns loses by having more pending is `tunebench replay --batch`'s to say: one device and two have as many.
With `--target` it exits with 1 where the median of the runs has fewer times as many trials a second, or where what
company tells is more than 1 % off. Without a GPU: `--workers 2`, where only the counts mean something.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from tunebench.db.connection.database import open_database
from tunebench.db.queries.rows import TrialRow
from tunebench.db.queries.trials import trials
from tunebench.studies.on_this_machine import Lane, lanes_of
from tunebench.studies.tune import Announcement, Resolved, request_of, resolve, tune
from tunebench.tuner.study.study import Progress

_WITHIN = 0.01


def run_once(place: Path, resolved: Resolved, lane: Lane) -> list[TrialRow]:
    """The trials of a study in a new database, in the order in which they were recorded."""

    def end_with_the_last(_: Announcement) -> Callable[[Progress], None]:
        def show(progress: Progress) -> None:
            if progress.done >= resolved.request.trials:
                raise KeyboardInterrupt  # the final comparison is no part of what is measured

        return show

    devices = [one.device for one in lane.places]
    with open_database(place) as database:
        tune(replace(resolved, lane=lane, devices=devices), database, end_with_the_last)
        return sorted(trials(database, limit=None), key=lambda row: row.number)


def per_second(rows: list[TrialRow], began: datetime) -> float:
    """Trials a second from that moment to the last one."""
    return sum(row.recorded_at > began for row in rows) / (rows[-1].recorded_at - began).total_seconds()


def all_up(rows: list[TrialRow]) -> datetime:
    """When every device has recorded its first trial."""
    first: dict[str, datetime] = {}
    for row in rows:
        first.setdefault(row.device_uuid, row.recorded_at)
    return max(first.values())


def best_of(rows: list[TrialRow]) -> float:
    """The best time that was found, milliseconds."""
    return min(row.median_ms for row in rows if row.status == "correct" and row.median_ms is not None)


def main(
    devices: Annotated[str | None, typer.Option(help="GPUs of one model, such as cuda:0,cuda:1.")] = None,
    workers: Annotated[int, typer.Option(help="Without GPUs: shares of the CPU.")] = 2,
    count: Annotated[int, typer.Option("--trials")] = 200,
    elements: Annotated[int, typer.Option(help="Rows of 1024 elements.")] = 65536,
    runs: Annotated[int, typer.Option(help="How often each.")] = 3,
    target: Annotated[float | None, typer.Option(help="So many times the trials a second are wanted.")] = None,
) -> None:
    """Print the figures as JSON."""
    where = {"devices": devices.split(",")} if devices else {"device": "cpu", "workers": workers}
    asked = {**where, "sampler": "exhaustive", "trials": count, "sizes": {"M": elements, "N": 1024}}
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["TUNEBENCH_CACHE"] = str(folder / "builds")
        resolved = resolve(request_of("scalar_mul", asked))
        # Alone means: on one of the same devices, with the same cores.
        (several,), one = (
            lanes_of(resolved.request, resolved.devices),
            lanes_of(resolved.request, resolved.devices, workers if devices is None else len(resolved.devices))[0],
        )
        run_once(folder / "builds.db", resolved, several)
        for run in range(runs):
            alone = run_once(folder / f"alone{run}.db", resolved, one)
            company = run_once(folder / f"company{run}.db", resolved, several)
            times = {row.configuration: row.median_ms for row in alone if row.status == "correct"}
            ratios = [
                row.median_ms / times[row.configuration]
                for row in company
                if row.status == "correct" and row.configuration in times
            ]
            rates = [per_second(rows, all_up(rows)) for rows in (alone, company)]
            with_start = [per_second(rows, rows[0].recorded_at) for rows in (alone, company)]
            found.append(
                {
                    "alone_per_second": round(rates[0], 3),
                    "company_per_second": round(rates[1], 3),
                    "times_as_many": round(rates[1] / rates[0], 3),
                    "times_as_many_with_the_start": round(with_start[1] / with_start[0], 3),
                    "devices": len({row.device_uuid for row in company}),
                    "timed_alone": sum(row.status.timed for row in alone),
                    "timed_in_company": sum(row.status.timed for row in company),
                    "compared": len(ratios),
                    "time_in_company_over_alone": round(statistics.median(ratios), 4),
                    "within_1_percent": round(sum(abs(one - 1) <= _WITHIN for one in ratios) / len(ratios), 3),
                    "best_in_company_over_alone": round(best_of(company) / best_of(alone), 4),
                }
            )
    print(json.dumps(found, indent=2))
    if target is not None:
        times_as_many, told = (
            statistics.median(float(one[name]) for one in found)
            for name in ("times_as_many", "time_in_company_over_alone")
        )
        sys.exit(times_as_many < target or abs(told - 1) > _WITHIN)


if __name__ == "__main__":
    typer.run(main)
