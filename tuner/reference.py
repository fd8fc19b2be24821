"""A reference in KernelBench's form: a file that defines `Model`, `get_inputs()` and `get_init_inputs()`."""

from __future__ import annotations

import ast
import contextlib
import math
import symtable
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tunebench.tuner.errors import KernelFolderError, UnknownNameError, UserError
from tunebench.tuner.files import read_text
from tunebench.tuner.users_code import users_code

DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
"""The types that models and inputs may be converted to, by torch's names."""

REQUIRED = ("Model", "get_inputs", "get_init_inputs")


@dataclass(frozen=True)
class Reference:
    """A loaded reference.

    Attributes:
        path, text: the file, and what was in it when it was read, once.
        sizes: the file's numeric constants after any change; they are what a study may change.
        candidate: the file's `ModelNew`, where it has one.
        literals: numbers that have no name, in `get_inputs`, `get_init_inputs` and top-level tuples, by `literal_name`.
            Equal ones are one: the width of a layer is that of its inputs.
        dtype: what models and inputs are converted to, of `DTYPES`; None leaves them as the file makes them.
    """

    path: Path
    text: str = field(repr=False)
    model: Callable[..., nn.Module]
    get_inputs: Callable[[], Sequence[Any]]
    get_init_inputs: Callable[[], Sequence[Any]]
    sizes: Mapping[str, int | float]
    candidate: Callable[..., nn.Module] | None = None
    dtype: str | None = None
    literals: Mapping[str, int | float] = field(default_factory=dict)

    def for_another_file(self) -> Reference:
        """Return the same without the numbers that `Model`'s own text reads: another file's model cannot follow those.

        So a kernel's `ModelNew` inherits the `Model` of the file as it stands; what its constructor and inputs are
        given may change.
        """
        fixed = _read_by_model(self.text)
        sizes = {name: size for name, size in self.sizes.items() if name not in fixed}
        literals = {name: size for name, size in self.literals.items() if name not in fixed}
        return replace(self, sizes=sizes, literals=literals)

    @property
    def numbers(self) -> dict[str, int | float]:
        """All that `resized` changes: sizes, and literals."""
        return {**self.sizes, **self.literals}

    def resized(self, sizes: Mapping[str, int | float]) -> Reference:
        """Return the reference with other `numbers`, zero included, which no study uses but a model must survive.

        Raises:
            Exception: whatever the file raises at these sizes.
        """
        made = _load(self.path, self.text, {**self.numbers, **sizes}, self.dtype)
        same_sizes = {name: made.sizes[name] for name in self.sizes}
        return replace(made, sizes=same_sizes, literals={name: made.literals[name] for name in self.literals})

    def make_model(self, seed: int, device: torch.device, factory: Callable[..., nn.Module] | None = None) -> nn.Module:
        """Make a model on a device, with the parameters that this seed draws; `factory` takes the place of `Model`."""
        seed_generators(seed, device)
        with torch.device(device):
            arguments = _listed("get_init_inputs", self.get_init_inputs())
            return (factory or self.model)(*arguments).to(device, self._dtype)

    def make_inputs(self, seed: int, device: torch.device) -> tuple[Any, ...]:
        """Make one call's inputs, drawn on the device from this seed."""
        seed_generators(seed, device)
        with torch.device(device):
            inputs = _listed("get_inputs", self.get_inputs())
        return tuple(self._placed(value, device) for value in inputs)

    @property
    def _dtype(self) -> torch.dtype | None:
        return None if self.dtype is None else DTYPES[self.dtype]

    def _placed(self, value: Any, device: torch.device) -> Any:
        if type(value) in (tuple, list):
            return type(value)(self._placed(item, device) for item in value)
        if type(value) is dict:
            return {key: self._placed(item, device) for key, item in value.items()}
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(device, self._dtype if value.is_floating_point() else None)


def _listed(function: str, returned: Any) -> Sequence[Any]:
    """Return the list that one of the file's functions returned.

    Raises:
        UserError: it is no list.
    """
    if not isinstance(returned, list | tuple):
        raise UserError(f"{function}() returns a {type(returned).__name__}: give a list, such as [x]")
    return returned


