"""A model's passes as the folder of an ordinary kernel: a `.cu`, and a `model.py` that declares and launches them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tunebench.kernels.blocks.device_function import has_fast_form
from tunebench.kernels.blocks.loops import numbers_of
from tunebench.studies.writing.loops.lower import UnloweredError, lower
from tunebench.studies.writing.loops.program import Program, ProgramWriter, source_of

_MODEL = '''"""{name}: {count} over loop nests, made from {source} by `tunebench new` (docs/loops.md)."""

import torch

from tunebench import Kernel, Plan, Problem, TunedModule
from tunebench.kernels.blocks import loops

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
{checks}
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


def _written(
    name: str, model: nn.Module, inputs: Mapping[str, Any], source: str, programs: Mapping[str, Program]
) -> Written:
    passes = [one for program in programs.values() for one in program.passes]
    texts = source_of(list(programs.values()))
    indices = [key for key, value in inputs.items() if _is_index(value)]
    modes = tuple(programs) if "" not in programs else ("eval",)
    axes = {
        key: tuple(f"{key}_{at}" for at in range(value.dim())) if value.dim() != 1 else f"{key}_0"
        for key, value in inputs.items()
        if isinstance(value, torch.Tensor)
    }
    sizes = dict.fromkeys(size for program in programs.values() for size in program.sizes)
    declared = [f"axes={axes!r},", f"compiled_axes={tuple(sizes)!r},"]
    declared += [f"indices={tuple(indices)!r},"] if indices else []
    declared += [f"modes={modes!r},"] if len(modes) > 1 else []
    main = next((value.dtype for value in inputs.values() if _is_floating(value)), torch.float32)
    if main in (torch.float16, torch.bfloat16):
        declared.append(f"dtypes=({str(main).removeprefix('torch.')!r},),")
    else:
        declared.append('dtypes=("float32", "float64", "float16", "bfloat16"),')
    fast = "loops.fast_math(), " if has_fast_form([one.text for one in passes]) else ""
    parts = [_part(one.name, one.reduced is not None, one.neighbours_are_lanes) for one in passes]
    body = _body(programs, modes)
    numbers = ["{", *(f'    "{key}": {value!r},' for key, value in numbers_of(model).items()), "}"]
    text = _MODEL.format(
        name=name,
        count="a pass" if len(passes) == 1 else f"{len(passes)} passes",
        source=source,
        parts="\n".join(f"    {one}" for one in [*([fast.strip()] if fast else []), *parts]),
        numbers="\n".join(numbers) if len(numbers) > 2 else "{}",
        declared="\n".join(f"        {one}" for one in declared),
        taken=", ".join(f"{key}: {'torch.Tensor' if isinstance(value, torch.Tensor) else 'float'}" for key, value in inputs.items()),
        passed=", ".join(inputs),
        checks=_checks(programs, modes),
        body="\n".join(f"        {one}" for one in body),
    )
    return Written(text, texts, tuple(dict.fromkeys(done for one in passes for done in one.does)))


def _part(name: str, reduces: bool, along: bool) -> str:
    return f'loops.over_rows("{name}", along={along}),' if reduces else f'loops.over_elements("{name}"),'


def _checks(programs: Mapping[str, Program], modes: Sequence[str]) -> str:
    """The statements that leave to the reference what the passes are not for."""
    lines = []
    if len(programs) == 1 and "" not in programs:
        lines += [f"if {'not ' if 'train' in programs else ''}self.training:"]
        lines += [f'    return self.unserved("the passes are for {modes[0]} mode")']
    for mode, program in programs.items():
        used = [*_sizes(program, " ".join(program.conditions))]
        tests = list(dict.fromkeys(program.conditions))
        if not tests:
            continue
        own = [*used, "fits = (", *(f"    {one}," for one in tests), ")", "if not all(fits):"]
        own.append('    return self.unserved("the passes are not for these sizes")')
        if mode and len(programs) > 1:
            lines += [f"if {'' if mode == 'train' else 'not '}self.training:", *(f"    {one}" for one in own)]
        else:
            lines += own
    return "\n".join(f"        {one}" for one in lines)


def _sizes(program: Program, text: str) -> list[str]:
    """Statements that give the sizes that a text has their names."""
    by_argument: dict[str, dict[int, str]] = {}
    for size, (argument, at) in program.sizes.items():
        if re.search(rf"\b{size}\b", text):
            by_argument.setdefault(argument, {})[at] = size
    lines = []
    for argument, names in by_argument.items():
        taken = [names.get(at, "_") for at in range(program.dimensions[argument])]
        lines.append(f"{', '.join(taken)}{',' if len(taken) == 1 else ''} = {argument}.shape")
    return lines


def _body(programs: Mapping[str, Program], modes: Sequence[str]) -> list[str]:
    made = {mode: [*_sizes(one, "\n".join(one.lines)), *one.lines] for mode, one in programs.items()}
    if len(made) == 1:
        return next(iter(made.values()))
    return ["if self.training:", *(f"    {one}" for one in made["train"]), *made["eval"]]


def _is_index(value: object) -> bool:
    return isinstance(value, torch.Tensor) and not value.dtype.is_floating_point


def _is_floating(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point
