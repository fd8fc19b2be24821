"""Reductions of rows: from nodes of a trace to the texts of the block `Rows`, and of what stands behind a layer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from tunebench.studies.writing.new.nodes import shape_of
from tunebench.studies.writing.new.norms import Norm, RowsOf, norm_of
from tunebench.studies.writing.new.operations import bound, is_default, other_than_default, taking
from tunebench.studies.writing.new.trace import Traced
from tunebench.studies.writing.new.translate import Translator, UntranslatedError, broadcast_kind, called
from tunebench.studies.writing.new.values import PRODUCT, SUM, Operands, Reach, Value

_SIMPLE = {
    "sum": ("Sum", "total"),
    "prod": ("Product", "product"),
    "max": ("Max", "top"),
    "amax": ("Max", "top"),
    "min": ("Min", "least"),
    "amin": ("Min", "least"),
}
"""Reductions of the values themselves, with the names that their results get."""
_SAME_OF_ONE = ("sum", "mean", "max", "min", "logsumexp")
_LOSSES = {
    "mse_loss": "square({0} - {1})",
    "l1_loss": "abs({0} - {1})",
    "smooth_l1_loss": "auto d = abs({0} - {1}); return d < 1 ? 0.5 * d * d : d - 0.5;",
}

_SUM = taking("x, dim=None, keepdim=False, *, dtype=None")
_TOP = taking("x, dim=None, keepdim=False")
_SPREAD = taking("x, dim=None, unbiased=None, keepdim=False, *, correction=None")
_SHARE = taking("x, dim, dtype=None")
_LOSS = "x, target, size_average=None, reduce=None, reduction='mean', weight=None"
_TAKES = {
    **dict.fromkeys(("sum", "mean", "prod"), _SUM),
    **dict.fromkeys(("max", "min"), _TOP),
    **dict.fromkeys(("amax", "amin"), taking("x, dim=(), keepdim=False")),
    "logsumexp": taking("x, dim, keepdim=False"),
    "norm": taking("x, p='fro', dim=None, keepdim=False, out=None, dtype=None"),
    "linalg_vector_norm": taking("x, ord=2, dim=None, keepdim=False, *, dtype=None"),
    **dict.fromkeys(("var", "std"), _SPREAD),
    **dict.fromkeys(("softmax", "log_softmax"), _SHARE),
    "normalize": taking("x, p=2.0, dim=1, eps=1e-12, out=None"),
    **dict.fromkeys(("mse_loss", "l1_loss"), taking(_LOSS)),
    "smooth_l1_loss": taking(_LOSS.replace("weight=None", "beta=1.0")),
}
"""All arguments of reductions and of normalisations of rows, by the names of torch's functions and methods."""
_SHARE_OF_FUNCTIONAL = taking("x, dim=None, _stacklevel=3, dtype=None")
_READ = ("x", "dim", "keepdim", "dtype", "p", "ord", "unbiased", "correction", "eps", "target")
"""Arguments that a translation reads; others have to be at their defaults."""


@dataclass(frozen=True)
class Reduced:
    """A reduction: the class of `blocks` that it is, and its text."""

    kind: str
    text: str

    def __repr__(self) -> str:
        return f'blocks.{self.kind}("{self.text}")'


def rows_of(node: fx.Node, traced: Traced) -> RowsOf | None:
    """Return the rows that a node reduces or normalises; None where it does neither, or not the last dimensions."""
    given = node.args[0] if node.args else None
    shape = shape_of(given)
    if shape is None:
        return None
    if (norm := norm_of(node, traced, len(shape))) is not None:
        return norm.rows
    name = called(node, traced.model)
    if name not in _TAKES or (name in ("max", "min") and _is_of_two(node)):
        return None
    wanted = list(range(len(shape))) if name in _LOSSES else _dimensions(node, traced, len(shape))
    is_last = bool(wanted) and wanted == list(range(len(shape) - len(wanted), len(shape)))
    return RowsOf(len(wanted)) if is_last else None


def _dimensions(node: fx.Node, traced: Traced, count: int) -> list[int]:
    """Return the dimensions, of `count`, that a reduction goes over, in order; empty where that cannot be told."""
    try:
        found = _arguments(node, traced)["dim"]
    except TypeError:
        return []
    if found is None or found == ():  # all of them; but which one softmax takes, torch chooses
        return [] if called(node, traced.model) in ("softmax", "log_softmax") else list(range(count))
    listed = found if isinstance(found, list | tuple) else [found]
    return sorted(one % count for one in listed) if all(isinstance(one, int) for one in listed) else []


