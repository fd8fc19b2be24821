"""A module as a compiled or exported program knows it: what it is made of, and the key by which it is found.

Such a program is a graph of operators on tensors and constants, and a module is neither. All of it but its tensors and
its numbers, which the graph hands over, is its outline.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import math
import operator
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import nn

from tunebench.kernels.runtime.gradients import replica
from tunebench.kernels.runtime.ordinary import held
from tunebench.kernels.runtime.snapshot import Path, Structure

Tensors: TypeAlias = Sequence[torch.Tensor]

OWN = ("_handle", "_settled", "_lost")
"""Attributes that `note` gives a module, and that a copy does not take over.

`_settled` has what the operator found out about calls that the module itself can serve, `_lost` the shapes at which the
reference serves, so that programs are compiled with its operations.
"""
PartOutline: TypeAlias = tuple[Path, tuple[str, ...], tuple[tuple[str, Any], ...]]
"""The outline of a submodule: its path, the names of its numbers, and its settings by name."""
NOTHING = torch.empty(0, device="meta")

_handles = itertools.count()
_originals: weakref.WeakValueDictionary[str, nn.Module] = weakref.WeakValueDictionary()
_outlines: dict[tuple[type[Any], str], Outline] = {}


@dataclass(frozen=True, eq=False)
class Outline:
    """A module as a graph knows it: all but its tensors and its numbers, which the graph hands over.

    Attributes:
        module: a replica without memory.
        structure: what it is made of; a module of another structure has another outline.
        original: the module itself while it lives in this process; None in a program that was loaded from a file.
        written: which buffers a forward writes to, by the whole numbers and flags that can decide it.
    """

    module: Any
    structure: Structure
    original: weakref.ref[nn.Module] | None = None
    written: dict[tuple[Any, ...], list[bool]] = field(default_factory=dict)

    @classmethod
    def of(cls, module: nn.Module, original: nn.Module | None = None) -> Outline:
        """Return the outline of a module."""
        parameters, buffers = held(module)
        bare = replica(module, [NOTHING] * len(parameters), [NOTHING] * len(buffers))
        # These hold tensors, and are about the module that they belong to.
        bare.__dict__.update(_derived=None, _known=type(module.__dict__["_known"])(), _settled={}, _lost={})
        return cls(bare, Structure.of(module), None if original is None else weakref.ref(original))

    def bind(self, parameters: Tensors, buffers: Tensors, numbers: Sequence[Any]) -> Any:
        """Return a module of its own with these tensors and numbers."""
        module = replica(self.module, parameters, buffers)
        for path, value in zip(self.structure.numbers, numbers, strict=True):
            owner(module, path).__dict__[path[-1]] = value
        return module

    def whole(self, parameters: Tensors, buffers: Tensors, numbers: Sequence[Any]) -> Any:
        """Return the module itself where it holds these very tensors and numbers, else None."""
        module = None if self.original is None else self.original()
        if module is None:
            return None
        own = held(module)
        if len(own[0]) != len(parameters) or len(own[1]) != len(buffers):
            return None
        if not all(map(operator.is_, (*own[0], *own[1]), (*parameters, *buffers))):
            return None
        return module if [value_at(module, path) for path in self.structure.numbers] == numbers else None


def owner(module: Any, path: Path) -> Any:
    for name in path[:-1]:
        module = getattr(module, name)
    return module


def value_at(module: Any, path: Path) -> Any:
    return getattr(owner(module, path), path[-1])


def note(module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Remember a module that has just been made, and what its constructor is given."""
    handle = str(next(_handles))
    module.__dict__.update(_handle=handle, _settled={}, _lost={})
    module.__dict__["_made_with"] = repr((arguments, named)) if _is_constant([*arguments, *named.values()]) else None
    _originals[handle] = module


def module_of(handle: str) -> nn.Module:
    """Return the module that `note` gave this handle."""
    return _originals[handle]


def _is_constant(value: Any) -> bool:
    """Return whether text can stand for a value."""
    if type(value) in (tuple, list):
        return all(map(_is_constant, value))
    return value is None or type(value) in (str, int, bool) or (type(value) is float and math.isfinite(value))


def outline_of(handle: str, exported: bool) -> tuple[str, tuple[PartOutline, ...]] | None:
    """Return the key of a module's outline, and its parts; None where no operator can stand for it.

    In a program that may be loaded elsewhere, the key is what the module was constructed with, and the module has to be
    what its constructor makes.
    """
    module: Any = _originals[handle]
    structure = Structure.of(module)
    if structure.has_tensors or not all(kind.__module__.startswith("torch.nn.") for _, kind, _ in structure.parts[1:]):
        return None
    key = _key_of_constructor(module, structure) if exported else _key_in_process(handle, module, structure)
    return None if key is None else (key, _by_part(structure))


def _by_part(structure: Structure) -> tuple[PartOutline, ...]:
    """Return the numbers and settings of each submodule, all numbers in their order."""
    return tuple(
        (
            part,
            tuple(path[-1] for path in structure.numbers if path[:-1] == part),
            tuple((path[-1], value) for path, value in structure.settings if path[:-1] == part),
        )
        for part, _, _ in structure.parts
    )


# As torch.compiler.assume_constant_result does, which would import the compiler: to it the answer is a constant.
outline_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _key_in_process(handle: str, module: Any, structure: Structure) -> str:
    model = module._operators.model
    for count in itertools.count():
        key = f"{handle}.{count}"
        if (model, key) not in _outlines:
            _outlines[model, key] = Outline.of(module, module)
        if _outlines[model, key].structure == structure:
            return key
    raise AssertionError


def _key_of_constructor(module: Any, structure: Structure) -> str | None:
    model, key = module._operators.model, module._made_with
    if key is None or type(module) is not model or structure.others:
        return None
    try:
        made = outline_under(model, key)
    except RuntimeError:
        return None  # its constructor needs real memory
    return key if made.structure == structure else None


def outline_under(model: type[Any], key: str) -> Outline:
    """Return the outline under a key, made now where the key describes how."""
    if (model, key) not in _outlines:
        # In a thread of its own, since what traces this one would take the constructor's operations for the program's.
        with ThreadPoolExecutor(1) as executor:
            _outlines[model, key] = executor.submit(_construct, model, *ast.literal_eval(key)).result()
    return _outlines[model, key]


def _construct(model: type[Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> Outline:
    with torch.device("meta"):
        return Outline.of(model(*arguments, **named))


def inputs_of(handle: str) -> tuple[tuple[str, bool, Any], ...]:
    """Return the inputs by the reference's own signature: their names, whether they have defaults, and which."""
    module: Any = _originals[handle]
    empty = inspect.Parameter.empty
    parameters = list(module._signature().parameters.values())[1:]
    return tuple(
        (one.name, one.default is not empty, None if one.default is empty else one.default) for one in parameters
    )


inputs_of._dynamo_marked_constant = True  # type: ignore[attr-defined]
