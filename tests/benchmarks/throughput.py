"""How long a whole study takes, from process start to exit: `python -m tests.benchmarks.throughput`.

The study is `scalar_mul_60.toml`: 60 configurations of scalar_mul at 2^28 floats, each built, checked against the
reference in float64 on three inputs, and timed; then the interleaved comparison of the best. Every run is a new process
with an empty build cache and an empty database.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

STUDY = Path(__file__).parent / "scalar_mul_60.toml"


def run_once(device: str) -> tuple[float, dict[str, object]]:
    """Seconds of one run, and its report."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tunebench", "tune", str(STUDY), "--device", device, "--json"]
        environment = {**os.environ, "TUNEBENCH_CACHE": f"{folder}/builds", "TUNEBENCH_DB": f"{folder}/results.db"}
        started = time.perf_counter()
        output = subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True, encoding="utf-8"
        ).stdout
        seconds = time.perf_counter() - started
        (report,) = json.loads(output)
        return seconds, report


def main(
    runs: Annotated[int, typer.Option(min=1, help="How often.")] = 3,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
) -> None:
    """Time the 60-configuration study and print the figures as JSON."""
    seconds = []
    for _ in range(runs):
        taken, report = run_once(device)
        seconds.append(round(taken, 2))
    print(json.dumps({"seconds": seconds, "last_report": report}, indent=2))


if __name__ == "__main__":
    typer.run(main)
