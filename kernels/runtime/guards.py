"""Detects in one step whether anything has changed that a call depends on; and proves, at import, that it does.

PyTorch's own guards do so fastest. They belong to its compiler, are private to it, and depend on the interpreter: under
Python 3.13 a dictionary's version does not move when an attribute is set. So each of them is tried here on one change
of every kind. What does not notice a change is replaced by Python, which is as strict and slower, and `DOUBTS` says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from operator import is_, ne
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tunebench.kernels.runtime import ordinary
from tunebench.kernels.runtime.ordinary import saves_differently, why_not_run

try:
    from torch._C._dynamo.guards import TensorGuards
    from torch._C._dynamo.guards import dict_version as _dict_version

    _dict_version({})
except (ImportError, RuntimeError):
    TensorGuards = _dict_version = None  # type: ignore[assignment, misc]

SameTensors = Callable[..., bool]
VersionOf = Callable[[dict[Any, Any]], object]


def same_tensors_by_pytorch(*tensors: torch.Tensor) -> SameTensors:
    """Make the check of `same_tensors` by the guards of PyTorch's compiler."""
    check: SameTensors = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    return check


def same_tensors_in_python(*tensors: torch.Tensor) -> SameTensors:
    """Make the check of `same_tensors` in Python."""
    expected = _state(tensors)
    return lambda *others: _state(others) == expected


def _state(tensors: tuple[Any, ...]) -> tuple[object, ...]:
    modes = why_not_run(), torch._C._is_any_autocast_enabled(), torch.is_inference_mode_enabled()
    return *modes, *map(_kind, tensors)


def _kind(value: Any) -> tuple[object, ...]:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return type(value), None
    marks = value.requires_grad, value.is_neg(), value.is_conj(), value.is_inference()
    return type(value), value.dtype, value.device, value.shape, value.stride(), *marks


class Content:
    """The content of a dictionary, by identity: equal to another where nothing was set, replaced or removed."""

    __slots__ = ("_keys", "_values")

    def __init__(self, dictionary: dict[Any, Any]) -> None:
        self._keys, self._values = [*dictionary], [*dictionary.values()]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Content) and self._keys == other._keys and all(map(is_, self._values, other._values))

    __hash__ = None  # type: ignore[assignment]


def _sees_tables(version: VersionOf) -> bool:
    """Return whether a version differs after each change of a plain dictionary."""
    table: dict[str, object] = {"kept": None}
    changes: list[Callable[[], object]] = [
        *(partial(table.__setitem__, "new", number) for number in (1, 2)),
        partial(table.update, new=3),
        partial(table.setdefault, "other", 1),
        partial(table.pop, "new"),
        partial(table.__delitem__, "other"),
        table.clear,
    ]
    return _differ(version, table, changes)


def _sees_attributes(version: VersionOf) -> bool:
    """Return whether a version differs after each change of a module's attributes."""
    module: Any = nn.Identity()

    def assign() -> Iterator[None]:
        # In one place, and often, so that the interpreter specialises what stores the attribute.
        for number in range(64):
            module.flag = number
            yield

    changes = [
        *[partial(next, assign())] * 64,
        *(partial(setattr, module, "other", number) for number in (1, 2)),
        partial(delattr, module, "other"),
        partial(vars(module).__setitem__, "flag", None),
        module.eval,
        partial(object.__setattr__, module, "training", None),
    ]
    return _differ(version, vars(module), changes)


def _differ(version: VersionOf, table: dict[Any, Any], changes: Iterable[Callable[[], object]]) -> bool:
    versions = [version(table)]
    for change in changes:
        change()
        versions.append(version(table))
    return version(table) == versions[-1] and all(map(ne, versions, versions[1:]))


class _FunctionMode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _Subclass(torch.Tensor):
    pass


def _sees_tensors(same: Callable[..., SameTensors]) -> bool:
    """Return whether a check holds for what is alike, and for nothing that differs in one respect."""
    base = torch.zeros(2, 3)
    check = same(base)
    others = [
        base.double(),
        base.to("meta"),
        torch.zeros(3, 2),
        torch.zeros(3, 2).t(),
        torch.zeros(2, 3, 1),
        torch.zeros(2, 3, requires_grad=True),
        base.as_subclass(_Subclass),
        nn.Parameter(base, requires_grad=False),
        torch._neg_view(base),
        base.to_sparse(),
    ]
    with torch.inference_mode():
        others.append(torch.zeros(2, 3))
    held = [not check(base), not check(torch.ones(2, 3)), *map(check, others)]
    for context in (torch.inference_mode(), torch.autocast("cpu"), _DispatchMode(), _in_vmap()):  # type: ignore[no-untyped-call]
        with context:
            held.append(check(base))
    return not any(held)


