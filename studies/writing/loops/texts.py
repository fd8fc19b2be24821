"""Python around passes: their space, what they do not serve, and the sizes of a call."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from tunebench.kernels.blocks.device_function import has_fast_form
from tunebench.kernels.runtime.attributes import attributes_of
from tunebench.studies.writing.loops.passes import Pass
from tunebench.studies.writing.loops.program import Program

_FREE = 2
"""Upper limit of the passes over rows that are tuned each for itself."""


def axes_of(inputs: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the names of the dimensions of each tensor among the inputs."""
    tensors = {key: value for key, value in inputs.items() if isinstance(value, torch.Tensor)}
    return {key: tuple(f"{key}_{at}" for at in range(value.dim())) for key, value in tensors.items()}


def numbers_lines(model: nn.Module) -> list[str]:
    """Return the statement that says what a model's attributes are."""
    lines = [f'    "{key}": {plain_text(value)},' for key, value in attributes_of(model).items()]
    return ["NUMBERS = {", *lines, "}"] if lines else ["NUMBERS = {}"]


def plain_text(value: object) -> str:
    """Return a number, a word or several, as Python is formatted."""
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{name}": {plain_text(one)}' for name, one in value.items()) + "}"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple | list):
        text = ", ".join(map(plain_text, value))
        return f"[{text}]" if isinstance(value, list) else f"({text}{',' if len(value) == 1 else ''})"
    return repr(value)


def listed(names: Iterable[str]) -> str:
    """Return names as a tuple in Python."""
    return plain_text(tuple(names))


def space_parts(passes: Sequence[Pass], programs: Sequence[Program], is_alone: bool) -> list[str]:
    """Return the parts of the space of passes, whose choices multiply with those of a block in front of them.

    Args:
        is_alone: whether there is no such block.
    """
    rows = [one for one in passes if one.reduced is not None]
    freely = "" if is_alone and len(rows) <= _FREE else ", freely=False"
    lines = ["loops.fast_math(),"] if has_fast_form([one.text for one in passes]) else []
    lines += ["loops.early(),"] if passes else []
    lines += ["loops.vectors(),"] if any(one.innermost is not None for one in passes) else []
    lines += ["loops.over_elements(),"] if len(rows) < len(passes) else []
    lines += ["loops.products(),"] if any(program.products for program in programs) else []
    for one in rows:
        parts = f", parts={one.parts}" if one.joins else ""
        lines.append(f'loops.over_rows("{one.name}", rows={one.rows}, lanes={one.lanes}{parts}{freely}),')
    return lines


def taken_text(names: Sequence[str], inputs: Sequence[Any], defaults: Mapping[str, Any]) -> str:
    """Return the arguments of `forward`, as a method's definition lists them."""
    types = ["torch.Tensor" if isinstance(value, torch.Tensor) else "float" for value in inputs]
    types = [*types, *(["object"] * len(names))][: len(names)]  # what get_inputs() leaves out
    given = [f" = {defaults[name]!r}" if name in defaults else "" for name in names]
    return ", ".join(f"{name}: {kind}{default}" for name, kind, default in zip(names, types, given, strict=True))


def served_numbers(inputs: Mapping[str, Any]) -> list[str]:
    """Return the statements in front of passes that leave calls with other numbers to the reference.

    Calls that differ in a floating-point number alone are served alike, without another look at `problem`, which an
    exported file does not have.
    """
    same = [f"loops.is_same({key}, {_number(value)})" for key, value in inputs.items() if _is_number(value)]
    if not same:
        return []
    return [f"if not ({' and '.join(same)}):", f"    return self.reference_forward({', '.join(inputs)})"]


def checks_of_numbers(inputs: Mapping[str, Any]) -> Iterator[str]:
    """Yield the statements that leave to the reference what has other numbers than the passes were written for."""
    yield "if path := loops.changed(self, NUMBERS):"
    yield "    return self.unserved(f\"'{path}' is another than the passes were written for\")"
    for key, value in inputs.items():
        if _is_number(value):
            yield f"if not loops.is_same({key}, {_number(value)}):"
            yield f'    return self.unserved("the passes are for {key}={value!r}")'


def _is_number(value: object) -> bool:
    return value is None or isinstance(value, int | float)


def _number(value: float | None) -> str:
    return repr(value) if value is None or math.isfinite(value) else f'float("{value}")'


def checks_of_sizes(programs: Mapping[str, Program], modes: Sequence[str]) -> list[str]:
    """Return the statements that leave to the reference what the passes are not for."""
    lines = []
    if len(programs) == 1 and "" not in programs:
        lines += [f"if {'not ' if 'train' in programs else ''}self.training:"]
        lines += [f'    return self.unserved("the passes are for {modes[0]} mode")']
    for mode, program in programs.items():
        used = [*named_sizes(program, " ".join(program.conditions))]
        tests = list(dict.fromkeys(program.conditions))
        if not tests:
            continue
        # One after another: a later one may divide by what an earlier one says is not 0.
        own = [*used, "if not (", *(f"    {'and ' if at else ''}({one})" for at, one in enumerate(tests)), "):"]
        own.append('    return self.unserved("the passes are not for these sizes")')
        if mode and len(programs) > 1:
            lines += [f"if {'' if mode == 'train' else 'not '}self.training:", *(f"    {one}" for one in own)]
        else:
            lines += own
    return lines


def named_sizes(program: Program, text: str) -> list[str]:
    """Return the statements that give the sizes which a text has their names."""
    by_argument: dict[str, dict[int, str]] = {}
    for size, (argument, at) in program.sizes.items():
        if re.search(rf"\b{size}\b", text):
            by_argument.setdefault(argument, {})[at] = size
    lines = []
    for argument, names in by_argument.items():
        taken = [names.get(at, "_") for at in range(program.dimensions[argument])]
        lines.append(f"{', '.join(taken)}{',' if len(taken) == 1 else ''} = {argument}.shape")
    return lines


def body_lines(programs: Mapping[str, Program]) -> list[str]:
    """Return the statements of a forward by these programs."""
    made = {mode: [*named_sizes(one, "\n".join(one.lines)), *one.lines] for mode, one in programs.items()}
    if len(made) == 1:
        return next(iter(made.values()))
    return ["if self.training:", *(f"    {one}" for one in made["train"]), *made["eval"]]


def is_index(value: object) -> bool:
    """Return whether an input is positions, classes or a mask."""
    return isinstance(value, torch.Tensor) and not value.dtype.is_floating_point


def ready_lines(programs: Sequence[Program]) -> list[str]:
    """Return the lines of the method that builds the products between passes; none where there are none."""
    products = dict.fromkeys(one for program in programs for one in program.products)
    if not products:
        return []
    known = dict.fromkeys(size for program in programs for size in program.sizes)
    used = [size for size in known if any(re.search(rf"\b{size}\b", one) for one in products)]
    sizes = f"{', '.join(used)}{',' if len(used) == 1 else ''} = "
    return [
        "@classmethod",
        "def make_ready(cls, plan: Plan) -> None:",
        "    super().make_ready(plan)",
        *([f"    {sizes}(plan.problem.axes[one] for one in {listed(used)})"] if used else []),
        *(f"    loops.make_product(plan, {one})" for one in products),
    ]
