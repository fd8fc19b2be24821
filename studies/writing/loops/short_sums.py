"""Sums of few elements across memory are additions: of a few experts' outputs, or of an image's few channels.

Such a nest has no rows: its threads have packs of neighbours, where a sum over a row would read one element at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from tunebench.studies.writing.loops.copies import added

_aten = torch.ops.aten
_SUMS = (_aten.sum.dim_IntList, _aten.mean.dim)
_MOST, _LEAST_RESULTS = 8, 1 << 16
"""Upper limit of the elements, and how many sums there are at least: of fewer no pass takes long."""


def short_sums(graph: fx.Graph) -> Iterator[tuple[fx.Node, Any]]:
    """Yield each short sum of many, and its number of elements, which may be unknown but for the problem's size."""
    for node in graph.nodes:
        if node.target not in _SUMS:
            continue
        x, dims, _ = _arguments(node)
        given, result = x.meta["val"], node.meta["val"]
        if len(dims) != 1 or not given.is_floating_point() or dims[0] % max(1, given.dim()) >= given.dim() - 1:
            continue  # of integers, of several dimensions or of none, or along memory
        size = given.shape[dims[0]]
        if 1 < _hint(size) <= _MOST and _hint(result.numel()) >= _LEAST_RESULTS:
            yield node, size


def add_short_sums(graph: fx.Graph) -> None:
    """Have short sums over a known number of elements be additions, in the type that sums are made in."""
    for node, size in [*short_sums(graph)]:
        count = _hint(size)
        if not statically_known_true(size == count):
            continue
        given, (dim,), keepdim = _arguments(node)
        wide = torch.promote_types(torch.promote_types(given.meta["val"].dtype, torch.float32), node.meta["val"].dtype)
        convert = torch.ops.prims.convert_element_type.default
        with graph.inserting_before(node):
            parts = [added(graph, convert, added(graph, _aten.select.int, given, dim, at), wide) for at in range(count)]
            made = parts[0]
            for part in parts[1:]:
                made = added(graph, _aten.add.Tensor, made, part)
            if node.target is _aten.mean.dim:
                made = added(graph, _aten.div.Tensor, made, count)
            made = added(graph, _aten.unsqueeze.default, made, dim) if keepdim else made
            made = added(graph, convert, made, node.meta["val"].dtype)
        node.replace_all_uses_with(made)
        graph.erase_node(node)


def _arguments(node: fx.Node) -> tuple[Any, Sequence[int], bool]:
    given: list[Any] = [*node.args, *(None, False)[len(node.args) - 1 :]]
    return given[0], given[1] or (), bool(given[2])


def _hint(size: Any) -> int:
    """A size as it is in the problem that is written for; 0 where nobody knows."""
    return int(size.node.hint or 0) if isinstance(size, torch.SymInt) else int(size)
