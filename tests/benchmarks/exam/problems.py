"""The problems of the exam: those of `tests.benchmarks.coverage`, with the sizes that they are measured at."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tests.benchmarks.convolutions import convolutions
from tests.benchmarks.coverage import LEVELS, Case, cases
from tests.benchmarks.modules import DTYPES
from torch.utils._pytree import tree_leaves

from tunebench.studies.writing.new.write_new import write_new
from tunebench.tuner.reference import load_reference
from tunebench.tuner.users_code import users_code

_BYTES_OF_ELEMENT = 128
"""The device needs this much memory for each element of a problem's largest tensor, since the gate keeps three sets of
inputs with their answers in float64. A larger problem is tuned and timed at half of its batch, or a quarter.
KernelBench's own evaluation is at its own sizes."""


@dataclass(frozen=True)
class ExamProblem:
    """A problem of the exam, with its kernel's folder.

    Attributes:
        folder: where the kernels' folders are, or are written.
    """

    case: Case
    folder: Path

    @property
    def name(self) -> str:
        """The problem's, with its group, such as `level1 19_ReLU`."""
        return f"{self.case.group} {self.case.name}"

    @property
    def is_kernelbenchs(self) -> bool:
        """Whether KernelBench can evaluate it."""
        return self.case.group in LEVELS

    @property
    def path(self) -> Path:
        """The kernel's folder, whose name is a kernel's."""
        return self.folder / "_".join(["exam", *self.name.split()])

    def write(self) -> None:
        """Write the kernel's folder, as `tunebench new` does, unless it is there.

        Raises:
            UserError: it cannot be written.
        """
        if not self.path.exists():
            problem = self.folder / f"{self.path.name}.py"
            problem.parent.mkdir(parents=True, exist_ok=True)
            problem.write_text(self.case.text, encoding="utf-8")
            write_new(self.path, problem)

    @property
    def block(self) -> str:
        """Say in a word what the kernel is made of, as the first line of its `model.py` does; empty if by hand."""
        text = (self.path / "model.py").read_text(encoding="utf-8")
        names = [name for name in ("Pointwise", "Rows", "Linear", "Conv") if f"(blocks.{name}, " in text]
        return " and ".join([*(name.lower() for name in names), *(["passes"] if "import loops" in text else [])])

    def sizes(self, memory_bytes: int) -> dict[str, int | float]:
        """Return the batch at which the gate's answers fit into the device's memory, where it is not the problem's own.

        Raises:
            UsersCodeError: the reference does not run on tensors without memory.
        """
        reference = load_reference(self.path / "reference.py")
        with users_code("does not run without memory", reference.path), torch.no_grad():
            inputs = reference.make_inputs(0, torch.device("meta"))
            result = reference.make_model(0, torch.device("meta"))(*inputs)
        tensors = [one for one in tree_leaves((inputs, result)) if isinstance(one, torch.Tensor)]
        halvings = math.ceil(math.log2(_BYTES_OF_ELEMENT * max(one.numel() for one in tensors) / memory_bytes))
        batch = reference.sizes.get("batch_size")
        return {} if batch is None or halvings <= 0 else {"batch_size": int(batch) >> halvings}


def problems(checkout: Path | None, folder: Path, only: Sequence[str] = ()) -> list[ExamProblem]:
    """All of them, in an order in which a run that is cut short has a fair sample.

    Args:
        checkout: of KernelBench; None for the modules alone.
        folder: where their kernels are, or are written.
        only: parts of names; nothing for all.
    """
    layers = [Case(f"convolutions in {dtype}", one.name, one.file(dtype)) for dtype in DTYPES for one in convolutions()]
    found = [ExamProblem(case, folder) for case in (*cases(checkout), *layers)]
    random.Random(0).shuffle(found)
    return [one for one in found if not only or any(part in one.name for part in only)]
