"""Stages about what a module holds: what it keeps between calls must follow every change of what that was made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

from tunebench.tuner.gate.faults import FAILURES
from tunebench.tuner.gate.harness import Harness, ModelPair
from tunebench.tuner.gate.stage_log import StageRefused
from tunebench.tuner.kernel import Mode

StateChange = Callable[[nn.Module], object]
"""A change of a module's state, the same one for any two modules with equal state."""


def construction(harness: Harness) -> None:
    """Made after the same seed, both have the same state, name by name and bit by bit: nobody has to copy it."""
    source = harness.base
    reference = source.make_model(0, harness.device)
    with harness.refusing("making the model"):
        candidate = source.make_model(0, harness.device, harness.contender.factory)
    expected, got = reference.state_dict(), candidate.state_dict()
    if list(expected) != list(got):
        raise StageRefused(f"its state is ({', '.join(got) or 'empty'}) in place of ({', '.join(expected) or 'empty'})")
    for name, tensor in expected.items():
        if tensor.shape != got[name].shape or tensor.dtype != got[name].dtype:
            raise StageRefused(
                f"'{name}' is {tuple(got[name].shape)} {got[name].dtype} in place of {tuple(tensor.shape)}"
            )
        if not torch.equal(tensor, got[name]):
            raise StageRefused(f"'{name}' has other values than the reference's after the same seed")


def _in_place(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.mul_(1.5).add_(0.125)


def _through_data(module: nn.Module) -> None:
    """Edits that PyTorch's version counter does not see."""
    for parameter in module.parameters():
        parameter.data.mul_(-0.75).add_(0.25)


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
    "an optimiser step": _optimiser_step,
    "load_state_dict": _load_state_dict,
    "load_state_dict(assign=True)": _assign_state_dict,
    "replaced parameters": _replace_parameters,
    "parameters over new memory": _new_memory,
    "to another type and back": _there_and_back,
}
"""By name, in the order in which one pair goes through them."""


def weights(harness: Harness) -> None:
    """Each way to change parameters changes the next output as the reference's."""
    pair = harness.pair()
    if not any(True for _ in pair.reference.parameters()):
        harness.pass_over("the reference has no parameters")
        return
    inputs = pair.inputs(1)
    harness.agree(pair, inputs, "as made")
    for name, change in WEIGHT_CHANGES.items():
        pair.change(change)
        _freeze_again(harness, pair, change)
        harness.agree(pair, inputs, f"after {name}")


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


def statistics(harness: Harness) -> None:
    """Buffers and the settings of normalisations: each change shows in the next output as in the reference's."""
    pair = harness.pair()
    if not any(True for _ in pair.reference.buffers()) and not _norms(pair.reference):
        harness.pass_over("the reference has no buffers")
        return
    inputs = pair.inputs(1)
    harness.agree(pair, inputs, "as made")
    for name, change in STATISTICS_CHANGES.items():
        try:
            change(pair.reference)
            change(pair.candidate)
        except FAILURES:
            harness.pass_over("the modules have other parts")
            continue
        _freeze_again(harness, pair, change)
        harness.agree(pair, inputs, f"after {name}")


def _freeze_again(harness: Harness, pair: ModelPair, change: StateChange) -> None:
    """Freeze the candidate again after an edit that PyTorch does not count, as `freeze` requires of its callers."""
    if change in (_through_data, _buffers_through_data):
        harness.answers.mode.put(pair.candidate)


def mode(harness: Harness) -> None:
    """Calls in train mode, in eval mode, and in train mode again: outputs and buffers move as the reference's."""
    pair = harness.pair()
    inputs = pair.inputs(1)
    still = Mode.FROZEN if harness.answers.mode is Mode.FROZEN else Mode.EVAL
    for number, now in enumerate((Mode.TRAIN, still, Mode.TRAIN, still)):
        pair.change(now.put)
        harness.agree(pair, inputs, f"call {number + 1}, in {now} mode")
