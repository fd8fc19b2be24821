"""A model's passes as the folder of an ordinary kernel: a `.cu`, and a `model.py` that declares and launches them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx, nn

from tunebench.kernels.blocks.device_function import has_fast_form
from tunebench.kernels.runtime.attributes import attributes_of
from tunebench.studies.writing.loops.lower import GIVEN, UnloweredError, export, is_same, lower
from tunebench.studies.writing.loops.nest import Pass
from tunebench.studies.writing.loops.program import Program, ProgramWriter, source_of
from tunebench.studies.writing.new.dtypes import main_dtype
from tunebench.studies.writing.new.named_numbers import plain
from tunebench.studies.writing.new.trace import Traced
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
_BEFORE = ("before", "other_before")
"""What a block's values are called that are made in front of it."""
_FREE = 2
"""Upper limit of the passes over rows that are tuned each for itself."""


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
    return _written(name, model, inputs, defaults, source, _programs(model.train, inputs), dtypes)


def _programs(model_in: Callable[[bool], nn.Module], inputs: Mapping[str, Any]) -> dict[str, Program]:
    """The programs of a model by mode; one by the name of nothing where they are the same."""
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


def passes_around(traced: Traced, given: Mapping[str, str], last: str, *, is_laid_out: bool = False) -> PassesAround:
    """Write what a traced model does around a block as passes.

    Args:
        given: the nodes whose values the block is given in the place of arguments, by the names of both.
        last: the node whose value it makes; nothing where that is the result.
        is_laid_out: the block is given these values contiguous, however they lie.

    Raises:
        UnloweredError: something of it is no loop nest.
    """
    assert traced.graph is not None
    if taken := [name for name in traced.names if name in (GIVEN, "plan")]:
        raise UnloweredError(f"the argument '{taken[0]}', whose name means something else in it")
    inputs = dict(zip(traced.names, traced.inputs, strict=False))
    programs = _programs(lambda training: _part(traced, training, mark=last), inputs) if last else {}
    modes = [mode for mode in programs if mode]
    front = _front(traced, [*given.values()], inputs, is_laid_out) if given else None
    before = dict(zip(given, map(traced.free, _BEFORE), strict=False))
    every = [*([front] if front else []), *programs.values()]
    passes = [one for program in every for one in program.passes]
    sizes = tuple(dict.fromkeys(size for program in every for size in program.sizes))
    parts = _parts(passes, every, is_alone=False)
    space = ["SPACE = loops.space(", *(f"    {one}" for one in parts), ")"] if parts else ["SPACE = loops.space()"]
    head = [*space, "", *_numbers(traced.model)]
    told = f"sizes={_listed(sizes)}" + (f", modes={_listed(modes)}" if len(modes) > 1 else "")
    checks = dict.fromkeys(
        [*([tuple(_checks({"": front}, ("eval",)))] if front else []), tuple(_checks(programs, modes or ["eval"]))]
    )
    indices, axes = [name for name, value in inputs.items() if _is_index(value)], _axes(inputs)
    of_indices = f", indices={_listed(indices)}" if indices else ""
    problem = [
        *_checks_of_numbers(inputs),
        f"if not loops.takes(self, {plain_text(axes)}, {', '.join(axes)}{of_indices}):",
        "    return None",
        *(line for lines in checks for line in lines),
    ]
    places = {size: place for program in every for size, place in program.sizes.items()}
    named = ", ".join(f"{size}={argument}.shape[{at}]" for size, (argument, at) in places.items())
    if front:
        for name, made in zip(before.values(), front.results, strict=True):
            problem += [*_sizes(front, made), f"{name} = {made}"]
    behind = "" if last else ", is_read=False"
    problem.append(f"return loops.sized(self, super().problem({{given}}){behind}, {named})")
    return PassesAround(
        tuple(head),
        (f"passes = blocks.Passes(SPACE, {told})",),
        tuple(problem),
        before,
        (*_numbers_served(inputs), *(_made_by(front, ", ".join(before.values())) if front else ())),
        tuple(_body(programs)) if last else (),
        tuple(_ready(every)),
        source_of(every, is_alone=False),
    )


def _front(traced: Traced, given: Sequence[str], inputs: Mapping[str, Any], is_laid_out: bool) -> Program:
    """The program of what a block is given.

    Raises:
        UnloweredError: it is no loop nests, or not the same ones in both modes.
    """
    programs = _programs(partial(_part, traced, ends=given, is_laid_out=is_laid_out), inputs)
    if "" not in programs:
        raise UnloweredError("what is in front of a product and another in train mode")
    return programs[""].renamed("front")


def _made_by(program: Program, names: str) -> list[str]:
    """Statements by which names are the results of a program."""
    *lines, result = _body({"": program})
    return [*lines, result.replace("return", f"{names} =", 1)]


def _ready(programs: Sequence[Program]) -> list[str]:
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
        *([f"    {sizes}(plan.problem.axes[one] for one in {_listed(used)})"] if used else []),
        *(f"    loops.make_product(plan, {one})" for one in products),
    ]


