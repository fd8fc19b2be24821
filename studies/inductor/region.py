"""A region: a fused node of Inductor's scheduler, as a problem in KernelBench's form.

Its reference is the part of the graph between the buffers that the node reads and those that it leaves: a `Model` whose
`forward` has the operations of these FX nodes. Equal regions of any models have the same text, and with it one name,
under which there is one kernel.
"""

from __future__ import annotations

import hashlib
import math
import operator
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._inductor import config, ir
from torch._inductor.inductor_prims import prepare_softmax_online
from torch._inductor.scheduler import BaseSchedulerNode, SchedulerNode
from torch._inductor.virtualized import V

from tunebench.tuner.errors import TunebenchError
from tunebench.tuner.timing.torch_compile import apart

PREFIX = "region_"
"""How the names of all regions begin."""

_PLACE = re.compile(r'^ *File "(.+)", line (\d+)', re.MULTILINE)
"""Finds the place of each operation in a trace of the stack."""

_HEAD = '''"""A region of a compiled model: {signature}."""

import torch
from torch import nn


class Model(nn.Module):
    compile_mode = "{mode}"  # as the model's, without CUDA graphs: one of its own would copy its inputs

    def forward(self, {names}):
'''


class NotRegionError(TunebenchError):
    """The node is no region; the message says why."""


@dataclass(frozen=True)
class Value:
    """A tensor that a region reads or makes; the region has its dimensions in the order in which they lie in memory.

    Attributes:
        buffer: its name in Inductor's program.
        order: the dimensions there, the one with the widest stride first.
        shape: the sizes in this order; those that are symbols, as they were when the graph was compiled.
        images: the name of torch's memory format in which a batch of images lies, whose dimensions keep their order;
            empty of all others.
    """

    buffer: str
    order: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    images: str = ""

    @property
    def as_read(self) -> str:
        """The tensor as the region reads it."""
        return self.buffer if self.is_plain else f"{self.buffer}.permute{self.order}"

    @property
    def as_made(self) -> str:
        """The tensor as the program has it, where the buffer's name stands for what the region has made."""
        return self.buffer if self.is_plain else f"{self.buffer}.permute{inverse(self.order)}"

    @property
    def is_plain(self) -> bool:
        """Whether both are the same."""
        return self.order == tuple(range(len(self.order)))

    @property
    def on_meta(self) -> torch.Tensor:
        """A tensor like it, without memory."""
        return laid_out(torch.empty(self.shape, dtype=self.dtype, device="meta"), self.images)


def laid_out(tensor: torch.Tensor, images: str) -> torch.Tensor:
    """Return a tensor whose images lie in a memory format, by its name; as it is where there are none."""
    return tensor.contiguous(memory_format=getattr(torch, images)) if images else tensor


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """Return the permutation that undoes another."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


@dataclass(frozen=True)
class Region:
    """A region of a graph.

    Attributes:
        text: of its `Model`.
        inputs: of `forward`, in order.
        outputs: the tensors that it leaves, in the order in which `forward` returns them.
        inner: the buffers that nothing else reads.
        is_dynamic: some of its sizes are known when the program runs, and not before.
        source: the last line of the user's code that it is of; empty where that is not known.
        is_product: it begins with a product; without it, what is computed behind that is another region.
    """

    text: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    inner: tuple[str, ...]
    device: torch.device
    is_dynamic: bool
    source: str
    is_product: bool = False

    @property
    def name(self) -> str:
        """Its kernel's name."""
        return PREFIX + hashlib.sha256(self.text.encode()).hexdigest()[:16]

    @property
    def key(self) -> Hashable:
        """A key that equal regions at equal sizes have in common."""
        return self.name, tuple(one.shape for one in self.inputs)


