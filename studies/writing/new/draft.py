"""The kernels that a problem can have: the blocks that fit it, and what of its operations the blocks' texts can say."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx

from tunebench.kernels import blocks
from tunebench.studies.writing.new.attend import attention
from tunebench.studies.writing.new.core import Core, Text, cut, is_about_memory, result_of
from tunebench.studies.writing.new.hidden_names import hidden_names
from tunebench.studies.writing.new.layer_text import LayerWriter, LinearWriter, operand_lines, row_lines
from tunebench.studies.writing.new.layers import LAYERS, Layer, layers
from tunebench.studies.writing.new.nodes import between, descendants, dtype_of, lies_in, shape_of
from tunebench.studies.writing.new.reduce import RowTranslator, rows_of
from tunebench.studies.writing.new.trace import Given, Traced, ways_to_give
from tunebench.studies.writing.new.translate import Translator, UntranslatedError, called
from tunebench.studies.writing.new.values import FUNCTIONS, Operands
from tunebench.tuner.errors import UserError
from tunebench.tuner.space import CPP_WORDS

BLOCKS = ("pointwise", "rows", "linear", "conv", "attention")
"""The names that `--block` takes."""

_KINDS = {
    "pointwise": ("per_feature", "per_row", "per_channel", "per_tensor"),
    "linear": ("per_feature", "per_row", "per_tensor"),
    "conv": ("per_channel", "per_tensor"),
    "rows": ("per_feature", "per_row", "per_tensor"),
    "groups": ("per_channel", "per_tensor"),
}
_FORMATS = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)
"""In which a convolution's input has to lie in memory."""
_PICTURES, _MANY_CHANNELS = 4, 16
"""The dimensions of images of two sides, and the channels from which on a product of them is worth a layout."""
_MINOR = 16
"""A layer of fewer multiplications for each element of the largest tensor takes less time than that tensor does."""
_NOTHING = "a result of no operation"
_NO_ROWS = "rows without a reduction"


@dataclass(frozen=True)
class Drafts:
    """The kernels that can be made for a problem.

    Attributes:
        cores: best first: layers by their arithmetic, which passes may stand around, then what is whole.
        reason: why there are no others.
        hidden: why there is none of a block whose attributes the model has too; empty where there is no such block.
    """

    cores: tuple[Core, ...]
    reason: str
    hidden: str = ""


def draft(traced: Traced, wanted: str | None) -> Drafts:
    """Draft the kernels for a traced problem.

    Args:
        wanted: of `BLOCKS`; None for what the problem's layers and operations propose.

    Raises:
        UserError: the problem has nothing that the wanted block could take.
    """
    if reason := _why_none(traced):
        return Drafts((), reason)
    cores: list[tuple[int, Core]] = []
    hidden = ""
    for block, layer in _proposed(traced, wanted):
        try:
            if layer is not None:
                core, arithmetic = _layer(traced, block, layer), layer.operations
            else:
                core, arithmetic = _WHOLE[block](traced), 0
            if names := hidden_names(traced.model, getattr(blocks, core.block), core.own_names):
                reason = f"the model's own '{names[0]}' has the name of an attribute of blocks.{core.block}: rename it"
                hidden = hidden or reason
            else:
                cores.append((arithmetic, core))
        except UntranslatedError as error:
            reason = f"no block has {str(error).split('. ', maxsplit=1)[0]}"
    cores.sort(key=lambda one: -one[0])
    return Drafts(tuple(core for _, core in cores), reason, hidden)


def _why_none(traced: Traced) -> str:
    """Why no block is for a problem; empty where one may be."""
    if traced.graph is None and traced.reason:
        return traced.reason.split(". ", maxsplit=1)[0]
    if traced.graph is None or result_of(traced.graph) is None:
        return "the model does not return one tensor, as a block does"
    if not isinstance(traced.inputs[0] if traced.inputs else None, torch.Tensor):
        return "the first argument of forward is no tensor, as a block's is"
    if traced.dtype is not None and not traced.dtype.is_floating_point:
        return f"the model returns {str(traced.dtype).removeprefix('torch.')}, which no block writes"
    return ""