def _part(
    traced: Traced, training: bool, *, mark: str = "", ends: Sequence[str] = (), is_laid_out: bool = False
) -> nn.Module:
    """A part of a traced model in a mode.

    Args:
        mark: a node whose value is marked as made by a block.
        ends: the nodes whose values are the results; none where these are the model's.
        is_laid_out: the results are contiguous, however those values lie.
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
        made = [graph.call_method("contiguous", (one,)) for one in made] if is_laid_out else made
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
    indices = [key for key, value in inputs.items() if _is_index(value)]
    modes = tuple(programs) if "" not in programs else ("eval",)
    axes = {key: names[0] if len(names) == 1 else names for key, names in _axes(inputs).items()}
    sizes = dict.fromkeys(size for program in programs.values() for size in program.sizes)
    declared = [f"axes={plain_text(axes)},", f"compiled_axes={_listed(sizes)},"]
    declared += [f"indices={_listed(indices)},"] if indices else []
    wide = _in_float32(model, dtypes)
    declared += [f"in_float32={_listed(wide)},"] if wide else []
    declared += [f"modes={_listed(modes)},"] if len(modes) > 1 else []
    declared.append(f"dtypes={_listed(dtypes)},")
    parts = _parts(passes, [*programs.values()], is_alone=True)
    body, ready = _body(programs), _ready([*programs.values()])
    text = _MODEL.format(
        name=name,
        count="a pass" if len(passes) == 1 else f"{len(passes)} passes",
        source=source,
        parts="\n".join(f"    {one}" for one in parts),
        numbers="\n".join(_numbers(model)),
        declared="\n".join(f"        {one}" for one in declared),
        taken=taken_text([*inputs], [*inputs.values()], defaults),
        passed=", ".join(inputs),
        checks="\n".join(f"        {one}" for one in (*_checks_of_numbers(inputs), *_checks(programs, modes))),
        returns=next(iter(programs.values())).returns,
        body="\n".join(f"        {one}" for one in (*_numbers_served(inputs), *body)),
        ready="".join(f"\n    {one}" for one in ("", *ready) if ready).replace("\n    \n", "\n\n", 1),
    )
    return Written(text, texts)


def _in_float32(model: nn.Module, dtypes: Sequence[str]) -> list[str]:
    """The parameters and buffers in float32 of a model that is for a half type alone."""
    if not {*dtypes} <= {"float16", "bfloat16"}:
        return []
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return [name for name, value in held.items() if value.dtype == torch.float32]


def _axes(inputs: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The names of the dimensions of each tensor among the inputs."""
    tensors = {key: value for key, value in inputs.items() if isinstance(value, torch.Tensor)}
    return {key: tuple(f"{key}_{at}" for at in range(value.dim())) for key, value in tensors.items()}


def _numbers(model: nn.Module) -> list[str]:
    """The statement that says what a model's attributes are."""
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


def _listed(names: Iterable[str]) -> str:
    return plain_text(tuple(names))


def _parts(passes: Sequence[Pass], programs: Sequence[Program], is_alone: bool) -> list[str]:
    """The parts of the space of passes, whose choices multiply with those of a block in front of them."""
    rows = [one for one in passes if one.reduced is not None]
    freely = "" if is_alone and len(rows) <= _FREE else ", freely=False"
    lines = ["loops.fast_math(),"] if has_fast_form([one.text for one in passes]) else []
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


def _numbers_served(inputs: Mapping[str, Any]) -> list[str]:
    """Return the statements in front of passes that leave calls with other numbers to the reference.

    Calls that differ in a floating-point number alone are served alike, without another look at `problem`, which an
    exported file does not have.
    """
    same = [f"loops.is_same({key}, {_number(value)})" for key, value in inputs.items() if _is_number(value)]
    if not same:
        return []
    return [f"if not ({' and '.join(same)}):", f"    return self.reference_forward({', '.join(inputs)})"]


def _checks_of_numbers(inputs: Mapping[str, Any]) -> Iterator[str]:
    """The statements that leave to the reference what has other numbers than the passes were written for."""
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


def _checks(programs: Mapping[str, Program], modes: Sequence[str]) -> list[str]:
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
        # One after another: a later one may divide by what an earlier one says is not 0.
        own = [*used, "if not (", *(f"    {'and ' if at else ''}({one})" for at, one in enumerate(tests)), "):"]
        own.append('    return self.unserved("the passes are not for these sizes")')
        if mode and len(programs) > 1:
            lines += [f"if {'' if mode == 'train' else 'not '}self.training:", *(f"    {one}" for one in own)]
        else:
            lines += own
    return lines


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


def _body(programs: Mapping[str, Program]) -> list[str]:
    made = {mode: [*_sizes(one, "\n".join(one.lines)), *one.lines] for mode, one in programs.items()}
    if len(made) == 1:
        return next(iter(made.values()))
    return ["if self.training:", *(f"    {one}" for one in made["train"]), *made["eval"]]


def _is_index(value: object) -> bool:
    return isinstance(value, torch.Tensor) and not value.dtype.is_floating_point
