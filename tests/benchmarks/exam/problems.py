"""The problems of the exam: what `studies/kernelbench/` holds, by class, with the sizes that they are measured at."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

import torch

from tunebench.tuner.reference import load_reference

FOLDER = Path(__file__).parents[3] / "studies" / "kernelbench"

CLASSES = {
    "linear": "Linear, pointwise behind it",
    "linear_rows": "Linear, a normalisation or reduction behind it",
    "rows": "row reductions and norms",
    "pointwise": "pointwise",
    "convolution": "convolution, pointwise behind it",
}
"""The folders, with what their problems are."""

FIRST = {"linear": 13, "linear_rows": 10, "rows": 10, "pointwise": 10, "convolution": 5}
"""How many of each class come first, one of each in turn."""

MOST_ELEMENTS = 2**30
"""The gate keeps three sets of inputs with their answers in float64, which of more elements than these do not fit into
the memory of an H200: a larger problem is tuned and timed at half of its batch, or a quarter. KernelBench's own
evaluation is at its own sizes."""

SMALL = {
    "batch_size": 12,
    "dim": 200,
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
    "in_channels": 5,
    "out_channels": 7,
    "height": 10,
    "width": 10,
}
"""Sizes for a machine without a GPU, by the constants' names."""


@dataclass(frozen=True)
class ExamProblem:
    """A file of `studies/kernelbench/`.

    Attributes:
        group: of `CLASSES`.
        sizes: constants to change for tuning and timing.
    """

    path: Path
    group: str
    sizes: Mapping[str, int | float]

    @property
    def name(self) -> str:
        """As the file is called, such as `level1_19_relu`."""
        return self.path.stem

    @property
    def lines(self) -> int:
        """Lines of the file that make the kernel: those of `ModelNew`, and the import of the blocks."""
        tree = ast.parse(self.path.read_text(encoding="utf-8"))
        (made,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "ModelNew")
        assert made.end_lineno is not None
        return made.end_lineno - made.lineno + 2

    @property
    def reference_text(self) -> str:
        """The file without `ModelNew`: a problem in KernelBench's form."""
        tree = ast.parse(self.path.read_text(encoding="utf-8"))
        tree.body = [node for node in tree.body if not _is_ours(node)]
        return ast.unparse(tree) + "\n"


def _is_ours(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "tunebench"
    return isinstance(node, ast.ClassDef) and node.name == "ModelNew"


def paths(group: str) -> list[Path]:
    """The files of a class, in the order of KernelBench's numbers."""
    return sorted((FOLDER / group).glob("level*.py"), key=lambda path: int(path.stem.split("_")[1]))


def problems(*, small: bool = False, only: Sequence[str] = ()) -> list[ExamProblem]:
    """All of them, in an order in which a run that is cut short has enough of each class.

    Args:
        small: at `SMALL` sizes, for a machine without a GPU.
        only: classes, and parts of names; nothing for all.
    """
    first = [[(path, group) for path in paths(group)[:count]] for group, count in FIRST.items()]
    then = [[(path, group) for path in paths(group)[count:]] for group, count in FIRST.items()]
    turns = [one for part in (first, then) for one in chain.from_iterable(zip_longest(*part)) if one is not None]
    return [
        ExamProblem(path, group, at_small(path) if small else _fitting(path))
        for path, group in turns
        if not only or any(part == group or part in path.stem for part in only)
    ]


def at_small(path: Path) -> dict[str, int | float]:
    """A problem's small sizes."""
    return {name: SMALL[name] for name in load_reference(path).sizes if name in SMALL}


def _fitting(path: Path) -> dict[str, int | float]:
    """The batch at which the gate's answers fit into the GPU's memory, where that is not the file's own."""
    reference = load_reference(path)
    with torch.device("meta"):
        inputs = reference.get_inputs()
    elements = max(value.numel() for value in inputs if isinstance(value, torch.Tensor))
    if elements <= MOST_ELEMENTS:
        return {}
    return {"batch_size": reference.sizes["batch_size"] // 2 ** math.ceil(math.log2(elements / MOST_ELEMENTS))}