def _unseen() -> str:
    """Name what PyTorch may do with operations that is not noticed on this interpreter; empty if there is none."""
    one = torch.zeros(1)
    seen: dict[str, object] = {"that nothing happens": not (why_not_run() or saves_differently())}
    # Not `torch.func.grad`, which imports PyTorch's compiler.
    in_grad = _transform(torch._C._functorch._grad_increment_nesting, torch._C._functorch._grad_decrement_nesting)
    contexts: list[tuple[str, Any, Callable[[], object]]] = [
        ("a TorchFunctionMode", _FunctionMode(), why_not_run),
        ("a TorchDispatchMode", _DispatchMode(), why_not_run),  # type: ignore[no-untyped-call]
        ("forward-mode differentiation", forward_ad.dual_level(), why_not_run),
        ("vmap", _in_vmap(), why_not_run),
        ("torch.func.grad", in_grad, why_not_run),
        ("autocast", torch.autocast("cpu"), torch._C._is_any_autocast_enabled),
        ("saved-tensor hooks", torch.autograd.graph.saved_tensors_hooks(_same, _same), saves_differently),
    ]
    for name, context, has_seen in contexts:
        with context:
            seen[name] = has_seen()

    def traced(given: torch.Tensor) -> torch.Tensor:
        seen["torch.jit.trace"] = why_not_run()
        return given + one

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(traced, one, check_trace=False)  # type: ignore[no-untyped-call]
    return ", ".join(name for name, is_seen in seen.items() if not is_seen)


def _in_vmap() -> AbstractContextManager[None]:
    of_functorch = torch._C._functorch
    return _transform(of_functorch._vmap_increment_nesting, of_functorch._vmap_decrement_nesting, 1, "same")


@contextmanager
def _transform(begin: Callable[..., object], end: Callable[[], object], *arguments: Any) -> Iterator[None]:
    begin(*arguments)
    try:
        yield
    finally:
        end()


def _same(tensor: Any) -> Any:
    return tensor


def _proven(candidates: Sequence[tuple[str, Any]], proof: Callable[[Any], bool], doubts: list[str]) -> Any:
    """Return the first candidate that the proof holds for; the last one is Python, for which it always does."""
    for name, candidate in candidates[:-1]:
        try:
            if proof(candidate):
                return candidate
        except Exception as error:  # noqa: BLE001 - whatever private code raises, Python takes its place
            doubts.append(f"{name} fails on this interpreter ({type(error).__name__})")
        else:
            doubts.append(f"{name} misses changes on this interpreter")
    return candidates[-1][1]


_doubts: list[str] = []
_pytorch_versions = [("dict_version of PyTorch's guards", _dict_version)] if _dict_version is not None else []
version_of: VersionOf = _proven([*_pytorch_versions, ("", Content)], _sees_tables, _doubts)
"""Gives a plain dictionary's version: two are equal only if nothing was set in it, replaced or removed in between."""
version_of_attributes: VersionOf = _proven([*_pytorch_versions, ("", Content)], _sees_attributes, _doubts)
"""Gives the version of a module's attribute dictionary."""
same_tensors: Callable[..., SameTensors] = _proven(
    [("TensorGuards of PyTorch", same_tensors_by_pytorch), ("", same_tensors_in_python)], _sees_tensors, _doubts
)
"""Makes a check of whether as many other tensors are like these, and PyTorch in the state that it is in now.

That is: of the same type, dtype, device, shape and strides, requiring a gradient or not; and the same happens to
operations on them (modes, autocast, transforms, tracing).
"""
try:
    _missed = _unseen()
except Exception as error:  # noqa: BLE001 - as above: then no kernel may run
    _missed = f"{type(error).__name__}: {error}"
if _missed:
    ordinary.blind = f"this PyTorch hides what it does with operations ({_missed})"
    _doubts.append(f"{ordinary.blind}: the reference serves every call")
DOUBTS = tuple(_doubts)
"""Names each guard that is not relied upon on this interpreter, one line each."""
