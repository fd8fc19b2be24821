"""Which part of a trace a block takes; what stands before it and behind it is passes."""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch
from torch import fx

from tunebench.studies.writing.new.nodes import between, descendants, dtype_of, shape_of
from tunebench.studies.writing.new.trace import Given, Traced
from tunebench.studies.writing.new.values import Computed

Text = list[tuple[str, object]]
"""The attributes of a class, in order."""


@dataclass(frozen=True)
class Core:
    """A part of a trace as a block.

    Attributes:
        block: the name of its class, such as `Linear`.
        attributes: of the class.
        given: the nodes whose values the block is given in the place of arguments of `forward`, by the names of both.
        last: the node whose value the block makes, by name; empty where it is the result.
        is_minor: what the block does is little beside what is around it.
        layout: how the block is given these values, however torch would lay them out; None for as torch does.
    """

    block: str
    attributes: Text
    given: Mapping[str, str] = field(default_factory=dict)
    last: str = ""
    is_minor: bool = False
    layout: torch.memory_format | None = None

    @property
    def is_whole(self) -> bool:
        """Whether nothing stands around it."""
        return not (self.given or self.last)

    @property
    def own_names(self) -> set[str]:
        """The attributes that the class has beside its block's."""
        return {name for name, value in self.attributes if isinstance(value, Computed)}

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
    known = {*translated, anchor, *filter(is_about_memory, nodes)}
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


def is_about_memory(node: fx.Node) -> bool:
    """Whether a value is a tensor's shape or a part of it, its type or its device, which no text has."""
    if node.target is operator.getitem:
        return isinstance(node.args[0], fx.Node) and is_about_memory(node.args[0])
    return node.target in ("size", "dim") or (
        node.target is getattr and node.args[1] in ("shape", "dtype", "device", "ndim")
    )
