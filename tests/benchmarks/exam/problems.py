"""The problems of the exam: those of `studies/writing/kernelbench.toml`, with the sizes that they are measured at."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

from tunebench.studies.writing.kernelbench import BenchProblem, chosen
from tunebench.studies.writing.new.new_kernel import NewKernel

CLASSES = {
    "linear": "Linear, pointwise behind it",
    "linear_rows": "Linear, a normalisation or reduction behind it",
    "rows": "row reductions and norms",
    "pointwise": "pointwise",
    "convolution": "convolution, pointwise behind it",
    "plain_convolution": "convolution alone",
    "product": "product of two inputs",
}
"""The classes, with what their problems are."""

FIRST = {
    "linear": 13,
    "linear_rows": 10,
    "rows": 10,
    "pointwise": 10,
    "convolution": 5,
    "plain_convolution": 10,
    "product": 16,
}
"""How many of each class come first, one of each in turn."""

MOST_ELEMENTS = 2**30
"""The gate keeps three sets of inputs with their answers in float64, which of more elements than these do not fit into
the memory of an H200: a larger problem is tuned and timed at half of its batch, or a quarter. KernelBench's own
evaluation is at its own sizes."""

SMALL = {
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


@dataclass(frozen=True)
class ExamProblem:
    """A problem of the exam, with its kernel's folder.

    Attributes:
        folder: where the kernel's folder is written.
        sizes: constants to change for tuning and timing.
    """

    problem: BenchProblem
    folder: Path
    sizes: Mapping[str, int | float]

    @property
    def name(self) -> str:
        """The kernel's name, such as `level1_19_relu`."""
        return self.problem.name

    @property
    def group(self) -> str:
        """The class, of `CLASSES`."""
        return self.problem.group

    @property
    def path(self) -> Path:
        """The kernel's folder, which `write` makes."""
        return self.folder / self.name

    @property
    def lines(self) -> int:
        """Lines that make the kernel: those of `ModelNew`, and the import of the blocks."""
        tree = ast.parse((self.path / "model.py").read_text(encoding="utf-8"))
        (made,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
        assert made.end_lineno is not None
        return made.end_lineno - made.lineno + 2

    def write(self) -> NewKernel:
        """Write the kernel's folder, as `tunebench new` does."""
        return self.problem.write(self.folder)


def problems(folder: Path, *, small: bool = False, only: Sequence[str] = ()) -> list[ExamProblem]:
    """All of them, in an order in which a run that is cut short has enough of each class.

    Args:
        folder: where their kernels are written.
        small: at `SMALL` sizes, for a machine without a GPU.
        only: classes, and parts of names; nothing for all.
    """
    every = chosen(only)
    classes = [([one for one in chosen(()) if one.group == group], count) for group, count in FIRST.items()]
    turns = chain(zip_longest(*(some[:n] for some, n in classes)), zip_longest(*(some[n:] for some, n in classes)))
    return [
        ExamProblem(one, folder, _small(one) if small else _fitting(one))
        for one in chain.from_iterable(turns)
        if one in every
    ]


def _small(problem: BenchProblem) -> dict[str, int | float]:
    return {name: SMALL[name] for name in problem.constants if name in SMALL}


def _fitting(problem: BenchProblem) -> dict[str, int | float]:
    """The batch at which the gate's answers fit into the GPU's memory, where that is not the problem's own."""
    elements = math.prod(problem.x.values())
    if elements <= MOST_ELEMENTS:
        return {}
    return {"batch_size": problem.x["batch_size"] // 2 ** math.ceil(math.log2(elements / MOST_ELEMENTS))}
