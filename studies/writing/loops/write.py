"""A model's passes as the folder of an ordinary kernel: a `.cu`, and a `model.py` that declares and launches them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tunebench.studies.writing.loops.lower import UnloweredError, export, is_same, lower
from tunebench.studies.writing.loops.program import Program, ProgramWriter, source_of
from tunebench.studies.writing.loops.texts import (
    axes_of,
    body_lines,
    checks_of_numbers,
    checks_of_sizes,
    is_index,
    listed,
    numbers_lines,
    plain_text,
    ready_lines,
    served_numbers,
    space_parts,
    taken_text,
)
from tunebench.studies.writing.new.dtypes import main_dtype
from tunebench.tuner.problem import OUTPUT
from tunebench.tuner.reference import DTYPES

_MODEL = '''"""{name}: {count} over loop nests, made from {source} by `tunebench new` (docs/loops.md)."""

import torch

from tunebench import Kernel, Plan, Problem, TunedModule
from tunebench.kernels.blocks import loops

from .reference import Model

SPACE = loops.space(
{parts}
)

{numbers}
"""What the model's attributes were when the passes were written."""


class ModelNew(TunedModule, Model):
    kernel = Kernel.declare(
        __file__,
        SPACE,
{declared}
    )

    def problem(self, {taken}) -> Problem | None:
        served = super().problem({passed})
        if served is None:
            return None
{checks}
        return served

    def tuned_forward(self, plan: Plan, {taken}) -> {returns}:
{body}{ready}
'''


_NO_DEFAULTS: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Written:
    """The texts of a kernel of passes.

    Attributes:
        model: of `model.py`.
        source: of the `.cu`.
    """

    model: str
    source: str


def write(
    name: str,
    model: nn.Module,
    inputs: Mapping[str, Any],
    source: str,
    defaults: Mapping[str, Any] = _NO_DEFAULTS,
    dtypes: Sequence[str] = tuple(DTYPES),
) -> Written:
    """Write a model's passes.

    Args:
        inputs: by the names of `forward`'s arguments; fake tensors will do, as for the model's own.
        defaults: of those of them that have one.
        source: what the model is from.
        dtypes: that they are for; of a half type they are for no other.

    Raises:
        UnloweredError: something of it is no loop nest.
    """
    if "plan" in inputs:
        raise UnloweredError("the argument 'plan', whose name means something else in it")
    if (main := main_dtype(model, inputs.values())) in (torch.float16, torch.bfloat16):
        dtypes = [str(main).removeprefix("torch.")]
    return _written(name, model, inputs, defaults, source, programs_of(model.train, inputs), dtypes)


def programs_of(model_in: Callable[[bool], nn.Module], inputs: Mapping[str, Any]) -> dict[str, Program]:
    """Return the programs of a model by mode; one by the name of nothing where they are the same."""
    programs: dict[str, Program] = {}
    errors = []
    of_eval: torch.export.ExportedProgram | None = None
    for mode in ("eval", "train"):
        try:
            model = model_in(mode == "train")
            exported = export(model, inputs)
            if of_eval is not None and is_same(exported, of_eval):
                if "eval" in programs:
                    programs[mode] = programs["eval"]
                break
            of_eval = exported
            programs[mode] = ProgramWriter(lower(model, inputs, exported)).write()
        except UnloweredError as error:
            errors.append(error)
    if not programs:
        raise errors[0]
    if len(programs) < 2:
        return programs
    if programs["eval"] == programs["train"]:
        return {"": programs["eval"]}
    return {mode: program.renamed(mode) for mode, program in programs.items()}


def _written(
    name: str,
    model: nn.Module,
    inputs: Mapping[str, Any],
    defaults: Mapping[str, Any],
    source: str,
    programs: Mapping[str, Program],
    dtypes: Sequence[str],
) -> Written:
    passes = [one for program in programs.values() for one in program.passes]
    if not passes:
        raise UnloweredError("nothing")
    texts = source_of(list(programs.values()))
    indices = [key for key, value in inputs.items() if is_index(value)]
    modes = tuple(programs) if "" not in programs else ("eval",)
    axes = {key: names[0] if len(names) == 1 else names for key, names in axes_of(inputs).items()}
    shape, *others = {program.shape for program in programs.values()}
    axes |= {OUTPUT: shape} if shape and not others else {}
    sizes = dict.fromkeys(size for program in programs.values() for size in program.sizes)
    declared = [f"axes={plain_text(axes)},", f"compiled_axes={listed(sizes)},"]
    declared += [f"indices={listed(indices)},"] if indices else []
    wide = _in_float32(model, dtypes)
    declared += [f"in_float32={listed(wide)},"] if wide else []
    declared += [f"modes={listed(modes)},"] if len(modes) > 1 else []
    declared.append(f"dtypes={listed(dtypes)},")
    parts = space_parts(passes, [*programs.values()], is_alone=True)
    body, ready = body_lines(programs), ready_lines([*programs.values()])
    text = _MODEL.format(
        name=name,
        count="a pass" if len(passes) == 1 else f"{len(passes)} passes",
        source=source,
        parts="\n".join(f"    {one}" for one in parts),
        numbers="\n".join(numbers_lines(model)),
        declared="\n".join(f"        {one}" for one in declared),
        taken=taken_text([*inputs], [*inputs.values()], defaults),
        passed=", ".join(inputs),
        checks="\n".join(f"        {one}" for one in (*checks_of_numbers(inputs), *checks_of_sizes(programs, modes))),
        returns=next(iter(programs.values())).returns,
        body="\n".join(f"        {one}" for one in (*served_numbers(inputs), *body)),
        ready="".join(f"\n    {one}" for one in ("", *ready) if ready).replace("\n    \n", "\n\n", 1),
    )
    return Written(text, texts)


def _in_float32(model: nn.Module, dtypes: Sequence[str]) -> list[str]:
    """The parameters and buffers in float32 of a model that is for a half type alone."""
    if not {*dtypes} <= {"float16", "bfloat16"}:
        return []
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return [name for name, value in held.items() if value.dtype == torch.float32]
