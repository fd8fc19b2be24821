"""Which part of a trace a block takes: what stands before it and behind it stays torch's own."""

from __future__ import annotations

import operator
import re
from collections.abc import Collection
from dataclasses import dataclass

from torch import fx

from tunebench.studies.writing.new.operations import CASTS, SAME
from tunebench.studies.writing.new.python_text import UnwritableError, lines_of
from tunebench.studies.writing.new.trace import Given, Traced, between, descendants, dtype_of, reached, shape_of
from tunebench.studies.writing.new.translate import called
from tunebench.studies.writing.new.values import Computed

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
        left_before: these of the ones that stand before the value which the block is given.
        left_nodes: their nodes.
        given: the node whose value the block is given, by name; empty where it is an argument of `forward`.
        last: the node whose value the block makes, by name.
        done: the operations that the block does, by name, as often as they are there.
        is_laid_out: `before` makes that value contiguous, as the block takes it.
    """

    block: str
    attributes: Text
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    left_before: tuple[str, ...] = ()
    left_nodes: frozenset[str] = frozenset()
    given: str = ""
    last: str = ""
    done: tuple[str, ...] = ()
    is_laid_out: bool = False

    @property
    def own_names(self) -> set[str]:
        """The attributes that the class has beside its block's."""
        methods = {"before"} if self.before else set()
        return methods | {name for name, value in self.attributes if isinstance(value, Computed)}

    def reads(self, name: str) -> bool:
        """Whether a text of the block has this name."""
        return any(re.search(rf"\b{name}\b", str(value)) for _, value in self.attributes)


def result_of(graph: fx.Graph) -> fx.Node | None:
    """The node whose value a model returns; None where that is no single tensor."""
    (output,) = (node for node in graph.nodes if node.op == "output")
    result = output.args[0]
    return result if isinstance(result, fx.Node) and shape_of(result) is not None else None


def cut(traced: Traced, anchor: fx.Node, given: Given, translated: Collection[fx.Node]) -> fx.Node:
    """The last node of a part that begins with the anchor, such that nothing behind needs other values of the part.

    Its own value is there, and the one that the block is given.
    """
    assert traced.graph is not None
    dependent = descendants(anchor) | {anchor}
    nodes: list[fx.Node] = list(traced.graph.nodes)
    known = {*translated, anchor, *filter(_is_about_memory, nodes)}
    for last in reversed(nodes):
        inside = between(anchor, last)
        if last not in dependent or last.op == "output" or not inside <= known:
            continue
        if shape_of(last) is None or dtype_of(last) != dtype_of(anchor):
            continue
        behind = dependent - inside
        if all(used in (last, given.node) or used not in inside for node in behind for used in node.all_input_nodes):
            return last
    return anchor


def _is_about_memory(node: fx.Node) -> bool:
    """Whether a value is a tensor's shape or a part of it, its type or its device, which no text has."""
    if node.target is operator.getitem:
        return isinstance(node.args[0], fx.Node) and _is_about_memory(node.args[0])
    return node.target in ("size", "dim") or (
        node.target is getattr and node.args[1] in ("shape", "dtype", "device", "ndim")
    )


def around(traced: Traced, given: Given, last: fx.Node) -> Core:
    """Torch's operations before the value that a block is given and behind its last node, in a core without a block.

    Raises:
        UnwritableError: one of them cannot be written as Python, or stands on both sides.
    """
    assert traced.graph is not None
    result = result_of(traced.graph)
    assert result is not None
    inputs = {node: node.name for node in traced.graph.nodes if node.op == "placeholder"}
    first = _path(traced.graph, given.node, inputs)
    known = inputs if given.is_itself else {**inputs, given.node: traced.free("before")}
    behind = [] if last is result else _path(traced.graph, result, {*known, last})
    twice = [node for node in first if node in behind and node.op != "get_attr" and not _is_about_memory(node)]
    if twice:
        raise UnwritableError(
            f"the model needs {called(twice[0], traced.model)} both in front of a kernel and behind it"
        )
    before = [] if given.is_itself else lines_of(first, traced.model, given.node, inputs)
    after = lines_of(behind, traced.model, result, {**known, last: traced.free("value")}) if behind else []
    left = [node for node in [*first, *behind] if node.op != "get_attr"]
    inside = [node for node in between(given.node, last) - {given.node} if not _is_about_memory(node)]
    done = [name for node in inside if (name := called(node, traced.model)) not in (*SAME, *CASTS)]
    nodes = frozenset(node.name for node in left)
    given_by = "" if given.is_itself else given.node.name
    names, of_first = (
        tuple(dict.fromkeys(called(node, traced.model) for node in some if not _is_about_memory(node)))
        for some in (left, [node for node in left if node in first])
    )
    return Core("", [], tuple(before), tuple(after), names, of_first, nodes, given_by, last.name, tuple(done))


def _path(graph: fx.Graph, result: fx.Node, known: Collection[fx.Node]) -> list[fx.Node]:
    """The nodes that a value is computed by from what is known, in order."""
    found = reached([result], lambda node: node.all_input_nodes, known)
    return [node for node in graph.nodes if node in found]
