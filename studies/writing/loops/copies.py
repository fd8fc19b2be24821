"""The factors of products in memory: transposed where they are, and of half types in whole units of eight."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from tunebench.studies.writing.loops.decompositions import HALVES

_aten = torch.ops.aten
_UNIT, _LEAST_DEPTH = 8, 64
"""Elements of a half type that are 16 bytes, and the depth from which on a product has more to do than its output."""
_TURNING = (_aten.permute.default, _aten.t.default, _aten.transpose.int)
_SUMS: Mapping[Any, Any] = {_aten.bmm.default: _aten.baddbmm.default, _aten.mm.default: _aten.addmm.default}


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


def align_products(graph: fx.Graph) -> None:
    """Have products of half types be such as cuBLAS has fast kernels for: their rows are whole units of 16 bytes.

    What is over of the depth is multiplied by a pass, to whose numbers the product is added. A factor that a pass makes
    has zeros behind its features, which nothing reads of the product.
    """
    for product in [node for node in graph.nodes if node.target in _SUMS]:
        _, weight = _factors(product)
        depth, features = weight.meta["val"].shape[-2:]
        if product.meta["val"].dtype not in HALVES:
            continue
        with graph.inserting_before(product):
            if isinstance(depth, int) and depth % _UNIT and depth >= _LEAST_DEPTH:
                made = _with_whole_depth(graph, product, depth - depth % _UNIT)
            elif isinstance(features, int) and features % _UNIT and _is_made(weight):
                made = _with_zeros(graph, product, features)
            else:
                continue
        product.replace_all_uses_with(made)
    graph.eliminate_dead_code()


def _with_whole_depth(graph: fx.Graph, product: fx.Node, whole: int) -> fx.Node:
    """A product of so much of the depth, and the rest of it."""
    x, weight = _factors(product)
    dtype, depth = product.meta["val"].dtype, weight.meta["val"].shape[-2]
    rest: Any = None
    for at in range(whole, depth):
        factors = []
        for factor, dim in ((x, -1), (weight, -2)):
            part = added(graph, _aten.slice.Tensor, factor, dim, at, at + 1)
            factors.append(added(graph, torch.ops.prims.convert_element_type.default, part, torch.float32))
        made = added(graph, _aten.mul.Tensor, *factors)
        rest = made if rest is None else added(graph, _aten.add.Tensor, rest, made)
    rest = added(graph, torch.ops.prims.convert_element_type.default, rest, dtype)
    first = added(graph, _aten.slice.Tensor, x, -1, 0, whole)
    second = added(graph, _aten.slice.Tensor, weight, -2, 0, whole)
    return added(graph, _SUMS[product.target], rest, first, second)


def _factors(product: fx.Node) -> list[Any]:
    """The two factors of a product, without views that are those tensors again."""
    return [*map(_itself, product.args)]


def _itself(node: Any) -> Any:
    while node.target in (_aten.expand.default, _aten.view.default):
        shapes = [one.meta["val"].shape for one in (node, node.args[0])]
        if len(shapes[0]) != len(shapes[1]) or not all(map(_surely_is, *shapes)):
            break
        node = node.args[0]
    return node


def _is_made(factor: Any) -> bool:
    """Whether a pass makes a factor, or what it is a transposition of."""
    made = factor.args[0] if factor.target is _aten.permute.default else factor
    return made.op == "call_function" and made.target not in (_aten.view.default, _aten.expand.default, *_TURNING)


def _with_zeros(graph: fx.Graph, product: fx.Node, features: int) -> fx.Node:
    """A product whose second factor has zeros behind its features; where that is the first one too, it is made once."""
    x, weight = _factors(product)
    is_turned = weight.target is _aten.permute.default
    made = weight.args[0] if is_turned else weight
    room = -features % _UNIT
    wide = added(graph, _aten.constant_pad_nd.default, made, [0, 0, 0, room] if is_turned else [0, room])
    if x is made:
        x = added(graph, _aten.slice.Tensor, wide, -2 if is_turned else -1, 0, features)
    if is_turned:
        wide = added(graph, _aten.permute.default, wide, weight.args[1])
    return added(graph, _aten.slice.Tensor, added(graph, product.target, x, wide), -1, 0, features)


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