def _proposed(traced: Traced, wanted: str | None) -> Iterator[tuple[str, Layer | None]]:
    """The blocks that a problem may have a kernel of, each with a layer where it takes one.

    A product of two values that are computed may have passes in front of it, and nothing behind: what is largest beside
    it is proposed as well.
    """
    for block in [wanted] if wanted else (*LAYERS, *_WHOLE):
        found = layers(traced, block) if block in LAYERS else []
        if block not in LAYERS:
            yield block, None
        elif not found and wanted:
            legal = " or ".join(layer.__name__ for layer in LAYERS[block])
            raise UserError(f"the problem has no {legal} that the block {block} could take")
        for layer in found:
            yield block, layer
            if not layer.has_computed:
                break


def _layer(traced: Traced, block: str, found: Layer) -> Core:
    anchor = found.node
    assert traced.graph is not None
    graph, dependent = traced.graph, descendants(anchor)
    behind = [node for node in graph.nodes if node in dependent and node.op != "output"]

    def make(given: Given) -> Core:
        layer, replaced = found, {} if given.is_itself else {given.name: given.node.name}
        if given.name != traced.names[0]:
            if block != "linear":
                raise UntranslatedError(f"the argument '{given.name}'")  # such a layer takes the first one
            layer = layer.as_product()
        if layer.other is not None and layer.path in replaced:
            raise UntranslatedError(f"a product of '{given.name}' and what is made of it")
        if layer.has_computed:
            place = _place_beside(traced, given)
            replaced[place], layer = layer.path, replace(layer, path=place)

        def translated(nodes: Collection[fx.Node]) -> tuple[LayerWriter, list[fx.Node]]:
            """A writer of as many of the nodes as have a place in the block, and those."""
            writer = (LinearWriter if block == "linear" else LayerWriter)(traced, layer, replaced, _KINDS[block])
            return writer, [anchor, *(node for node in behind if node in nodes and writer.takes(node))]

        last = cut(traced, anchor, given, translated(behind)[1])
        if layer.has_computed and last is not result_of(graph):
            raise UntranslatedError(f"{called(anchor, traced.model)} of values that are computed")
        writer, done = translated(between(anchor, last))
        windows: Text = [("windows", layer.windows)] if layer.windows else []
        core = Core(
            block.capitalize(),
            [("layer", layer.text(given.name)), *windows, *writer.attributes(done[-1])],
            replaced,
            "" if last is result_of(graph) else last.name,
            block == "linear" and layer.operations < _MINOR * _largest(graph),
        )
        if block == "conv" and not given.is_itself:
            core = _laid_out(traced, core, found, given)
        return _readable(traced, core)

    return _served(traced, ways_to_give(traced, found.given), make)


def _laid_out(traced: Traced, core: Core, layer: Layer, given: Given) -> Core:
    """A convolution of images that passes make, with how it is given them.

    Where it is a product of many channels it multiplies images that are channels-last, and would turn others itself.
    """
    images = shape_of(given.node)
    assert images is not None
    windows = layer.windows
    groups = traced.model.get_submodule(layer.path).groups if windows is None else windows.get("groups", 1)
    is_product = len(images) == _PICTURES and groups == 1 and images[1] >= _MANY_CHANNELS
    if lies_in(given.node, _FORMATS[1:]):
        return core
    if is_product and not core.reads(given.name):
        attributes = [*core.attributes, ("output_layout", "nchw")]
        return replace(core, attributes=attributes, layout=torch.channels_last)
    return core if lies_in(given.node, _FORMATS) else replace(core, layout=torch.contiguous_format)


def _largest(graph: fx.Graph) -> int:
    """The number of elements of the largest tensor."""
    return max(shape.numel() for node in graph.nodes if (shape := shape_of(node)) is not None)


def _place_beside(traced: Traced, given: Given) -> str:
    """An argument in whose place a block can be given another value beside this one.

    Raises:
        UntranslatedError: there is none.
    """
    arguments = zip(traced.names, traced.inputs, strict=False)
    found = [name for name, one in arguments if isinstance(one, torch.Tensor) and name != given.name]
    if not found:
        raise UntranslatedError("a second value that is computed")
    return found[0]


