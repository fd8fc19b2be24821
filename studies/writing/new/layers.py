"""The layers of a trace that a block can take: modules of torch's, products with a parameter or of two other values,
and convolutions with filters that are a parameter or an input."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import Signature

import torch
from torch import fx, nn

from tunebench.kernels.shared import images
from tunebench.studies.writing.new.nodes import shape_of
from tunebench.studies.writing.new.operations import bound, taking
from tunebench.studies.writing.new.trace import Traced

LAYERS: Mapping[str, tuple[type[nn.Module], ...]] = {"linear": (nn.Linear,), "conv": images.LAYERS}
"""The modules that each block with a layer takes."""

_LEAST_DIMENSIONS = {"linear": 2, "conv": 3}
_PRODUCTS = (torch.matmul, torch.mm, torch.bmm, operator.matmul, "matmul", "mm", "bmm", "__matmul__")
_TRANSPOSED = (torch.t, torch.transpose, torch.swapaxes, "t", "transpose", "swapaxes")
_PERMUTED = (torch.permute, "permute")
_FUNCTIONS = nn.functional
_CONVOLUTIONS: Mapping[object, Signature] = {
    **dict.fromkeys(
        (_FUNCTIONS.conv1d, _FUNCTIONS.conv2d, _FUNCTIONS.conv3d),
        taking("x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1"),
    ),
    **dict.fromkeys(
        (_FUNCTIONS.conv_transpose1d, _FUNCTIONS.conv_transpose2d, _FUNCTIONS.conv_transpose3d),
        taking("x, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1, transposed=True"),
    ),
    torch.convolution: taking(f"x, weight, bias, {', '.join(images.WINDOWS)}"),
}
_DIAGONALS = (torch.diag, torch.diag_embed, "diag", "diag_embed")


@dataclass(frozen=True)
class Layer:
    """One layer.

    Attributes:
        node: whose value it is.
        given: whose value it takes.
        path: of the module; of a product or filters, of the parameter, or the name of the other value.
        is_product: whether it is a product with a parameter, as `x @ self.weight.T` and `F.linear` are, or two inputs'.
        is_transposed: whether a product's parameter is transposed, as a linear layer's is, or its second input.
        bias: the path of what it adds; None where it adds nothing.
        operations: how much arithmetic it is, to compare layers by.
        is_turned: whether the first of two inputs is transposed.
        other: what filters are, or the second factor, that is no parameter; None of everything else.
        windows: of filters, as the block has them; None of everything else.
    """

    node: fx.Node
    given: fx.Node
    path: str
    is_product: bool
    is_transposed: bool
    bias: str | None
    operations: int
    is_turned: bool = False
    other: fx.Node | None = None
    windows: Mapping[str, object] | None = field(default=None, hash=False)

    @property
    def has_computed(self) -> bool:
        """Whether the second factor is computed in `forward`."""
        return self.other is not None and self.other.op != "placeholder"

    def as_product(self) -> Layer:
        """The same as a product, which may be of any argument; a module takes the first one."""
        return self if self.is_product else replace(self, path=f"{self.path}.weight", is_product=True)

    def text(self, argument: str) -> str:
        """Return the text of a block's `layer`, where this argument of `forward` goes into it."""
        if not self.is_product:
            return self.path
        return f"{argument}{'.T' if self.is_turned else ''} @ {self.path}{'.T' if self.is_transposed else ''}"


def layers(traced: Traced, block: str) -> list[Layer]:
    """The layers of a trace that a block takes, the one with the most arithmetic first."""
    assert traced.graph is not None
    found = []
    for node in traced.graph.nodes:
        layer = _module(traced, node, block) or (_product(node) if block == "linear" else _convolution(node))
        made = shape_of(node)
        if layer is not None and made is not None and len(made) >= _LEAST_DIMENSIONS[block]:
            found.append(layer)
    return sorted(found, key=lambda layer: layer.operations, reverse=True)


def beside(first: Layer, found: Sequence[Layer]) -> dict[fx.Node, Layer]:
    """Return the layers, by their nodes, that a block takes with the first one: of its kind, input and size."""

    def kind(layer: Layer) -> tuple[object, ...]:
        return layer.given, shape_of(layer.node), layer.is_product, layer.is_transposed, layer.other

    alike = [one.as_product() if first.is_product else one for one in found if first.other is None]
    return {one.node: one for one in alike if one.node is not first.node and kind(one) == kind(first)}