def region_of(node: BaseSchedulerNode) -> Region:
    """Return the region that a node of Inductor's scheduler is.

    Raises:
        NotRegionError: it is none.
    """
    parts = node.get_nodes()
    if not all(isinstance(one, SchedulerNode) and isinstance(one.node, ir.ComputedBuffer) for one in parts):
        raise NotRegionError("it is a library's")
    if node.has_aliasing_or_mutation():
        raise NotRegionError("it writes into a tensor that is there already")
    device, written = node.get_device(), sorted(node.get_buffer_names())
    assert device is not None
    names = node.get_operation_names()
    inner = [one for one in written if node.scheduler.can_buffer_be_removed_through_fusion(one, names)]
    ends = dict(map(_value_of, (one for one in written if one not in inner)))
    begins = dict(map(_value_of, sorted({one.name for one in node.read_writes.reads} - {*written})))
    if len(ends) + len(inner) < len(written):
        raise NotRegionError("two buffers of it are one value of the graph")
    places = {one: place for place, one in enumerate(next(iter(ends)).graph.nodes)}
    nodes = sorted(_between([*ends], begins), key=places.__getitem__)
    operations = [one for one in nodes if one not in begins]
    used = (one for operation in operations for one in operation.all_input_nodes)
    inputs = {one: begins[one] for one in used if one in begins}
    if not inputs:
        raise NotRegionError("it reads no tensor")
    text = text_of(inputs, operations, ends)
    is_dynamic = any(isinstance(size, torch.SymInt) for one in (*inputs, *ends) for size in one.meta["val"].shape)
    return Region(text, (*inputs.values(),), (*ends.values(),), tuple(inner), device, is_dynamic, source_of([*ends]))


def _value_of(name: str) -> tuple[fx.Node, Value]:
    """Return the node of the graph whose value a buffer holds, and how it lies in memory.

    Raises:
        NotRegionError: there is none, or it does not fill its memory.
    """
    is_input = name in V.graph.graph_inputs
    buffer = V.graph.graph_inputs_original[name] if is_input else V.graph.try_get_buffer(name)
    if not isinstance(buffer, ir.Buffer):
        raise NotRegionError("it reads a constant")
    node = next(iter(buffer.origins), None) if is_input else buffer.get_origin_node()
    if node is None or not isinstance(node.meta.get("val"), torch.Tensor):
        raise NotRegionError("a buffer of it is no value of the graph")
    layout, value = buffer.get_layout(), node.meta["val"]
    order = tuple(range(value.dim()))
    if not layout.is_contiguous() and all(getattr(one, "is_Integer", isinstance(one, int)) for one in layout.stride):
        order = tuple(sorted(order, key=lambda one: -int(layout.stride[one])))
    inner = ir.FixedLayout(layout.device, layout.dtype, _in(order, layout.size), _in(order, layout.stride))
    is_whole = type(layout) in (ir.FixedLayout, ir.FlexibleLayout) and layout.offset == 0 and inner.is_contiguous()
    is_same = V.graph.sizevars.statically_known_list_equals(layout.size, _sizes(value.shape))
    if not (is_whole and is_same and layout.dtype == value.dtype):
        raise NotRegionError("a buffer of it has gaps")
    hints = [one.node.hint if isinstance(one, torch.SymInt) else one for one in value.shape]
    return node, Value(name, order, tuple(_in(order, hints)), value.dtype)


def _in(order: Sequence[int], values: Sequence[Any]) -> list[Any]:
    return [values[one] for one in order]


def _between(ends: Sequence[fx.Node], begins: Mapping[fx.Node, Value]) -> set[fx.Node]:
    """Return the nodes from which the ends are computed, back to the beginnings, both included.

    Raises:
        NotRegionError: there is another tensor to begin with.
    """
    found, waiting = set[fx.Node](), [*ends]
    while waiting:
        if (one := waiting.pop()) in found or _is_size(one):
            continue
        found.add(one)
        if one in begins:
            continue
        if one.op != "call_function":
            raise NotRegionError(f"it needs '{one.name}', which it does not read")
        waiting += one.all_input_nodes
    return found


def _sizes(shape: torch.Size) -> list[Any]:
    """Return the sizes of a shape as Inductor has them."""
    return [one.node.expr if isinstance(one, torch.SymInt) else one for one in shape]


def _is_size(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt)


def text_of(inputs: Mapping[fx.Node, Value], nodes: Sequence[fx.Node], ends: Mapping[fx.Node, Value]) -> str:
    """Return the text of a region's `Model`.

    Args:
        nodes: the operations, in order.
        ends: the values that it returns.

    Raises:
        NotRegionError: there is no Python for an operation.
    """
    return _Writer(inputs).text(nodes, ends)


def source_of(nodes: Sequence[fx.Node]) -> str:
    """Return the line of the user's code that made the last of some nodes, as `file:line`; empty where none did."""
    places = [place for node in nodes for place in re.findall(_PLACE, node.stack_trace or "")]
    theirs = [f"{file}:{line}" for file, line in places if file != apart.__code__.co_filename]
    return theirs[-1] if theirs else ""


