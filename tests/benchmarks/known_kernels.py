"""Problems like KernelBench's as a table, for tests: those that `tunebench new` makes a few lines of one block of."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tunebench.studies.writing.new.new_kernel import NewKernel
from tunebench.studies.writing.new.problem_text import ProblemText
from tunebench.studies.writing.new.write_new import write_new
from tunebench.tuner.scratch import scratch

_TABLE = Path(__file__).with_suffix(".toml")

_MODEL = '''"""{name}: a kernel of KernelBench's problem in reference.py (docs/exam.md)."""

import torch

from tunebench import Plan, blocks

from .reference import Model


{kernel}
'''

_SMALL = {
    "batch_size": 12,
    "in_features": 48,
    "input_size": 48,
    "out_features": 64,
    "hidden_size": 64,
    "output_size": 64,
    "num_groups": 4,
    "num_classes": 33,
    "features": 6,
    "dim1": 9,
    "dim2": 11,
    "in_channels": 8,
    "out_channels": 12,
    "rows": 33,
    "columns": 21,
    "depth": 40,
    "side": 29,
    "images": 2,
    "dim": 200,
    "height": 20,
    "width": 30,
    "length": 50,
}
"""Sizes for a machine without a GPU, by the constants' names."""


@dataclass(frozen=True, kw_only=True)
class BenchProblem(ProblemText):
    """A row of `known_kernels.toml`.

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


def small(problem: BenchProblem) -> dict[str, int | float]:
    """Return sizes for a machine without a GPU."""
    return {name: _SMALL[name] for name in problem.constants if name in _SMALL}
