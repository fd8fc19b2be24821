"""Products of matrices and convolutions in a graph, each with the pointwise operations behind it, as regions.

In the text of a product's region tensors of any dimensions are matrices. Conversions between floating-point types are
left out: a kernel computes in float32 from the product to its result.

Images lie channels-last between convolutions where Inductor itself has them so; the ones that a graph is given stay as
they are. A convolution whose window is one pixel is a product there: each pixel is a row of its channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from tunebench.studies.inductor.region import NotRegionError, Region, Value, source_of, text_of
from tunebench.tuner.settings import Setting, value_of

_aten = torch.ops.aten
PRODUCTS = (_aten.mm.default, _aten.addmm.default, _aten.convolution.default)
_TRANSPOSITIONS = (_aten.permute.default, _aten.t.default, _aten.transpose.int)
_CONVERSION = torch.ops.prims.convert_element_type.default
_SAME = (_aten.view.default, _aten.reshape.default, _aten._unsafe_view.default, _CONVERSION)
"""Operations that a region has no text for: its value is the one before."""
_WIDENED = (*_SAME, _aten.unsqueeze.default)
_CHANNELS_LAST = {4: "channels_last", 5: "channels_last_3d"}
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class RegionInGraph:
    """A region of a graph.

    Attributes:
        end: the node whose value it makes.
        inputs: the nodes that it reads, in the order of the region's.
        order: of the dimensions of its tensors there; empty where they are in the graph's.
    """

    region: Region
    end: fx.Node
    inputs: tuple[fx.Node, ...]
    order: tuple[int, ...]


def product_region(product: fx.Node, *, images_channels_last: bool) -> RegionInGraph:
    """Return the region that a product begins.

    Args:
        images_channels_last: whether Inductor lays the graph's images out so.

    Raises:
        NotRegionError: there is none.
    """
    copy = _Copy(product, images_channels_last)
    copy.grow()
    return copy.region()


def channels_last(dimensions: int) -> tuple[int, ...]:
    """The dimensions of images in the order in which they lie in memory where channels come last."""
    return (0, *range(2, dimensions), 1)


class _Copy:
    """A product and what stands behind it, as a graph of matrices; or a convolution, as one of images.

    Raises:
        NotRegionError: the product is none that a region begins with.
    """

    def __init__(self, product: fx.Node, images_channels_last: bool) -> None:
        self.images_channels_last = images_channels_last
        self.shape = shape_of(product)
        self.dtype = product.meta["val"].dtype
        self.graph = fx.Graph()
        # An operand that also stands beside the product is two inputs: a block has no other name for it.
        self.inputs: dict[tuple[fx.Node, bool], tuple[fx.Node, Value]] = {}
        self.vectors: dict[fx.Node, fx.Node] = {}
        self.behind = _descendants(product)
        if product.kwargs or self.dtype not in _FLOATS:
            raise NotRegionError("it has factors, or is in another type")
        self.images, self.of_pixels = "", False
        self.vector = self.shape[-1:]
        begin = self._convolution if product.target is _aten.convolution.default else self._product
        self.made: dict[fx.Node, fx.Node] = {product: begin(*product.args)}

    def _product(self, *operands: Any) -> fx.Node:
        *bias, left, right = operands
        made = self.graph.call_function(_aten.mm.default, (self._operand(left), self._operand(right)))
        return self._added(made, bias[0]) if bias else made

    def _convolution(self, x: Any, weight: Any, bias: Any, *windows: Any) -> fx.Node:
        is_laid_out = x.meta["val"].is_contiguous() and (x.op == "placeholder" or not self.images_channels_last)
        last = _CHANNELS_LAST.get(len(self.shape), "contiguous_format")
        self.images = "contiguous_format" if is_laid_out else last
        self.vector = (self.shape[1], *[1] * (len(self.shape) - 2))
        if not is_laid_out and _is_of_one_pixel(weight, *windows) and self._rounds_products_alike(x):
            self.images, self.of_pixels = "", True
            pixels = self._input(x, self._as_matrix(shape_of(x)), is_operand=True)
            filters = self._input(weight, shape_of(weight)[:2], is_operand=True)
            made = self.graph.call_function(_aten.mm.default, (pixels, self._transposed(filters)))
        else:
            of_weight = "" if weight.meta["val"].is_contiguous() else last
            pairs = ((x, self.images), (weight, of_weight))
            operands = [self._input(one, is_operand=True, images=images) for one, images in pairs]
            made = self.graph.call_function(_aten.convolution.default, (*operands, None, *windows))
        return made if bias is None else self._added(made, bias)

    def _rounds_products_alike(self, x: fx.Node) -> bool:
        """Return whether PyTorch's settings permit the same of products of matrices as of convolutions."""
        kind = x.meta["val"].device.type
        is_same = value_of(Setting.MATMUL, kind) == value_of(Setting.CONVOLUTION, kind)
        return is_same or self.dtype is not torch.float32

    def _as_matrix(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape in which the region has a tensor of its size, or with other channels."""
        return (math.prod(shape) // shape[1], shape[1]) if self.of_pixels else shape

    def _added(self, made: fx.Node, bias: fx.Node) -> fx.Node:
        return self.graph.call_function(_aten.add.Tensor, (made, self._of_vector(bias)))

    def grow(self) -> None:
        """Add whatever can be computed with the product, element by element."""
        for node in self.behind:
            # A copy has another layout, which is another region's.
            if node.target in _SAME or (is_pointwise(node) and node.target is not _aten.clone.default):
                try:
                    self._add(node)
                except NotRegionError:
                    continue

    def _add(self, node: Any) -> None:
        self._require_shape(shape_of(node))
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
        same = shape == self.shape if self.images or self.of_pixels else shape[-1:] == self.shape[-1:]
        if not same or math.prod(shape) != math.prod(self.shape):
            raise NotRegionError("another shape")

    def _value(self, node: fx.Node, user: fx.Node) -> fx.Node:
        return self.made[node] if node in self.made else self._outer(node, user)

    def _operand(self, node: Any) -> fx.Node:
        """An operand of the product; the transposition of a matrix is of the region."""
        if node.target in _TRANSPOSITIONS and len(shape_of(node.args[0])) == 2:
            return self._transposed(self._input(node.args[0], is_operand=True))
        return self._input(node, is_operand=True)

    def _transposed(self, matrix: fx.Node) -> fx.Node:
        return self.graph.call_function(_aten.permute.default, (matrix, [1, 0]))

    def _outer(self, node: Any, user: fx.Node) -> fx.Node:
        """A value from outside beside the product's: of its size, or one for each of its columns or channels."""
        shape = shape_of(node)
        if node in self.behind:
            raise NotRegionError("what it needs comes of the product in another way")
        if shape == shape_of(user):
            return self._input(node, self._as_matrix(self.shape), images=self.images)
        if shape[-len(self.vector) :] == self.vector and math.prod(shape) == math.prod(self.vector):
            return self._of_vector(node)
        raise NotRegionError("another shape")

    def _of_vector(self, node: fx.Node) -> fx.Node:
        """One value for each column or channel, with what computes it from others."""
        if node not in self.vectors:
            given, size = node.all_input_nodes, math.prod(self.vector)
            is_computed = given and all(math.prod(shape_of(one)) == size for one in given)
            is_same = node.target in _WIDENED or (node.target is _aten.mul.Tensor and node.args[1:] == (1,))
            if is_computed and is_same and given[0].meta["val"].dtype in _FLOATS:
                self.vectors[node] = self._of_vector(given[0])
            elif is_computed and node.target is _aten.reciprocal.default and given[0].target is _aten.sqrt.default:
                squared = self._of_vector(given[0].all_input_nodes[0])  # as a BatchNorm has it, in one operation
                self.vectors[node] = self.graph.call_function(_aten.rsqrt.default, (squared,))
            elif is_computed and is_pointwise(node):
                self.vectors[node] = self.graph.node_copy(node, self._of_vector)
            else:
                self.vectors[node] = self._input(node, self.shape[1:2] if self.of_pixels else self.vector)
        return self.vectors[node]

    def _input(
        self,
        node: Any,
        shape: tuple[int, ...] | None = None,
        *,
        is_operand: bool = False,
        images: str = "",
    ) -> fx.Node:
        if node.target is _CONVERSION and node.args[0].meta["val"].dtype == self.dtype and not is_operand:
            node = node.args[0]  # a kernel computes in float32 anyway
        value = node.meta["val"]
        if value.dtype != self.dtype or not (images or self.of_pixels or value.is_contiguous()):
            raise NotRegionError("a tensor of another type, or one that is not contiguous")
        shape = shape or shape_of(node)
        if (node, is_operand) not in self.inputs:
            made = self.graph.placeholder(node.name)
            made.meta["val"] = value.new_empty(shape)
            told = Value(node.name, tuple(range(len(shape))), shape, value.dtype, images)
            self.inputs[node, is_operand] = made, told
        return self.inputs[node, is_operand][0]

    def region(self) -> RegionInGraph:
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

    def _region(self, end: fx.Node) -> RegionInGraph:
        nodes = {made: node for (node, _), (made, _) in self.inputs.items()}
        values = dict(self.inputs.values())
        operations: list[fx.Node] = []
        _collect(self.made[end], operations)
        used = [one for one in values if any(one in operation.all_input_nodes for operation in operations)]
        inputs = {one: values[one] for one in used}
        shape = self._as_matrix(self.shape)
        output = Value(end.name, tuple(range(len(shape))), shape, end.meta["val"].dtype, self.images)
        text = text_of(inputs, [one for one in operations if one not in values], {self.made[end]: output})
        device, order = end.meta["val"].device, channels_last(end.meta["val"].dim()) if self.of_pixels else ()
        region = Region(text, (*inputs.values(),), (output,), (), device, False, source_of([end]), is_product=True)
        return RegionInGraph(region, end, tuple(nodes[one] for one in used), order)


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


def shape_of(node: Any) -> tuple[int, ...]:
    """The shape of a node's value.

    Raises:
        NotRegionError: it is no tensor, or a size of it is known when the program runs, and not before.
    """
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    if not isinstance(value, torch.Tensor) or not all(type(size) is int for size in value.shape):
        raise NotRegionError("a value that is no tensor, or of a size that is not known")
    return tuple(value.shape)


def _is_of_one_pixel(weight: fx.Node, *windows: Any) -> bool:
    """Return whether each output of a convolution is of the pixel at its place alone."""
    stride, padding, _, transposed, _, groups = windows
    has_window = any(one != 1 for one in (*shape_of(weight)[2:], *stride)) or any(padding)
    return not (has_window or transposed or groups > 1)


def is_pointwise(node: fx.Node) -> bool:
    """Whether a node computes each element of its value from those at its place."""
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags
