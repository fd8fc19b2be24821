"""A reference's answers to inputs: at its own precision, in float64, and on inputs that are a rounding error off."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tunebench.tuner.gate.dispatch import OperationMode
from tunebench.tuner.gate.faults import FAILURES
from tunebench.tuner.gate.float64 import as_it_was, in_float64, widened
from tunebench.tuner.gate.memory import Bands, all_equal, checksums, has_elements_of, shares_memory
from tunebench.tuner.gate.values import ROOT, Leaf, Values, cloned, mapped, tensors_in
from tunebench.tuner.problem import Accuracy
from tunebench.tuner.reference import seed_generators
from tunebench.tuner.settings import strict_float32
from tunebench.tuner.users_code import described

_ROUNDINGS = 4.0
"""By how many of its own rounding errors an input is moved."""


@dataclass(frozen=True)
class Truth:
    """A reference's answers to inputs, at its own precision and in float64.

    Attributes:
        own: the output.
        exact: in float64; None where there is none.
        why: there is none.
        alternatives: other integers and truth values that are as right: see `_decided_otherwise`.
        in_order: in float64 with the first of equal elements first; None where the module orders nothing.
        draws: the call draws random numbers.
        own_buffers, exact_buffers: the buffers after the call.
        own_inputs, exact_inputs: what the inputs hold after the call that it changes, by names such as `input 1`.
        aliases: the paths of what is memory of an input.
        shared: the paths of what is memory of an earlier part of the output.
    """

    own: Values
    exact: Values | None
    why: str
    alternatives: Sequence[Mapping[str, Leaf]]
    in_order: Values | None
    draws: bool
    own_buffers: Mapping[str, torch.Tensor]
    exact_buffers: Mapping[str, torch.Tensor]
    own_inputs: Mapping[str, torch.Tensor]
    exact_inputs: Mapping[str, torch.Tensor]
    aliases: Sequence[str]
    shared: Sequence[str]


def own_precision(accuracy: Accuracy) -> contextlib.AbstractContextManager[None]:
    """Return a context for the answers of a reference that candidates are measured by.

    Its products are in float32 unless the accuracy is TF32's: what a program permits beyond PyTorch's defaults widens
    no tolerance. Convolutions may be in less, as PyTorch's defaults are, unless they are to be as exact as eager.
    """
    if accuracy is Accuracy.TF32:
        return contextlib.nullcontext()
    return strict_float32(convolutions=accuracy is Accuracy.EAGER)


def truth_of(
    module: nn.Module,
    inputs: Sequence[Any],
    autocast: torch.dtype | None,
    seed: int,
    accuracy: Accuracy = Accuracy.TOLERANCE,
) -> Truth:
    """Ask a module; its buffers move as in any call, and the inputs hold again what they held.

    Args:
        autocast: the type that the call at the module's own precision runs under autocast to.
        seed: of torch's generators, before each call.
        accuracy: its own precision is that of `own_precision`.

    Raises:
        Exception: whatever the module raises at its own precision.
    """
    device = device_of_inputs(inputs)
    wide, exact, alternatives, why = [widened(value) for value in inputs], None, [], ""
    in_order: Values | None = None
    exact_buffers: Mapping[str, torch.Tensor] = {}
    before = checksums(wide)
    try:
        with _EqualInOrder(notes_alone=True) as order:
            exact, exact_buffers = _exactly(module, inputs, wide, seed)
        if order.is_asked:
            with _EqualInOrder():
                in_order, _ = _exactly(module, inputs, [widened(value) for value in cloned(inputs)], seed)
        if _decisions(exact):
            alternatives = _decided_otherwise(module, inputs, autocast, seed, accuracy)
    except torch.OutOfMemoryError:
        raise
    except FAILURES as error:
        why = f"it does not run in float64: {described(error)}"
    changes = exact is None or not all(all_equal(before, checksums(wide)))
    held = cloned(inputs) if changes else inputs
    before = checksums(inputs)
    drawn = seeded(device, seed)
    with under_autocast(autocast, inputs), own_precision(accuracy):
        answer = module(*inputs)
    draws = not torch.equal(drawn, state_of(device))
    own = Values.of(answer).mapped(torch.Tensor.detach)
    aliases = tuple(path for path, tensor in own.tensors.items() if shares_memory(tensor, inputs))
    shared = overlapping(own)
    if changed := _changed(inputs, before):
        own = own.mapped(Bands().around)  # the output may be memory of an input; its strides stay
        changed = {name: tensor.clone() for name, tensor in changed.items()}
        write(inputs, held)
    own_buffers = buffers_of(module)
    return Truth(
        own=own,
        exact=exact,
        why=why,
        alternatives=alternatives,
        in_order=in_order,
        draws=draws,
        own_buffers=own_buffers,
        exact_buffers=exact_buffers or own_buffers,
        own_inputs=changed,
        exact_inputs={} if exact is None else {name: named_tensors(wide)[name] for name in changed},
        aliases=aliases,
        shared=shared,
    )


def overlapping(output: Values) -> Sequence[str]:
    """Return the paths of the tensors of an output that have elements in common with an earlier one."""
    parts = list(output.tensors.items())
    return [
        path for n, (path, tensor) in enumerate(parts) if any(has_elements_of(tensor, other) for _, other in parts[:n])
    ]


def _exactly(
    module: nn.Module, inputs: Sequence[Any], wide: Sequence[Any], seed: int
) -> tuple[Values, Mapping[str, torch.Tensor]]:
    """Return what a module makes in float64 of float64 inputs, and its buffers then; it stays as it was."""
    seed_generators(seed, device_of_inputs(inputs))
    with in_float64(module, inputs):
        return Values.of(module(*wide)).mapped(torch.Tensor.detach), buffers_of(module)


def _sorted(x: torch.Tensor, dim: int = -1, descending: bool = False) -> tuple[torch.Tensor, ...]:
    return torch.sort(x, dim=dim, descending=descending, stable=True)


def _first(x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, *_: bool) -> tuple[torch.Tensor, ...]:
    return tuple(one.narrow(dim, 0, k) if one.dim() else one for one in _sorted(x, dim, largest))


_IN_ORDER = {torch.ops.aten.sort.default: _sorted, torch.ops.aten.topk.default: _first}


class _EqualInOrder(OperationMode):
    """Equal elements stay in their order, where torch promises none.

    Attributes:
        is_asked: something was ordered.
    """

    def __init__(self, *, notes_alone: bool = False) -> None:
        super().__init__()
        self.is_asked = False
        self._notes_alone = notes_alone

    def run(self, operation: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        self.is_asked |= operation in _IN_ORDER
        run = operation if self._notes_alone else _IN_ORDER.get(operation, operation)
        return run(*arguments, **named)


def _decisions(answer: Values) -> dict[str, Leaf]:
    """Return the integers, truth values and the like of an output, which a rounding error may decide, by path."""

    def is_decision(leaf: Leaf) -> bool:
        if isinstance(leaf, torch.Tensor):
            return not (leaf.is_floating_point() or leaf.is_complex())
        return type(leaf) is not float

    return {path: leaf for path, leaf in answer.leaves.items() if is_decision(leaf)}


def _decided_otherwise(
    module: nn.Module,
    inputs: Sequence[Any],
    autocast: torch.dtype | None,
    seed: int,
    accuracy: Accuracy,
) -> list[Mapping[str, Leaf]]:
    """Return what else may be decided, the first of equal elements first: at the module's own precision, and in float64
    of inputs that are some rounding errors larger, or smaller."""
    seed_generators(seed, device_of_inputs(inputs))
    with _EqualInOrder():
        with as_it_was(module), under_autocast(autocast, inputs), own_precision(accuracy):
            own = Values.of(module(*cloned(inputs))).mapped(torch.Tensor.detach)
        near = [_exactly(module, inputs, _moved(inputs, sign, autocast), seed)[0] for sign in (1.0, -1.0)]
    return [_decisions(one) for one in (own, *near)]


def _moved(inputs: Sequence[Any], sign: float, autocast: torch.dtype | None) -> list[Any]:
    """Floating-point inputs in float64, each element off by some rounding errors of the type that is computed in: equal
    ones by equal errors, so that what is equal stays so."""

    def move(tensor: torch.Tensor) -> torch.Tensor:
        wide: torch.Tensor = widened(tensor)
        if not tensor.is_floating_point():
            return wide
        return wide + wide * torch.cos(wide * 1e5) * (sign * _ROUNDINGS * torch.finfo(autocast or tensor.dtype).eps)

    return [mapped(value, move) for value in inputs]


def seeded(device: torch.device, seed: int) -> torch.Tensor:
    """Seed torch's generators; their state then."""
    seed_generators(seed, device)
    return state_of(device)


