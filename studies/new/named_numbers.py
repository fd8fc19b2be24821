"""Numbers that know which attribute of a module they are, so that a trace shows `scale` where it would show 2.0."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


class NamedNumber(float):
    """A module's number, or arithmetic on one.

    Attributes:
        path: of the attribute, such as `norm.eps`; empty of the result of arithmetic, which is a number like another.
    """

    path: str

    def __new__(cls, value: float, path: str) -> NamedNumber:
        made = super().__new__(cls, value)
        made.path = path
        return made


class NamedInteger(int):
    """As `NamedNumber`, of a whole number: one that shapes and dimensions can be made of."""

    path: str

    def __new__(cls, value: int, path: str) -> NamedInteger:
        made = super().__new__(cls, value)
        made.path = path
        return made


def path_of(value: object) -> str | None:
    """The attribute that a number is; None of any other value."""
    return value.path if isinstance(value, NamedNumber | NamedInteger) else None


_MADE: dict[type, Callable[[Any, str], object]] = {float: NamedNumber, int: NamedInteger}


@contextmanager
def named_numbers(model: nn.Module) -> Iterator[None]:
    """Within it, numbers that are attributes of the module, or of one in it that is no layer of torch's, are named.

    Layers of torch's keep theirs: nobody computes with them but the layer.
    """
    replaced: list[tuple[nn.Module, str, object]] = []
    for place, module in model.named_modules():
        if type(module).__module__.startswith("torch.nn."):
            continue
        for name, value in list(vars(module).items()):
            if type(value) in _MADE and not name.startswith("_"):
                replaced.append((module, name, value))
                vars(module)[name] = _MADE[type(value)](value, f"{place}.{name}" if place else name)
    try:
        yield
    finally:
        for module, name, value in replaced:
            vars(module)[name] = value
