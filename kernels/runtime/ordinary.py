"""Test whether a call is an ordinary one: real tensors, and PyTorch doing nothing with it but running it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.modules import module as every_module
from torch.utils._device import DeviceContext

_TYPES = (torch.Tensor, nn.Parameter, nn.Buffer)
AUTOCAST = "autocast is on"
"""The obstacle that is left where there is no other: a kernel has to work in the types that autocast gives."""


class Call(NamedTuple):
    """The properties of a call that decide whether a kernel may serve it.

    Attributes:
        inputs: the tensors among its inputs.
        parameters, buffers: of the module and its submodules, as `held` has them.
        obstacle: why only operations that PyTorch knows may run; None where a kernel may.
        needs_gradient: whether the result belongs to an autograd graph.
    """

    inputs: list[torch.Tensor]
    parameters: list[torch.Tensor]
    buffers: list[torch.Tensor]
    obstacle: str | None
    needs_gradient: bool


def look_at(module: nn.Module, inputs: Sequence[Any]) -> Call:
    """Look at a call's inputs, at the module's parameters and buffers, and at what PyTorch does just now.

    A kernel reads and writes memory by its address. Where a tensor has none (fake, meta, proxy, batched tensors), or
    where more than the values comes along (tangents, traces, subclasses), a kernel would lose it, or crash. This
    stands in every forward, and takes some 2 µs.
    """
    given = [value for value in inputs if isinstance(value, torch.Tensor)]
    obstacle = why_not_run() or ("hooks of all modules are set" if module._modules and hooks_of_all() else None)
    needs_gradient, enabled = False, torch.is_grad_enabled()
    parameters, buffers = held(module)
    for tensor in (*given, *parameters, *buffers):
        if type(tensor) not in _TYPES:
            obstacle = obstacle or f"a tensor is a {type(tensor).__name__}"
        elif not (tensor.is_cuda or tensor.is_cpu):
            obstacle = obstacle or f"a tensor is on the device '{tensor.device}'"
        elif tensor.layout is not torch.strided or tensor.is_neg():
            obstacle = obstacle or "a tensor's values do not lie in memory as they are (sparse, or a negated view)"
        if enabled and tensor.requires_grad:
            needs_gradient = True
    if obstacle is None and torch._C._is_any_autocast_enabled():
        obstacle = AUTOCAST
    return Call(given, parameters, buffers, obstacle, needs_gradient)


def held(module: nn.Module) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return all parameters and all buffers, those of submodules included; a shared one as often as it occurs."""
    parameters: list[torch.Tensor] = []
    buffers: list[torch.Tensor] = []
    waiting = [module]
    while waiting:  # no loop over a list that grows: torch.compile of torch 2.9 does not see what is added meanwhile
        one = waiting.pop(0)
        if one._parameters:
            parameters += [value for value in one._parameters.values() if value is not None]
        if one._buffers:
            buffers += [value for value in one._buffers.values() if value is not None]
        if one._modules:
            waiting += [child for child in one._modules.values() if child is not None]
    return parameters, buffers


HOOKS_OF_ALL = (
    every_module._global_forward_hooks,
    every_module._global_forward_pre_hooks,
    every_module._global_backward_hooks,
    every_module._global_backward_pre_hooks,
)


def hooks_of_all() -> bool:
    """Return whether hooks take part in every module's calls, of which a kernel runs none but the outermost's."""
    return any(HOOKS_OF_ALL)


blind = ""
"""The reason why PyTorch's treatment of operations is unknown; empty where `guards` has proven that it is known."""


def why_not_run() -> str | None:
    """Say what PyTorch does with operations now, other than running them, or running them in other types."""
    if blind:
        return blind
    if torch._C._get_tracing_state() is not None:
        return "torch.jit is tracing"
    if (torch._C._len_torch_dispatch_stack() > 0 or torch._C._len_torch_function_stack() > 0) and intercepts():
        return "a mode of PyTorch intercepts operations (fake tensors, make_fx, a TorchFunctionMode)"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a functorch transform (vmap, grad, jvp) is running"
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation carries tangents"
    return None


def intercepts() -> bool:
    """Return whether any mode does more than say where new tensors go, as `with torch.device(...)` does, or what is in
    new memory, as the correctness gate does."""
    modes = torch.overrides._get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    modes += [torch._C._get_dispatch_stack_at(n) for n in range(torch._C._len_torch_dispatch_stack())]
    return not all(isinstance(mode, DeviceContext) or getattr(mode, "only_allocates", False) for mode in modes)


def saves_differently() -> bool:
    """Return whether hooks of PyTorch's decide what is saved for a backward, as checkpointing does.

    It then runs a forward twice and counts what both save: they have to run the same operations.
    """
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
