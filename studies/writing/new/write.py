"""The texts of a new kernel's folder: a `model.py` that is a kernel of a block, or one to be written by hand."""

from __future__ import annotations

import re
from textwrap import wrap

import torch

from tunebench.studies.writing.loops.lower import GIVEN
from tunebench.studies.writing.loops.write import PassesAround, plain_text
from tunebench.studies.writing.new.core import Core
from tunebench.studies.writing.new.trace import Traced
from tunebench.studies.writing.new.values import Computed

_WIDTH = 100

_BY_HAND = '''"""{name}: a kernel to be written by hand (docs/writing_kernels.md).

{why}
"""

import torch

from tunebench import Kernel, Plan, Problem, SearchSpace, Tunable, TunedModule

from .reference import Model

SPACE = SearchSpace((Tunable("block_size", (64, 128, 256, 512, 1024), default=256),))


class ModelNew(TunedModule, Model):
    kernel = Kernel.declare(__file__, SPACE)

    def problem(self, {taken}) -> Problem | None:
        return self.unserved("TODO: the kernel is not written yet")  # until then the reference serves

    def tuned_forward(self, {plan}: Plan, {taken}) -> torch.Tensor:
        raise NotImplementedError("TODO: launch the kernel of {name}.cu, by {plan}.launch")
'''

_SOURCE = """// TODO: this copies x; what the kernel has to compute is in reference.py.
extern "C" __global__ void __launch_bounds__(block_size)
    {name}(const scalar_t* x, scalar_t* y, long long elements) {{
    const long long i = blockIdx.x * static_cast<long long>(block_size) + threadIdx.x;
    if (i < elements) {{
        y[i] = x[i];
    }}
}}
"""


def texts_by_hand(name: str, traced: Traced, reason: str, source: str) -> dict[str, str]:
    """The files of a kernel that is to be written by hand, by their names.

    Args:
        reason: why no block is made of the problem, of one line.
        source: what it was made from.
    """
    why = wrap(f"Made from {source} by `tunebench new`, which has no kernel for it: {reason}.", 110)
    model = _BY_HAND.format(name=name, why="\n".join(why), taken=_taken(traced), plan=traced.free("plan"))
    return {"model.py": model, f"{name}.cu": _SOURCE.format(name=name)}


def model_text(name: str, traced: Traced, core: Core, source: str, around: PassesAround | None = None) -> str:
    """The text of `model.py` with a kernel of a block.

    Args:
        source: what it is made from.
        around: the passes that do what torch did around the block.
    """
    unread = [name for name in traced.names[1:] if not core.reads(name)]
    # A block serves no call with a tensor that it does not read.
    has_methods = bool(core.before or core.after or unread)
    lines = [
        f'"""{name}: a first kernel, made from {source} by `tunebench new` (docs/blocks.md)."""',
        "",
    ]
    body = [line for key, value in core.attributes for line in _attribute(key, value)]
    if around is not None:
        methods = _methods_with_passes(traced, core, around)
        body += around.attributes
    else:
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
    lines += ["from tunebench.kernels.blocks import loops"] if around is not None else []
    lines += ["", "from .reference import Model", ""]
    lines += ["", *around.head] if around is not None else []
    lines += ["", ""] if around is not None else [""]
    lines.append(f"class ModelNew(blocks.{core.block}, Model):")
    lines += [f"    {line}" for line in [*body, *methods]]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _attribute(key: str, value: object) -> list[str]:
    if isinstance(value, Computed):
        return ["", "@property", f"def {key}(self) -> float:", f"    return {_unwrapped(value.expression)}"]
    if isinstance(value, str) and "; " in value:
        statements = [f"{part};" if not part.endswith(";") else part for part in value.split("; ")]
        return [f'{key} = """', *(f"    {one}" for one in statements), '"""']
    text = f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {plain_text(value)}"
    if len(text) <= _WIDTH or not isinstance(value, dict):
        return [text]
    return [f"{key} = {{", *(f'    "{name}": {plain_text(one)},' for name, one in value.items()), "}"]


def _unwrapped(expression: str) -> str:
    """Without parentheses around all of it."""
    depth = 0
    for at, letter in enumerate(expression):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return expression[1:-1] if letter == ")" and at == len(expression) - 1 and at else expression
    return expression


def _taken(traced: Traced) -> str:
    """The arguments of `forward`, as a method's definition lists them."""
    types = ["torch.Tensor" if isinstance(value, torch.Tensor) else "float" for value in traced.inputs]
    types = [*types, *(["object"] * len(traced.names))][: len(traced.names)]  # what get_inputs() leaves out
    defaults = [f" = {traced.defaults[name]!r}" if name in traced.defaults else "" for name in traced.names]
    arguments = zip(traced.names, types, defaults, strict=True)
    return ", ".join(f"{name}: {kind}{default}" for name, kind, default in arguments)


def _methods_with_passes(traced: Traced, core: Core, around: PassesAround) -> list[str]:
    """Return the methods of a block with passes around it."""
    names, taken, before = list(traced.names), _taken(traced), traced.free("before")
    passed = ", ".join(names)
    given = ", ".join([before if core.before else names[0], *(name for name in names[1:] if core.reads(name))])
    *problem, result = [line.replace("{given}", given) for line in around.problem]
    lines, made = [""], []
    if core.before:
        lines += _before(traced, core)
        problem += [f"{before} = self.foreseen(self.before, {passed})", f"if {before} is None:", "    return None"]
        made = [f"    {line}" for line in around.front or [f"{before} = self.before({passed})"]]
    return [
        *lines,
        f"def problem(self, {taken}) -> Problem | None:",
        *(f"    {line}" for line in (*problem, result)),
        "",
        f"def tuned_forward(self, plan: Plan, {taken}) -> torch.Tensor:",
        *made,
        f"    {GIVEN} = super().tuned_forward(plan, {given})",
        *(f"    {line}" for line in around.after),
        *(["", *around.ready] if around.ready else []),
    ]


def _before(traced: Traced, core: Core) -> list[str]:
    """Return the method of the operations that stay torch's in front of a block."""
    return [f"def before(self, {_taken(traced)}) -> torch.Tensor:", *(f"    {line}" for line in core.before), ""]


def _methods(traced: Traced, core: Core) -> list[str]:
    """Return the methods of the operations that stay torch's, around the block's own forward."""
    names, taken = list(traced.names), _taken(traced)
    plan, before, value = traced.free("plan"), traced.free("before"), traced.free("value")
    passed = ", ".join(names)
    given = ", ".join([before if core.before else names[0], *(name for name in names[1:] if core.reads(name))])
    told = f"TODO: torch still does what the kernel has no text for: {', '.join(core.left)}."
    lines = ["", *(f"# {line}" for line in (wrap(told, 110) if core.left else ()))]
    if core.before:
        lines += _before(traced, core)
    if given != passed:
        lines.append(f"def problem(self, {taken}) -> Problem | None:")
        if core.before:
            lines.append(f"    {before} = self.foreseen(self.before, {passed})")
            lines.append(f"    return None if {before} is None else super().problem({given})")
        else:
            lines.append(f"    return super().problem({given})")
        lines.append("")
    lines.append(f"def tuned_forward(self, {plan}: Plan, {taken}) -> torch.Tensor:")
    if core.before:
        lines.append(f"    {before} = self.before({passed})")
    if core.after:
        lines.append(f"    {value} = super().tuned_forward({plan}, {given})")
        return [*lines, *(f"    {line}" for line in core.after)]
    return [*lines, f"    return super().tuned_forward({plan}, {given})"]
