"""Which part of a trace a block takes: what stands before it and behind it stays torch's own."""

from __future__ import annotations

import operator
import re
from collections.abc import Collection
from dataclasses import dataclass

from torch import fx

from tunebench.studies.new.python_text import UnwritableError, lines_of
from tunebench.studies.new.trace import Given, Traced, between, descendants, shape_of
from tunebench.studies.new.translate import called

Text = list[tuple[str, object]]
"""The attributes of a class, in order."""


@dataclass(frozen=True)
class Core:
    """A part of a trace as a block.

    Attributes:
        block: the name of its class, such as `Linear`.
        attributes: of the class.
        before, after: bodies of functions of torch's operations around it; nothing where there are none.
        left: the operations that stay torch's, by name.
        reason: why all of them do; empty where not.
    """

    block: str
    attributes: Text
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    reason: str = ""

    def reads(self, name: str) -> bool:
        """Whether a text of the block has this name."""
        return any(re.search(rf"\b{name}\b", str(value)) for _, value in self.attributes)


def result_of(graph: fx.Graph) -> fx.Node | None:
    """The node whose value a model returns; None where that is no single tensor."""
    (output,) = (node for node in graph.nodes if node.op == "output")
    result = output.args[0]
    return result if isinstance(result, fx.Node) and shape_of(result) is not None else None


def cut(traced: Traced, anchor: fx.Node, translated: Collection[fx.Node]) -> fx.Node:
    """The last node of a part that begins with the anchor, such that all behind it needs its value alone."""
    assert traced.graph is not None
    dependent = descendants(anchor) | {anchor}
    nodes: list[fx.Node] = list(traced.graph.nodes)
    known = {*translated, anchor, *filter(_is_size, nodes)}
    for last in reversed(nodes):
        inside = between(anchor, last)
        if last not in dependent or last.op == "output" or not inside <= known:
            continue
        if shape_of(last) is None:
            continue
        behind = dependent - inside
        if all(used is last or used not in inside for node in behind for used in node.all_input_nodes):
            return last
    return anchor


def _is_size(node: fx.Node) -> bool:
    """Whether a value is a tensor's shape or a part of it, which a block asks its input for and no text has."""
    if node.target is operator.getitem:
        return _is_size(node.args[0])  # type: ignore[arg-type]
    return node.target == "size" or (node.target is getattr and node.args[1] == "shape")


def around(traced: Traced, given: Given, last: fx.Node) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Torch's operations before the value that a block is given and behind its last node, as in `Core`.

    Returns:
        before, after, and the names of what they do.

    Raises:
        UnwritableError: one of them cannot be written as Python.
    """
    assert traced.graph is not None
    result = result_of(traced.graph)
    assert result is not None
    inputs = {node: node.name for node in traced.graph.nodes if node.op == "placeholder"}
    first = _path(traced.graph, given.node, inputs)
    before = [] if given.is_itself else lines_of(first, traced.model, given.node, inputs)
    behind = [] if last is result else _path(traced.graph, result, {*inputs, last})
    if twice := [node for node in first if node.op == "call_module" and node in behind]:
        raise UnwritableError(f"{called(twice[0], traced.model)} in front of the kernel and behind it")
    after = lines_of(behind, traced.model, result, {**inputs, last: "value"}) if behind else []
    left = [called(node, traced.model) for node in [*first, *behind] if node.op != "get_attr"]
    return tuple(before), tuple(after), tuple(dict.fromkeys(left))


def _path(graph: fx.Graph, result: fx.Node, known: Collection[fx.Node]) -> list[fx.Node]:
    """The nodes that a value is computed by from what is known, in order."""
    found: set[fx.Node] = set()
    waiting = [result]
    while waiting:
        one = waiting.pop()
        if one not in known and one not in found:
            found.add(one)
            waiting += one.all_input_nodes
    return [node for node in graph.nodes if node in found]
