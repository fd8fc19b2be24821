"""The texts of a new kernel's folder: a `model.py` that is a kernel of a block, or one to be written by hand."""

from __future__ import annotations

import re
from textwrap import wrap

from tunebench.kernels.runtime.attributes import structure_of
from tunebench.studies.writing.loops.around import PassesAround
from tunebench.studies.writing.loops.lower import GIVEN
from tunebench.studies.writing.loops.texts import plain_text, taken_text
from tunebench.studies.writing.new.core import Core
from tunebench.studies.writing.new.trace import Traced
from tunebench.studies.writing.new.values import Computed
from tunebench.tuner.reference import DTYPES

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
    model = _BY_HAND.format(
        name=name,
        why="\n".join(why),
        taken=taken_text(traced.names, traced.inputs, traced.defaults),
        plan=traced.free("plan"),
    )
    return {"model.py": model, f"{name}.cu": _SOURCE.format(name=name)}


def model_text(name: str, traced: Traced, core: Core, source: str, around: PassesAround | None = None) -> str:
    """The text of `model.py` with a kernel of a block.

    Args:
        source: what it is made from.
        around: the passes that do what torch did around the block.
    """
    lines = [
        f'"""{name}: a first kernel, made from {source} by `tunebench new` (docs/blocks.md)."""',
        "",
    ]
    body = [line for key, value in core.attributes for line in _attribute(key, value)]
    methods = _methods(traced, core, around)
    body += around.attributes if around is not None else ()
    if around is None and (structure := structure_of(traced.model)):
        body += _attribute("written_for", structure)
    body += [] if len(traced.dtypes) == len(DTYPES) else [f"dtypes = {plain_text(traced.dtypes)}"]
    used = "\n".join([*body, *methods])
    if re.search(r"\bmath\.", used):
        lines += ["import math", ""]
    if methods:
        lines += ["import torch", ""]
    lines.append(f"from tunebench import {'Plan, Problem, ' if methods else ''}blocks")
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


def _methods(traced: Traced, core: Core, around: PassesAround | None) -> list[str]:
    """Return the methods of a block with passes around it, or that does not read all of its arguments."""
    names, plan = list(traced.names), traced.free("plan")
    taken = taken_text(names, traced.inputs, traced.defaults)
    read = [name for name in names[1:] if core.reads(name)]
    places = {} if around is None else around.given
    given = ", ".join(places.get(name, name) for name in [names[0], *read])
    problem, front, made = [f"return super().problem({given})"], [], f"super().tuned_forward({plan}, {given})"
    behind = [f"return {made}"]
    if around is not None:
        problem = [line.replace("{given}", given) for line in around.problem]
        front, behind = list(around.front), [f"{GIVEN} = {made}", *around.after] if around.after else behind
    elif given == ", ".join(names):
        return []
    return [
        "",
        f"def problem(self, {taken}) -> Problem | None:",
        *(f"    {line}" for line in problem),
        "",
        f"def tuned_forward(self, {plan}: Plan, {taken}) -> torch.Tensor:",
        *(f"    {line}" for line in (*front, *behind)),
        *(["", *around.ready] if around is not None and around.ready else []),
    ]
