"""A kernel's source in Triton, as its Python text has it: nothing of it runs here, and Triton need not be installed.

A Triton source is what the `@triton.jit` functions of a file need of that file. Functions that no other one of them
names can be launched. What a launch takes is read from their parameters:

| parameter | what it takes |
| --- | --- |
| `x` | a tensor of the problem's dtype |
| `x: tl.pointer_type(tl.int64)`, `x: "*i64"` | a tensor of that dtype |
| `n: tl.int32`, `n: int`, `eps: tl.float32` | a number |
| `block_size: tl.constexpr` | nothing: the tunable, compiled axis or compiled option of that name |
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tunebench.tuner.configuration import Configuration
from tunebench.tuner.errors import KernelFolderError
from tunebench.tuner.problem import Problem
from tunebench.tuner.running_text import names_bound_by, running_text
from tunebench.tuner.signature import Kind, Parameter, Signature
from tunebench.tuner.space import SearchSpace

OPTIONS = ("num_warps", "num_stages", "maxnreg")
"""Tunables that are Triton's own: how many warps a program has, how deep loops are pipelined, and at most how many
registers a thread has (0: as many as Triton likes)."""

DIVISOR = 16
"""Addresses (in bytes) and integers that are divisible by this let Triton load and store vectors."""

_TYPES = {
    "bool": Kind.BOOL,
    "int1": Kind.BOOL,
    "int": Kind.INT32,
    "float": Kind.FLOAT,
    "float16": Kind.HALF,
    "bfloat16": Kind.BFLOAT16,
    "float32": Kind.FLOAT,
    "float64": Kind.DOUBLE,
    "i1": Kind.BOOL,
    "fp16": Kind.HALF,
    "bf16": Kind.BFLOAT16,
    "fp32": Kind.FLOAT,
    "fp64": Kind.DOUBLE,
    **{f"int{kind.bytes * 8}": kind for kind in (Kind.INT8, Kind.INT16, Kind.INT32, Kind.INT64)},
    **{f"uint{kind.bytes * 8}": kind for kind in (Kind.UINT8, Kind.UINT16, Kind.UINT32, Kind.UINT64)},
    **{f"i{kind.bytes * 8}": kind for kind in (Kind.INT8, Kind.INT16, Kind.INT32, Kind.INT64)},
    **{f"u{kind.bytes * 8}": kind for kind in (Kind.UINT8, Kind.UINT16, Kind.UINT32, Kind.UINT64)},
}
_SPELT = {
    Kind.BOOL: "i1",
    Kind.INT8: "i8",
    Kind.INT16: "i16",
    Kind.INT32: "i32",
    Kind.INT64: "i64",
    Kind.UINT8: "u8",
    Kind.UINT16: "u16",
    Kind.UINT32: "u32",
    Kind.UINT64: "u64",
    Kind.HALF: "fp16",
    Kind.BFLOAT16: "bf16",
    Kind.FLOAT: "fp32",
    Kind.DOUBLE: "fp64",
}
_NUMBERS = tuple(kind for kind in _SPELT if kind not in (Kind.HALF, Kind.BFLOAT16))
_LEGAL = "a name of triton.language's such as tl.int32 or tl.float32, tl.pointer_type(…) of one, or tl.constexpr"

_POINTER = re.compile(r"(?:\w+\.)*pointer_type\((?P<type>.*)\)|\*(?P<short>.*)", re.DOTALL)
_TUNERS = ("autotune", "heuristics")


@dataclass(frozen=True)
class TritonParameter:
    """A parameter as the text has it.

    Attributes:
        annotation: its text; empty where there is none.
        line: where it stands in the file.
    """

    name: str
    annotation: str
    has_default: bool
    line: int

    @property
    def is_constexpr(self) -> bool:
        """Whether its value is a constant of the binary."""
        return "constexpr" in self.annotation


@dataclass(frozen=True)
class TritonFunction:
    """A function that can be launched."""

    name: str
    parameters: tuple[TritonParameter, ...]

    @property
    def constexprs(self) -> tuple[TritonParameter, ...]:
        """The parameters that are constants of the binary."""
        return tuple(one for one in self.parameters if one.is_constexpr)


@dataclass(frozen=True)
class TritonSource:
    """The text of a file's Triton functions.

    Attributes:
        name: the kernel's, for messages and build folders.
        file: the name of the file.
        text: what they need of it; every other line is empty, so that lines keep their numbers.
        entry_points: the functions that can be launched, by name.
    """

    name: str
    file: str
    text: str = field(repr=False)
    entry_points: Mapping[str, TritonFunction]

    @classmethod
    def read(cls, name: str, path: Path, text: str) -> TritonSource | None:
        """Return the Triton source in a file; None where it has no `@triton.jit` function.

        Raises:
            KernelFolderError: a function needs what is not in this file, or has a parameter that nothing can be
                given.
        """
        try:
            tree = ast.parse(text)
        except SyntaxError:
            return None  # whoever imports it says so
        functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef) and _is_triton(one)}
        if not functions:
            return None
        for function in functions.values():
            _require_untuned(function, path)
        needed = _needed(tree, functions, path)
        inner = {name for one in functions.values() for name in _names_in(one) if name != one.name}
        entry_points = {
            name: TritonFunction(name, tuple(_parameters(function)))
            for name, function in functions.items()
            if name not in inner
        }
        for entry_point in entry_points.values():
            for parameter in entry_point.parameters:
                _require_known_type(parameter, path)
        return cls(name, path.name, _only(text, needed), entry_points)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what of it runs."""
        return hashlib.sha256(json.dumps(["triton", running_text(self.text)]).encode()).hexdigest()

    def signatures(self, dtype: str) -> dict[str, Signature]:
        """Return the signatures of its entry points where tensors hold this dtype, by name."""
        scalar = _TYPES[dtype]
        return {
            name: Signature(name, tuple(_parameter(one, scalar) for one in function.parameters if not one.is_constexpr))
            for name, function in self.entry_points.items()
        }

    def constants(
        self,
        space: SearchSpace,
        configuration: Configuration,
        problem: Problem,
        axes: Mapping[str, int],
        options: Mapping[str, str],
    ) -> str:
        """Return all that fixes a variant in addition to the source, as JSON: types, constants, known divisibility.

        An integer parameter that has the name of an axis of the problem is divisible where the axis is.

        Args:
            axes, options: compiled in, by name.
        """
        values: dict[str, object] = {f"{name}_option": value for name, value in options.items()}
        values |= axes
        values |= {one.name: space.value_in(configuration, one.name) for one in space.tunables}
        functions = {}
        for name, signature in self.signatures(problem.dtype).items():
            given = self.entry_points[name].constexprs
            functions[name] = {
                "types": {one.name: type_of(one) for one in signature.parameters},
                "constants": {one.name: values[one.name] for one in given if one.name in values},
                "divisible": [
                    one.name
                    for one in signature.parameters
                    if one.kind is not None and one.kind.is_integer and problem.axes.get(one.name, 1) % DIVISOR == 0
                ],
            }
        given_options = {name: values[name] for name in OPTIONS if name in space.names and values[name] != 0}
        return json.dumps({"dtype": problem.dtype, "options": given_options, "functions": functions}, sort_keys=True)

    def require_constants(self, space: SearchSpace, known: Collection[str], *, alone: bool) -> None:
        """Refuse a space that does not fit the functions' constants.

        Args:
            known: what else may be a constant, by name, such as compiled axes.
            alone: there is no other source that a tunable could be of.

        Raises:
            KernelFolderError: a constant has no value, or a tunable is none.
        """
        constants = {one.name for function in self.entry_points.values() for one in function.constexprs}
        for function in self.entry_points.values():
            for one in function.constexprs:
                if not (one.name in space.names or one.name in known or one.has_default):
                    legal = ", ".join([*space.names, *known]) or "none"
                    raise KernelFolderError(
                        f"{self.file}:{one.line}: constexpr '{one.name}' of {function.name} has no value: it is no "
                        f"tunable, compiled axis or compiled option (these are {legal}), and has no default"
                    )
        for tunable in space.tunables if alone else ():
            if not tunable.host and tunable.name not in (*constants, *OPTIONS):
                raise KernelFolderError(
                    f"tunable '{tunable.name}': {self.file} has no constexpr of that name (it has "
                    f"{', '.join(sorted(constants)) or 'none'}; Triton's own are {', '.join(OPTIONS)}); where the "
                    "launch alone uses it, say host=True"
                )


