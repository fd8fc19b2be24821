"""Writes the folder of a new kernel: its reference, and a `model.py` that runs at once."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

import torch

from tunebench.studies.new.core import Core
from tunebench.studies.new.draft import BLOCKS, draft
from tunebench.studies.new.samples import SAMPLES
from tunebench.studies.new.trace import Traced, trace
from tunebench.studies.new.values import Computed
from tunebench.tuner.errors import KernelFolderError, UnknownNameError, UserError
from tunebench.tuner.isolation import start_forkserver
from tunebench.tuner.reference import load_reference
from tunebench.tuner.watched import watched

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_WIDTH = 100


@dataclass(frozen=True)
class NewKernel:
    """A folder that was written.

    Attributes:
        block: the class of `tunebench.blocks` that the kernel is.
        left: the operations that torch still does, which the kernel's text does not have; empty where it has all.
    """

    folder: Path
    block: str
    left: tuple[str, ...]


def write_new(folder: Path, problem: Path | None, block: str | None) -> NewKernel:
    """Write the folder of a new kernel.

    Args:
        folder: must not be there yet; its name is the kernel's.
        problem: a file in KernelBench's form; None for a sample of the block.
        block: of `BLOCKS`; None for the one that the problem's layers and operations propose.

    Raises:
        UserError: the folder is there, its name cannot be a kernel's, or the problem cannot be read or run.
        UnknownNameError: there is no such block.
    """
    if block is not None and block not in BLOCKS:
        raise UnknownNameError("block", block, BLOCKS)
    if not _NAME.fullmatch(folder.name):
        raise UserError(
            f"'{folder.name}' cannot be a kernel's name: letters, digits and underscores, such as my_kernel"
        )
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{folder} is there already: name a folder that is not")
    text = _text_of(problem, block)
    folder.mkdir(parents=True)
    try:
        (folder / "reference.py").write_text(text, encoding="utf-8")
        traced = trace(load_reference(folder / "reference.py"))
        core = draft(traced, block)
        (folder / "model.py").write_text(model_text(folder.name, traced, core, problem), encoding="utf-8")
    except BaseException:
        for file in ("reference.py", "model.py"):
            (folder / file).unlink(missing_ok=True)
        folder.rmdir()
        raise
    return NewKernel(folder, core.block, core.left)


def _text_of(problem: Path | None, block: str | None) -> str:
    if problem is None:
        return SAMPLES[block or "pointwise"]
    start_forkserver([__name__])
    watched(problem, "tracing it", _try, problem)  # says what is wrong with it, before anything is written
    try:
        return problem.read_text(encoding="utf-8")
    except OSError as error:
        raise KernelFolderError(f"{problem}: cannot read it: {error}") from error


def _try(problem: Path) -> None:
    """Run a problem's file and its model; what cannot be traced is told where it is traced again."""
    reference = load_reference(problem)
    with contextlib.suppress(Exception):
        trace(reference)


def model_text(name: str, traced: Traced, core: Core, problem: Path | None) -> str:
    """The text of `model.py`."""
    source = "a sample" if problem is None else problem.name
    unread = [name for name in traced.names[1:] if not core.reads(name)]
    # A block serves no call with a tensor that it does not read.
    has_methods = bool(core.before or core.after or unread)
    lines = [
        f'"""{name}: a first kernel, made from {source} by `tunebench new` (docs/blocks.md)."""',
        "",
    ]
    body = [line for key, value in core.attributes for line in _attribute(key, value)]
    methods = _methods(traced, core) if has_methods else []
    used = "\n".join([*body, *methods])
    if re.search(r"\bmath\.", used):
        lines += ["import math", ""]
    if has_methods:
        lines.append("import torch")
        if re.search(r"\bnn\.", used):
            lines.append("from torch import nn")
        lines.append("")
    lines.append(
        f"from tunebench import {'Plan, Problem, ' if 'Problem' in used else 'Plan, ' if has_methods else ''}blocks"
    )
    lines += ["", "from .reference import Model", "", ""]
    lines.append(f"class ModelNew(blocks.{core.block}, Model):")
    lines += [f"    {line}" for line in [*body, *methods]]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _attribute(key: str, value: object) -> list[str]:
    if isinstance(value, Computed):
        return ["", "@property", f"def {key}(self) -> float:", f"    return {_unwrapped(value.expression)}"]
    if isinstance(value, str) and "; " in value:
        statements = [f"{part};" if not part.endswith(";") else part for part in value.split("; ")]
        return [f'{key} = """', *(f"    {one}" for one in statements), '"""']
    text = f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {_plain(value)}"
    if len(text) <= _WIDTH or not isinstance(value, dict):
        return [text]
    return [f"{key} = {{", *(f'    "{name}": {_plain(one)},' for name, one in value.items()), "}"]


def _unwrapped(expression: str) -> str:
    """Without parentheses around all of it."""
    depth = 0
    for at, letter in enumerate(expression):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return expression[1:-1] if letter == ")" and at == len(expression) - 1 and at else expression
    return expression


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{name}": {_plain(one)}' for name, one in value.items()) + "}"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return "(" + ", ".join(f'"{one}"' for one in value) + (",)" if len(value) == 1 else ")")
    return repr(value)


def _methods(traced: Traced, core: Core) -> list[str]:
    """What stays torch's, around the block's own forward."""
    names = list(traced.names)
    types = ["torch.Tensor" if isinstance(value, torch.Tensor) else "float" for value in traced.inputs]
    types += ["object"] * (len(names) - len(types))  # what get_inputs() leaves out
    defaults = [f" = {traced.defaults[name]!r}" if name in traced.defaults else "" for name in names]
    taken = ", ".join(f"{name}: {kind}{default}" for name, kind, default in zip(names, types, defaults, strict=True))
    passed = ", ".join(names)
    given = ", ".join(["before" if core.before else names[0], *(name for name in names[1:] if core.reads(name))])
    why = f" ({core.reason})" if core.reason else ""
    told = f"TODO: torch still does what the kernel has no text for: {', '.join(core.left)}{why}."
    lines = ["", *(f"# {line}" for line in (wrap(told, 110) if core.left else ()))]
    if core.before:
        lines += [f"def before(self, {taken}) -> torch.Tensor:", *(f"    {line}" for line in core.before), ""]
    before = [f"    before = self.before({passed})"] if core.before else []
    if given != passed:
        lines.append(f"def problem(self, {taken}) -> Problem | None:")
        if core.before:
            lines.append(f"    before = self.foreseen(self.before, {passed})")
            lines.append(f"    return None if before is None else super().problem({given})")
        else:
            lines.append(f"    return super().problem({given})")
        lines.append("")
    lines += [f"def tuned_forward(self, plan: Plan, {taken}) -> torch.Tensor:", *before]
    if core.after:
        return [*lines, f"    value = super().tuned_forward(plan, {given})", *(f"    {line}" for line in core.after)]
    return [*lines, f"    return super().tuned_forward(plan, {given})"]