def _arguments(node: fx.Node, traced: Traced) -> dict[str, Any]:
    """The arguments of a reduction, or of a normalisation of rows, by their names.

    Raises:
        TypeError: it has others.
        UntranslatedError: one that no text says is not at its default.
    """
    name = called(node, traced.model)
    if node.op == "call_module":
        return {"x": node.args[0], "dim": traced.model.get_submodule(str(node.target)).dim, "dtype": None}
    is_functional = getattr(node.target, "__module__", "") == torch.nn.functional.__name__
    takes = _SHARE_OF_FUNCTIONAL if is_functional and name in ("softmax", "log_softmax") else _TAKES[name]
    given = bound(takes, node.args, node.kwargs)
    if type(given.get("dim")) is bool:  # var(x, unbiased)
        given |= {"dim": None, "unbiased": given["dim"]}
    if unusual := other_than_default(takes, given, (*_READ, "_stacklevel")):
        raise UntranslatedError(f"{name} with {', '.join(unusual)}")
    return given


class RowTranslator(Translator):
    """As `Translator`, with reductions of rows.

    Args:
        rows: what of the anchor's value is a row.
    """

    def __init__(
        self,
        traced: Traced,
        anchor: fx.Node,
        replaced: Collection[str],
        text: str,
        operands: Operands,
        kinds: Collection[str],
        rows: RowsOf,
    ) -> None:
        super().__init__(traced, anchor, replaced, text, operands, kinds, whole=True, keeps_parts=False)
        self.reductions: dict[str, Reduced] = {}
        self.rows = rows

    def _value_of(self, node: fx.Node) -> Value:
        name = called(node, self._traced.model)
        if (name, node.args[-1]) in (("getitem", 0), ("getattr", "values")):
            made = node.args[0]
            if isinstance(made, fx.Node) and called(made, self._traced.model) in ("max", "min"):
                return self.value(made)
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
        given = _arguments(node, self._traced)
        if name in _SIMPLE:
            return Value(self._add(*_SIMPLE[name], x.text), Reach.ROW)
        if name in ("softmax", "log_softmax", "logsumexp"):
            return self._exponential(name, x)
        made: dict[str, Callable[[], Value]] = {
            "mean": lambda: Value(self._mean(x), Reach.ROW, PRODUCT),
            "var": lambda: self._variance(given, x),
            "std": lambda: Value(f"sqrt({self._variance(given, x).text})", Reach.ROW),
            "normalize": lambda: self._divided(given, x),
            "norm": lambda: self._norm(given["p"], x),
            "linalg_vector_norm": lambda: self._norm(given["ord"], x),
            **dict.fromkeys(_LOSSES, lambda: self._loss(name, given, x)),
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

    def _loss(self, name: str, given: Mapping[str, Any], x: Value) -> Value:
        target = self.value(given["target"])
        total = self._add("Sum", "total", _LOSSES[name].format(x.within(SUM), target.within(PRODUCT)))
        return Value(f"{total} / features", Reach.ROW, PRODUCT)

    def _divided(self, given: Mapping[str, Any], x: Value) -> Value:
        length, least = self._norm(given["p"], x), self.value(given["eps"])
        return Value(f"{x.within(PRODUCT)} / max({length.text}, {least.text})", Reach.ELEMENT, PRODUCT)

    def _norm(self, order: Any, x: Value) -> Value:
        if order is not None and type(order) not in (int, float, str):
            raise UntranslatedError("a norm of an order that the model has")
        if order in (2, "fro", None):
            return Value(f"sqrt({self._add('Sum', 'squares', f'square({x.text})')})", Reach.ROW)
        if order == 1:
            return Value(self._add("Sum", "total", f"abs({x.text})"), Reach.ROW)
        raise UntranslatedError(f"a norm of order {order}")

    def _variance(self, given: Mapping[str, Any], x: Value) -> Value:
        correction = given["correction"]
        if correction is None:
            correction = 0 if given["unbiased"] is False else 1
        squares = self._squares_around(self._mean(x), x)
        if is_default(correction, 0):
            return Value(f"{squares} / features", Reach.ROW, PRODUCT)
        if is_default(correction, 1):
            return Value(f"{squares} / (features - 1)", Reach.ROW, PRODUCT)
        less = self.value(correction)
        return Value(f"{squares} / max(features - {less.within(PRODUCT)}, 0)", Reach.ROW, PRODUCT)

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
    other = node.args[1] if len(node.args) > 1 else node.kwargs.get("other")
    return isinstance(other, fx.Node)


def keepdim_of(shape: torch.Size, main: torch.Size, row: int) -> bool | None:
    """Whether a value for each row has the row's dimensions as ones; None where its shape is neither form."""
    rows = tuple(main[: len(main) - row])
    if tuple(shape) == (*rows, *([1] * row)):
        return True
    return False if tuple(shape) == rows else None
