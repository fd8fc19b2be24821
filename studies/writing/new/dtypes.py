"""The types in which a model computes the same: a kernel that is written from its trace is for these."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tunebench.tuner.gate.values import in_type, mapped
from tunebench.tuner.reference import DTYPES


def dtypes_like(model: nn.Module, inputs: tuple[Any, ...], output: object, fake: FakeTensorMode) -> tuple[str, ...]:
    """Return the types in which a model does the same as in its own, by the same numbers, in as many bits or more.

    `x.float()` is not the same in half types, nor in float64; `torch.finfo(x.dtype).min` is in none another.
    """
    own, made = main_dtype(model, inputs), _floating(output)
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    done: dict[torch.dtype, _Operations] = {}
    found = []
    for dtype in dict.fromkeys((own, *DTYPES.values())):
        try:
            with fake, torch.no_grad(), _Operations() as done[dtype]:
                there = _floating(functional_call(model, *mapped((held, inputs), in_type(dtype))))
        except Exception:  # noqa: BLE001 - whatever a model raises in another type, it is not for that
            continue
        is_same = [one.dtype for one in there] == [dtype if one.dtype == own else one.dtype for one in made]
        is_same &= done[dtype].by_numbers == done[own].by_numbers
        is_wide = dtype != torch.float64 or done[dtype].dtypes <= {dtype}
        if dtype == own or (is_same and is_wide):
            found.append(dtype)
    return tuple(name for name, dtype in DTYPES.items() if dtype in found)


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects operations but casts, each with its numbers, and the floating types of what they make."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtypes = set[torch.dtype]()
        self.by_numbers: list[tuple[object, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        numbers = [one for one in tree_leaves((args, kwargs)) if isinstance(one, int | float)]
        if func.namespace == "aten" and func is not torch.ops.aten._to_copy.default:
            self.by_numbers.append((func, *numbers))
        if func is torch.ops.aten.nan_to_num.default:  # its own numbers are the type's
            self.by_numbers.append((result.dtype,))
        self.dtypes |= {one.dtype for one in _floating(result)}
        return result


def main_dtype(model: nn.Module, inputs: Iterable[Any]) -> torch.dtype:
    """Return the floating type of a model's inputs, or else of what it holds."""
    tensors = _floating([*inputs, *model.parameters(), *model.buffers()])
    return next((one.dtype for one in tensors), torch.float32)


def _floating(tree: object) -> list[torch.Tensor]:
    leaves = tree_leaves(tree)
    return [one for one in leaves if isinstance(one, torch.Tensor) and one.is_floating_point()]
