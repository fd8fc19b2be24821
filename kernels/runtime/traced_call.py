"""A call in a program that is being traced: taken apart into what the kernel's operator is given.

`torch.compile` reads these functions as it reads the caller's own: every attribute that is looked at here is guarded.
What the graph is made from is thereby what the result depends on: after a change to it PyTorch traces the call again,
or hands over the new value, as it does with the reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import is_fake
from torch.autograd import forward_ad

from tunebench.kernels.runtime.ordinary import held, hooks_of_all
from tunebench.kernels.runtime.outline import PartOutline, Tensors, inputs_of, module_of, outline_of
from tunebench.kernels.runtime.reference_call import Blank, trace_reference, why_not_again

_ANY_SIZE = 8
"""A stand-in for a size that differs from run to run."""
_EXACT_INTEGER = 2**53
"""Limit up to which whole numbers survive as float64, which is how a graph holds numbers."""


def _in_order(handle: str, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """Return the inputs as they stand in the reference's signature, in code that a compiler can read.

    Raises:
        TypeError: they do not fit it.
    """
    expected = inputs_of(handle)
    if not named and len(given) == len(expected):
        return given
    names = [name for name, _, _ in expected]
    # Not `zip(..., strict=False)`, which torch.compile of torch 2.9 takes for strict.
    inputs = {name: given[at] for at, name in enumerate(names[: len(given)])}
    if len(given) > len(names) or any(name in inputs or name not in names for name in named):
        raise TypeError(f"inputs that do not fit: the reference takes {', '.join(names)}")
    for name, has_default, default in expected:
        if name in named:
            inputs[name] = named[name]
        elif name not in inputs and has_default:
            inputs[name] = default
    if len(inputs) < len(names):
        raise TypeError(f"an input is missing: the reference takes {', '.join(names)}")
    return tuple(inputs[name] for name in names)


def call(module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> torch.Tensor:
    """Run a call in a program that is being traced: the module's operator, or the reference's operations.

    `torch.compile` reads this function as it reads the caller's own. Every attribute, function and builtin that is
    looked at here is guarded, and guards are looked at in every call of the program. So what the compiler need not read
    stands in functions whose answers are constants to it, which it does not enter.
    """
    inputs = _in_order(module._handle, given, named)
    exported, has_gradients, may_serve = _around_the_call()
    arguments = None
    if may_serve:
        parameters, buffers = held(module)
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        needs_gradient = False
        for value in [*tensors, *parameters, *buffers]:
            if not _has_memory(type(value), value.device, value.layout):
                may_serve = False
            if has_gradients and value.requires_grad:
                needs_gradient = True
        may_serve = may_serve and not (needs_gradient and module._trains) and shapes_of(tensors) not in module._lost
        arguments = operands(module, inputs, exported) if may_serve else None
        # Asked last, since it runs the reference: where there are hooks, they would run once more.
        if arguments is not None and not _stands_for(module._handle, _described(inputs), exported or needs_gradient):
            arguments = None
    if arguments is None:
        return module.reference_forward(*inputs)  # type: ignore[no-any-return]
    operator = type(module)._operators.forward[module._derived is not None and not exported, exported or needs_gradient]
    results = operator(*arguments)
    for at, value in enumerate(results[1:]):
        if value.numel():
            buffers[at].copy_(value)
    return results[0]  # type: ignore[no-any-return]


def _described(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the inputs as constants: of a tensor its sizes, type and device."""
    from torch.fx.experimental.symbolic_shapes import has_static_value

    told: list[Any] = []
    for value in inputs:
        if isinstance(value, torch.Tensor):
            sizes = []
            for size in value.shape:
                sizes.append(size if has_static_value(size) else _ANY_SIZE)
            told.append((tuple(sizes), value.dtype, value.device))
        elif isinstance(value, (bool, int, float)) and not has_static_value(value):
            told.append(_ANY_SIZE if isinstance(value, int) else 0.5)
        else:
            told.append(value)
    return tuple(told)


def _stands_for(handle: str, described: tuple[Any, ...], differentiable: bool) -> bool:
    """Return whether an operator can stand for a call: it returns one tensor, and the gradient is that of its run."""

    def trace() -> bool:
        inputs = [Blank(*one) if isinstance(one, tuple) else one for one in described]
        traced = trace_reference(module, inputs)
        if differentiable:
            return traced.output is not None and not why_not_again(module, inputs, traced)
        return traced.output is not None or not traced.operations

    module = module_of(handle)
    # In a thread of its own, since what traces this one would take the reference's operations for the program's.
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(trace).result()


