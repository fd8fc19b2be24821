"""A study on one device and on several: `python -m tests.benchmarks.several_devices --devices cuda:0,cuda:1`.

Both try the same configurations of scalar_mul, by the strategy `exhaustive`, each in a process of its own with an empty
database; builds are there already, so that devices are what a trial waits for. Printed: trials a second of the search,
from the first that was recorded to the last, and the times that the same configurations have in both: what a device in
company tells of them, over what one alone tells. Without a GPU: `--workers 2`, where only the counts mean something.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tunebench.db.connection.database import open_database
from tunebench.db.queries.rows import TrialRow
from tunebench.db.queries.trials import trials


def run_once(folder: Path, name: str, options: list[str]) -> list[TrialRow]:
    """The trials of a study in a new database, in the order in which they were recorded."""
    database = folder / f"{name}.db"
    command = [sys.executable, "-m", "tunebench", "tune", "scalar_mul", "--sampler", "exhaustive", *options]
    environment = {**os.environ, "TUNEBENCH_CACHE": str(folder / "builds"), "TUNEBENCH_DB": str(database)}
    subprocess.run([*command, "--json"], env=environment, check=True, stdout=subprocess.DEVNULL)
    with open_database(database, read_only=True) as opened:
        return sorted(trials(opened, limit=None), key=lambda row: row.number)


def per_second(rows: list[TrialRow]) -> float:
    """Trials a second between the first and the last."""
    return (len(rows) - 1) / (rows[-1].recorded_at - rows[0].recorded_at).total_seconds()


def main(
    devices: Annotated[str | None, typer.Option(help="GPUs of one model, such as cuda:0,cuda:1.")] = None,
    workers: Annotated[int, typer.Option(help="Without GPUs: shares of the CPU.")] = 2,
    count: Annotated[int, typer.Option("--trials")] = 200,
    elements: Annotated[int, typer.Option(help="Rows of 1024 elements.")] = 65536,
    runs: Annotated[int, typer.Option(help="How often each.")] = 3,
) -> None:
    """Print the figures as JSON."""
    size = ["--size", f"M={elements}", "--size", "N=1024", "--trials", str(count)]
    if devices is None:
        # Alone means: on the same share of the cores.
        cores = sorted(os.sched_getaffinity(0))
        one = ["--device", "cpu"]
        several = ["--device", "cpu", "--workers", str(workers)]
        share = cores[: len(cores) // workers]
    else:
        one, several, share = ["--device", devices.split(",")[0]], ["--devices", devices], []
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_once(folder, "builds", [*several, *size])
        for run in range(runs):
            before = os.sched_getaffinity(0)
            os.sched_setaffinity(0, share or before)
            alone = run_once(folder, f"alone{run}", [*one, *size])
            os.sched_setaffinity(0, before)
            company = run_once(folder, f"company{run}", [*several, *size])
            times = {row.configuration: row.median_ms for row in alone if row.status == "correct"}
            ratios = [
                row.median_ms / times[row.configuration]
                for row in company
                if row.status == "correct" and row.configuration in times
            ]
            found.append(
                {
                    "alone_per_second": round(per_second(alone), 3),
                    "company_per_second": round(per_second(company), 3),
                    "times_as_many": round(per_second(company) / per_second(alone), 3),
                    "devices": len({row.device_uuid for row in company}),
                    "timed_alone": sum(row.status.timed for row in alone),
                    "timed_in_company": sum(row.status.timed for row in company),
                    "compared": len(ratios),
                    "time_in_company_over_alone": round(statistics.median(ratios), 4),
                    "within_1_percent": round(sum(abs(one - 1) <= 0.01 for one in ratios) / len(ratios), 3),
                }
            )
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    typer.run(main)
