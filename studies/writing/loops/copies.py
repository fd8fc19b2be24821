"""Matrices that are copied for a product stay transposed where they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

_aten = torch.ops.aten


def keep_transposed(graph: fx.Graph) -> None:
    """Have stacks of matrices that are copied for a product stay transposed.

    A copy in the order of their dimensions would read one element of each row after another, as of attention's keys.
    """
    for product in [node for node in graph.nodes if node.target in (_aten.bmm.default, _aten.baddbmm.default)]:
        for factor in product.args[-2:]:
            copied = factor.args[0] if factor.target is _aten.view.default else None
            if copied is None or copied.target is not _aten.clone.default:
                continue
            source, (stack, rows, columns) = copied.args[0], factor.args[1]
            if (order := _turned(source.meta["val"], factor.meta["val"].shape)) is not None:
                with graph.inserting_before(product):
                    made = added(graph, _aten.permute.default, source, order)
                    made = added(graph, _aten.clone.default, made, memory_format=torch.contiguous_format)
                    made = added(graph, _aten.view.default, made, [stack, columns, rows])
                    made = added(graph, _aten.permute.default, made, [0, 2, 1])
                product.replace_input_with(factor, made)
    graph.eliminate_dead_code()


def _turned(source: torch.Tensor, matrices: Sequence[Any]) -> list[int] | None:
    """The order of dimensions in which a tensor is stacks of transposed matrices; None where they do not lie so.

    Args:
        matrices: the shape of a copy of it that is a stack of matrices.
    """
    end = source.dim()
    parts: list[range] = []
    for size in reversed(matrices[1:]):
        begins = (at for at in reversed(range(1, end)) if _surely_is(math.prod(source.shape[at:end]), size))
        if (begin := next(begins, None)) is None:
            return None
        parts.append(range(begin, end))
        end = begin
    columns, rows = parts
    inner = range(end, source.dim())
    fastest = {at for at in inner if _surely_is(source.stride(at), 1) and not _surely_is(source.shape[at], 1)}
    return [*range(end), *columns, *rows] if fastest and fastest <= {*rows} else None


def _surely_is(size: Any, number: Any) -> bool:
    return bool(statically_known_true(size == number))


def added(graph: fx.Graph, target: Any, node: fx.Node, *arguments: Any, **named: Any) -> fx.Node:
    """Add an operation of a node to a graph, with its value as a fake tensor."""
    made = graph.call_function(target, (node, *arguments), named)
    made.meta["val"] = target(node.meta["val"], *fx.map_arg(arguments, lambda one: one.meta["val"]), **named)
    return made
