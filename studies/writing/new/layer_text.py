"""Writes the attributes of a block that has a layer, node by node."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import fx, nn

from tunebench.studies.writing.new.core import Text
from tunebench.studies.writing.new.layers import Layer, beside, layers
from tunebench.studies.writing.new.nodes import shape_of
from tunebench.studies.writing.new.norms import RowsOf
from tunebench.studies.writing.new.reduce import RowTranslator, keepdim_of, rows_of
from tunebench.studies.writing.new.trace import Traced
from tunebench.studies.writing.new.translate import UntranslatedError, called
from tunebench.studies.writing.new.values import SUM, Operands, Reach, Value

_OF_ANY_SHAPE = ("per_feature", "per_tensor")
"""The kinds of operands behind a layer whose input has more than two dimensions."""
_TRIANGLES = {"triu": "upper", "tril": "lower"}
_NORMS_BEHIND: Mapping[type | None, str] = {nn.BatchNorm1d: "batch_norm_at", nn.GroupNorm: "group_norm_at"}


class LayerWriter:
    """The attributes of a block behind a layer, node by node."""

    def __init__(self, traced: Traced, layer: Layer, replaced: Collection[str], kinds: Collection[str]) -> None:
        self.traced = traced
        operands = Operands(set(traced.names))
        self.translator = RowTranslator(traced, layer.node, replaced, "value", operands, kinds, RowsOf(1))
        self.translator.keeps_parts = True
        if layer.bias is not None and (layer.is_product or layer.windows is not None):
            kind = "per_feature" if layer.is_product else "per_channel"
            bias = self.translator.operands.name(kind, layer.bias)
            self.translator.keep(layer.node, Value(f"value + {bias}", binds=SUM))

    def take(self, node: fx.Node) -> None:
        """Translate one.

        Raises:
            UntranslatedError: it has no place in the block.
        """
        if rows_of(node, self.traced) is not None:
            raise UntranslatedError(called(node, self.traced.model))
        self.translator.translate(node)

    def takes(self, node: fx.Node) -> bool:
        """Take a node; whether it has a place in the block."""
        try:
            self.take(node)
        except UntranslatedError:
            return False
        return True

    def attributes(self, last: fx.Node) -> Text:
        """All, where this node's value is what the block makes."""
        final = self.translator.finished(self.translator.values[last])
        return [("function", final), *operand_lines(self.translator.operands)]


class LinearWriter(LayerWriter):
    """The writer of `Linear`, which has a function, then a normalisation or reductions, then another function."""

    def __init__(self, traced: Traced, layer: Layer, replaced: Collection[str], kinds: Collection[str]) -> None:
        self.is_wide = layer.other is None and len(shape_of(layer.node) or ()) > 2
        super().__init__(traced, layer, replaced, _OF_ANY_SHAPE if self.is_wide else kinds)
        self.translator.other_layers = beside(layer, layers(traced, "linear"))
        self.function: str | None = None
        self.behind: Text = []
        self.triangle: Text = []

    def take(self, node: fx.Node) -> None:
        """Take a node as for any layer; a normalisation or the first reduction ends the first function."""
        if (kept := _TRIANGLES.get(called(node, self.traced.model))) is not None:
            anchor, shape = node.all_input_nodes[0], shape_of(node)
            alone = self.translator.values == {anchor: Value("value")} and len(anchor.users) == 1
            if len(node.args) > 1 or node.kwargs or not alone or shape is None or len(shape) > 2:
                raise UntranslatedError(called(node, self.traced.model))
            self.triangle = [("triangle", kept)]
            self.translator.other_layers = {}
            self.translator.values[node] = Value("value")
            return
        layer = self.traced.model.get_submodule(str(node.target)) if node.op == "call_module" else None
        attribute = _NORMS_BEHIND.get(type(layer))
        is_of_rows = attribute is not None or rows_of(node, self.traced) is not None
        if is_of_rows and self.is_wide:
            raise UntranslatedError(f"{called(node, self.traced.model)} behind a layer of more than two dimensions")
        if attribute is not None:
            if self.function is not None:
                raise UntranslatedError(f"a second {type(layer).__name__}")
            if isinstance(layer, nn.BatchNorm1d):
                if "other_layers" in self.translator.operands.by_attribute:
                    raise UntranslatedError("BatchNorm1d behind several layers")
                self.translator.other_layers = {}
            self._end(_input_of(node))
            self.behind = [(attribute, str(node.target))]
            self.translator.values = {node: Value("value")}
            return
        if is_of_rows:
            if self.behind and self.behind[0][0] == "group_norm_at":
                raise UntranslatedError(f"{called(node, self.traced.model)} behind GroupNorm")
            if self.function is None:
                self.translator.value(node.args[0])
                self._end(_input_of(node))
                self.translator.values = {_input_of(node): Value("value")}
        self.translator.translate(node)

    def _end(self, given: fx.Node) -> None:
        self.function = self.translator.finished(self.translator.value(given))
        self.translator.keeps_parts = False

    def attributes(self, last: fx.Node) -> Text:
        """All, where this node's value is what the block makes."""
        if self.function is None:
            return [*self.triangle, *(line for line in super().attributes(last) if line != ("function", "value"))]
        result = self.translator.values[last]
        lines: Text = [*self.triangle, *([] if self.function == "value" else [("function", self.function)])]
        lines += [*self.behind, *row_lines(self.traced, self.translator, last)]
        if result.text != "value":
            lines.append(("finish", result.text))
        return [*lines, *operand_lines(self.translator.operands)]


def row_lines(traced: Traced, translator: RowTranslator, last: fx.Node) -> Text:
    """Return the attributes of a block that describe its reductions.

    Raises:
        UntranslatedError: the result has one value for each row, in a shape that the block does not make.
    """
    lines: Text = [("reductions", translator.reductions)] if translator.reductions else []
    result, shape = translator.values[last], shape_of(last)
    if result.reach is Reach.ROW:
        keepdim = keepdim_of(shape or torch.Size(), translator.shape, translator.rows.dimensions)
        if keepdim is None or translator.rows.groups:
            raise UntranslatedError(f"{called(last, traced.model)} in such a shape")
        lines += [("keepdim", True)] if keepdim else []
    return lines


def _input_of(node: fx.Node) -> fx.Node:
    given = node.args[0]
    assert isinstance(given, fx.Node)
    return given


def operand_lines(operands: Operands) -> Text:
    """Return the attributes of a block that say what its texts read."""
    lines: Text = []
    for attribute, names in operands.by_attribute.items():
        if all(name == path for name, path in names.items()):
            lines.append((attribute, tuple(names)))
        else:
            lines.append((attribute, names))
    return [*lines, *operands.computed.items()]
