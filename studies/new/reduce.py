"""Reductions of rows: from nodes of a trace to the texts of the block `Rows`, and of what stands behind a layer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from tunebench.studies.new.norms import Norm, RowsOf, norm_of
from tunebench.studies.new.trace import Given, Traced, shape_of
from tunebench.studies.new.translate import Translator, UntranslatedError, broadcast_kind, called
from tunebench.studies.new.values import PRODUCT, SUM, Operands, Reach, Value

_SIMPLE = {
    "sum": ("Sum", "total"),
    "prod": ("Product", "product"),
    "max": ("Max", "top"),
    "amax": ("Max", "top"),
    "min": ("Min", "least"),
    "amin": ("Min", "least"),
}
"""Reductions of the values themselves, with the names that their results get."""
_REDUCING = (*_SIMPLE, "mean", "logsumexp", "norm", "linalg_vector_norm", "var", "std")
_SAME_OF_ONE = ("sum", "mean", "max", "min", "logsumexp")
_NORMALISING = ("softmax", "log_softmax", "normalize")
_LOSSES = {
    "mse_loss": "square({0} - {1})",
    "l1_loss": "abs({0} - {1})",
    "smooth_l1_loss": "auto d = abs({0} - {1}); return d < 1 ? 0.5 * d * d : d - 0.5;",
}


@dataclass(frozen=True)
class Reduced:
    """A reduction: the class of `blocks` that it is, and its text."""

    kind: str
    text: str

    def __repr__(self) -> str:
        return f'blocks.{self.kind}("{self.text}")'


def rows_of(node: fx.Node, traced: Traced) -> RowsOf | None:
    """What a node reduces or normalises; None where it does neither, or others than the last dimensions."""
    given = node.args[0] if node.args else None
    shape = shape_of(given) if isinstance(given, fx.Node) else None
    if shape is None:
        return None
    if (norm := norm_of(node, traced, len(shape))) is not None:
        return norm.rows
    name = called(node, traced.model)
    if name in _LOSSES:
        return RowsOf(len(shape))
    if name not in _REDUCING + _NORMALISING or (name in ("max", "min") and _is_of_two(node)):
        return None
    wanted = sorted(one % len(shape) for one in _dimensions(name, node, len(shape)))
    return RowsOf(len(wanted)) if wanted == list(range(len(shape) - len(wanted), len(shape))) else None


class RowTranslator(Translator):
    """As `Translator`, with reductions of rows.

    Args:
        rows: what of the anchor's value is a row.
    """

    def __init__(
        self,
        traced: Traced,
        anchor: fx.Node,
        given: Given,
        text: str,
        operands: Operands,
        kinds: Collection[str],
        rows: RowsOf,
    ) -> None:
        super().__init__(traced, anchor, given, text, operands, kinds, whole=True, keeps_parts=False)
        self.reductions: dict[str, Reduced] = {}
        self.rows = rows

    def _value_of(self, node: fx.Node) -> Value:
        name = called(node, self._traced.model)
        if name == "getitem" and node.args[1] == 0 and called(node.args[0], self._traced.model) in ("max", "min"):  # type: ignore[arg-type]
            return self.value(node.args[0])
        if name == "getattr" and node.args[1] == "values":
            return self.value(node.args[0])
        rows = rows_of(node, self._traced)
        if rows is None:
            value = super()._value_of(node)
            self._require_aligned(node, value)
            return value
        given = node.args[0]
        assert isinstance(given, fx.Node)
        x = self.value(given)
        if x.reach is not Reach.ELEMENT:
            shape = shape_of(given)
            if shape is not None and shape[len(shape) - rows.dimensions :].numel() == 1 and name in _SAME_OF_ONE:
                return x
            raise UntranslatedError(f"{name} of what is one value for each row already")
        if rows != self.rows:
            raise UntranslatedError(f"{name} over {rows} beside others over {self.rows}")
        norm = norm_of(node, self._traced, len(self.shape))
        return self._reduced(name, node, x) if norm is None else self._normalised(norm, x)

    def _require_aligned(self, node: fx.Node, value: Value) -> None:
        """Refuse values of rows, without their dimensions, beside those of elements."""
        if value.reach is not Reach.ELEMENT or shape_of(node) != self.shape:
            return
        for one in node.all_input_nodes:
            known, shape = self.values.get(one), shape_of(one) or ()
            if known is not None and known.reach is Reach.ROW and 0 < len(shape) < len(self.shape):
                raise UntranslatedError(f"{one.name}, one value for each row, without keepdim=True")

    def _reduced(self, name: str, node: fx.Node, x: Value) -> Value:
        if node.kwargs.get("dtype") is not None:
            raise UntranslatedError(f"{name} in another dtype")
        if name in _SIMPLE:
            return Value(self._add(*_SIMPLE[name], x.text), Reach.ROW)
        if name in ("softmax", "log_softmax", "logsumexp"):
            return self._exponential(name, x)
        made: dict[str, Callable[[], Value]] = {
            "mean": lambda: Value(self._mean(x), Reach.ROW, PRODUCT),
            "var": lambda: self._variance(node, x),
            "std": lambda: Value(f"sqrt({self._variance(node, x).text})", Reach.ROW),
            "normalize": lambda: self._divided(node, x),
            **dict.fromkeys(("norm", "linalg_vector_norm"), lambda: self._norm(_argument(node, 1, ("p", "ord"), 2), x)),
            **dict.fromkeys(_LOSSES, lambda: self._loss(name, node, x)),
        }
        return made[name]()

    def _exponential(self, name: str, x: Value) -> Value:
        top = self._add("Max", "top", x.text)
        if name == "logsumexp":
            total = self._add("Sum", "total", f"exp({x.within(SUM)} - zero_if_infinite({top}))")
            return Value(f"log({total}) + zero_if_infinite({top})", Reach.ROW, SUM)
        shifted = f"{x.within(SUM)} - {top}"
        total = self._add("Sum", "total", f"exp({shifted})")
        if name == "log_softmax":
            return Value(f"{shifted} - log({total})", Reach.ELEMENT, SUM)
        return Value(f"exp({shifted}) / {total}", Reach.ELEMENT, PRODUCT)

    def _loss(self, name: str, node: fx.Node, x: Value) -> Value:
        if node.kwargs.get("reduction", "mean") != "mean" or node.kwargs.get("beta", 1.0) != 1.0:
            raise UntranslatedError(name)
        total = self._add("Sum", "total", _LOSSES[name].format(x.text, self.value(node.args[1]).text))
        return Value(f"{total} / features", Reach.ROW, PRODUCT)

    def _divided(self, node: fx.Node, x: Value) -> Value:
        length = self._norm(_argument(node, 1, ("p",), 2), x)
        least = self.value(_argument(node, 3, ("eps",), 1e-12))
        return Value(f"{x.within(PRODUCT)} / max({length.text}, {least.text})", Reach.ELEMENT, PRODUCT)

    def _norm(self, order: Any, x: Value) -> Value:
        if order in (2, "fro", None):
            return Value(f"sqrt({self._add('Sum', 'squares', f'square({x.text})')})", Reach.ROW)
        if order == 1:
            return Value(self._add("Sum", "total", f"abs({x.text})"), Reach.ROW)
        raise UntranslatedError(f"a norm of order {order}")

    def _variance(self, node: fx.Node, x: Value) -> Value:
        unbiased = node.kwargs.get("unbiased", node.args[2] if len(node.args) > 2 else True)
        correction = node.kwargs.get("correction", 1 if unbiased else 0)
        squares = self._squares_around(self._mean(x), x)
        text = f"{squares} / features" if correction == 0 else f"{squares} / (features - {correction})"
        return Value(text, Reach.ROW, PRODUCT)

    def _mean(self, x: Value) -> str:
        return f"{self._add('Sum', 'total', x.text)} / features"

    def _squares_around(self, mean: str, x: Value) -> str:
        return self._add("Sum", "squares", f"square({x.within(SUM)} - {mean})")

    def _normalised(self, norm: Norm, x: Value) -> Value:
        eps = self.operands.number(norm.eps).text
        if norm.has_mean:
            mean = self._mean(x)
            squares = self._squares_around(mean, x)
            text = f"({x.within(SUM)} - {mean}) * rsqrt({squares} / features + {eps})"
        else:
            squares = self._add("Sum", "squares", f"square({x.text})")
            text = f"{x.within(PRODUCT)} * rsqrt({squares} / features + {eps})"
        kind = "per_channel" if self.rows.groups else "per_feature"
        if norm.weight is not None:
            text += f" * {self.operands.name(kind, norm.weight)}"
        if norm.bias is None:
            return Value(text, Reach.ELEMENT, PRODUCT)
        return Value(f"{text} + {self.operands.name(kind, norm.bias)}", Reach.ELEMENT, SUM)

    def _add(self, kind: str, wanted: str, text: str) -> str:
        """The name of a reduction, new or known."""
        made = Reduced(kind, text)
        for name, known in self.reductions.items():
            if known == made:
                return name
        name, number = wanted, 2
        while name in self.reductions or name in self.operands.taken:
            name, number = f"{wanted}_{number}", number + 1
        self.reductions[name] = made
        return name

    def _broadcast(self, path: str, shape: Any) -> Value:
        if self.rows.groups:
            return super()._broadcast(path, shape)
        row = self.rows.dimensions
        if len(shape) > 1 and tuple(shape) == tuple(self.shape[-row:]):
            return Value(self.operands.name("per_feature", path))
        if row > 1 and broadcast_kind(shape, self.shape) != "per_tensor":
            raise UntranslatedError(f"'{path}' of shape {tuple(shape)} beside rows of {self.rows}")
        return super()._broadcast(path, shape)


def _is_of_two(node: fx.Node) -> bool:
    """Whether `max` or `min` is of two tensors, and no reduction."""
    return (len(node.args) > 1 and not isinstance(node.args[1], int)) or "other" in node.kwargs


def _argument(node: fx.Node, place: int, names: Iterable[str], default: Any) -> Any:
    for name in names:
        if name in node.kwargs:
            return node.kwargs[name]
    return node.args[place] if len(node.args) > place else default


def _dimensions(name: str, node: fx.Node, all_of_them: int) -> list[int]:
    place = 2 if name in ("norm", "linalg_vector_norm", "normalize") else 1
    found: Any = _argument(node, place, ("dim", "axis"), 1 if name == "normalize" else None)
    if found is None:
        return list(range(all_of_them))
    return [int(one) for one in found] if isinstance(found, list | tuple) else [int(found)]


def keepdim_of(shape: torch.Size, main: torch.Size, row: int) -> bool | None:
    """Whether a value for each row has the row's dimensions as ones; None where its shape is neither form."""
    rows = tuple(main[: len(main) - row])
    if tuple(shape) == (*rows, *([1] * row)):
        return True
    return False if tuple(shape) == rows else None
