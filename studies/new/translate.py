"""From nodes of a trace to the text of a device function."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import fx, nn

from tunebench.studies.new.named_numbers import NamedInteger, NamedNumber, expression_of
from tunebench.studies.new.operations import BINARY, EXTREMES, IGNORED, MODULES, OPERATIONS, SAME
from tunebench.studies.new.trace import Given, Traced, ancestors, function_name, number_of, shape_of
from tunebench.studies.new.values import ATOM, PRODUCT, SUM, Operands, Reach, Value, reach_of


class UntranslatedError(Exception):
    """An operation has no place in a device function; the message says which, in a few words."""


def called(node: fx.Node, model: nn.Module) -> str:
    """What a node does, by the name of torch's function, without the underscores of operators and in-place forms."""
    if node.op == "call_module":
        module = model.get_submodule(str(node.target))
        return MODULES.get(type(module), type(module).__name__)
    if isinstance(node.target, str):
        return node.target.strip("_")
    place = function_name(node.target)
    return (place.rpartition(".")[2] if place else getattr(node.target, "__name__", str(node.target))).strip("_")


class Translator:
    """Makes texts of nodes, one after another.

    Args:
        anchor: the node whose value a device function has an element of.
        given: what the block is given.
        text: what the element is called.
        operands: which it adds to.
        kinds: of the operands that the block takes.
        whole: arguments of `forward` that it takes an element of, where they have this shape.
        keeps_parts: whether a value that is used more than once becomes a statement of its own.
    """

    def __init__(
        self,
        traced: Traced,
        anchor: fx.Node,
        given: Given,
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
        self._taken = [one for one in anchor.all_input_nodes if one.op == "placeholder"]
        if not given.is_itself:
            self._taken += [one for one in anchor.graph.nodes if one.op == "placeholder" and one.name == given.name]
        self._kinds = kinds
        self._whole = whole
        self.keeps_parts = keeps_parts
        self._parts = 0

    def value(self, argument: Any) -> Value:
        """What an argument of a node is in the text.

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
        try:
            value = self._value_of(node)
        except (LookupError, TypeError, ValueError) as error:  # arguments in a form that nobody has thought of here
            raise UntranslatedError(called(node, self._traced.model)) from error
        self.keep(node, value)

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
        """A parameter, a buffer, or an argument of `forward`."""
        if node in self._taken:
            into = called(self._anchor, self._traced.model)
            raise UntranslatedError(f"'{node.name}', which goes into {into} or stands in the place of what does")
        if node.op == "placeholder":
            at = self._traced.names.index(node.name)
            given = self._traced.inputs[at] if at < len(self._traced.inputs) else None
            if isinstance(given, int | float):
                return Value(self.operands.argument("scalars", node.name), Reach.NUMBER)
            if isinstance(given, torch.Tensor) and given.is_floating_point():
                if self._whole and given.shape == self.shape:
                    return Value(node.name)
                return self._broadcast(node.name, given.shape)
            raise UntranslatedError(f"the argument '{node.name}'")
        if node.op == "get_attr":
            tensor = _attribute(self._traced.model, str(node.target))
            if (number := number_of(tensor)) is not None:
                return self.operands.number(number)
            return self._broadcast(str(node.target), tensor.shape)
        if self._anchor in ancestors(node) or node is self._anchor:
            raise UntranslatedError(f"a value of {called(node, self._traced.model)}")
        return self._value_of(node)

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
        arguments, named = list(node.args), {key: one for key, one in node.kwargs.items() if key not in IGNORED}
        if name in SAME:
            return self.value(arguments[0])
        if name in BINARY or (name in EXTREMES and len(arguments) + len(named) == 2):
            factor = named.pop("alpha", None)
            return self._binary(name, [*arguments, *named.values()], named, factor)
        if name in ("neg", "rsub", "pow", "clamp", "clamp_min", "clamp_max", "clip"):
            return self._arithmetic(name, arguments, named)
        return self._operation(name, arguments, named)

    def _arithmetic(self, name: str, arguments: list[Any], named: Mapping[str, Any]) -> Value:
        if name == "neg":
            x = self.value(arguments[0])
            return Value(f"-{x.within(ATOM)}", x.reach, PRODUCT)
        if name == "rsub":
            return self._binary("sub", [arguments[1], arguments[0], *arguments[2:]], named)
        if name == "pow":
            return self._power(*arguments, *named.values())
        return self._clamp(name, arguments, named)

    def _module(self, node: fx.Node, name: str) -> Value:
        module = self._traced.model.get_submodule(str(node.target))
        if type(module) is nn.Dropout and module.p == 0:
            return self.value(node.args[0])
        if type(module) not in MODULES:
            raise UntranslatedError(f"{type(module).__name__} ('{node.target}')")
        if name in SAME:
            return self.value(node.args[0])
        named: dict[str, Any] = {}
        if name == "gelu":
            named["approximate"] = module.approximate
        for parameter in OPERATIONS[name].parameters if name in OPERATIONS else ():
            number, path = getattr(module, parameter), f"{node.target}.{parameter}"
            named[parameter] = NamedInteger(number, path) if isinstance(number, int) else NamedNumber(number, path)
        return self._operation(name, [node.args[0]], named)

    def _operation(self, name: str, arguments: list[Any], named: Mapping[str, Any]) -> Value:
        if name == "gelu":
            form = named.get("approximate", arguments[1] if len(arguments) > 1 else "none")
            x = self.value(arguments[0])
            return Value(f"{'gelu_tanh' if form == 'tanh' else 'gelu'}({x.text})", x.reach)
        operation = OPERATIONS.get(name)
        if operation is None or not arguments:
            raise UntranslatedError(name)
        x = self.value(arguments[0])
        given = {**operation.parameters, **dict(zip(operation.parameters, arguments[1:], strict=False)), **named}
        if given.keys() - operation.parameters.keys():
            raise UntranslatedError(f"{name} with {', '.join(given.keys() - operation.parameters.keys())}")
        if all(_is_default(one, operation.parameters[key]) for key, one in given.items()) and operation.text.startswith(
            f"{name}("
        ):
            return Value(f"{name}({x.text})", x.reach)
        texts = {key: self.value(one).text for key, one in given.items()}
        binds = ATOM if operation.text.endswith(")") else PRODUCT
        return Value(operation.text.format(x=x.within(ATOM) if binds == PRODUCT else x.text, **texts), x.reach, binds)

    def _binary(self, name: str, arguments: list[Any], named: Mapping[str, Any], factor: Any = None) -> Value:
        if named.keys() & {"rounding_mode", "out"} or len(arguments) != 2:
            raise UntranslatedError(f"{name} with {', '.join(named) or 'so many arguments'}")
        left, right = self.value(arguments[0]), self.value(arguments[1])
        if factor is not None:
            right = Value(f"{self.value(factor).within(PRODUCT)} * {right.within(PRODUCT + 1)}", right.reach, PRODUCT)
        reach = reach_of(left, right)
        if name in EXTREMES:
            return Value(f"{EXTREMES[name]}({left.text}, {right.text})", reach)
        sign = BINARY[name]
        if sign == "*":
            for one, other in ((left, right), (right, left)):
                if other.text == f"sigmoid({one.text})":
                    return Value(f"swish({one.text})", reach)
        binds = PRODUCT if sign in "*/" else SUM
        behind = binds + 1 if sign in "-/" else binds
        return Value(f"{left.within(binds)} {sign} {right.within(behind)}", reach, binds)

    def _clamp(self, name: str, arguments: list[Any], named: Mapping[str, Any]) -> Value:
        x = self.value(arguments[0])
        bounds = dict(
            zip({"clamp_min": ("min",), "clamp_max": ("max",)}.get(name, ("min", "max")), arguments[1:], strict=False)
        )
        bounds |= named
        low, high = bounds.get("min"), bounds.get("max")
        if low is not None and high is not None:
            return Value(f"clamp({x.text}, {self.value(low).text}, {self.value(high).text})", x.reach)
        if low is None and high is None:
            raise UntranslatedError(f"{name} without bounds")
        return Value(
            f"{'min' if low is None else 'max'}({x.text}, {self.value(high if low is None else low).text})", x.reach
        )

    def _power(self, base: Any, exponent: Any) -> Value:
        x = self.value(base)
        if type(exponent) in (int, float) and exponent == 2:
            return Value(f"square({x.text})", x.reach)
        if type(exponent) in (int, float) and exponent == 3 and x.text.isidentifier():
            return Value(f"{x.text} * {x.text} * {x.text}", x.reach, PRODUCT)
        if isinstance(base, int | float):
            return Value(f"pow({self.value(base).text}, {self.value(exponent).text})", self.value(exponent).reach)
        return Value(f"pow({x.text}, {self.value(exponent).text})", x.reach)


def _is_default(value: object, default: object) -> bool:
    """Whether an argument is an operation's default, and nothing made of attributes that somebody may change."""
    return value == default and expression_of(value) is None


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


def _attribute(model: nn.Module, path: str) -> torch.Tensor:
    place, _, name = path.rpartition(".")
    found = getattr(model.get_submodule(place), name)
    if not isinstance(found, torch.Tensor):
        raise UntranslatedError(f"'{path}'")
    return found
