"""Changes of a module's state, by name: the same ones are made of any two modules that are to stay equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_map

StateChange = Callable[[nn.Module], object]
"""A change of a module's state, the same one for any two modules with equal state."""


def _in_place(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.mul_(1.5).add_(0.125)


def _through_data(module: nn.Module) -> None:
    """Edits that PyTorch's version counter does not see."""
    for parameter in module.parameters():
        parameter.data.mul_(-0.75).add_(0.25)


def _one_element(module: nn.Module) -> None:
    """One element of each parameter, neither the first nor the last."""
    _edit_elements(module, _place)


def _place(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(size * 2 // 3 for size in tensor.shape)


def _odd_element(module: nn.Module) -> None:
    _edit_elements(module, lambda parameter: place_of(parameter, 5))


def _even_element(module: nn.Module) -> None:
    _edit_elements(module, lambda parameter: place_of(parameter, 4))


def _edit_elements(module: nn.Module, place: Callable[[torch.Tensor], tuple[int, ...]]) -> None:
    for parameter in module.parameters():
        if parameter.numel():
            parameter[place(parameter)].mul_(-1.5).add_(2.0)


def place_of(tensor: torch.Tensor, remainder: int, share: float = 5 / 8) -> tuple[int, ...]:
    """An element at about this share of all whose number leaves this remainder by 6: a key of every other element, or
    of every third, has one of two such elements and not the other."""
    number = min(tensor.numel() - 1, int(tensor.numel() * share) // 6 * 6 + remainder)
    return tuple(map(int, np.unravel_index(number, tensor.shape)))  # torch's own imports sympy first


def _one_row(module: nn.Module) -> None:
    for parameter in module.parameters():
        if parameter.numel():
            parameter[_place(parameter)[:1]].mul_(-1.5).add_(0.25)


def _other_order(module: nn.Module) -> None:
    """The same numbers with the same sum in other places."""
    for parameter in module.parameters():
        parameter.copy_(parameter.flip(tuple(range(parameter.dim()))))


def _optimiser_step(module: nn.Module) -> None:
    """All parameters in one call, as torch.optim does it; torch.optim itself imports torch's compiler."""
    parameters: list[torch.Tensor] = list(module.parameters())
    torch._foreach_add_(parameters, [torch.full_like(parameter, 0.5) for parameter in parameters], alpha=-0.5)


def _load_state_dict(module: nn.Module) -> None:
    module.load_state_dict(_scaled_state(module, 2.0))


def _assign_state_dict(module: nn.Module) -> None:
    """The state dict's tensors take the parameters' place."""
    module.load_state_dict(_scaled_state(module, 0.5), assign=True)


def _scaled_state(module: nn.Module, factor: float) -> dict[str, torch.Tensor]:
    state = module.state_dict()
    return {name: tensor * factor if tensor.is_floating_point() else tensor for name, tensor in state.items()}


def _replace_parameters(module: nn.Module) -> None:
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            setattr(part, name, nn.Parameter(parameter.detach() * 3.0, requires_grad=parameter.requires_grad))


def _new_memory(module: nn.Module) -> None:
    """The same parameter objects over other memory."""
    for parameter in module.parameters():
        parameter.data = parameter.data * 0.25 + 0.5


def _there_and_back(module: nn.Module) -> None:
    """To another type and back, which rounds the weights on the way.

    Not the buffers: two that differ in their last bit may be rounded to different values.
    """
    types = {parameter.dtype for parameter in module.parameters()}
    if len(types) == 1:
        buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
        module.to(torch.bfloat16)
        module.to(types.pop())
        for name, buffer in module.named_buffers():
            buffer.copy_(buffers[name])


WEIGHT_CHANGES: Mapping[str, StateChange] = {
    "an in-place edit": _in_place,
    "an edit through .data": _through_data,
    "an edit of one element": _one_element,
    "an edit of an odd element": _odd_element,
    "an edit of an even element": _even_element,
    "an edit of one row": _one_row,
    "weights in another order": _other_order,
    "an optimiser step": _optimiser_step,
    "load_state_dict": _load_state_dict,
    "load_state_dict(assign=True)": _assign_state_dict,
    "replaced parameters": _replace_parameters,
    "parameters over new memory": _new_memory,
    "to another type and back": _there_and_back,
}
"""By name, in the order in which one pair goes through them."""


def _buffers_in_place(module: nn.Module) -> None:
    for buffer in module.buffers():
        if buffer.is_floating_point():
            buffer.mul_(1.5).add_(0.5)


def _buffers_through_data(module: nn.Module) -> None:
    for buffer in module.buffers():
        if buffer.is_floating_point():
            buffer.data.mul_(0.5).add_(0.25)


def _replace_buffers(module: nn.Module) -> None:
    for part in module.modules():
        for name, buffer in list(part.named_buffers(recurse=False)):
            if buffer.is_floating_point():
                setattr(part, name, buffer * 2.0 + 0.125)


def _larger_eps(module: nn.Module) -> None:
    for part in module.modules():
        if isinstance(getattr(part, "eps", None), float):
            setattr(part, "eps", 0.5)  # noqa: B010 - not every module has one


def _other_momentum(module: nn.Module) -> None:
    for part in module.modules():
        if isinstance(getattr(part, "momentum", None), float):
            setattr(part, "momentum", 0.75)  # noqa: B010


def _averaged(module: nn.Module) -> None:
    """A momentum of None: running statistics are averages of all batches."""
    for part in _norms(module).values():
        part.momentum = None


def _statistics_reset(module: nn.Module) -> None:
    for part in _norms(module).values():
        part.reset_running_stats()


def _rebuilt(*, affine: bool, track: bool) -> StateChange:
    """Batch normalisations in place of those there, without weights or without running statistics."""

    def change(module: nn.Module) -> None:
        for name, part in _norms(module).items():
            new = type(part)(part.num_features, part.eps, affine=affine, track_running_stats=track)
            first = next((t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()), None)
            new = new if first is None else new.to(first.device, first.dtype)
            module.get_submodule(name.rpartition(".")[0]).register_module(
                name.rpartition(".")[2], new.train(part.training)
            )

    return change


def _norms(module: nn.Module) -> dict[str, nn.modules.batchnorm._BatchNorm]:
    return {name: part for name, part in module.named_modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)}


STATISTICS_CHANGES: Mapping[str, StateChange] = {
    "an in-place edit of buffers": _buffers_in_place,
    "an edit of buffers through .data": _buffers_through_data,
    "replaced buffers": _replace_buffers,
    "another eps": _larger_eps,
    "another momentum": _other_momentum,
    "momentum=None": _averaged,
    "reset_running_stats": _statistics_reset,
    "affine=False": _rebuilt(affine=False, track=True),
    "track_running_stats=False": _rebuilt(affine=True, track=False),
}
"""By name, in the order in which one pair goes through them."""


def _misalign(module: nn.Module) -> None:
    """Parameters and buffers one element off their alignment."""
    for tensor in (*module.parameters(), *module.buffers()):
        memory = tensor.data.new_zeros(tensor.numel() + 1)
        tensor.data = memory[1:].view(tensor.shape).copy_(tensor.data)


def _channels_last(module: nn.Module) -> None:
    """Weights of images and volumes with their channels last in memory; no others have such a layout."""
    for tensor in (*module.parameters(), *module.buffers()):
        if (layout := CHANNELS_LAST_LAYOUTS.get(tensor.dim())) is not None:
            tensor.data = tensor.data.to(memory_format=layout)


def _pre_hook(module: nn.Module) -> None:
    """A hook that gives the module other inputs than its caller."""
    module.register_forward_pre_hook(_scaled_inputs)


def _scaled_inputs(_module: nn.Module, inputs: tuple[Any, ...]) -> Any:
    return tree_map(_scaled, inputs)


def _hook(module: nn.Module) -> None:
    """A hook that gives the caller another output than the module's."""
    module.register_forward_hook(_scaled_output)


def _scaled_output(_module: nn.Module, _inputs: tuple[Any, ...], output: Any) -> Any:
    return tree_map(_scaled, output)


def _scaled(value: Any) -> Any:
    return value * -1.5 if isinstance(value, torch.Tensor) and value.is_floating_point() else value


HOOKS: Mapping[str, StateChange] = {
    "a forward pre-hook": _pre_hook,
    "a forward hook": _hook,
}
"""Each for a module of its own."""

CHANNELS_LAST = "channels-last weights"
CHANNELS_LAST_LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}
"""The layouts that images and volumes have then, by their number of axes."""
MISALIGN = "parameters off alignment"
UNCOUNTED = ("an edit through .data", "an edit of buffers through .data")
"""Changes that PyTorch's version counter does not see."""

CHANGES: Mapping[str, StateChange] = {
    **WEIGHT_CHANGES,
    **STATISTICS_CHANGES,
    **HOOKS,
    CHANNELS_LAST: _channels_last,
    MISALIGN: _misalign,
}
"""All of them."""
