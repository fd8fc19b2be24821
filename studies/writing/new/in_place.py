"""Changes in place in a trace: where a forward writes into a tensor, its graph makes a new one."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.shape_prop import _extract_tensor_metadata

from tunebench.tuner.errors import UserError

IN_PLACE: dict[Any, Callable[..., Any]] = {
    getattr(operator, f"__i{name}__"): getattr(operator, f"__{name}__")
    for name in ("add", "sub", "mul", "truediv", "floordiv", "pow", "mod", "and", "or", "xor")
}
"""Operators that change their left side, with those that do not."""
_NOT_THE_SAME = ("bernoulli",)
"""Operations that are something else without the underscore that says in place."""

_Memory = tuple[int, tuple[object, ...]]
"""Which memory a tensor has, and where its elements are in it."""


class _Memories(fx.Interpreter):
    """Puts a shape on every node, and keeps what memory the nodes' tensors have."""

    def __init__(self, model: nn.Module, graph: fx.Graph) -> None:
        super().__init__(model, graph=graph)
        self.found: dict[fx.Node, _Memory] = {}
        self._kept: list[torch.UntypedStorage] = []

    def run_node(self, n: fx.Node) -> Any:
        """Run a node, see `fx.Interpreter.run_node`; keep its tensor's metadata and storage."""
        result = super().run_node(n)
        if isinstance(result, torch.Tensor):
            n.meta["tensor_meta"] = _extract_tensor_metadata(result)
            storage = result.untyped_storage()
            self._kept.append(storage)  # so that no other has its address
            where = (result.shape, result.stride(), result.storage_offset())
            self.found[n] = (storage._cdata, where)
        return result


def put_shapes(
    model: nn.Module, graph: fx.Graph, inputs: tuple[Any, ...], fake: FakeTensorMode
) -> dict[fx.Node, _Memory]:
    """Put a shape on every node; the memory of those that are tensors."""
    run = _Memories(model, graph)
    run.args_iter = iter(inputs)
    with torch.no_grad(), fake:
        for node in graph.nodes:  # `run.run` makes a lock of tqdm's too, which a process that is killed leaves
            run.env[node] = run.run_node(node)
    return run.found


def have_new(node: fx.Node, memories: dict[fx.Node, _Memory]) -> None:
    """Let what uses a tensor after a change in place use the result of that change, and nothing be changed.

    Raises:
        UserError: an input, a parameter or a part of another tensor is changed, which no other order of the nodes says.
    """
    changed = node.args[0] if node.args else None
    if node.kwargs.get("out") is not None or not isinstance(changed, fx.Node):
        raise UserError(f"{node.name}, which writes into a tensor")
    if changed in memories:
        order = {one: number for number, one in enumerate(node.graph.nodes)}
        memory, where = memories[changed]
        for one in [one for one in memories if memories[one][0] == memory and order[one] < order[node]]:
            users = [user for user in one.users if user is not node]
            later = [user for user in users if order[user] > order[node]]
            # A layer goes on writing into what it is given: nothing else may need that as it was.
            is_needed = node.op == "call_module" and len(users) > len(later)
            if one.op in ("placeholder", "get_attr") or is_needed or (later and memories[one][1] != where):
                raise UserError(f"{node.name}, which changes '{one.name}' in place")
            for user in later:
                user.replace_input_with(one, node)
    _make_new(node)


def _make_new(node: fx.Node) -> None:
    """Have an operation in place make a new tensor; a layer stays one, whose input nobody else uses.

    Raises:
        UserError: there is no such form of it.
    """
    if node.target in IN_PLACE:
        node.target = IN_PLACE[node.target]
    elif "inplace" in node.kwargs:
        node.kwargs = {**node.kwargs, "inplace": False}
    elif node.op == "call_method":
        node.target = _plain_name(str(node.target), torch.Tensor, node.name)
    elif node.op == "call_function":
        place = next((one for one in (torch, nn.functional) if getattr(one, node.target.__name__, None)), torch)  # type: ignore[union-attr]
        node.target = getattr(place, _plain_name(node.target.__name__, place, node.name))  # type: ignore[union-attr]


def _plain_name(name: str, place: object, told: str) -> str:
    plain = name.removesuffix("_")
    if plain in _NOT_THE_SAME or not callable(getattr(place, plain, None)):
        raise UserError(f"{told}, which changes a tensor in place")
    return plain


def writes(node: fx.Node, model: nn.Module) -> bool:
    """Whether a node changes a tensor that is there."""
    if node.kwargs.get("out") is not None or node.kwargs.get("inplace") is True or node.target in IN_PLACE:
        return True
    if node.op == "call_module":
        return getattr(model.get_submodule(str(node.target)), "inplace", False) is True
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return node.op in ("call_method", "call_function") and name.endswith("_") and not name.startswith("__")
