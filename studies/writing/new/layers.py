"""The layers of a trace that a block can take: modules of torch's, and products with a parameter."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import fx, nn

from tunebench.studies.writing.new.trace import Traced, shape_of

LAYERS: Mapping[str, type[nn.Module]] = {"linear": nn.Linear, "conv": nn.Conv2d}
"""The module that each block with a layer takes."""

_DIMENSIONS = {"linear": 2, "conv": 4}
_PRODUCTS = (torch.matmul, torch.mm, operator.matmul, "matmul", "mm", "__matmul__")
_TRANSPOSED = (torch.t, torch.transpose, torch.swapaxes, "t", "transpose", "swapaxes")
_PERMUTED = (torch.permute, "permute")


@dataclass(frozen=True)
class Layer:
    """One layer.

    Attributes:
        node: whose value it is.
        given: whose value it takes.
        path: of the module; of a product, of the parameter.
        is_product: whether it is a product with a parameter, as `x @ self.weight.T` and `F.linear` are.
        is_transposed: whether a product's parameter is transposed, as a linear layer's is.
        bias: the path of what it adds; None where it adds nothing.
        operations: how much arithmetic it is, to compare layers by.
    """

    node: fx.Node
    given: fx.Node
    path: str
    is_product: bool
    is_transposed: bool
    bias: str | None
    operations: int

    def as_product(self) -> Layer:
        """The same as a product, which may be of any argument; a module takes the first one."""
        return self if self.is_product else replace(self, path=f"{self.path}.weight", is_product=True)

    def text(self, argument: str) -> str:
        """Return the text of a block's `layer`, where this argument of `forward` goes into it."""
        return f"{argument} @ {self.path}{'.T' if self.is_transposed else ''}" if self.is_product else self.path


def layers(traced: Traced, block: str) -> list[Layer]:
    """The layers of a trace that a block takes, the one with the most arithmetic first."""
    assert traced.graph is not None
    found = []
    for node in traced.graph.nodes:
        layer = _module(traced, node, block) or (_product(node) if block == "linear" else None)
        made = shape_of(node)
        if layer is not None and made is not None and len(made) == _DIMENSIONS[block]:
            found.append(layer)
    return sorted(found, key=lambda layer: layer.operations, reverse=True)


def _module(traced: Traced, node: fx.Node, block: str) -> Layer | None:
    if node.op != "call_module":
        return None
    module = traced.model.get_submodule(str(node.target))
    made, given = shape_of(node), node.args[0]
    if type(module) is not LAYERS[block] or made is None or not isinstance(given, fx.Node):
        return None
    assert isinstance(module.weight, torch.Tensor)
    operations = module.weight.numel() * (made.numel() // made[1])
    path = str(node.target)
    return Layer(node, given, path, False, True, None if module.bias is None else f"{path}.bias", operations)


def _product(node: fx.Node) -> Layer | None:
    """`F.linear(x, weight, bias)`, `x @ weight.T` and `x @ weight` of a parameter or buffer of two dimensions."""
    weight: object
    given, weight, bias = [*node.args, None, None, None][:3]
    if node.target is nn.functional.linear:
        bias = node.kwargs.get("bias", bias)
        weight, is_transposed = _straight(node.kwargs.get("weight", weight))
        is_transposed = not is_transposed  # it multiplies by the transposed weight
    elif node.target in _PRODUCTS and not node.kwargs:
        weight, is_transposed = _straight(weight)
    else:
        return None
    made, path = shape_of(node), _path_of(weight)
    if path is None or made is None or not isinstance(given, fx.Node) or not isinstance(weight, fx.Node):
        return None
    shapes = shape_of(given), shape_of(weight)
    if any(shape is None or len(shape) != 2 for shape in shapes) or (bias is not None and _path_of(bias) is None):
        return None
    assert shapes[0] is not None
    return Layer(node, given, path, True, is_transposed, _path_of(bias), made.numel() * shapes[0][1])


def _straight(weight: object) -> tuple[object, bool]:
    """Return a matrix without its transpositions, and whether they leave it transposed."""
    is_transposed = False
    while isinstance(weight, fx.Node) and (swaps := _swaps(weight)) is not None:
        is_transposed, weight = is_transposed != swaps, weight.args[0]
    return weight, is_transposed


def _swaps(node: fx.Node) -> bool | None:
    """Whether the two dimensions of a matrix change places; None where something else becomes of it."""
    given = node.args[0] if node.args else None
    before, after = shape_of(given), shape_of(node)
    if before is None or after is None or len(before) != 2 or len(after) != 2:
        return None
    if node.target is getattr:
        return True if node.args[1] in ("T", "mT") else None
    if node.target not in (*_TRANSPOSED, *_PERMUTED):
        return None
    order: list[object] = []
    for one in (*node.args[1:], *node.kwargs.values()):
        order += one if isinstance(one, list | tuple) else [one]
    first, *others = [one % 2 for one in order if isinstance(one, int)] or [0, 1]
    return first == 1 if node.target in _PERMUTED else [first] != others


def _path_of(node: object) -> str | None:
    """The path of a parameter or a buffer; None of any other value."""
    return str(node.target) if isinstance(node, fx.Node) and node.op == "get_attr" else None