def seed_generators(seed: int, device: torch.device) -> None:
    """Do what torch.manual_seed does; for the CPU without its notes for GPUs, which take longer than a small model."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def load_reference(
    path: Path,
    sizes: Mapping[str, int | float] | None = None,
    dtype: str | None = None,
    text: str | None = None,
) -> Reference:
    """Run a reference file with some of its top-level numeric constants set to other values.

    Args:
        dtype: of `DTYPES`: what models and inputs are converted to; None leaves them as the file makes them.
        text: of the file, where it has been read already.

    A constant is changed where it is assigned, so that constants computed from it follow.

    Raises:
        KernelFolderError: the file cannot be read or lacks a part of KernelBench's form.
        UnknownNameError: a name in `sizes` that is no top-level numeric constant of the file, or another dtype.
        UserError: a size that is not a positive number.
    """
    for name, size in (sizes or {}).items():
        if isinstance(size, bool) or not isinstance(size, int | float) or size <= 0:
            raise UserError(f"size '{name}' is {size!r}: give a positive number")
        if not math.isfinite(size):
            raise UserError(f"size '{name}' is {size!r}: give a finite number")
    return _load(path, read_text(path) if text is None else text, sizes or {}, require_dtype(dtype))


def require_dtype(name: str | None) -> str | None:
    """Return the name of a dtype that models and inputs can be converted to, or None.

    Raises:
        UnknownNameError: it is another.
    """
    if name is not None and name not in DTYPES:
        raise UnknownNameError("dtype", name, DTYPES)
    return name


def load_candidate(path: Path, text: str, name: str = "ModelNew") -> Callable[..., nn.Module]:
    """Return the model of that name in a file that need not be a reference.

    Raises:
        KernelFolderError: the file cannot be read or run, or has none.
    """
    module = _execute(path, text, {})[0]
    if not hasattr(module, name):
        raise KernelFolderError(f"{path}: no {name}; the model to check has that name")
    candidate: Callable[..., nn.Module] = getattr(module, name)
    return candidate


def _load(path: Path, text: str, sizes: Mapping[str, int | float], dtype: str | None) -> Reference:
    module, names, literals = _execute(path, text, sizes)
    if missing := [name for name in REQUIRED if not hasattr(module, name)]:
        raise KernelFolderError(f"{path}: no {', '.join(missing)}; KernelBench's form defines {', '.join(REQUIRED)}")
    constants = {name: getattr(module, name) for name in names}
    candidate = getattr(module, "ModelNew", None)
    parts = module.Model, module.get_inputs, module.get_init_inputs
    return Reference(path, text, *parts, constants, candidate, dtype, literals)


def _execute(
    path: Path, text: str, sizes: Mapping[str, int | float]
) -> tuple[types.ModuleType, Sequence[str], Mapping[str, int | float]]:
    """Return a file's module with some numbers changed, the names of its constants, and its literals."""
    try:
        tree = ast.parse(text, filename=str(path))
    except (SyntaxError, ValueError) as error:
        raise KernelFolderError(f"{path}: cannot read it: {error}") from error
    assignments = {
        statement.targets[0].id: statement
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and _is_number(statement.value)
    }
    places: dict[str, list[ast.Constant]] = {}
    for place in _literals(tree):
        places.setdefault(literal_name(place.value), []).append(place)  # type: ignore[arg-type]
    for name, size in sizes.items():
        if name in places:
            for place in places[name]:
                place.value = size
            continue
        if name not in assignments:
            raise UnknownNameError(f"size of {path.parent.name}", name, assignments)
        if isinstance(size, float) and isinstance(_evaluated(assignments[name].value), int):
            raise UserError(f"size '{name}' is {size!r}: it is a whole number in {path.name}, so give one")
        assignments[name].value = ast.copy_location(ast.Constant(size), assignments[name].value)
    module = types.ModuleType(f"tunebench_reference_{path.parent.name}")
    module.__file__ = str(path)
    with users_code("does not run", path), _importable(module):
        exec(compile(tree, str(path), "exec"), module.__dict__)
    return module, list(assignments), {name: same[0].value for name, same in places.items()}  # type: ignore[misc]


@contextlib.contextmanager
def _importable(module: types.ModuleType) -> Iterator[None]:
    """Keep a module among those imported while its text runs: dataclasses look there for what annotations name."""
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module
    try:
        yield
    finally:
        del sys.modules[module.__name__]
        if before is not None:
            sys.modules[module.__name__] = before


def _read_by_model(text: str) -> set[str]:
    """Return the names of numbers that `Model`, or what it calls, reads, or that those are computed from."""
    reads: dict[str, set[str]] = {}
    for scope in symtable.symtable(text, "reference", "exec").get_children():
        reads.setdefault(scope.get_name(), set()).update(_globals_of(scope))
    body = ast.parse(text).body
    for one in body:
        if isinstance(one, ast.FunctionDef):
            reads[one.name].update(part.id for part in _names(one.args))  # defaults are read where it is defined
        elif isinstance(one, ast.ClassDef):
            reads[one.name].update(part.id for base in one.bases for part in _names(base))
    assigned = [one for one in body if isinstance(one, ast.Assign)]
    targets = [(one, {part.id for target in one.targets for part in _names(target)}) for one in assigned]
    for one, names in targets:
        for name in names:
            reads.setdefault(name, set()).update(part.id for part in _names(one.value))
    read, waiting = set(), ["Model"]
    while waiting:
        name = waiting.pop()
        if name not in read:
            read.add(name)
            waiting += reads.get(name, ())
    constants = (part for one, names in targets if names & read for part in _constants(one.value))
    return read | {literal_name(part.value) for part in constants}  # type: ignore[arg-type]


def _globals_of(scope: symtable.SymbolTable) -> Iterator[str]:
    """Yield the names that a function or class reads from the top of its file, its arguments' not included."""
    yield from (symbol.get_name() for symbol in scope.get_symbols() if symbol.is_global())
    for inner in scope.get_children():
        yield from _globals_of(inner)


def _names(node: ast.AST) -> Iterator[ast.Name]:
    return (part for part in ast.walk(node) if isinstance(part, ast.Name))


def literal_name(value: int | float) -> str:
    """Return the words for a number without a name."""
    return f"the number {value}"


def _literals(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield numbers without a name that inputs and models are made from; 0, 1 and negative ones are seldom sizes."""
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef) and statement.name in REQUIRED:
            yield from (part for line in statement.body for part in _constants(line))
        elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Tuple | ast.List):
            yield from _constants(statement.value)


def _constants(node: ast.AST) -> Iterator[ast.Constant]:
    if isinstance(node, ast.Constant):
        if type(node.value) in (int, float) and node.value not in (0, 1):
            yield node
    elif not isinstance(node, ast.UnaryOp | ast.Subscript):
        for child in ast.iter_child_nodes(node):
            yield from _constants(child)


def _evaluated(number: ast.expr) -> int | float:
    value: int | float = eval(compile(ast.Expression(number), "<size>", "eval"), {"__builtins__": {}})
    return value


def _is_number(node: ast.expr) -> bool:
    """Return whether an expression is a number written with literals and arithmetic alone."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and not isinstance(node.value, bool)
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) and _is_number(node.right)
    return isinstance(node, ast.UnaryOp) and _is_number(node.operand)
