"""How long a whole study takes, from process start to exit: `python -m tests.benchmarks.throughput`.

The study is `scalar_mul_60.toml`: 60 configurations of scalar_mul at 2^28 floats, each built, checked against the
reference in float64 on three inputs, and timed; then the interleaved comparison of the best. Every run is a new process
with an empty build cache and an empty database. Checkouts that are named take turns, so that what a busy machine costs
one costs the other: wall time, and CPU time of all processes that a run has started.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

HERE = Path(__file__).parents[2]
STUDY = Path(__file__).parent / "scalar_mul_60.toml"
_PR_SET_CHILD_SUBREAPER = 36


def run_once(checkout: Path, options: list[str]) -> tuple[float, float, dict[str, object]]:
    """Wall and CPU seconds of one run, and its report."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tunebench", "tune", str(STUDY), *options, "--json"]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(checkout / "src"), os.environ.get("PYTHONPATH")])),
            "TUNEBENCH_CACHE": f"{folder}/builds",
            "TUNEBENCH_DB": f"{folder}/results.db",
        }
        before, started = os.times(), time.perf_counter()
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, encoding="utf-8") as run:
            output = run.communicate()[0]
        seconds = time.perf_counter() - started
        assert run.returncode == 0
        _wait_for_the_rest()
        after = os.times()
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        (report,) = json.loads(output)
        return seconds, cpu, report


def _wait_for_the_rest() -> None:
    """Processes whose parent has ended come here: their time counts once they are waited for."""
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def main(
    checkouts: Annotated[list[Path] | None, typer.Argument(help="Default: this one.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="How often each.")] = 3,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    trials: Annotated[int, typer.Option(help="Of 60; fewer for a CPU.")] = 60,
    side: Annotated[int, typer.Option(help="M and N; smaller for a CPU.")] = 16384,
) -> None:
    """Time the 60-configuration study and print the figures as JSON."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    options = ["--device", device, "--trials", str(trials), "--size", f"M={side}", "--size", f"N={side}"]
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(runs):
        for checkout in checkouts or [HERE]:
            *taken, report = run_once(checkout, options)
            found.setdefault(str(checkout), []).append((round(taken[0], 2), round(taken[1], 2)))
            print(checkout, found[str(checkout)][-1], file=sys.stderr, flush=True)
    figures = {
        checkout: {
            "seconds": [wall for wall, _ in taken],
            "cpu_seconds": [cpu for _, cpu in taken],
            "medians": [statistics.median(part) for part in zip(*taken, strict=True)],
        }
        for checkout, taken in found.items()
    }
    print(json.dumps({**figures, "last_report": report}, indent=2))


if __name__ == "__main__":
    typer.run(main)
