"""Products of matrices in a graph, each with the pointwise operations behind it, as regions.

Inductor calls a library for a product, and its scheduler sees no more of it than that. So these regions are found in
the graph of ATen operations, in the pass that Inductor lets others have there: a region that is served becomes a call
of one operator. In a region's text tensors of any dimensions are matrices, and conversions between floating-point types
are left out: a kernel computes in float32 from the product to its result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass

from tunebench.studies.inductor.region import NotRegionError, Region, Value, source_of, text_of

_aten = torch.ops.aten
_PRODUCTS = (_aten.mm.default, _aten.addmm.default)
_TRANSPOSITIONS = (_aten.permute.default, _aten.t.default, _aten.transpose.int)
_CONVERSION = torch.ops.prims.convert_element_type.default
_SAME = (_aten.view.default, _aten.reshape.default, _aten._unsafe_view.default, _CONVERSION)
"""Operations that a region has no text for: its value is the one before."""
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)

Write = Callable[[fx.Graph, list[fx.Node]], fx.Node]
"""Writes a region's call into a graph, given the nodes of its inputs."""
Serve = Callable[[Region], Write | None]
"""Returns how a region's call is written; None where it has none."""


class ServeProducts(CustomGraphPass):
    """Serves the products of a graph.

    Args:
        tag: is part of the key of PyTorch's caches.
    """

    def __init__(self, serve: Serve, tag: str) -> None:
        self._serve = serve
        self._tag = tag

    def __call__(self, graph: fx.Graph) -> None:
        """Replace the regions that are served."""
        for product in [node for node in graph.nodes if node.target in _PRODUCTS]:
            try:
                found = product_region(product)
            except NotRegionError:
                continue
            if (call := self._serve(found.region)) is not None:
                _replace(graph, found, call)
        graph.eliminate_dead_code()

    def uuid(self) -> str:
        """Return what this pass does to graphs."""
        return self._tag


@dataclass(frozen=True)
class ProductRegion:
    """A region of a graph.

    Attributes:
        end: the node whose value it makes.
        inputs: the nodes that it reads, each with the shape that it has in the region.
    """

    region: Region
    end: fx.Node
    inputs: tuple[tuple[fx.Node, tuple[int, ...]], ...]


def product_region(product: fx.Node) -> ProductRegion:
    """Return the region that a product begins.

    Raises:
        NotRegionError: there is none.
    """
    copy = _Copy(product)
    copy.grow()
    return copy.region()


def _replace(graph: fx.Graph, found: ProductRegion, call: Write) -> None:
    end, value = found.end, found.end.meta["val"]

    def shaped(node: fx.Node, shape: Sequence[int]) -> fx.Node:
        if tuple(node.meta["val"].shape) == tuple(shape):
            return node
        view = graph.call_function(_aten.view.default, (node, list(shape)))
        view.meta["val"] = node.meta["val"].view(shape)
        return view

    with graph.inserting_before(end), value.fake_mode:
        made = call(graph, [shaped(*one) for one in found.inputs])
        made.meta["val"] = value.new_empty(found.region.outputs[0].shape)
        result = shaped(made, value.shape)
    end.replace_all_uses_with(result)


