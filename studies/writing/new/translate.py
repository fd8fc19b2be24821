"""From nodes of a trace to the text of a device function."""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Mapping, Sequence
from string import Formatter
from typing import Any

import torch
from torch import fx, nn

from tunebench.studies.writing.new.layers import Layer, called_diagonal
from tunebench.studies.writing.new.named_numbers import NamedInteger, NamedNumber
from tunebench.studies.writing.new.nodes import (
    ancestors,
    attribute_of,
    dtype_of,
    function_name,
    number_of,
    shape_of,
    strides_of,
)
from tunebench.studies.writing.new.operations import (
    BINARY,
    CASTS,
    CLAMPS,
    EXTREMES,
    GELU,
    MODULES,
    OPERATIONS,
    PAIR,
    POWER,
    SAME,
    bound,
    is_default,
    other_than_default,
)
from tunebench.studies.writing.new.trace import Traced
from tunebench.studies.writing.new.values import ATOM, PRODUCT, SUM, Operands, Reach, Value, reach_of

_LOGISTIC = re.compile(r"exp\(-(?P<x>\w+)\) \+ 1|1 \+ exp\(-(?P<y>\w+)\)")
"""The denominator of the logistic function of a value, as text."""


class UntranslatedError(Exception):
    """An operation has no place in a device function; the message says which, in a few words."""


def called(node: fx.Node, model: nn.Module) -> str:
    """Return the name of the torch function that a node calls, without underscores of operators and in-place forms."""
    if node.op == "call_module":
        module = model.get_submodule(str(node.target))
        return MODULES.get(type(module), type(module).__name__)
    if isinstance(node.target, str):
        return node.target.strip("_")
    place, _, name = (function_name(node.target) or "").rpartition(".")
    # Those of torch.linalg have names of their own beside: its norm is another than torch's.
    is_plain = place in ("torch", "nn.functional", "math")
    return (name if is_plain else getattr(node.target, "__name__", str(node.target))).strip("_")


