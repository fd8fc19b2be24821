"""KernelBench's problems as a table, and the kernels that `tunebench new` writes for them (docs/exam.md).

`python -m tunebench.studies.writing.kernelbench FOLDER [PART]...` writes those whose class or name has a part into a
folder.
"""

from __future__ import annotations

import shutil
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tunebench.studies.writing.new.new_kernel import NewKernel, write_new
from tunebench.studies.writing.new.problem_text import ProblemText
from tunebench.tuner.scratch import scratch

_TABLE = Path(__file__).with_suffix(".toml")

_MODEL = '''"""{name}: a kernel of KernelBench's problem in reference.py (docs/exam.md)."""

import torch

from tunebench import Plan, blocks

from .reference import Model


{kernel}
'''


@dataclass(frozen=True, kw_only=True)
class BenchProblem(ProblemText):
    """A row of `kernelbench.toml`.

    Attributes:
        name: with KernelBench's level and number, such as `level1_19_relu`.
        group: its class.
        kernel: the text of `ModelNew`; empty for what `tunebench new` writes.
    """

    name: str
    group: str
    kernel: str = ""

    def write(self, folder: Path) -> NewKernel:
        """Write the kernel as a folder of the problem's name below a folder, in the place of what is there.

        Raises:
            UserError: it cannot be written.
        """
        place = folder / self.name
        shutil.rmtree(place, ignore_errors=True)
        with scratch() as files:
            file = files / f"{self.name}.py"
            file.write_text(self.reference, encoding="utf-8")
            made = write_new(place, file, None)
        if self.kernel:
            text = _MODEL.format(name=self.name, kernel=self.kernel)
            (place / "model.py").write_text(text, encoding="utf-8")
        return made


@cache
def bench_problems() -> Mapping[str, BenchProblem]:
    """Return the problems by name, by class and then by number."""
    table = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    return {
        name: BenchProblem(name=name, group=group, **row) for group, rows in table.items() for name, row in rows.items()
    }


def chosen(parts: Sequence[str]) -> list[BenchProblem]:
    """Return the problems of these classes, and those whose names have one of these parts; all for none."""
    every = bench_problems().values()
    return [one for one in every if not parts or any(part == one.group or part in one.name for part in parts)]


if __name__ == "__main__":
    for problem in chosen(sys.argv[2:]):
        print(problem.write(Path(sys.argv[1])).folder)
