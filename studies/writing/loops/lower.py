"""Lowers a model by torch's own compiler, to the loop nests that Inductor would write code for.

Inductor's decompositions, type promotion, index arithmetic and fusion are taken as they are; only the code is ours. Its
classes are no public interface: all that is read of them is in this folder and in `studies/inductor`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import sympy
import torch
from torch import fx, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._inductor import config, ir, lowering, scheduler
from torch._inductor.codegen import common
from torch._inductor.codegen.common import BackendFeature
from torch._inductor.debug import DebugContext
from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import BaseSchedulerNode, BaseScheduling, SchedulerNode
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.export.graph_signature import InputKind, InputSpec, OutputKind
from torch.hub import tqdm  # type: ignore[attr-defined]
from torch.utils import _pytree as pytree
from torch.utils._ordered_set import OrderedSet

from tunebench.studies.writing.loops.copies import keep_transposed
from tunebench.studies.writing.loops.decompositions import HALVES, decompositions
from tunebench.studies.writing.loops.domain import is_by_rows
from tunebench.studies.writing.loops.exclusive_scans import move_into_scans
from tunebench.studies.writing.loops.short_sums import add_short_sums, short_sums
from tunebench.studies.writing.new.named_numbers import attribute_text
from tunebench.tuner.errors import first_line

_SETTINGS: dict[str, Any] = {
    "unroll_reductions_threshold": 1,
    "split_reductions": False,  # how many blocks a row has is a tunable
    "layout_optimization": False,
    "comprehensive_padding": False,
    "realize_reads_threshold": 12,
    "realize_opcount_threshold": 100,
    "loop_ordering_after_fusion": True,
    "fallback_random": True,
    "force_pointwise_cat": True,
    "fx_graph_cache": False,
}


_PRODUCTS: Mapping[str | None, str] = {
    "extern_kernels.mm": "torch.mm",
    "extern_kernels.bmm": "torch.bmm",
    "extern_kernels.addmm": "torch.addmm",
    "extern_kernels.baddbmm": "torch.baddbmm",
    "extern_kernels.convolution": "torch.convolution",
}
"""Products and convolutions between passes, by Inductor's name of what it calls, with torch's function."""


class UnloweredError(Exception):
    """A model has no loop nests; the message says which operation is the reason, in a few words."""


def group_of(node: BaseSchedulerNode) -> tuple[sympy.Expr, sympy.Expr]:
    """Return how many elements a node keeps, and how many of each it reduces."""
    sizes: Any = node.group[1]
    return sizes[0], sizes[1]


class _Scheduling(BaseScheduling):
    """Fuses whatever has the same kept and reduced elements."""

    def get_backend_features(self, device: torch.device) -> OrderedSet[BackendFeature]:  # noqa: ARG002
        return OrderedSet([BackendFeature.SCAN, BackendFeature.REDUCE_TO_SINGLE_ELEMENT])

    def group_fn(self, sizes: Sequence[Sequence[sympy.Expr]]) -> tuple[sympy.Expr, ...]:
        return tuple(map(V.graph.sizevars.simplify, map(sympy.prod, sizes)))

    def can_fuse_vertical(self, node1: BaseSchedulerNode, node2: BaseSchedulerNode) -> bool:
        (kept, reduced), (other_kept, other_reduced) = group_of(node1), group_of(node2)
        if node1.is_reduction() == node2.is_reduction():
            return bool(kept == other_kept and reduced == other_reduced)
        if node2.is_reduction():
            return kept in (other_kept, V.graph.sizevars.simplify(other_kept * other_reduced))
        is_each = other_kept == V.graph.sizevars.simplify(kept * reduced)
        return bool(other_kept == kept or (is_each and is_by_rows(kept, reduced)))

    can_fuse_horizontal = can_fuse_vertical

    def can_fuse_multi_outputs_template(self, node1: BaseSchedulerNode, node2: BaseSchedulerNode) -> bool:  # noqa: ARG002
        return False


@dataclass(frozen=True)
class Place:
    """Where a tensor of the graph comes from, in Python: an argument of `forward`, or an attribute of the module."""

    text: str
    is_input: bool


@dataclass(frozen=True)
class Product:
    """A product of matrices or a convolution, which a library may make.

    Attributes:
        name: of its result.
        function: of torch's.
        inputs: tensors, or views of them.
        named: other arguments, that are not torch's defaults.
    """

    name: str
    function: str
    inputs: tuple[ir.IRNode, ...]
    named: Mapping[str, object]

    @property
    def is_of_matrices(self) -> bool:
        """Whether it is no convolution."""
        return self.function != "torch.convolution"


Nest = tuple[SchedulerNode, ...]


@dataclass(frozen=True)
class Lowered:
    """A model's loop nests.

    Attributes:
        graph: Inductor's, for what a buffer's layout is.
        nests: in order, each of nodes that are fused, and products between them.
        places: of the graph's inputs, by their names in it.
        shapes: of the inputs that are arguments of `forward`, by those names.
        results: the tensors that the model returns.
        form: in which it returns them: Python with `{0}` for the first.
        changes: buffers of the module that a call changes, in Python, with what they become.
    """

    graph: GraphLowering
    nests: tuple[Nest | Product, ...]
    places: Mapping[str, Place]
    shapes: Mapping[str, Sequence[Any]]
    results: tuple[ir.IRNode, ...]
    form: str
    changes: Mapping[str, ir.IRNode]


@torch.library.custom_op("tunebench_new::made_by_a_block", mutates_args=())
def made_by_a_block(value: torch.Tensor) -> torch.Tensor:
    """Mark a value that is made before the loop nests; it is contiguous behind the mark."""
    return value.contiguous()


@made_by_a_block.register_fake
def _(value: torch.Tensor) -> torch.Tensor:
    return value.new_empty(value.shape)


GIVEN = "value"
"""The name of such a value behind the mark."""


def export(model: nn.Module, inputs: Mapping[str, Any], fixed: Sequence[set[int]] = ()) -> torch.export.ExportedProgram:
    """Trace a model in the mode that it is in, with the sizes of its inputs unknown.

    Args:
        inputs: by the names of `forward`'s arguments; fake tensors will do.
        fixed: the dimensions of each input whose sizes are known.

    Raises:
        UnloweredError: torch does not trace it.
    """
    # The lock of its own that tqdm makes is one between processes, which a process that is killed leaves behind.
    getattr(tqdm, "set_lock", id)(threading.RLock())
    dynamic = [_unknown_sizes(value) if isinstance(value, torch.Tensor) else None for value in inputs.values()]
    for of_one, known in zip(dynamic, fixed, strict=False):
        if of_one is not None:
            of_one.update(dict.fromkeys(known, torch.export.Dim.STATIC))
    with _reasons(), torch.no_grad(), _quiet():
        return torch.export.export(model, tuple(inputs.values()), strict=False, dynamic_shapes=tuple(dynamic))


def is_same(one: torch.export.ExportedProgram, other: torch.export.ExportedProgram) -> bool:
    """Whether two traces surely do the same; those with constants of their own are not compared."""
    return not (one.constants or other.constants) and _text(one) == _text(other)


def _text(exported: torch.export.ExportedProgram) -> tuple[str, str]:
    return exported.graph_module.print_readable(print_output=False), str(exported.graph_signature)


def lower(model: nn.Module, inputs: Mapping[str, Any], exported: torch.export.ExportedProgram) -> Lowered:
    """Lower a model that was exported for these inputs.

    What stands before a call of `made_by_a_block` is left out.

    Raises:
        UnloweredError: something of it is no loop nest.
    """
    exported = _decomposed(exported)
    if fixed := _fixed_sizes(exported):
        exported = _decomposed(export(model, inputs, fixed))
    signature = exported.graph_signature
    places: dict[str, Place] = {}
    names, name_of = iter(inputs), dict[str, str]()
    for one in signature.input_specs:
        if one.kind is InputKind.USER_INPUT:
            name_of[one.arg.name] = next(names)
            places[one.arg.name] = Place(name_of[one.arg.name], is_input=True)
        elif one.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            places[one.arg.name] = Place(attribute_text(model, str(one.target)), is_input=False)
        elif one.kind is InputKind.CONSTANT_TENSOR:
            _write_out(exported, one, model)
        else:
            raise UnloweredError(f"an argument that is a {one.kind.name.lower()}")
    module = exported.graph_module
    for mark in module.graph.find_nodes(op="call_function", target=torch.ops.tunebench_new.made_by_a_block.default):
        with module.graph.inserting_before(next(iter(module.graph.nodes))):
            given = module.graph.placeholder(f"{GIVEN}_given")
        given.meta = dict(mark.meta)
        mark.replace_all_uses_with(given)
        places[given.name] = Place(GIVEN, is_input=True)
        module.graph.eliminate_dead_code()
    for at, node in enumerate(module.graph.find_nodes(op="placeholder")):
        old = node.name
        node.name = node.target = f"given_{at}"  # no name that an entry point has of its own
        places[node.name] = places.pop(old)
        if old in name_of:
            name_of[node.name] = name_of.pop(old)
    keep_transposed(module.graph)
    move_into_scans(module.graph)
    with enable_python_dispatcher():
        add_short_sums(module.graph)
    unused = {node.name for node in module.graph.find_nodes(op="placeholder") if not node.users}
    graph = _lowered(module)
    places = {name: place for name, place in places.items() if name not in unused}
    kinds = [one.kind for one in signature.output_specs]
    if set(kinds) - {OutputKind.USER_OUTPUT, OutputKind.BUFFER_MUTATION}:
        raise UnloweredError("a tensor that is written into")
    count = kinds.count(OutputKind.USER_OUTPUT)
    form = _form(pytree.tree_unflatten([f"{{{at}}}" for at in range(count)], exported.call_spec.out_spec))
    shapes = {
        name_of[node.name]: tuple(node.meta["val"].shape)
        for node in module.graph.find_nodes(op="placeholder")
        if node.name in name_of and isinstance(node.meta["val"], torch.Tensor)
    }
    made = list(zip(signature.output_specs, graph.graph_outputs, strict=True))
    results = tuple(node for one, node in made if one.kind is OutputKind.USER_OUTPUT)
    changes = {
        attribute_text(model, str(one.target)): node for one, node in made if one.kind is OutputKind.BUFFER_MUTATION
    }
    return Lowered(graph, tuple(_nests(graph)), places, shapes, results, form, changes)


def _form(value: object) -> str:
    """A tree of texts as Python.

    Raises:
        UnloweredError: it has nodes of a class of its own.
    """
    if isinstance(value, str):
        return value
    if type(value) is list:
        return f"[{', '.join(map(_form, value))}]"
    if type(value) is dict:
        return f"{{{{{', '.join(f'{key!r}: {_form(one)}' for key, one in value.items())}}}}}"
    if type(value) is not tuple:
        raise UnloweredError(f"a result of type {type(value).__name__}")
    return f"({', '.join(map(_form, value))}{',' if len(value) == 1 else ''})"


def _write_out(exported: torch.export.ExportedProgram, made: InputSpec, model: nn.Module) -> None:
    """Have the graph make a tensor that forward makes of one number.

    Raises:
        UnloweredError: it has several, or is an attribute, whose changes nobody would notice.
    """
    place, _, name = str(made.target).rpartition(".")
    if not name.startswith("_tensor_constant") and hasattr(model.get_submodule(place), name):
        raise UnloweredError(f"'{made.target}', a tensor that is no buffer")
    value: Any = exported.constants[str(made.target)]
    value = getattr(value, "constant", value)  # of a fake tensor, which the trace was given
    if value is None or value.numel() != 1 or isinstance(value, FakeTensor):
        raise UnloweredError("a tensor of several numbers that forward makes")
    with unset_fake_temporarily():
        number = value.item()
    graph = exported.graph_module.graph
    (place,) = (node for node in graph.find_nodes(op="placeholder") if node.name == made.arg.name)
    with graph.inserting_after(list(graph.find_nodes(op="placeholder"))[-1]):
        full = graph.call_function(torch.ops.aten.full.default, (list(value.shape), number), {"dtype": value.dtype})
    full.meta = dict(place.meta)
    place.replace_all_uses_with(full)
    graph.erase_node(place)


def _decomposed(exported: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    with _reasons(), torch.no_grad(), _quiet(), _on_any_batch():
        decomposed: torch.export.ExportedProgram = exported.run_decompositions(decompositions())
        return decomposed


@contextlib.contextmanager
def _on_any_batch() -> Iterator[None]:
    """Within it no size of a batch decides by which of a CPU's libraries torch convolves.

    Programs may have frozen torch's global flags (`torch.backends.disable_global_flags`).
    """
    was_enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        with torch.backends.nnpack.flags(enabled=False):
            yield
    finally:
        torch._C._set_mkldnn_enabled(was_enabled)


@contextlib.contextmanager
def _reasons() -> Iterator[None]:
    """Take whatever torch or the model raises within it for a reason why there are no loop nests."""
    try:
        yield
    except Exception as error:
        raise UnloweredError(first_line(error)) from error


def _fixed_sizes(exported: torch.export.ExportedProgram) -> list[set[int]]:
    """The dimensions of each input that are to have known sizes; nothing where there are none.

    These are what sizes are made of that are 1 and no number, since Inductor takes a dimension for one that is
    broadcast only where its size is the number 1; and what short sums are over.
    """
    values = {node.name: node.meta["val"] for node in exported.graph.find_nodes(op="placeholder")}
    fake = next(one.fake_mode for one in values.values() if isinstance(one, FakeTensor))
    assert fake.shape_env is not None
    equal = [one.expr for one in fake.shape_env.guards if isinstance(one.expr, sympy.Eq)]
    symbols = set[sympy.Symbol]().union(*(one.free_symbols for one in equal if 1 in one.args))
    short = {sympy.sympify(size) for _, size in short_sums(exported.graph)}
    short = short.union(*(one.args for one in equal if not short.isdisjoint(one.args)))
    shapes = [getattr(values.get(str(name)), "shape", ()) for name in exported.graph_signature.user_inputs]

    def is_fixed(size: Any) -> bool:
        expression = sympy.sympify(size)
        return bool(expression.free_symbols and (expression.free_symbols & symbols or expression in short))

    found = [{at for at, size in enumerate(one) if is_fixed(size)} for one in shapes]
    return found if any(found) else []


def _lowered(module: fx.GraphModule) -> GraphLowering:
    values = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    fake: Any = next(one.fake_mode for one in values if isinstance(one, FakeTensor))
    if _rounding_decides(module):
        for node in module.graph.nodes:
            node.meta["low_precision_pointwise_barrier"] = True  # by it Inductor rounds what an operation makes
    with _as_inductor(fake):
        graph = GraphLowering(module, example_inputs=values, shape_env=fake.shape_env)
        with V.set_graph_handler(graph), V.set_debug_handler(DebugContext()):
            try:
                graph.run(*values)
                graph._update_scheduler()
            except Exception as error:  # whatever Inductor raises of a graph is a reason
                raise UnloweredError(first_line(error)) from error
    return graph


def _rounding_decides(module: fx.GraphModule) -> bool:
    """Whether numbers of a half type become integers, which are torch's only where each operation rounds as torch's."""
    dtypes = {one.dtype for node in module.graph.nodes if isinstance(one := node.meta.get("val"), torch.Tensor)}
    (returned,) = module.graph.find_nodes(op="output")
    made = (node.meta["val"] for node in returned.all_input_nodes)
    return not dtypes.isdisjoint(HALVES) and any(
        isinstance(one, torch.Tensor) and not one.dtype.is_floating_point for one in made
    )


def _unknown_sizes(tensor: torch.Tensor) -> dict[int, Any]:
    """Every size of a tensor but those of one element, which torch knows as such."""
    dim = torch.export.Dim
    return {at: dim.AUTO if size != 1 else dim.STATIC for at, size in enumerate(tensor.shape)}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Within it torch does not tell what it thinks of its own code and of sizes that it cannot solve for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


@contextlib.contextmanager
def _as_inductor(fake: Any) -> Iterator[None]:
    """Within it Inductor lowers as for a device whose code this folder writes."""
    common.init_backend_registration()
    own = common.DeviceCodegen(_Scheduling, common.device_codegens["cpu"].wrapper_codegen, None, None)
    devices = {**common.device_codegens, "cpu": own}
    with (
        _quiet(),
        _on_any_batch(),
        enable_python_dispatcher(),
        V.set_fake_mode(fake),
        config.patch(_SETTINGS),
        mock.patch.object(common, "device_codegens", devices),
        # A function is computed again rather than kept in memory, as on GPUs.
        mock.patch.object(ir, "is_cpu", lambda _: False),
        # A number that is added to a half type stays as exact as on GPUs; from torch 2.14 CPUs alone round it first.
        mock.patch.object(lowering, "promote_constants", _exact_constants),
        # Loops are put into the order of those that they are fused with on GPUs alone.
        mock.patch.object(scheduler, "is_gpu", lambda _: True),
        mock.patch.object(scheduler.BaseSchedulerNode, "is_cpu", lambda _: False),
        mock.patch.object(scheduler.Scheduler, "create_backend", lambda its, _: _Scheduling(its)),
    ):
        yield


_promote_constants: Any = lowering.promote_constants


def _exact_constants(*args: Any, round_scalars_to_tensor_dtype: bool = False, **options: Any) -> Any:  # noqa: ARG001
    return _promote_constants(*args, **options)


def _nests(graph: GraphLowering) -> Iterator[Nest | Product]:
    for one in graph.scheduler.nodes:
        if isinstance(one.node, ir.ExternKernel) and one.node.python_kernel_name in _PRODUCTS:
            made = one.node
            function, named = _PRODUCTS[made.python_kernel_name], made.kwargs
            if function != "torch.convolution":
                named = {name: value for name, value in named.items() if value != 1}
            inputs = tuple(one for one in made.inputs if isinstance(one, ir.IRNode))
            yield Product(made.get_name(), function, inputs, named)
            continue
        nodes: list[SchedulerNode] = []
        for node in one.get_nodes():
            if isinstance(node.node, ir.ComputedBuffer) and not isinstance(node, SchedulerNode):
                raise UnloweredError("a tensor without elements")
            if not isinstance(node, SchedulerNode):
                name = getattr(getattr(node.node, "op_overload", None), "__name__", type(node.node).__name__)
                raise UnloweredError(name.split(".")[0])
            if type(getattr(node.node, "layout", None)) not in (ir.FixedLayout, ir.FlexibleLayout):
                raise UnloweredError("a tensor that is written into")
            nodes.append(node)
        yield tuple(nodes)