class Translator:
    """Makes texts of nodes, one after another.

    Args:
        anchor: the node whose value a device function has an element of.
        replaced: the arguments of `forward` in whose place the block is given other values.
        text: what the element is called.
        operands: which it adds to.
        kinds: of the operands that the block takes.
        whole: arguments of `forward` that it takes an element of, where they have this shape.
        keeps_parts: whether a value that is used more than once becomes a statement of its own.

    Attributes:
        other_layers: those whose values the block makes as it does the anchor's.
    """

    def __init__(
        self,
        traced: Traced,
        anchor: fx.Node,
        replaced: Collection[str],
        text: str,
        operands: Operands,
        kinds: Collection[str],
        *,
        whole: bool,
        keeps_parts: bool = True,
    ) -> None:
        self.values: dict[fx.Node, Value] = {anchor: Value(text)}
        self.statements: list[str] = []
        self.operands = operands
        self._traced = traced
        shape = shape_of(anchor)
        assert shape is not None
        self.shape = shape
        self._anchor = anchor
        given = [one for one in anchor.graph.nodes if one.op == "placeholder"]
        self._taken = [one for one in given if one in anchor.all_input_nodes or one.name in replaced]
        self._kinds = kinds
        self._whole = whole
        self.keeps_parts = keeps_parts
        self.other_layers: Mapping[fx.Node, Layer] = {}
        self._parts = 0

    def value(self, argument: Any) -> Value:
        """Return the value that an argument of a node is in the text.

        Raises:
            UntranslatedError: it has no place in a device function.
        """
        if isinstance(argument, bool) or argument is None:
            raise UntranslatedError(f"the argument {argument}")
        if isinstance(argument, int | float):
            return self.operands.number(argument)
        if not isinstance(argument, fx.Node):
            raise UntranslatedError(f"the argument {argument!r}")
        if argument not in self.values:
            self.values[argument] = self._outside(argument)
        return self.values[argument]

    def translate(self, node: fx.Node) -> None:
        """Give a node's value its text.

        Raises:
            UntranslatedError: it has none.
        """
        self.keep(node, self._computed(node))

    def _computed(self, node: fx.Node) -> Value:
        """The text of an operation, in the type that the kernel computes in."""
        try:
            value = self._value_of(node)
        except (LookupError, TypeError, ValueError) as error:  # arguments in a form that nobody has thought of here
            raise UntranslatedError(called(node, self._traced.model)) from error
        dtype, own = dtype_of(node), dtype_of(self._anchor)
        if dtype is not None and own is not None and not is_computed_as(dtype, own):
            raise UntranslatedError(f"{called(node, self._traced.model)}, whose result is {_told(dtype)}")
        return value

    def keep(self, node: fx.Node, value: Value) -> None:
        """Take a text for a node's value; one that is used more than once stands in a statement of its own."""
        if self.keeps_parts and _uses(node) > 1 and not value.text.isidentifier():
            self._parts += 1
            self.statements.append(f"auto part_{self._parts} = {value.text};")
            value = Value(f"part_{self._parts}", value.reach)
        self.values[node] = value

    def finished(self, result: Value) -> str:
        """The whole text that returns a value; the statements begin anew."""
        statements, self.statements = self.statements, []
        return " ".join([*statements, f"return {result.text};"]) if statements else result.text

    def _outside(self, node: fx.Node) -> Value:
        """A parameter, a buffer, an argument of `forward`, or what none of the anchor's values is needed for."""
        if self._anchor in ancestors(node) or node is self._anchor:
            raise UntranslatedError(f"a value of {called(node, self._traced.model)}")
        if (layer := self.other_layers.get(node)) is not None:
            name = self.operands.name("other_layers", layer.path)
            if not layer.is_product or layer.bias is None:
                return Value(name)
            return Value(f"{name} + {self.operands.name('per_feature', layer.bias)}", binds=SUM)
        given = _widened(node) or node
        if given.op in ("placeholder", "get_attr"):
            return self._tensor(given, shape_of(node))
        return self._computed(node)

    def _tensor(self, node: fx.Node, shape: torch.Size | None) -> Value:
        """A parameter, a buffer, or an argument of `forward`, in a shape that dimensions of one element give it."""
        if node in self._taken:
            into = called(self._anchor, self._traced.model)
            raise UntranslatedError(f"'{node.name}', which goes into {into} or stands in the place of what does")
        if node.op == "placeholder":
            at = self._traced.names.index(node.name)
            given = self._traced.inputs[at] if at < len(self._traced.inputs) else None
            if isinstance(given, int | float):
                return Value(self.operands.argument("scalars", node.name), Reach.NUMBER)
            if isinstance(given, torch.Tensor) and given.dtype == dtype_of(self._anchor):
                is_whole = self._whole and given.shape == self.shape
                return Value(node.name) if is_whole else self._broadcast(node.name, shape or given.shape)
            raise UntranslatedError(f"the argument '{node.name}'")
        tensor = attribute_of(self._traced.model, str(node.target))
        if not isinstance(tensor, torch.Tensor):
            raise UntranslatedError(f"'{node.target}'")
        if (number := number_of(tensor)) is not None:
            return self.operands.number(number)
        if tensor.dtype != dtype_of(self._anchor):
            raise UntranslatedError(f"'{node.target}', which is {_told(tensor.dtype)}")
        return self._broadcast(str(node.target), shape or tensor.shape)

    def _broadcast(self, path: str, shape: torch.Size) -> Value:
        """A tensor that is broadcast along the elements.

        Args:
            path: of an attribute of the module, or the name of an argument of `forward`.
        """
        kind = broadcast_kind(shape, self.shape)
        if kind is None or kind not in self._kinds:
            raise UntranslatedError(f"'{path}' of shape {tuple(shape)} beside elements of {tuple(self.shape)}")
        is_argument = path in self._traced.names
        name = self.operands.argument(kind, path) if is_argument else self.operands.name(kind, path)
        return Value(name, Reach.NUMBER if kind == "per_tensor" else Reach.ELEMENT)

    def _value_of(self, node: fx.Node) -> Value:
        name = called(node, self._traced.model)
        if node.op == "call_module":
            return self._module(node, name)
        if node.op == "call_function" and not is_known(node.target):
            raise UntranslatedError(name)
        arguments, named = node.args, node.kwargs
        if name in SAME or name in CASTS:
            return self._same(node, name)
        if name in BINARY:
            return self._binary(name, arguments, named)
        if name in ("matmul", "mm") and not named:
            return self._diagonal(name, *arguments)
        if name in EXTREMES:
            return self._extreme(name, arguments, named)
        return self._operation(name, arguments, named)

    def _same(self, node: fx.Node, name: str) -> Value:
        """The value of an argument, which torch copies, or gives another type that the kernel computes in anyway."""
        given = node.args[0]
        if name in CASTS:
            others = [*node.args[1:], *(one for key, one in node.kwargs.items() if key == "dtype")]
            if len(others) != len(node.args) - 1 + len(node.kwargs) or not all(map(_is_of_a_type, others)):
                raise UntranslatedError(f"{name} with more than a type")
        elif unusual := other_than_default(
            SAME[name], bound(SAME[name], node.args, node.kwargs), ("x", "memory_format")
        ):
            raise UntranslatedError(f"{name} with {', '.join(unusual)}")
        if isinstance(given, fx.Node) and strides_of(given) != strides_of(node):
            raise UntranslatedError(f"{name}, which makes another layout")
        return self.value(given)

    def _module(self, node: fx.Node, name: str) -> Value:
        module = self._traced.model.get_submodule(str(node.target))
        if type(module) is nn.Dropout and module.p == 0:
            return self.value(node.args[0])
        if type(module) not in MODULES or len(node.args) != 1 or node.kwargs:
            raise UntranslatedError(f"{type(module).__name__} ('{node.target}')")
        if name in SAME:
            return self.value(node.args[0])
        if name == "gelu":
            return self._operation(name, node.args, {"approximate": module.approximate})
        named: dict[str, Any] = {}
        for parameter in _numbers_in(OPERATIONS[name].text) if name in OPERATIONS else ():
            number, path = getattr(module, parameter), f"{node.target}.{parameter}"
            named[parameter] = NamedInteger(number, path) if isinstance(number, int) else NamedNumber(number, path)
        return self._operation(name, node.args, named)

    def _operation(self, name: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> Value:
        if name == "pow":
            given = bound(POWER, arguments, named)
            return self._power(given["x"], given["exponent"])
        if name in CLAMPS:
            return self._clamp(name, bound(CLAMPS[name], arguments, named))
        if name == "gelu":
            given = bound(GELU, arguments, named)
            if given["approximate"] not in ("none", "tanh"):
                raise UntranslatedError(f"gelu with approximate={given['approximate']!r}")
            x = self.value(given["x"])
            return Value(f"{'gelu_tanh' if given['approximate'] == 'tanh' else 'gelu'}({x.text})", x.reach)
        operation = OPERATIONS.get(name)
        if operation is None:
            raise UntranslatedError(name)
        numbers, given = _numbers_in(operation.text), bound(operation.takes, arguments, named)
        if unusual := other_than_default(operation.takes, given, ("x", *numbers)):
            raise UntranslatedError(f"{name} with {', '.join(unusual)}")
        x = self.value(given["x"])
        if not other_than_default(operation.takes, given, ("x",)) and operation.text.startswith(f"{name}("):
            return Value(f"{name}({x.text})", x.reach)
        texts = {key: self.value(given[key]).text for key in numbers}
        binds = ATOM if operation.text.endswith(")") else PRODUCT
        return Value(operation.text.format(x=x.within(ATOM) if binds == PRODUCT else x.text, **texts), x.reach, binds)

    def _binary(self, name: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> Value:
        sign, takes = BINARY[name]
        given = bound(takes, arguments, named)
        if given.get("rounding_mode") is not None:
            raise UntranslatedError(f"{name} with rounding_mode={given['rounding_mode']!r}")
        left, right = self.value(given["x"]), self.value(given["other"])
        factor = given.get("alpha", 1)
        if name == "rsub":
            left, right = right, self._multiplied(left, factor)
        else:
            right = self._multiplied(right, factor)
        reach = reach_of(left, right)
        if sign == "*":
            for one, other in ((left, right), (right, left)):
                if other.text == f"sigmoid({one.text})":
                    return Value(f"swish({one.text})", reach)
        if sign == "/" and (found := _LOGISTIC.fullmatch(right.text)):
            of = found["x"] or found["y"]
            if left.text in ("1", of):
                return Value(f"{'sigmoid' if left.text == '1' else 'swish'}({of})", reach)
        if sign == "/" and right.reach is Reach.NUMBER and left.reach is not Reach.NUMBER and right.text != "0":
            # Torch's own kernels divide by a number so; CUDA's division takes longer.
            return Value(f"{left.within(PRODUCT)} * (1.0 / {right.within(PRODUCT + 1)})", reach, PRODUCT)
        binds = PRODUCT if sign in "*/" else SUM
        behind = binds + 1 if sign in "-/" else binds
        return Value(f"{left.within(binds)} {sign} {right.within(behind)}", reach, binds)

    def _diagonal(self, name: str, left: Any, right: Any) -> Value:
        """A product with a diagonal matrix: its rows, or its columns, times numbers."""
        for one, other, is_left in ((left, right, True), (right, left, False)):
            vector = one.args[0] if called_diagonal(one) else None
            size = shape_of(vector)
            if not isinstance(vector, fx.Node) or vector.op not in ("placeholder", "get_attr") or size is None:
                continue
            if len(size) == 1 and len(self.shape) == 2 and shape_of(other) == self.shape:
                factor = self._tensor(vector, torch.Size((size[0], 1)) if is_left else size)
                texts = (factor, self.value(other)) if is_left else (self.value(other), factor)
                return Value(" * ".join(text.within(PRODUCT) for text in texts), Reach.ELEMENT, PRODUCT)
        raise UntranslatedError(name)

    def _multiplied(self, value: Value, factor: Any) -> Value:
        if is_default(factor, 1):
            return value
        return Value(f"{self.value(factor).within(PRODUCT)} * {value.within(PRODUCT + 1)}", value.reach, PRODUCT)

    def _extreme(self, name: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> Value:
        given = bound(PAIR, arguments, named)
        if shape_of(given["other"]) is None:
            raise UntranslatedError(f"{name} over a dimension")
        left, right = self.value(given["x"]), self.value(given["other"])
        return Value(f"{EXTREMES[name]}({left.text}, {right.text})", reach_of(left, right))

    def _clamp(self, name: str, given: Mapping[str, Any]) -> Value:
        x = self.value(given["x"])
        bounds = {key: self.value(given[key]) for key in ("min", "max") if given.get(key) is not None}
        if not bounds:
            raise UntranslatedError(f"{name} without bounds")
        function = "clamp" if len(bounds) == 2 else "max" if "min" in bounds else "min"
        texts = ", ".join(one.text for one in (x, *bounds.values()))
        return Value(f"{function}({texts})", reach_of(x, *bounds.values()))

    def _power(self, base: Any, exponent: Any) -> Value:
        x, power = self.value(base), self.value(exponent)
        if type(exponent) in (int, float) and exponent == 2:
            return Value(f"square({x.text})", x.reach)
        if type(exponent) in (int, float) and exponent == 3 and x.text.isidentifier():
            return Value(f"{x.text} * {x.text} * {x.text}", x.reach, PRODUCT)
        return Value(f"pow({x.text}, {power.text})", reach_of(x, power))


def _widened(node: fx.Node) -> fx.Node | None:
    """The value that a node gives dimensions of one element, and nothing else; None of any other node."""
    given, index = [*node.args, None, None][:2]
    if not isinstance(given, fx.Node):
        return None
    if node.target is operator.getitem and isinstance(index, tuple):
        return given if all(one in (None, slice(None)) for one in index) else None
    return given if node.target in (torch.unsqueeze, "unsqueeze") else None


def is_known(target: object) -> bool:
    """Whether a function that a node calls is torch's or Python's: nobody else's is known by its name."""
    return function_name(target) is not None or getattr(target, "__module__", "") in ("_operator", "builtins")


def is_computed_as(dtype: torch.dtype, own: torch.dtype) -> bool:
    """Whether a kernel for tensors of one type computes what torch computes in another, and rounds no less."""
    return dtype == own or (dtype is torch.float32 and own in (torch.float16, torch.bfloat16))


def _told(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _is_of_a_type(argument: object) -> bool:
    """Whether an argument of a cast is a type, or the value that has it."""
    if isinstance(argument, fx.Node):
        return argument.op == "placeholder" or shape_of(argument) is not None or argument.args[-1] == "dtype"
    return isinstance(argument, torch.dtype)


def _numbers_in(text: str) -> list[str]:
    """The names in braces of an operation's text, without the value's."""
    return [name for _, name, _, _ in Formatter().parse(text) if name not in (None, "x")]


def _uses(node: fx.Node) -> int:
    """How often a node's value is an argument."""
    return sum(sum(one is node for one in [*user.args, *user.kwargs.values()]) for user in node.users)


def broadcast_kind(shape: torch.Size, main: torch.Size) -> str | None:
    """How a tensor is broadcast along elements of another shape, as the attribute of a block; None where it is not."""
    if shape.numel() == 1:
        return "per_tensor"
    padded = torch.Size([1] * (len(main) - len(shape)) + list(shape))
    if len(padded) != len(main):
        return None
    if padded[-1] == main[-1] and padded[:-1].numel() == 1:
        return "per_feature"
    if len(main) > 2 and padded[1] == main[1] and padded.numel() == main[1]:
        return "per_channel"
    return "per_row" if padded[-1] == 1 and padded[:-1] == main[:-1] else None
