"""Seconds of `tunebench check FILE` on the CPU: in its stages, outside of them, and in all. Run it on a quiet machine.

The stages' seconds are the command's own; all else is outside: starting Python and the server that has torch, starting
three processes, the reference's own answers, and ending. Of several runs the fastest is printed. Processor seconds are
of all processes of a check, however busy the machine is; the last row is of a file that is refused before any stage.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
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


_PR_SET_CHILD_SUBREAPER = 36


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
        """What was no stage's."""
        return self.whole - self.stages


def run(file: GateFile, folder: Path, box: str) -> Run:
    """Check a file once."""
    path, reference = folder / f"{file.slug}.py", folder / "reference.py"
    path.write_text(file.text, encoding="utf-8")
    reference.write_text(file.reference, encoding="utf-8")
    given = [] if file.alone else ["--reference", str(reference)]
    command = [sys.executable, "-m", "tunebench", "check", str(path), "--device", "cpu", "--json", "--box", box]
    command += [*given, *file.flags]
    before, started = _processor_seconds(), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    whole = time.perf_counter() - started
    (report,) = json.loads(done.stdout)
    stages = report["stages"]
    longest = max(stages, key=lambda stage: float(stage["seconds"]))
    return Run(
        report["seconds"]["stages"], whole, _processor_seconds() - before, f"{longest['name']} {longest['seconds']:.2f}"
    )


def _processor_seconds() -> float:
    """Of every process that has ended below this one, also of those that their parents left to it."""
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(
    runs: Annotated[int, typer.Option(help="Of each file.")] = 3,
    files: Annotated[int, typer.Option(help="So many files at most.")] = len(FILES),
    boxes: Annotated[list[Box] | None, typer.Option("--box", help="auto or off; repeatable.")] = None,
) -> None:
    """Print the table."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    rows = []
    refused = replace(FILES[0], name="(does not import)", text="class ModelNew(nothing): ...", alone=False)
    for file in (*FILES[:files], refused):
        taken: dict[Box, list[Run]] = {box: [] for box in boxes or [Box.AUTO]}
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(runs):
                for box, found in taken.items():
                    found.append(run(file, Path(folder), box))
        for box, found in taken.items():
            best = min(found, key=lambda one: one.whole)
            figures = (f"{figure:.2f}" for figure in (best.stages, best.outside, best.whole, best.processor))
            rows.append((file.name, box.value, *figures, best.slowest))
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    columns = ("file", "box", "stages, s", "outside, s", "whole, s", "processor, s", "slowest stage")
    print_table(columns, rows, f"load of the last minutes: {load}")


if __name__ == "__main__":
    typer.run(main)
