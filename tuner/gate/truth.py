"""What a reference makes of inputs: at its own precision, in float64, and on inputs that are a rounding error off."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from tunebench.tuner.gate.faults import FAILURES
from tunebench.tuner.gate.memory import Bands, all_equal, checksums, shares_memory
from tunebench.tuner.gate.values import ROOT, Leaf, Values, mapped, tensors_in
from tunebench.tuner.reference import seed_generators
from tunebench.tuner.users_code import described

_ROUNDINGS = 4.0
"""By how many of its own rounding errors an input is moved."""


@dataclass(frozen=True)
class Truth:
    """What a reference makes of inputs, at its own precision and in float64.

    Attributes:
        own: the output.
        exact: in float64; None where there is none.
        why: there is none.
        rounded: in float64, of inputs that are a rounding error larger, and smaller; asked where the output has
            integers or the like, which such an error may decide.
        draws: the call draws random numbers.
        own_buffers, exact_buffers: the buffers after the call.
        own_inputs, exact_inputs: what the inputs hold after the call that it changes, by names such as `input 1`.
        aliases: the paths of what is memory of an input.
    """

    own: Values
    exact: Values | None
    why: str
    rounded: Sequence[Values]
    draws: bool
    own_buffers: Mapping[str, torch.Tensor]
    exact_buffers: Mapping[str, torch.Tensor]
    own_inputs: Mapping[str, torch.Tensor]
    exact_inputs: Mapping[str, torch.Tensor]
    aliases: Sequence[str]


def truth_of(module: nn.Module, inputs: Sequence[Any], autocast: torch.dtype | None, seed: int) -> Truth:
    """Ask a module; its buffers move as in any call, and the inputs hold again what they held.

    Args:
        autocast: the type that the call at the module's own precision runs under autocast to.
        seed: of torch's generators, before each call.

    Raises:
        Exception: whatever the module raises at its own precision.
    """
    device = device_of_inputs(inputs)
    exact_module, wide = doubled(module), [widened(value) for value in inputs]
    before = checksums(inputs)
    drawn = _seeded(device, seed)
    with under_autocast(autocast, inputs):
        answer = module(*inputs)
    draws = not torch.equal(drawn, _state_of(device))
    own = Values.of(answer).mapped(torch.Tensor.detach)
    aliases = tuple(path for path, tensor in own.tensors.items() if shares_memory(tensor, inputs))
    if changed := _changed(inputs, before):
        own = own.mapped(Bands().around)  # the output may be memory of an input; its strides stay
        changed = {name: tensor.clone() for name, tensor in changed.items()}
        write(inputs, wide)
    exact, why, rounded = None, "", []
    own_buffers = buffers_of(module)
    exact_buffers = {name: buffer.double() for name, buffer in own_buffers.items()}
    if own.strange is None:
        twin = _Twin(exact_module, inputs, seed)
        try:
            exact = twin(wide)
            exact_buffers = {name: buffer.double() for name, buffer in twin.buffers().items()}
            if _has_decisions(own):
                rounded = [twin(_moved(inputs, sign, autocast)) for sign in (1.0, -1.0)]
        except torch.OutOfMemoryError:
            raise
        except FAILURES as error:
            why = f"it does not run in float64: {described(error)}"
    return Truth(
        own=own,
        exact=exact,
        why=why,
        rounded=rounded,
        draws=draws,
        own_buffers=own_buffers,
        exact_buffers=exact_buffers,
        own_inputs=changed,
        exact_inputs={} if exact is None else {name: named_tensors(wide)[name] for name in changed},
        aliases=aliases,
    )


def doubled(module: nn.Module) -> nn.Module:
    """A copy in float64, also of tensors that it holds as plain attributes, such as a first state."""
    copied = copy.deepcopy(module).double()
    for part in copied.modules():
        held = {name: value for name, value in part.__dict__.items() if isinstance(value, torch.Tensor)}
        part.__dict__.update({name: widened(value) for name, value in held.items()})
    return copied


class _Twin:
    """A module in float64, each call of which begins with the same buffers and the same random numbers.

    Args:
        inputs: of the module that it is a twin of.
    """

    def __init__(self, module: nn.Module, inputs: Sequence[Any], seed: int) -> None:
        self._module = module
        self._before = self.buffers()
        self._seed = seed
        self._inputs = inputs

    def buffers(self) -> dict[str, torch.Tensor]:
        """What they hold now."""
        return buffers_of(self._module)

    def __call__(self, inputs: Sequence[Any]) -> Values:
        """What it makes of these inputs, which are in float64."""
        for name, buffer in self._module.named_buffers():
            buffer.copy_(self._before[name])
        seed_generators(self._seed, device_of_inputs(inputs))
        with in_float64(self._inputs):
            return Values.of(self._module(*inputs)).mapped(torch.Tensor.detach)


@contextlib.contextmanager
def in_float64(inputs: Sequence[Any]) -> Iterator[None]:
    """Whatever a module in float64 asks of floating-point types, it gets in float64.

    Args:
        inputs: of the module at its own precision, in whose type it draws random numbers.
    """
    floating = (tensor.dtype for tensor in tensors_in(inputs) if tensor.is_floating_point())
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _InFloat64(default, next(floating, default)):
            yield
    finally:
        torch.set_default_dtype(default)


class _InFloat64(TorchFunctionMode):
    """Turns what a forward asks of other floating-point types into float64, as `.float()` or `dtype=torch.half`.

    Random numbers are drawn in the type that they are drawn in without it, since float64 draws others.
    """

    _CONVERSIONS = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)
    _LIKE = (torch.rand_like, torch.randn_like)
    _FACTORIES = (torch.rand, torch.randn)
    _IN_PLACE = (torch.Tensor.normal_, torch.Tensor.uniform_, torch.Tensor.exponential_)

    def __init__(self, default: torch.dtype, drawn_in: torch.dtype) -> None:
        super().__init__()
        self._default = default
        self._drawn_in = drawn_in

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation in float64."""
        named = dict(kwargs or {})
        if func in self._CONVERSIONS:
            return args[0].double(**named)
        if func in self._LIKE or func in self._FACTORIES:
            kind = named.get("dtype") or (self._drawn_in if func in self._LIKE else self._default)
            return func(*args, **{**named, "dtype": kind}).double()
        if func in self._IN_PLACE and args[0].dtype is torch.float64:
            drawn = func(torch.empty_like(args[0], dtype=self._drawn_in), *args[1:], **named)
            return args[0].copy_(drawn)
        if func is torch.bernoulli:
            return func(args[0].to(self._drawn_in), *args[1:], **named).double()
        return func(*(_wide_type(value) for value in args), **{key: _wide_type(value) for key, value in named.items()})


