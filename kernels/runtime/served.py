"""What served a call, and how to tell at once that another call is like it.

What a call has to be for a kernel to serve it is a matter of its inputs, of the module with all that it holds, and of
what PyTorch does just then. Looking at all of it takes as long as a small model's forward. So what was found is kept,
and the next call is only asked whether anything differs: PyTorch's own guards compare all tensors in one go (type,
shape, strides, dtype, device, and what happens to operations on them), and the versions of the modules' dictionaries
tell whether a parameter, a buffer, a submodule, a hook or an attribute was replaced.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._C._dynamo.guards import TensorGuards, dict_version
from torch.autograd import forward_ad

from tunebench.kernels.runtime.misses import Miss
from tunebench.kernels.runtime.ordinary import held, intercepts, saves_differently
from tunebench.kernels.runtime.selection import Choice
from tunebench.tuner.kernel import Plan

_TABLES = ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks")
"""The dictionaries of a module whose content a kernel depends on, beside that of its attributes."""

_MOST_KEYS = 1024
_MOST_OF_A_KEY = 4


@dataclass(frozen=True, slots=True)
class Served:
    """What served a call.

    Attributes:
        needs_gradient: whether the result belongs to an autograd graph.
        plan: that served it; None for the reference's operations.
        obstacle: why no kernel could serve it, where none could.
        miss: counts the calls that were served without evidence, where that is asked for.
    """

    needs_gradient: bool
    plan: Plan | None
    obstacle: Choice | None = None
    miss: Miss | None = None


class Holdings:
    """What a module holds: its parameters and buffers, and how to tell that none of it was replaced.

    Attributes:
        parameters, buffers: as `held` has them.
    """

    __slots__ = ("_found", "_tables", "_tensors", "_versions", "buffers", "parameters")

    def __init__(self, module: nn.Module) -> None:
        self._tables = []
        for attributes in map(vars, module.modules()):
            self._tables += [attributes, *(attributes[name] for name in _TABLES)]
        self._versions = [*map(dict_version, self._tables)]
        self.parameters, self.buffers = held(module)
        self._tensors = (*self.parameters, *self.buffers)
        self._found: dict[tuple[Hashable, ...], tuple[tuple[Any, list[int], Served], ...]] = {}

    def are_of(self, module: nn.Module) -> bool:
        """Whether they are still this module's."""
        return module.__dict__ is self._tables[0] and [*map(dict_version, self._tables)] == self._versions

    def serving(self, key: tuple[Hashable, ...], inputs: tuple[Any, ...]) -> Served | None:
        """What served a call like this one, with the module as it was; None where there was none."""
        if (
            (found := self._found.get(key)) is not None
            and torch._C._len_torch_dispatch_stack() == 0
            and (torch._C._len_torch_function_stack() == 0 or not intercepts())
            and forward_ad._current_level < 0
        ):
            for same_tensors, places, served in found:
                if same_tensors(*[inputs[at] for at in places], *self._tensors):
                    return None if served.needs_gradient and saves_differently() else served
        return None

    def add(self, key: tuple[Hashable, ...], inputs: tuple[Any, ...], served: Served) -> None:
        """Serve calls like this one the same way; of those with one key the latest are kept."""
        if len(self._found) >= _MOST_KEYS:
            self._found = {}
        places = [at for at, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
        tensors = (*(inputs[at] for at in places), *self._tensors)
        guards = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        before = self._found.get(key, ())[: _MOST_OF_A_KEY - 1]
        self._found[key] = ((guards.check, places, served), *before)


class KnownCalls:
    """The holdings of a module as they are now, with what served its calls.

    Attributes:
        reason: why the latest call that the module's `problem` refused was refused.
        won: the latest call that the reference's operations served because they are the faster ones.
    """

    def __init__(self) -> None:
        self.won: Won | None = None
        self.reason = "its `problem` gives no reason"
        self._holdings: Holdings | None = None

    def of(self, module: nn.Module) -> Holdings:
        """The module's; where anything was replaced, new ones that know of no call."""
        found = self._holdings
        if found is None or not found.are_of(module):
            found = self._holdings = Holdings(module)
        return found

    def forget(self) -> None:
        """Let go of all that the module held."""
        self._holdings = None
        self.won = None


class Won:
    """A call that the reference's operations served, with what the decision depended on."""

    __slots__ = ("_grad", "_number", "_places", "_policy", "_same_tensors", "_training")

    def __init__(self, module: nn.Module, inputs: tuple[Any, ...], policy: Hashable) -> None:
        self._grad, self._training, self._policy = torch.is_grad_enabled(), module.training, policy
        self._number = len(inputs)
        places = [at for at, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
        tensors = [inputs[at] for at in places]
        self._places = None if len(places) == len(inputs) else places
        self._same_tensors = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check

    def is_again(self, module: nn.Module, inputs: tuple[Any, ...], policy: Hashable) -> bool:
        """Whether the reference serves another call too; the module must not have been frozen or pinned since."""
        return (
            self._policy is policy
            and self._grad is torch.is_grad_enabled()
            and self._training is module.training
            and self._number == len(inputs)
            and self._same_tensors(*(inputs if self._places is None else [inputs[at] for at in self._places]))
        )


def outline(inputs: tuple[Any, ...]) -> list[Hashable] | None:
    """What is cheaply told of a call's inputs; None where one is neither a tensor nor a plain value.

    Of a floating-point number it is the type alone: what serves a call does not depend on the value.
    """
    told: list[Hashable] = []
    for value in inputs:
        if isinstance(value, torch.Tensor):
            told.append(value.shape)
        elif type(value) is float:
            told.append(float)
        elif value is None or type(value) in (bool, int, str):
            told.append((type(value), value))
        else:
            return None
    return told
