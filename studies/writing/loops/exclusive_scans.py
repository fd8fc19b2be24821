"""Sums of all elements before each are sums of all elements up to each, with nothing in front.

Torch has no operation for them, so that programs concatenate. A scan that begins with what is in front makes the same
in one pass, where a second would read and write all sums again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

_aten = torch.ops.aten
_NOTHING = {_aten.cumsum.default: 0, _aten.cumprod.default: 1}


def move_into_scans(graph: fx.Graph) -> None:
    """Have scans begin with the neutral elements that are concatenated in front of their results."""
    for joined, front, scan in [*_exclusive(graph)]:
        scanned, dim = scan.args
        kind: Any = scan.target
        with graph.inserting_before(joined):
            given = graph.call_function(_aten.cat.default, ([front, scanned], dim))
            made = graph.call_function(kind, (given, dim))
        given.meta, made.meta = dict(joined.meta), dict(joined.meta)
        joined.replace_all_uses_with(made)
    graph.eliminate_dead_code()


def _exclusive(graph: fx.Graph) -> Iterator[tuple[fx.Node, fx.Node, fx.Node]]:
    """Yield each concatenation, with what is in front and the scan."""
    for joined in graph.find_nodes(op="call_function", target=_aten.cat.default):
        if len(joined.args[0]) != 2:
            continue
        (front, scan), rank = joined.args[0], joined.meta["val"].dim()
        if scan.target not in _NOTHING or front.target is not _aten.full.default:
            continue
        is_along = (joined.args[1] if len(joined.args) > 1 else 0) % rank == scan.args[1] % rank
        is_alike = scan.args[0].meta["val"].dtype == scan.meta["val"].dtype == joined.meta["val"].dtype
        if is_along and is_alike and front.args[1] == _NOTHING[scan.target] and len(scan.users) == 1:
            yield joined, front, scan