def _wide_type(value: Any) -> Any:
    if not isinstance(value, torch.dtype):
        return value
    if value.is_complex:
        return torch.complex128
    return torch.float64 if value.is_floating_point else value


def _has_decisions(own: Values) -> bool:
    """Whether an output has integers or truth values, which a rounding error may decide."""

    def is_decision(leaf: Leaf) -> bool:
        if isinstance(leaf, torch.Tensor):
            return not (leaf.is_floating_point() or leaf.is_complex())
        return type(leaf) is not float

    return any(is_decision(leaf) for leaf in own.leaves.values())


def _moved(inputs: Sequence[Any], sign: float, autocast: torch.dtype | None) -> list[Any]:
    """Floating-point inputs in float64, each element off by some rounding errors of the type that is computed in: equal
    ones by equal errors, so that what is equal stays so."""

    def move(tensor: torch.Tensor) -> torch.Tensor:
        wide: torch.Tensor = widened(tensor)
        if not tensor.is_floating_point():
            return wide
        return wide + wide * torch.cos(wide * 1e5) * (sign * _ROUNDINGS * torch.finfo(autocast or tensor.dtype).eps)

    return [mapped(value, move) for value in inputs]


def _seeded(device: torch.device, seed: int) -> torch.Tensor:
    """Seed torch's generators; their state then."""
    seed_generators(seed, device)
    return _state_of(device)


def _state_of(device: torch.device) -> torch.Tensor:
    """Of the generators that a model on this device draws from."""
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


def widened(value: Any) -> Any:
    """The same with floating-point and complex tensors in float64; every tensor is a copy."""
    return mapped(value, lambda tensor: tensor.detach().to(_wide_type(tensor.dtype), copy=True))


def write(inputs: Sequence[Any], others: Sequence[Any]) -> None:
    """Write the values of others into tensors."""
    for tensor, other in zip(tensors_in(inputs), tensors_in(others), strict=True):
        tensor.copy_(other)


def buffers_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Every buffer; counts such as `num_batches_tracked` too, since they must move the same way."""
    return {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
