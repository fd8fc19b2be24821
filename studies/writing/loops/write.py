"""A model's passes as the folder of an ordinary kernel: a `.cu`, and a `model.py` that declares and launches them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tunebench.kernels.blocks.device_function import has_fast_form
from tunebench.kernels.shared.loops import numbers_of
from tunebench.studies.writing.loops.lower import UnloweredError, lower
from tunebench.studies.writing.loops.program import Program, ProgramWriter

_MODEL = '''"""{name}: {count} over loop nests, made from {source} by `tunebench new` (docs/loops.md)."""

import torch

from tunebench import Kernel, Plan, Problem, TunedModule
from tunebench.kernels.shared import loops

from .reference import Model

SPACE = loops.space(
{parts}
)

NUMBERS = {numbers}
"""What the model's attributes were when the passes were written."""


class ModelNew(TunedModule, Model):
    kernel = Kernel.declare(
        __file__,
        SPACE,
{declared}
    )

    def problem(self, {taken}) -> Problem | None:
        if path := loops.changed(self, NUMBERS):
            return self.unserved(f"'{{path}}' is another than the passes were written for")
        return super().problem({passed})

    def tuned_forward(self, plan: Plan, {taken}) -> torch.Tensor:
{body}
'''


@dataclass(frozen=True)
class Written:
    """The texts of a kernel of passes.

    Attributes:
        model: of `model.py`.
        source: of the `.cu`.
        does: the operations that it does, by torch's names.
    """

    model: str
    source: str
    does: tuple[str, ...]


def write(name: str, model: nn.Module, inputs: Mapping[str, Any], source: str) -> Written:
    """Write a model's passes.

    Args:
        inputs: by the names of `forward`'s arguments; fake tensors will do, as for the model's own.
        source: what the model is from.

    Raises:
        UnloweredError: something of it is no loop nest.
    """
    programs: dict[str, Program] = {}
    errors = []
    for mode in ("eval", "train"):
        model.train(mode == "train")
        try:
            programs[mode] = ProgramWriter(lower(model, inputs), "pass").write()
        except UnloweredError as error:
            errors.append(error)
    if not programs:
        raise errors[0]
    if len(programs) == 2:
        if programs["eval"] == programs["train"]:
            programs = {"": programs["eval"]}
        else:
            for mode in programs:
                model.train(mode == "train")
                programs[mode] = ProgramWriter(lower(model, inputs), mode).write()
    return _written(name, model, inputs, source, programs)
