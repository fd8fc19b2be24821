"""The steps of a nest: loops over a row, and what stands between them."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
from torch._inductor import ir
from torch._inductor.scheduler import SchedulerNode
from torch._inductor.virtualized import V

from tunebench.studies.writing.loops.lower import group_of


class Steps:
    """The step of each node: 2 s is loop s, 2 s + 1 what stands between it and the next.

    What needs the result of a reduction is in a later loop than that; a scan's results are there in its own.

    Args:
        kept, reduced: how many elements the nest keeps, and how many of each it reduces; None where it reduces none.
    """

    def __init__(self, nodes: Sequence[SchedulerNode], kept: sympy.Expr, reduced: sympy.Expr | None) -> None:
        self._kept, self._reduced = kept, reduced
        writers = {name: node for node in nodes for name in node.get_buffer_names()}
        self._of: dict[str, int] = {}
        for node in nodes:
            earliest = 0 if self.is_looped(node) or reduced is None else -1
            for dep in node.read_writes.reads:
                writer = writers.get(dep.name)
                if writer is None or writer is node:
                    continue
                known = self._of[writer.get_name()]
                if writer.is_reduction() and not is_scan(writer):
                    known += 1  # its result is known behind the loop
                if self.is_looped(node):
                    earliest = max(earliest, known if known % 2 == 0 else known + 1)
                else:
                    earliest = max(earliest, known if known % 2 or reduced is None else known + 1)
            self._of[node.get_name()] = earliest
        if reduced is not None:  # nodes that precede the first loop have a step of their own
            self._of = {name: step + 2 for name, step in self._of.items()}

    def of(self, node: SchedulerNode) -> int:
        """Return the step of a node."""
        return self._of[node.get_name()]

    @property
    def all(self) -> range:
        """All steps, some of which may have no node."""
        return range(max(self._of.values()) + 1 if self._of else 0)

    @property
    def loops(self) -> int:
        """How many loops there are."""
        return len({step for step in self._of.values() if self.is_loop(step)})

    def is_loop(self, step: int) -> bool:
        """Return whether a step is a loop over a row."""
        return self._reduced is not None and step % 2 == 0

    def is_looped(self, node: SchedulerNode) -> bool:
        """Return whether a node has a value for each element, of a nest that reduces."""
        if self._reduced is None:
            return False
        if node.is_reduction():
            return True
        return bool(V.graph.sizevars.simplify(group_of(node)[0] - self._kept) != 0)


def is_scan(node: SchedulerNode) -> bool:
    """Return whether a node's results are those of all elements up to each."""
    return isinstance(getattr(node.node, "data", None), ir.Scan)