def type_of(parameter: Parameter) -> str:
    """Return a parameter's type as Triton spells it."""
    if parameter.kind is Kind.POINTER:
        assert parameter.pointee is not None
        return f"*{_SPELT[parameter.pointee]}"
    assert parameter.kind is not None
    return _SPELT[parameter.kind]


def _parameter(one: TritonParameter, scalar: Kind) -> Parameter:
    pointee, kind = _kinds(one.annotation)
    if pointee is None and kind is None:
        return Parameter(one.name, f"*{_SPELT[scalar]}", Kind.POINTER, scalar)
    if pointee is not None:
        return Parameter(one.name, f"*{_SPELT[pointee]}", Kind.POINTER, pointee)
    assert kind is not None
    return Parameter(one.name, _SPELT[kind], kind)


def _kinds(annotation: str) -> tuple[Kind | None, Kind | None]:
    """Return the types that a pointer points to and that a number has: at most one of them, None for the other."""
    text = annotation.strip("'\" ")
    if (pointer := _POINTER.fullmatch(text)) is not None:
        return _TYPES.get(_last(pointer["type"] or pointer["short"])), None
    return None, _TYPES.get(_last(text))


def _last(text: str) -> str:
    return text.strip("'\" ").rpartition(".")[2].removeprefix("const ").strip()


