"""Seconds of `tunebench check DIR` on the CPU: a run directory of files whose truth is known, as KernelBench has them.

The files are of `tests/gate_files`, several for most problems. Processor seconds are of all processes, however busy the
machine is. With `--alone N` so many of the files are checked once more, each by a command of its own with the same
seed: every stage has to say the same.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from tests.benchmarks.check_files import timed
from tests.benchmarks.gate_files import ALONE
from tests.gate_files import FILES
from tests.gate_files.entry import GateFile

Placed = tuple[GateFile, Path, Path]
"""A file with its path, and its problem's."""


def place(files: Sequence[GateFile], folder: Path) -> list[Placed]:
    """Write files into `run`, and their problems into `KernelBench/level1`."""
    run, problems = folder / "run", folder / "KernelBench" / "level1"
    run.mkdir()
    problems.mkdir(parents=True)
    numbers: dict[str, int] = {}
    samples: dict[int, int] = {}
    placed = []
    for file in files:
        number = numbers.setdefault(file.reference, len(numbers) + 1)
        sample = samples[number] = samples.get(number, -1) + 1
        path, problem = run / f"level_1_problem_{number}_sample_{sample}_kernel.py", problems / f"{number}_problem.py"
        path.write_text(file.text, encoding="utf-8")
        problem.write_text(file.reference, encoding="utf-8")
        placed.append((file, path, problem))
    return placed


def check(*arguments: object) -> tuple[list[dict[str, Any]], float, float]:
    """Return the reports of a command, its seconds, and those of processors."""
    command = [sys.executable, "-m", "tunebench", "check", *map(str, arguments), "--device", "cpu", "--json"]
    printed, wall, processor = timed(command)
    return json.loads(printed), wall, processor


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the stages of which two reports say something else."""
    told = [
        {stage["name"]: (stage["passed"], stage["detail"]) for stage in report["stages"]} for report in (one, other)
    ]
    return [name for name in {**told[0], **told[1]} if told[0].get(name) != told[1].get(name)]


def main(
    files: Annotated[int, typer.Option(help="So many, evenly from the set.")] = 100,
    jobs: Annotated[int, typer.Option(help="As of check.")] = 2,
    seed: Annotated[int, typer.Option(help="As of check.")] = 1,
    alone: Annotated[int, typer.Option(help="So many are checked once more, each alone.")] = 0,
) -> None:
    """Check the directory, and print what it took."""
    fit = [file for file in FILES if not (file.alone or file.flags or file.kind in ALONE or "load_inline" in file.text)]
    chosen = [fit[number * len(fit) // files] for number in range(files)]
    with tempfile.TemporaryDirectory() as name:
        placed, run, problems = place(chosen, Path(name)), Path(name, "run"), Path(name, "KernelBench")
        reports, wall, processor = check(run, "--problems", problems, "--jobs", jobs, "--seed", seed)
        of_file = {report["target"]: report for report in reports}
        load, several = os.getloadavg()[0], len({problem for _, _, problem in placed})
        print(
            f"{len(reports)} files of {several} problems, --jobs {jobs}: {wall:.0f} s, {processor:.0f} s of processors"
        )
        print(f"a file: {wall / files:.2f} s, {processor / files:.2f} s of processors; load {load:.1f}")
        print(f"not as they should be: {', '.join(_misjudged(placed, of_file)) or 'none'}")
        took = []
        for file, path, problem in [placed[number * files // alone] for number in range(alone)]:
            (report,), *seconds = check(path, "--reference", problem, "--seed", seed)
            took.append(seconds)
            if found := differences(of_file[str(path)], report):
                print(f"{file.name}: alone, other words in {', '.join(found)}")
        if took:
            wall, processor = (sum(one) / len(took) for one in zip(*took, strict=True))
            print(f"{alone} alone: {wall:.2f} s each, {processor:.2f} s of processors")


def _misjudged(placed: Sequence[Placed], of_file: Mapping[str, Mapping[str, Any]]) -> list[str]:
    told = {file: of_file[str(path)] for file, path, _ in placed}
    return [
        file.name
        for file, report in told.items()
        if not file.meets(problem=report["right_for_problem"], drop_in=report["drop_in"])
    ]


if __name__ == "__main__":
    typer.run(main)