class _Writer:
    """Writes the `Model` of a region."""

    def __init__(self, inputs: Mapping[fx.Node, Value]) -> None:
        self._inputs = inputs
        self._names = {one: f"x{place}" for place, one in enumerate(inputs)}

    def text(self, nodes: Sequence[fx.Node], ends: Mapping[fx.Node, Value]) -> str:
        """Return the text.

        Args:
            nodes: the operations, in order.
            ends: the values that it returns.

        Raises:
            NotRegionError: there is no Python for an operation.
        """
        names = list(self._names.values())
        mode = "max-autotune-no-cudagraphs" if config.max_autotune else "default"
        head = _HEAD.format(signature=self._signature(), names=", ".join(names), mode=mode)
        lines = []
        for node, name, value in zip(self._inputs, names, self._inputs.values(), strict=True):
            if not value.is_plain:
                self._names[node] = f"y{name[1:]}"
                lines.append(f"{self._names[node]} = {name}.permute{inverse(value.order)}")
        lines += [line for one in nodes for line in self._lines(one)]
        # Operations leave other strides than Inductor gives a buffer: each result is made to lie as its buffer does.
        made = [
            f"{name}{'' if value.is_plain else f'.permute{value.order}'}{'' if value.images else '.contiguous()'}"
            for name, value in ((self._names[one], value) for one, value in ends.items())
        ]
        return head + "".join(f"        {line}\n" for line in (*lines, f"return {', '.join(made)}"))

    def _lines(self, node: fx.Node) -> Iterator[str]:
        if node.target is not prepare_softmax_online:
            yield f"{self._named(node)} = {self._call(node)}"
            return
        name, (x, dim) = self._named(node), map(self._written, node.args)  # an operation of Inductor's own
        yield f"{name} = torch.amax({x}, {dim}, keepdim=True)"
        yield f"{name} = {name}, torch.sum(torch.exp({x} - {name}), {dim}, keepdim=True)"

    def _named(self, node: fx.Node) -> str:
        return self._names.setdefault(node, f"v{len(self._names) - len(self._inputs)}")

    def _signature(self) -> str:
        """Return the types of the inputs, with a letter for each of their sizes that differs from the others."""
        letters: dict[Any, str] = {}

        def letter(size: Any) -> str:
            return "1" if size == 1 else letters.setdefault(size, f"n{len(letters)}")

        values = [_in(value.order, _sizes(one.meta["val"].shape)) for one, value in self._inputs.items()]
        lies = [f" {one.images}".rstrip() for one in self._inputs.values()]
        return ", ".join(
            f"{name} {one.meta['val'].dtype}[{', '.join(map(letter, shape))}]{images}".replace("torch.", "")
            for (one, name), shape, images in zip(self._names.items(), values, lies, strict=True)
        )

    def _call(self, node: fx.Node) -> str:
        if node.target is operator.getitem:
            return f"{self._written(node.args[0])}[{node.args[1]!r}]"
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            raise NotRegionError(f"'{node.target}' is no operation of PyTorch's")
        is_attention = target is torch.ops.aten.scaled_dot_product_attention.default  # without a dropout
        if (torch.Tag.nondeterministic_seeded in target.tags and not is_attention) or "inductor" in str(target):
            raise NotRegionError("it draws random numbers")
        name = target.overloadpacket.__name__
        is_public = target.namespace == "aten" and callable(getattr(torch, name, None)) and not name.startswith("_")
        arguments = [
            *map(self._written, node.args),
            *(f"{key}={self._written(one)}" for key, one in node.kwargs.items()),
        ]
        return f"{f'torch.{name}' if is_public else f'torch.ops.{target}'}({', '.join(arguments)})"

    def _written(self, value: Any) -> str:
        """Return an argument as Python."""
        match value:
            case fx.Node():
                return self._size(value.meta["val"]) if _is_size(value) else self._names[value]
            case list() | tuple():
                return f"[{', '.join(map(self._written, value))}]"
            case torch.device():
                return "x0.device"
            case float() if not math.isfinite(value):
                return f"float('{value}')"
            case bool() | int() | float() | str() | None | torch.dtype() | torch.memory_format() | torch.layout():
                return repr(value) if not isinstance(value, torch.memory_format) else str(value)
        raise NotRegionError(f"an argument is a {type(value).__name__}")

    def _size(self, size: torch.SymInt) -> str:
        """Return a size that is a symbol, as the size of an input.

        Raises:
            NotRegionError: it is none.
        """
        for node, name in self._names.items():
            if node in self._inputs:
                for place, own in enumerate(node.meta["val"].shape):
                    if isinstance(own, torch.SymInt) and own.node.expr == size.node.expr:
                        return f"{name}.shape[{place}]"
        raise NotRegionError("it computes a size")