class _Copy:
    """A product and what stands behind it, as a graph of matrices.

    Raises:
        NotRegionError: the product is none that a region begins with.
    """

    def __init__(self, product: fx.Node) -> None:
        self.shape = _shape_of(product)
        self.dtype = product.meta["val"].dtype
        self.graph = fx.Graph()
        # An operand that also stands beside the product is two inputs: a block has no other name for it.
        self.inputs: dict[tuple[fx.Node, bool], tuple[fx.Node, tuple[int, ...]]] = {}
        self.behind = _descendants(product)
        if product.kwargs or self.dtype not in _FLOATS:
            raise NotRegionError("it has factors, or is in another type")
        operands: Any = product.args
        *bias, left, right = operands
        made = self.graph.call_function(_aten.mm.default, (self._operand(left), self._operand(right)))
        if bias:
            made = self.graph.call_function(_aten.add.Tensor, (made, self._outer(bias[0], product)))
        self.made: dict[fx.Node, fx.Node] = {product: made}

    def grow(self) -> None:
        """Add whatever can be computed with the product, element by element."""
        for node in self.behind:
            if node.target in _SAME or _is_pointwise(node):
                try:
                    self._add(node)
                except NotRegionError:
                    continue

    def _add(self, node: Any) -> None:
        self._require_shape(_shape_of(node))
        if node.target in _SAME:
            if node.args[0] in self.made and node.meta["val"].dtype in _FLOATS:
                self.made[node] = self.made[node.args[0]]
            return
        if not any(one in self.made for one in node.all_input_nodes):
            return
        before = dict(self.inputs)
        try:
            made = self.graph.node_copy(node, lambda one: self._value(one, node))
        except NotRegionError:
            self.inputs = before
            raise
        self.made[node] = made

    def _require_shape(self, shape: tuple[int, ...]) -> None:
        if shape[-1:] != self.shape[-1:] or torch.Size(shape).numel() != torch.Size(self.shape).numel():
            raise NotRegionError("another shape")

    def _value(self, node: fx.Node, user: fx.Node) -> fx.Node:
        return self.made[node] if node in self.made else self._outer(node, user)

    def _operand(self, node: Any) -> fx.Node:
        """An operand of the product; the transposition of a matrix is of the region."""
        if node.target in _TRANSPOSITIONS and len(_shape_of(node.args[0])) == 2:
            return self.graph.call_function(_aten.permute.default, (self._input(node.args[0], is_operand=True), [1, 0]))
        return self._input(node, is_operand=True)

    def _outer(self, node: Any, user: fx.Node) -> fx.Node:
        """A value from outside beside the product's: of its size, or one for each of its columns."""
        shape = _shape_of(node)
        if node in self.behind:
            raise NotRegionError("what it needs comes of the product in another way")
        if shape == _shape_of(user):
            return self._input(node, self.shape)
        if shape[-1:] == self.shape[-1:] and torch.Size(shape).numel() == shape[-1]:
            return self._input(node, shape[-1:])
        raise NotRegionError("another shape")

    def _input(self, node: Any, shape: tuple[int, ...] | None = None, *, is_operand: bool = False) -> fx.Node:
        is_conversion = node.op == "call_function" and node.target is _CONVERSION
        if is_conversion and not is_operand and node.args[0].meta["val"].dtype in _FLOATS:
            node = node.args[0]  # but operands of a product are of one type
        if not node.meta["val"].is_contiguous():
            raise NotRegionError("a tensor that is not contiguous")
        shape = shape or _shape_of(node)
        if (node, is_operand) not in self.inputs:
            made = self.graph.placeholder(node.name)
            made.meta["val"] = node.meta["val"].new_empty(shape)
            self.inputs[node, is_operand] = made, shape
        return self.inputs[node, is_operand][0]

    def region(self) -> ProductRegion:
        """Return the largest region that leaves one value, of the product's own type.

        Raises:
            NotRegionError: there is none.
        """
        nodes = list(self.made)
        for count in range(len(nodes), 0, -1):
            inside = set(nodes[:count])
            ends = [one for one in nodes[:count] if any(user not in inside for user in one.users)]
            if len(ends) == 1 and ends[0].meta["val"].dtype == self.dtype:
                return self._region(ends[0])
        raise NotRegionError("it leaves several values")

    def _region(self, end: fx.Node) -> ProductRegion:
        values = {made: (node, shape) for (node, _), (made, shape) in self.inputs.items()}
        operations: list[fx.Node] = []
        _collect(self.made[end], operations)
        used = [one for one in values if any(one in operation.all_input_nodes for operation in operations)]
        inputs = {one: _value(*values[one]) for one in used}
        output = _value(end, self.shape)
        text = text_of(inputs, [one for one in operations if one not in values], {self.made[end]: output})
        device = end.meta["val"].device
        region = Region(text, (*inputs.values(),), (output,), (), device, is_dynamic=False, source=source_of([end]))
        return ProductRegion(region, end, tuple(values[one] for one in used))


def _value(node: fx.Node, shape: tuple[int, ...]) -> Value:
    return Value(node.name, tuple(range(len(shape))), shape, node.meta["val"].dtype)


def _collect(node: fx.Node, found: list[fx.Node]) -> None:
    """Add what a value is computed by, in order."""
    for one in node.all_input_nodes:
        if one not in found:
            _collect(one, found)
    if node not in found:
        found.append(node)


def _descendants(node: fx.Node) -> dict[fx.Node, None]:
    """The nodes that need a value, in the order of the graph."""
    found = {node}
    for one in _after(node):
        if any(used in found for used in one.all_input_nodes):
            found.add(one)
    return {one: None for one in _after(node) if one in found}


def _after(node: fx.Node) -> Iterator[fx.Node]:
    while (node := node.next).op != "root":
        yield node


def _shape_of(node: Any) -> tuple[int, ...]:
    """The shape of a node's value.

    Raises:
        NotRegionError: it is no tensor, or a size of it is known when the program runs, and not before.
    """
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    if not isinstance(value, torch.Tensor) or not all(type(size) is int for size in value.shape):
        raise NotRegionError("a value that is no tensor, or of a size that is not known")
    return tuple(value.shape)


def _is_pointwise(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags
