"""Seconds of `tunebench check FILE`: in its stages, outside of them, and in all. Run it on a quiet machine.

The stages' seconds are the command's own; all else is outside: starting Python and the server that has torch, starting
three processes, the reference's own answers, and ending. Of several runs the fastest is printed. Processor seconds are
of all processes of a check, however busy the machine is; the last row is of a file that is refused before any stage.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from tests.gate_files import RIGHT
from tests.gate_files.entry import GateFile

from tunebench.studies.display.terminal import print_table
from tunebench.tuner.gate.boundary.box import Box

FILES = tuple({file.kind: file for file in RIGHT}.values())
"""One of each class that is right, so that every stage is run."""

_KEEP_WARM, _WARMING_SECONDS = "TUNEBENCH_KEEP_WARM", 20.0


@dataclass(frozen=True)
class Run:
    """What one check took.

    Attributes:
        stages, whole: seconds, of the stages and from the command's start to its end.
        processor: seconds of all of its processes.
        slowest: the stage that took longest.
    """

    stages: float
    whole: float
    processor: float
    slowest: str

    @property
    def outside(self) -> float:
        """The seconds outside of stages; 0 where stages that were asked side by side take more than the whole."""
        return max(0.0, self.whole - self.stages)


def run(file: GateFile, folder: Path, box: str, device: str = "cpu", *, warm: bool = False) -> Run:
    """Check a file once; if warm, by a helper whose processor seconds nobody counts."""
    path, reference = folder / f"{file.slug}.py", folder / "reference.py"
    path.write_text(file.text, encoding="utf-8")
    reference.write_text(file.reference, encoding="utf-8")
    given = [] if file.alone else ["--reference", str(reference)]
    command = [sys.executable, "-m", "tunebench", "check", str(path), "--device", device, "--json", "--box", box]
    command += [*given, *file.flags]
    printed, whole, processor = timed(command, {_KEEP_WARM: "60"} if warm else {})
    (report,) = json.loads(printed)
    stages = report["stages"]
    longest = max(stages, key=lambda stage: float(stage["seconds"]))
    processor = math.nan if warm else processor
    return Run(report["seconds"]["stages"], whole, processor, f"{longest['name']} {longest['seconds']:.2f}")


def timed(command: Sequence[str], added: Mapping[str, str] | None = None) -> tuple[str, float, float]:
    """Run a command; return what it prints, its seconds, and the processor seconds of all processes below it.

    Python's own count lacks what was in namespaces that were ended, so that `perf` counts: not a number without it.
    """
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as counted:
        perf = ["perf", "stat", "-x,", "-e", "task-clock", "-o", counted.name] if shutil.which("perf") else []
        started = time.perf_counter()
        environment = {**os.environ, **(added or {})}
        done = subprocess.run([*perf, *command], env=environment, capture_output=True, text=True, check=False)
        wall = time.perf_counter() - started
        lines = [line for line in counted if "task-clock" in line]
    return done.stdout, wall, float(lines[0].split(",")[0]) / 1e3 if lines else math.nan


def main(
    runs: Annotated[int, typer.Option(help="Of each file.")] = 3,
    files: Annotated[int, typer.Option(help="So many files at most.")] = len(FILES),
    boxes: Annotated[list[Box] | None, typer.Option("--box", help="auto or off; repeatable.")] = None,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cpu",
    warm: Annotated[bool, typer.Option(help="By a helper that stays warm, which has begun before.")] = False,
) -> None:
    """Print the table."""
    rows = []
    if warm:
        timed([sys.executable, "-m", "tunebench", "--version"], {_KEEP_WARM: "60"})
        time.sleep(_WARMING_SECONDS)
    refused = replace(FILES[0], name="(does not import)", text="class ModelNew(nothing): ...", alone=False)
    for file in (*FILES[:files], refused):
        taken: dict[Box, list[Run]] = {box: [] for box in boxes or [Box.AUTO]}
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(runs):
                for box, found in taken.items():
                    found.append(run(file, Path(folder), box, device, warm=warm))
        for box, found in taken.items():
            best = min(found, key=lambda one: one.whole)
            figures = (f"{figure:.2f}" for figure in (best.stages, best.outside, best.whole, best.processor))
            rows.append((file.name, box.value, *figures, best.slowest))
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    columns = ("file", "box", "stages, s", "outside, s", "whole, s", "processor, s", "slowest stage")
    print_table(columns, rows, f"load of the last minutes: {load}")


if __name__ == "__main__":
    typer.run(main)