def state_of(device: torch.device) -> torch.Tensor:
    """The state of the generators that a model on this device draws from."""
    on_cpu = torch.default_generator.get_state()
    return torch.cat([on_cpu, torch.cuda.get_rng_state(device)]) if device.type == "cuda" else on_cpu


def _changed(inputs: Sequence[Any], before: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """The inputs whose checksums are others now, by name."""
    same = all_equal(before, checksums(inputs))
    return {
        name: tensor for (name, tensor), equal in zip(named_tensors(inputs).items(), same, strict=True) if not equal
    }


def named_tensors(inputs: Sequence[Any]) -> dict[str, torch.Tensor]:
    """The tensors among the inputs and within them by their names, such as `input 1` or `input 2[0]`."""
    parts = ((n, Values.of(value).tensors) for n, value in enumerate(inputs, 1))
    return {f"input {n}{path.removeprefix(ROOT)}": tensor for n, tensors in parts for path, tensor in tensors.items()}


def device_of_inputs(inputs: Sequence[Any]) -> torch.device:
    """Where the inputs are; the CPU where none is a tensor."""
    return next((tensor.device for tensor in tensors_in(inputs)), torch.device("cpu"))


@contextlib.contextmanager
def under_autocast(dtype: torch.dtype | None, inputs: Sequence[Any]) -> Iterator[None]:
    """Autocast to a type on the inputs' device; nothing where there is no type."""
    if dtype is None:
        yield
        return
    with torch.autocast(device_of_inputs(inputs).type, dtype):
        yield


def write(inputs: Sequence[Any], others: Sequence[Any]) -> None:
    """Write the values of others into tensors."""
    for tensor, other in zip(tensors_in(inputs), tensors_in(others), strict=True):
        tensor.copy_(other)


def buffers_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Every buffer; counts such as `num_batches_tracked` too, since they must move the same way."""
    return {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
