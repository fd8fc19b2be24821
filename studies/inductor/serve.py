"""Serves what Inductor calls a library for, products and attention, by kernels of regions.

Inductor's scheduler sees no more of them than that call. So these regions are found in the graph of ATen operations, in
the pass that Inductor lets others have there: a region that is served becomes a call of one operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass

from tunebench.studies.inductor import attention
from tunebench.studies.inductor.products import PRODUCTS, RegionInGraph, channels_last, is_pointwise, product_region
from tunebench.studies.inductor.region import NotRegionError, Region, Value, inverse
from tunebench.studies.writing.loops.copies import added

_aten = torch.ops.aten
Write = Callable[[fx.Graph, list[fx.Node]], fx.Node]
"""Writes a region's call into a graph, given the nodes of its inputs."""
Serve = Callable[[Region], Write | None]
"""Returns how a region's call is written; None where it has none."""

AS_IN_GRAPH = (torch.Tag.needs_fixed_stride_order,)
"""Tags of an operator whose inputs are to lie as the nodes that it is given do."""


class ServeRegions(CustomGraphPass):
    """Serves the products and the attention of a graph.

    Args:
        tag: is part of the key of PyTorch's caches.
        images_channels_last: whether Inductor lays the graph's images out so.
    """

    def __init__(self, serve: Serve, tag: str, *, images_channels_last: bool) -> None:
        self._serve = serve
        self._tag = tag
        self._images_channels_last = images_channels_last

    def __call__(self, graph: fx.Graph) -> None:
        """Replace the regions that are served."""
        for begin in [node for node in graph.nodes if node.target in (*PRODUCTS, attention.ATTENTION)]:
            try:
                if begin.target is attention.ATTENTION:
                    found = attention.attention_region(begin)
                else:
                    found = product_region(begin, images_channels_last=self._images_channels_last)
            except NotRegionError:
                continue
            if (call := self._serve(found.region)) is not None:
                _replace(graph, found, call)
                graph.eliminate_dead_code()  # what is no value's any more has no part in the next region

    def uuid(self) -> str:
        """Return what this pass does to graphs."""
        return self._tag


def _replace(graph: fx.Graph, found: RegionInGraph, call: Write) -> None:
    end, value = found.end, found.end.meta["val"]

    def shaped(node: fx.Node, shape: Sequence[int]) -> fx.Node:
        is_shaped = tuple(node.meta["val"].shape) == tuple(shape)
        return node if is_shaped else added(graph, _aten.view.default, node, list(shape))

    def lying(node: fx.Node, wanted: Value) -> fx.Node:
        dimensions = node.meta["val"].dim()
        order = found.order if dimensions == value.dim() else ()
        is_last = wanted.images.startswith("channels_last")
        node = _laid_out(graph, node, order or (channels_last(dimensions) if is_last else tuple(range(dimensions))))
        return shaped(added(graph, _aten.permute.default, node, list(order)) if order else node, wanted.shape)

    (output,) = found.region.outputs
    with graph.inserting_before(end), value.fake_mode:
        made = call(graph, [*map(lying, found.inputs, found.region.inputs)])
        made.meta["val"] = torch.empty_like(output.on_meta, device=value.device)
        if found.order:
            made = shaped(made, [value.shape[place] for place in found.order])
            result = added(graph, _aten.permute.default, made, list(inverse(found.order)))
        else:
            result = shaped(made, value.shape)
    end.replace_all_uses_with(result)


def _laid_out(graph: fx.Graph, node: fx.Node, order: tuple[int, ...]) -> fx.Node:
    """Return a value whose dimensions lie in this order; what reads it wherever it lies, reads it there from now on.

    Inductor gives what it computes here the strides that the call of an operator asks for. Of what is left to a
    backward there would be a second copy, in the layout from which each of its convolutions would turn it again.
    """
    if node.meta["val"].permute(order).is_contiguous():
        return node

    def copied() -> fx.Node:
        turned = added(graph, _aten.permute.default, node, list(order))
        copy = added(graph, _aten.clone.default, turned, memory_format=torch.contiguous_format)
        return added(graph, _aten.permute.default, copy, list(inverse(order)))

    if node.op == "placeholder" or getattr(node.target, "is_view", False):  # of memory that is there anyway
        return copied()
    users = [one for one in node.users if one.op == "output" or one.target in PRODUCTS or is_pointwise(one)]
    with graph.inserting_before(node.next):
        result = copied()
    for user in users:
        user.replace_input_with(node, result)
    return result
