"""Passes around a block: they make what it is given, and what becomes of its value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx, nn

from tunebench.studies.writing.loops.lower import GIVEN, UnloweredError
from tunebench.studies.writing.loops.program import Program, source_of
from tunebench.studies.writing.loops.texts import (
    axes_of,
    body_lines,
    checks_of_numbers,
    checks_of_sizes,
    is_index,
    listed,
    named_sizes,
    numbers_lines,
    plain_text,
    ready_lines,
    served_numbers,
    space_parts,
)
from tunebench.studies.writing.loops.write import programs_of
from tunebench.studies.writing.new.named_numbers import plain
from tunebench.studies.writing.new.trace import Traced

_BEFORE = ("before", "other_before")
"""The names of the values that passes make in front of a block."""


@dataclass(frozen=True)
class PassesAround:
    """Additions to a kernel of a block, so that passes do what torch did behind it and in front of it.

    Attributes:
        head: statements of the module: the space of the passes, and the numbers that they were written for.
        attributes: lines of the class.
        problem: the body of its method `problem`, in which `{given}` are the arguments that the block takes.
        given: the names of what the block is given in the place of arguments of `forward`.
        front: the statements in front of the block's own forward, that make what it is given.
        after: the statements behind the block's own forward, by which the value is `value`; nothing where it is the
            result.
        ready: the lines of a method that builds the products between the passes, if there are any.
        source: CUDA C++ that stands behind the block's.
    """

    head: tuple[str, ...]
    attributes: tuple[str, ...]
    problem: tuple[str, ...]
    given: Mapping[str, str]
    front: tuple[str, ...]
    after: tuple[str, ...]
    ready: tuple[str, ...]
    source: str


def passes_around(
    traced: Traced, given: Mapping[str, str], last: str, layout: torch.memory_format | None = None
) -> PassesAround:
    """Write what a traced model does around a block as passes.

    Args:
        given: the nodes whose values the block is given in the place of arguments, by the names of both.
        last: the node whose value it makes; nothing where that is the result.
        layout: how the block is given these values; None for as torch lays them out.

    Raises:
        UnloweredError: something of it is no loop nest.
    """
    assert traced.graph is not None
    if taken := [name for name in traced.names if name in (GIVEN, "plan")]:
        raise UnloweredError(f"the argument '{taken[0]}', whose name means something else in it")
    inputs = dict(zip(traced.names, traced.inputs, strict=False))
    programs = programs_of(lambda training: _part(traced, training, mark=last), inputs) if last else {}
    modes = [mode for mode in programs if mode]
    front = _front(traced, [*given.values()], inputs, layout) if given else None
    before = dict(zip(given, map(traced.free, _BEFORE), strict=False))
    every = [*([front] if front else []), *programs.values()]
    passes = [one for program in every for one in program.passes]
    sizes = tuple(dict.fromkeys(size for program in every for size in program.sizes))
    parts = space_parts(passes, every, is_alone=False)
    space = ["SPACE = loops.space(", *(f"    {one}" for one in parts), ")"] if parts else ["SPACE = loops.space()"]
    head = [*space, "", *numbers_lines(traced.model)]
    told = f"sizes={listed(sizes)}" + (f", modes={listed(modes)}" if len(modes) > 1 else "")
    checks = [checks_of_sizes({"": front}, ("eval",))] if front else []
    behind = checks_of_sizes(programs, modes or ["eval"])
    checks += [] if behind in checks else [behind]
    indices, axes = [name for name, value in inputs.items() if is_index(value)], axes_of(inputs)
    of_indices = f", indices={listed(indices)}" if indices else ""
    problem = [
        *checks_of_numbers(inputs),
        f"if not loops.takes(self, {plain_text(axes)}, {', '.join(axes)}{of_indices}):",
        "    return None",
        *(line for lines in checks for line in lines),
    ]
    places = {size: place for program in every for size, place in program.sizes.items()}
    named = ", ".join(f"{size}={argument}.shape[{at}]" for size, (argument, at) in places.items())
    if front:
        for name, made in zip(before.values(), front.results, strict=True):
            problem += [*named_sizes(front, made), f"{name} = {made}"]
    is_read = "" if last else ", is_read=False"
    problem.append(f"return loops.sized(self, super().problem({{given}}){is_read}, {named})")
    return PassesAround(
        tuple(head),
        (f"passes = blocks.Passes(SPACE, {told})",),
        tuple(problem),
        before,
        (*served_numbers(inputs), *(_made_by(front, ", ".join(before.values())) if front else ())),
        tuple(body_lines(programs)) if last else (),
        tuple(ready_lines(every)),
        source_of(every, is_alone=False),
    )


def _front(
    traced: Traced, given: Sequence[str], inputs: Mapping[str, Any], layout: torch.memory_format | None
) -> Program:
    """The program of what a block is given.

    Raises:
        UnloweredError: it is no loop nests, or not the same ones in both modes.
    """
    programs = programs_of(partial(_part, traced, ends=given, layout=layout), inputs)
    if "" not in programs:
        raise UnloweredError("what is in front of a product and another in train mode")
    return programs[""].renamed("front")


def _made_by(program: Program, names: str) -> list[str]:
    """Statements by which names are the results of a program."""
    *lines, result = body_lines({"": program})
    return [*lines, result.replace("return", f"{names} =", 1)]


def _part(
    traced: Traced,
    training: bool,
    *,
    mark: str = "",
    ends: Sequence[str] = (),
    layout: torch.memory_format | None = None,
) -> nn.Module:
    """A part of a traced model in a mode.

    Args:
        mark: a node whose value is marked as made by a block.
        ends: the nodes whose values are the results; none where these are the model's.
        layout: of the results; None for that of those values.
    """
    assert traced.graph is not None
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    result = graph.graph_copy(traced.graph, copies)
    for node, copy in copies.items():
        copy.args = fx.node.map_aggregate(copy.args, plain)  # sizes that are unknown divide by no others
        copy.kwargs = fx.node.map_aggregate(copy.kwargs, plain)
        for place in node.meta.get("training", ()) if training else ():
            at: Any = place
            if isinstance(at, int):
                copy.update_arg(at, not copy.args[at])
            else:
                copy.update_kwarg(at, not copy.kwargs[at])
    by_name = {node.name: copy for node, copy in copies.items()}
    if ends:
        made = [by_name[end] for end in ends]
        if layout is not None:
            made = [graph.call_method("contiguous", (one,), {"memory_format": layout}) for one in made]
        result = tuple(made) if len(made) > 1 else made[0]
    graph.output(result)
    if mark:
        value = by_name[mark]
        with graph.inserting_after(value):
            marked = graph.call_function(torch.ops.tunebench_new.made_by_a_block.default, (value,))
        value.replace_all_uses_with(marked, delete_user_cb=lambda user: user is not marked)
    module = fx.GraphModule(traced.model, graph)
    if ends:
        graph.eliminate_dead_code()  # statistics that a later layer moves
        module.recompile()
    for name in [name for name in module._buffers if name not in dict(traced.model.named_buffers())]:
        setattr(module, name, module._buffers.pop(name))  # a tensor that forward makes is none of the model's
    module.train(training)
    return module