def _served(traced: Traced, ways: Sequence[Given], make: Callable[[Given], Core], reason: str = "") -> Core:
    """The part that takes a value, in the first of the ways to give it that a block can serve.

    A block serves no call with a tensor in front that it does not read.

    Args:
        reason: why there is none, where no way has another.
    """
    reasons = []
    for given in ways:
        try:
            core = make(given)
        except UntranslatedError as error:
            reasons.append(str(error))
            continue
        if given.name == traced.names[0] or core.reads(traced.names[0]):
            return core
    raise UntranslatedError(
        next((one for one in reasons if one != reason), reason or f"the argument '{traced.names[0]}'")
    )


def _rows(traced: Traced) -> Core:
    """Reductions of rows of an argument of `forward`, and what is made of them."""
    return _served(traced, _arguments(traced), lambda given: _rows_from(traced, given), _NO_ROWS)


def _pointwise(traced: Traced) -> Core:
    """Functions of each element of an argument of `forward`."""
    return _served(traced, _arguments(traced), lambda given: _pointwise_from(traced, given), _NOTHING)


_WHOLE: Mapping[str, Callable[[Traced], Core]] = {"attention": attention, "rows": _rows, "pointwise": _pointwise}
"""The blocks without a layer."""


def _arguments(traced: Traced) -> list[Given]:
    """The tensors of `forward`, each as itself."""
    assert traced.graph is not None
    return [Given(node, node.name) for node in traced.graph.nodes if node.op == "placeholder" and shape_of(node)]


def _rows_from(traced: Traced, given: Given) -> Core:
    assert traced.graph is not None
    anchor = given.node
    found = [rows_of(node, traced) for node in traced.graph.nodes if node in descendants(anchor)]
    rows = next((one for one in found if one is not None), None)
    if rows is None:
        raise UntranslatedError(_NO_ROWS)
    operands = Operands(set(traced.names))
    translator = RowTranslator(
        traced, anchor, (), given.name, operands, _KINDS["groups" if rows.groups else "rows"], rows
    )
    result = _whole(traced, anchor, translator)
    if not translator.reductions:
        raise UntranslatedError(_NO_ROWS)
    text: Text = [("function", translator.values[result].text), *operand_lines(operands), *rows.lines()]
    return _readable(traced, Core("Rows", [*row_lines(traced, translator, result), *text]))


def _pointwise_from(traced: Traced, given: Given) -> Core:
    operands = Operands(set(traced.names))
    kinds = _KINDS["pointwise"]
    translator = Translator(traced, given.node, (), given.name, operands, kinds, whole=True)
    text = translator.finished(translator.values[_whole(traced, given.node, translator)])
    if text == given.name:
        raise UntranslatedError(_NOTHING)
    return _readable(traced, Core("Pointwise", [("function", text), *operand_lines(operands)]))


def _whole(traced: Traced, anchor: fx.Node, translator: Translator) -> fx.Node:
    """Translate all that leads from the anchor to the result, which is returned.

    Raises:
        UntranslatedError: some of it has no place in the block, or the result is of another kind.
    """
    assert traced.graph is not None
    result = result_of(traced.graph)
    assert result is not None
    inside = between(anchor, result)
    if anchor not in inside:
        raise UntranslatedError(_NOTHING)
    is_of_elements = not isinstance(translator, RowTranslator)
    for node in traced.graph.nodes:
        if node in inside and node is not anchor and not is_about_memory(node):
            if is_of_elements and shape_of(node) != translator.shape:
                raise UntranslatedError(called(node, traced.model))
            translator.translate(node)
    if dtype_of(result) != dtype_of(anchor):
        raise UntranslatedError(called(result, traced.model))
    return result


def _readable(traced: Traced, core: Core) -> Core:
    """The same core.

    Raises:
        UntranslatedError: its texts cannot name the arguments that they read, or the block would be given others.
    """
    named = {
        *FUNCTIONS,
        *CPP_WORDS,
        "features" if core.block in ("Rows", "Linear") else "",
        "value" if core.block in ("Linear", "Conv") else "",
    }
    if unfit := [name for name in traced.names if name in named and core.reads(name)]:
        raise UntranslatedError(f"the argument '{unfit[0]}', whose name means something else in a device function")
    used = [name for name in traced.names[1:] if core.reads(name)]
    if list(traced.names[1 : 1 + len(used)]) != used:
        raise UntranslatedError(f"the argument '{traced.names[1]}'")  # a block takes no argument that it does not read
    return core