def operands(module: Any, inputs: tuple[Any, ...], exported: bool = False) -> tuple[Any, ...] | None:
    """Return a module's operator's arguments as `Given` has them; None where no operator can stand for the call."""
    found = outline_of(module._handle, exported)
    if found is None:
        return None
    key, parts = found
    of_module = _numbers(module, parts)
    if of_module is None:
        return None
    from torch.fx.experimental.symbolic_shapes import has_static_value

    layout, tensors, constants = "", [], []
    for values in (inputs, of_module):
        for value in values:
            if isinstance(value, torch.Tensor):
                letter = "t"
                tensors.append(value)
            elif value is None or has_static_value(value):
                letter, number = _letter_of(value)
                if number is not None:
                    constants.append(number)
            else:
                # A number that may be another in the next run of the same graph is held in a tensor of its own. It is
                # the product with 1 that PyTorch knows how to keep a symbol in.
                letter = "I" if isinstance(value, int) else "F"
                tensors.append(torch.ones((), dtype=torch.float64, device="cpu") * value)
            if not letter:
                return None
            layout += letter
        if values is inputs:
            layout += "|"
    parameters, buffers = held(module)
    return tensors, parameters, buffers, constants, layout, key


def _numbers(module: Any, parts: tuple[PartOutline, ...]) -> list[Any] | None:
    """Return the numbers of a module; None where a setting is another one, or a submodule has hooks."""
    found = []
    for path, numbers, settings in parts:
        part = module
        for name in path:
            part = part._modules[name]
        if path and (
            part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks
        ):
            return None
        for name, expected in settings:
            # Not `!=`, which torch 2.11 traces, between tuples, through code that it cannot guard.
            if not (getattr(part, name) == expected):  # noqa: SIM201
                return None
        found += [getattr(part, name) for name in numbers]
    return found


def shapes_of(tensors: Tensors) -> str | None:
    """Return the shapes of a call's tensors; None where a program is for several."""
    from torch.fx.experimental.symbolic_shapes import has_static_value

    told = ""
    for value in tensors:
        for size in value.shape:
            if not has_static_value(size):
                return None
            told += f"{size},"
        told += ";"
    return told


def is_only_forward(module: Any) -> bool:
    """Return whether a call of a module is its `forward` alone; the checks of `nn.Module` are guarded at length."""
    own = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return not own and not hooks_of_all()


def _around_the_call() -> tuple[bool, bool, bool]:
    """Return whether torch.export calls, whether gradients are enabled, and whether the operator may stand here.

    It may not where a functorch transform, forward-mode differentiation or autocast is on. PyTorch guards all of it by
    itself. Inside torch.compile some versions of PyTorch say of themselves that they export.
    """
    is_transformed = torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0
    casts = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    return torch.compiler.is_exporting(), torch.is_grad_enabled(), not (is_transformed or casts)


def _has_memory(kind: type, device: torch.device, layout: torch.layout) -> bool:
    """Return whether a tensor is plain memory of a device that kernels run on; PyTorch guards all of it by itself.

    A subclass that is taken apart into plain tensors (DTensor) has rules for PyTorch's own operators alone.
    """
    is_whole = not hasattr(kind, "__tensor_flatten__")
    return is_whole and device.type in ("cpu", "cuda") and layout is torch.strided


def _letter_of(value: Any) -> tuple[str, float | None]:
    """Return a constant's letter in a graph and its number; no letter if a graph cannot hold it."""
    if value is None:
        return "n", None
    if isinstance(value, bool):
        return "b", float(value)
    if isinstance(value, int) and abs(value) <= _EXACT_INTEGER:
        return "i", float(value)
    if isinstance(value, float) and math.isfinite(value):
        return "f", value
    return "", None


_stands_for._dynamo_marked_constant = True  # type: ignore[attr-defined]
hooks_of_all._dynamo_marked_constant = True  # type: ignore[attr-defined]
_around_the_call._dynamo_marked_constant = True  # type: ignore[attr-defined]
_has_memory._dynamo_marked_constant = True  # type: ignore[attr-defined]
_letter_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


class Given(NamedTuple):
    """The arguments of an operator, in the order of its schema.

    Attributes:
        tensors: those among the inputs, then those that hold a number.
        numbers: the constants among the inputs, then among the module's numbers.
        layout: a letter for each input, and behind the bar one for each number of the module.
        module: the key of its outline.
    """

    tensors: Tensors
    parameters: Tensors
    buffers: Tensors
    numbers: Sequence[float]
    layout: str
    module: str

    def put_together(self, tensors: Tensors) -> tuple[list[Any], list[Any]]:
        """Put together the inputs of the call and the numbers of the module.

        Args:
            tensors: to take instead of its own.
        """
        tensor, number = iter(tensors), iter(self.numbers)
        inputs, numbers = self.layout.split("|")
        return (
            [_of_letter(letter, tensor, number) for letter in inputs],
            [_of_letter(letter, tensor, number) for letter in numbers],
        )


def _of_letter(letter: str, tensor: Iterator[torch.Tensor], number: Iterator[float]) -> Any:
    match letter:
        case "t":
            return next(tensor)
        case "n":
            return None
        case "b":
            return bool(next(number))
        case "i":
            return int(next(number))
        case "f":
            return next(number)
    held_number = next(tensor)
    # No number is known while PyTorch asks for shapes alone, and none decides them.
    value = 1.0 if is_fake(held_number) else held_number.item()
    return int(value) if letter == "I" else value
