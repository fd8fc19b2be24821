"""A pass: an entry point, and how it had better be launched."""

from __future__ import annotations

from dataclasses import dataclass

import sympy
from torch._inductor.scheduler import SchedulerNode

from tunebench.studies.writing.loops.entry import Tensor


@dataclass(frozen=True)
class Pass:
    """An entry point.

    Attributes:
        text: of the entry point.
        tensors: its parameters.
        kept, reduced: how many elements it keeps, and how many of each it reduces; None of a pass without reductions.
        rows, lanes: how many a block had better have, and how many threads each of them.
        does: the operations, by torch's names.
        joins: how many values of a row are joined where several blocks may have it; 0 where one has.
        parts: how many blocks it had better have then.
        innermost: the size of the dimension whose elements a thread has several of; None where it has one at once.
        is_numbered: whether it numbers all elements of all rows, which may be more than any tensor has.
    """

    name: str
    text: str
    tensors: tuple[Tensor, ...]
    kept: sympy.Expr
    reduced: sympy.Expr | None
    rows: int
    lanes: int
    does: tuple[str, ...]
    joins: int = 0
    parts: int = 1
    innermost: sympy.Expr | None = None
    is_numbered: bool = False

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of the entry points."""
        return (self.name, f"{self.name}_part", f"{self.name}_join") if self.joins else (self.name,)


def operations_of(node: SchedulerNode) -> list[str]:
    """Return the operations that a node came from, by torch's names."""
    found = []
    for origin in getattr(node.node, "origins", ()):
        target = origin.target
        found.append(getattr(getattr(target, "overloadpacket", target), "__name__", str(target)))
    return sorted(set(found))
