"""KernelBench's problems as a table, and the kernels that `tunebench new` writes for them (docs/exam.md).

`python -m tunebench.studies.kernelbench FOLDER [PART]...` writes those whose class or name has a part into a folder.
"""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tunebench.studies.new.new_kernel import NewKernel, write_new
from tunebench.tuner.scratch import scratch

_TABLE = Path(__file__).with_suffix(".toml")

_REFERENCE = '''"""KernelBench level {level}, problem {number}: {title}."""

import math

import torch
from torch import nn


class Model(nn.Module):
    def __init__({parameters}):
        super().__init__()
{attributes}

    def forward(self, {arguments}):
{forward}


{constants}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return [{passed}]
'''

_MODEL = '''"""{name}: a kernel of KernelBench's problem in reference.py (docs/exam.md)."""

import torch

from tunebench import Plan, blocks

from .reference import Model


{kernel}
'''


@dataclass(frozen=True)
class BenchProblem:
    """A row of `kernelbench.toml`, which says what each column is.

    Attributes:
        name: with KernelBench's level and number, such as `level1_19_relu`.
        group: its class.
    """

    name: str
    group: str
    title: str
    x: Mapping[str, int]
    forward: str
    numbers: Mapping[str, int | float | str] = field(default_factory=dict)
    layers: str = ""
    defaults: Mapping[str, int | float] = field(default_factory=dict)
    arguments: str = "x"
    inputs: str = ""
    kernel: str = ""

    @property
    def number(self) -> int:
        """The problem's number in KernelBench."""
        return int(self.name.split("_")[1])

    @property
    def constants(self) -> dict[str, int | float | str]:
        """The reference's constants; texts are expressions of others."""
        return {**self.x, **self.numbers}

    @property
    def reference(self) -> str:
        """The reference's text, in KernelBench's form."""
        layers = self.layers.splitlines()
        known = {line.partition(" = ")[0] for line in layers}
        own = [name for name in dict.fromkeys(re.findall(r"self\.(\w+)", self.forward)) if name not in known]
        attributes = [f"self.{line}" for line in (*layers, *(f"{name} = {name}" for name in own))]
        read = set(re.findall(r"\w+", " ".join(line.partition(" = ")[2] for line in attributes)))
        passed = [name for name in self.constants if name in read]
        *statements, value = self.forward.splitlines()
        return _REFERENCE.format(
            level=self.name.removeprefix("level")[0],
            number=self.number,
            title=self.title,
            parameters=", ".join(["self", *passed, *(f"{name}={value}" for name, value in self.defaults.items())]),
            attributes="\n".join(f"        {line}" for line in attributes),
            arguments=self.arguments,
            forward="\n".join(f"        {line}" for line in (*statements, f"return {value}")),
            constants="\n".join(f"{name} = {value}" for name, value in self.constants.items()),
            inputs=self.inputs or f"torch.rand({', '.join(self.x)})",
            passed=", ".join(passed),
        )

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
    return {name: BenchProblem(name, group, **row) for group, rows in table.items() for name, row in rows.items()}


if __name__ == "__main__":
    for one in bench_problems().values():
        if not sys.argv[2:] or any(part == one.group or part in one.name for part in sys.argv[2:]):
            print(one.write(Path(sys.argv[1])).folder)
