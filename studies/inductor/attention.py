"""Attention in a graph, as a region: of heads behind their lengths, as linear layers leave them; others are copied."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from tunebench.studies.inductor.products import RegionInGraph, shape_of
from tunebench.studies.inductor.region import NotRegionError, Region, Value, source_of, text_of

_aten = torch.ops.aten
ATTENTION = _aten._scaled_dot_product_efficient_attention.default
"""PyTorch's on a GPU; of a CPU's the block's kernel is no opponent."""
_ORDER = (0, 2, 1, 3)
"""The dimensions of heads' matrices in the order in which a region has them: the heads behind the length."""


def attention_region(node: fx.Node) -> RegionInGraph:
    """Return the region that attention in float32 is.

    Raises:
        NotRegionError: it is causal, masked, dropped from or differentiated.
    """
    given = _arguments_of(node)
    ends = [user for user in node.users if user.users]
    if given.get("attn_bias", given.get("attn_mask")) is not None or given["dropout_p"] or given["is_causal"]:
        raise NotRegionError("attention that is causal, or has a mask or a dropout")
    if [user.args[1:] for user in ends] != [(0,)] or ends[0].meta["val"].dtype is not torch.float32:
        raise NotRegionError("a step of training, or another type")
    inputs = tuple(given[name] for name in ("query", "key", "value"))
    if len(set(inputs)) < len(inputs) or any(len(shape_of(value)) != len(_ORDER) for value in inputs):
        raise NotRegionError("one tensor in two places, or other dimensions")
    graph, values, end = fx.Graph(), dict[fx.Node, Value](), ends[0]

    def value_of(node: fx.Node) -> Value:
        shape = tuple(shape_of(node)[place] for place in _ORDER)
        return Value(node.name, tuple(range(len(shape))), shape, torch.float32)

    def turned(value: fx.Node) -> fx.Node:
        return graph.call_function(_aten.permute.default, (value, list(_ORDER)))

    for one in inputs:
        made = graph.placeholder(one.name)
        values[made] = value_of(one)
        made.meta["val"] = one.meta["val"].new_empty(values[made].shape)
    factors = {} if given["scale"] is None else {"scale": given["scale"]}
    operands = tuple(map(turned, values))
    result = turned(graph.call_function(_aten.scaled_dot_product_attention.default, operands, factors))
    output, device = value_of(end), end.meta["val"].device
    text = text_of(values, [one for one in graph.nodes if one not in values], {result: output})
    region = Region(text, (*values.values(),), (output,), (), device, is_dynamic=False, source=source_of([node]))
    return RegionInGraph(region, end, inputs, _ORDER)


def _arguments_of(node: Any) -> dict[str, Any]:
    """The arguments of an operation by name, defaults included."""
    schema = node.target._schema.arguments
    defaults: dict[str, Any] = {one.name: one.default_value for one in schema if one.has_default_value()}
    return defaults | {one.name: value for one, value in zip(schema, node.args, strict=False)} | dict(node.kwargs)
