"""Whether a call is an ordinary one: real tensors, and PyTorch doing nothing with it but running it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

_TYPES = (torch.Tensor, nn.Parameter, nn.Buffer)
_DEVICES = ("cuda", "cpu")


def tensors_of(module: nn.Module) -> Iterator[torch.Tensor]:
    """All parameters and buffers, those of submodules included; one that is shared may come twice."""
    waiting = [module]
    while waiting:
        one = waiting.pop()
        for held in (one._parameters, one._buffers):
            yield from (value for value in held.values() if value is not None)
        waiting += [child for child in one._modules.values() if child is not None]


def why_not_ordinary(tensors: Sequence[torch.Tensor]) -> str | None:
    """Why only operations that PyTorch knows may run on these tensors now; None where a kernel may.

    A kernel reads and writes memory by its address. Where a tensor has none (fake, meta, proxy, batched tensors), or
    where more than the values is carried along (tangents, traces, subclasses), a kernel would lose it, or crash.

    Args:
        tensors: the call's inputs, parameters and buffers.
    """
    if (reason := _why_not_run()) is not None:
        return reason
    for tensor in tensors:
        if type(tensor) not in _TYPES:
            return f"a tensor is a {type(tensor).__name__}"
        if tensor.device.type not in _DEVICES:
            return f"a tensor is on the device '{tensor.device}'"
        if tensor.layout is not torch.strided or tensor.is_neg() or tensor.is_conj():
            return "a tensor's values do not lie in memory as they are (sparse, conjugated or negated)"
    return None


def _why_not_run() -> str | None:
    """What PyTorch does with operations now, other than running them."""
    if torch._C._get_tracing_state() is not None:
        return "torch.jit is tracing"
    if torch._C._len_torch_dispatch_stack() > 0 or (torch._C._len_torch_function_stack() > 0 and _intercepts()):
        return "a mode of PyTorch intercepts operations (fake tensors, make_fx, a TorchFunctionMode)"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a functorch transform (vmap, grad, jvp) is running"
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation carries tangents"
    return None


def _intercepts() -> bool:
    """Whether any function mode does more than say where new tensors go, as `with torch.device(...)` does, or what is
    in new memory, as the correctness gate does."""
    modes = torch.overrides._get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return not all(isinstance(mode, DeviceContext) or getattr(mode, "only_allocates", False) for mode in modes)


def saves_differently() -> bool:
    """Whether somebody else decides what is saved for a backward, as checkpointing does.

    It then runs a forward twice and counts what both save: they have to run the same operations.
    """
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def autocasts(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether autocast is on for the device of any of these."""
    return any(torch.is_autocast_enabled(kind) for kind in {tensor.device.type for tensor in tensors})


def inputs_among(values: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors among a call's inputs."""
    return [value for value in values if isinstance(value, torch.Tensor)]