def _module(traced: Traced, node: fx.Node, block: str) -> Layer | None:
    if node.op != "call_module":
        return None
    module = traced.model.get_submodule(str(node.target))
    made, given = shape_of(node), node.args[0]
    if type(module) not in LAYERS[block] or made is None or not isinstance(given, fx.Node):
        return None
    if len(node.args) > 1 or node.kwargs:  # a transposed convolution's size
        return None
    assert isinstance(module.weight, torch.Tensor)
    multiplied = shape_of(given) if getattr(module, "transposed", False) else made
    assert multiplied is not None
    operations = module.weight.numel() * (multiplied.numel() // multiplied[-1 if block == "linear" else 1])
    path = str(node.target)
    return Layer(node, given, path, False, True, None if module.bias is None else f"{path}.bias", operations)


def _convolution(node: fx.Node) -> Layer | None:
    """A function that convolves with filters that are a parameter or an input."""
    takes = _CONVOLUTIONS.get(node.target)
    if takes is None:
        return None
    given = bound(takes, node.args, node.kwargs)
    x, weight, bias = (given.pop(name) for name in ("x", "weight", "bias"))
    taken, of_weight, made = map(shape_of, (x, weight, node))
    if taken is None or of_weight is None or made is None or not len(taken) == len(of_weight) == len(made):
        return None
    other = weight if weight.op == "placeholder" else None
    path = _path_of(weight) if other is None else other.name
    if path is None or (bias is not None and _path_of(bias) is None):
        return None
    told = {name: one if isinstance(one, list | tuple) else [one] for name, one in given.items()}
    if not all(isinstance(one, int) for numbers in told.values() for one in numbers):
        return None
    windows = {
        name: numbers[0] if len({*numbers}) == 1 else tuple(numbers)
        for name, numbers in told.items()
        if {*numbers} != {images.WINDOWS[name]}
    }
    multiplied = taken if windows.get("transposed") else made
    operations = of_weight.numel() * (multiplied.numel() // multiplied[1])
    return Layer(node, x, path, False, False, _path_of(bias), operations, other=other, windows=windows)


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
    elif node.target is torch.einsum:
        return _of_inputs(node, *_contracted(node))
    else:
        return None
    if isinstance(weight, fx.Node) and weight.op != "get_attr":
        return _of_inputs(node, given, False, weight, is_transposed) if bias is None else None
    made, path = shape_of(node), _path_of(weight)
    if path is None or made is None or not isinstance(given, fx.Node) or not isinstance(weight, fx.Node):
        return None
    taken, of_weight = shape_of(given) or (), shape_of(weight) or ()
    if len(taken) < 2 or len(of_weight) != 2 or (bias is not None and _path_of(bias) is None):
        return None
    return Layer(node, given, path, True, is_transposed, _path_of(bias), made.numel() * taken[-1])


def _of_inputs(node: fx.Node, x: object, is_turned: bool, weight: object, is_transposed: bool) -> Layer | None:
    """The product of two matrices, or of stacks of them, none of them a parameter; they may be transposed."""
    (x, turns), (weight, transposes) = _straight(x), _straight(weight)
    made, shapes = shape_of(node), (shape_of(x), shape_of(weight))
    if not isinstance(x, fx.Node) or not isinstance(weight, fx.Node) or made is None:
        return None
    if "get_attr" in (x.op, weight.op) or any(map(called_diagonal, (x, weight))):
        return None
    if any(shape is None or len(shape) < 2 for shape in shapes):
        return None
    is_turned, is_transposed = is_turned != turns, is_transposed != transposes
    assert shapes[0] is not None
    operations = made.numel() * shapes[0][-2 if is_turned else -1]
    return Layer(node, x, weight.name, True, is_transposed, None, operations, is_turned, weight)


def called_diagonal(node: object) -> bool:
    """Whether a node makes a diagonal matrix of a vector."""
    return isinstance(node, fx.Node) and node.target in _DIAGONALS and len(node.args) == 1 and not node.kwargs


def _contracted(node: fx.Node) -> tuple[object, bool, object, bool]:
    """Return the operands of an einsum that is torch.matmul's product, and which are transposed; else none."""
    equation, *operands = node.args
    sides, _, made = str(equation).replace(" ", "").partition("->")
    names = sides.split(",")
    if made.isalpha() and len(names) == len(operands) == 2 and all(len({*name}) == len(name) for name in names):
        for x, weight in ((0, 1), (1, 0)):
            shared = [letter for letter in names[x] if letter in names[weight]]
            stack = "".join(letter for letter in shared if letter in made)
            summed = "".join(letter for letter in shared if letter not in made)
            rows = "".join(letter for letter in names[x] if letter not in shared)
            columns = "".join(letter for letter in names[weight] if letter not in shared)
            if len(summed) != 1 or len(columns) != 1 or not rows or (stack and len(rows) > 1):
                continue
            is_turned = names[x] == stack + summed + rows and len(rows) == 1
            is_transposed = names[weight] == stack + columns + summed
            known = names[x] == stack + rows + summed or is_turned
            known = known and (is_transposed or names[weight] == stack + summed + columns)
            if known and made == stack + rows + columns:
                return operands[x], is_turned, operands[weight], is_transposed
    return None, False, None, False


def _straight(weight: object) -> tuple[object, bool]:
    """Return a matrix without its transpositions, and whether they leave it transposed."""
    is_transposed = False
    while isinstance(weight, fx.Node) and (swaps := _swaps(weight)) is not None:
        is_transposed, weight = is_transposed != swaps, weight.args[0]
    return weight, is_transposed


def _swaps(node: fx.Node) -> bool | None:
    """Whether the last two dimensions of matrices change places; None where something else becomes of them."""
    given = node.args[0] if node.args else None
    before, after = shape_of(given), shape_of(node)
    if before is None or after is None or len(before) < 2 or len(after) != len(before):
        return None
    last = [len(before) - 2, len(before) - 1]
    if node.target is getattr:
        return True if node.args[1] == "mT" or (node.args[1] == "T" and last == [0, 1]) else None
    if node.target not in (*_TRANSPOSED, *_PERMUTED):
        return None
    order: list[object] = []
    for one in (*node.args[1:], *node.kwargs.values()):
        order += one if isinstance(one, list | tuple) else [one]
    wanted = [one % len(before) for one in order if isinstance(one, int)] or [0, 1]
    if node.target in _PERMUTED:
        wanted = [place for at, place in enumerate(wanted) if at in last or place != at]
        return None if sorted(wanted) != last else wanted != last
    return None if not {*wanted} <= {*last} else wanted[0] != wanted[1]


def _path_of(node: object) -> str | None:
    """The path of a parameter or a buffer; None of any other value."""
    return str(node.target) if isinstance(node, fx.Node) and node.op == "get_attr" else None