def _require_known_type(parameter: TritonParameter, path: Path) -> None:
    if parameter.is_constexpr or not parameter.annotation:
        return
    pointee, kind = _kinds(parameter.annotation)
    if pointee is None and kind not in _NUMBERS:
        raise KernelFolderError(
            f"{path}:{parameter.line}: parameter '{parameter.name}: {parameter.annotation}' cannot be given an "
            f"argument: annotate it as {_LEGAL}"
        )


def _is_triton(function: ast.FunctionDef) -> bool:
    return any(_decorator(one).split(".")[-1] == "jit" for one in function.decorator_list)


def _decorator(node: ast.expr) -> str:
    return ast.unparse(node.func if isinstance(node, ast.Call) else node)


def _require_untuned(function: ast.FunctionDef, path: Path) -> None:
    for one in function.decorator_list:
        if _decorator(one).split(".")[-1] in _TUNERS:
            raise KernelFolderError(
                f"{path}:{one.lineno}: @{_decorator(one)}: tunables take its place; leave it out, and name its "
                "parameters in the search space"
            )


def _parameters(function: ast.FunctionDef) -> Iterator[TritonParameter]:
    positional = [*function.args.posonlyargs, *function.args.args]
    first_default = len(positional) - len(function.args.defaults)
    defaults = [at >= first_default for at in range(len(positional))]
    defaults += [one is not None for one in function.args.kw_defaults]
    for argument, has_default in zip([*positional, *function.args.kwonlyargs], defaults, strict=True):
        annotation = "" if argument.annotation is None else ast.unparse(argument.annotation)
        yield TritonParameter(argument.arg, annotation, has_default, argument.lineno)


def _needed(tree: ast.Module, functions: Mapping[str, ast.FunctionDef], path: Path) -> list[ast.stmt]:
    """Return the statements of a file that its Triton functions need, directly or through others."""
    binding: dict[str, list[ast.stmt]] = {}
    for statement in tree.body:
        for name in names_bound_by(statement):
            binding.setdefault(name, []).append(statement)
    needed: list[ast.stmt] = []
    waiting: list[ast.stmt] = list(functions.values())
    while waiting:
        statement = waiting.pop()
        if statement in needed:
            continue
        if isinstance(statement, ast.ImportFrom) and statement.level:
            names = ", ".join(one.name for one in statement.names)
            raise KernelFolderError(
                f"{path}:{statement.lineno}: a Triton function uses {names} of another file: write it in this one"
            )
        needed.append(statement)
        waiting += [one for name in _names_in(statement) for one in binding.get(name, ())]
    return [one for one in tree.body if one in needed or _is_future(one)]


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def _names_in(statement: ast.stmt) -> set[str]:
    """Return the names that a statement takes from its module."""
    names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
    own = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    if isinstance(statement, ast.FunctionDef):
        own |= {node.arg for node in ast.walk(statement) if isinstance(node, ast.arg)}
    return {node.id for node in names if isinstance(node.ctx, ast.Load)} - own


def _only(text: str, statements: list[ast.stmt]) -> str:
    kept: set[int] = set()
    for one in statements:
        decorators = one.decorator_list if isinstance(one, ast.FunctionDef | ast.ClassDef) else []
        start = min([one.lineno, *(node.lineno for node in decorators)])
        kept |= set(range(start, (one.end_lineno or one.lineno) + 1))
    lines = (line if number in kept else "" for number, line in enumerate(text.splitlines(), 1))
    return "\n".join(lines).rstrip() + "\n"
