"""A call in a program that is being traced: taken apart into what the kernel's operator is given.

`torch.compile` reads these functions as it reads the caller's own: every attribute that is looked at here is guarded.
What the graph is made from is thereby what the result depends on: after a change to it PyTorch traces the call again,
or hands over the new value, as it does with the reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import is_fake
from torch.autograd import forward_ad

from tunebench.kernels.runtime.ordinary import held
from tunebench.kernels.runtime.outline import Tensors, inputs_of, outline_of, owner, value_at

_EXACT_INTEGER = 2**53
"""Whole numbers up to here survive as float64, which is how a graph holds numbers."""


def _in_order(handle: str, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """The inputs as they stand in the reference's signature, in code that a compiler can read.

    Raises:
        TypeError: they do not fit it.
    """
    expected = inputs_of(handle)
    names = [name for name, _, _ in expected]
    inputs = dict(zip(names, given, strict=False))
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
    """A call in a program that is being traced: the module's operator, or the reference's operations.

    `torch.compile` reads this function as it reads the caller's own: every attribute that is looked at here is guarded.
    """
    inputs = _in_order(module._handle, given, named)
    arguments = operands(module, inputs) if _may_serve(module, inputs) else None
    if arguments is None:
        return module.reference_forward(*inputs)  # type: ignore[no-any-return]
    exported = _is_exported()
    differentiable = exported or _needs_gradient(module, inputs)
    results = module._operators.forward[module._derived is not None and not exported, differentiable](*arguments)
    for buffer, value in zip(arguments.buffers, results[1:], strict=False):
        if value.numel():
            buffer.copy_(value)
    return results[0]  # type: ignore[no-any-return]


def operands(module: Any, inputs: tuple[Any, ...]) -> Given | None:
    """What a module's operator is given for a call; None where no operator can stand for the module or the call."""
    found = outline_of(module._handle, _is_exported())
    if found is None:
        return None
    key, numbers, settings = found
    if any(_is_hooked(owner(module, path)) for path in numbers if len(path) > 1):
        return None
    if not all(value_at(module, path) == value for path, value in settings):
        return None
    of_call, of_module = _take_apart(inputs), _take_apart([value_at(module, path) for path in numbers])
    if of_call is None or of_module is None:
        return None
    tensors, constants = [*of_call[1], *of_module[1]], [*of_call[2], *of_module[2]]
    return Given(tensors, *held(module), constants, f"{of_call[0]}|{of_module[0]}", key)


def _may_serve(module: Any, inputs: Sequence[Any]) -> bool:
    """Whether tracing the operator gives what tracing the reference would."""
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return False
    if _is_transformed():
        return False
    parameters, buffers = held(module)
    for value in (*inputs, *parameters, *buffers):
        if isinstance(value, torch.Tensor):
            # A subclass that is taken apart into plain tensors (DTensor) has rules for PyTorch's own operators alone.
            if not _is_whole(type(value)):
                return False
            if not (value.is_cuda or value.is_cpu) or value.layout is not torch.strided:
                return False
    if module._trains and _needs_gradient(module, inputs):
        return False
    shapes = shapes_of(inputs)
    return shapes is None or shapes not in module._lost


def _is_whole(kind: type) -> bool:
    return not hasattr(kind, "__tensor_flatten__")


# The guard of a tensor asks for its type already, and asking one for what it has not takes PyTorch long.
_is_whole._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _needs_gradient(module: Any, inputs: Sequence[Any]) -> bool:
    tensors = (*(value for value in inputs if isinstance(value, torch.Tensor)), *held(module)[0])
    return torch.is_grad_enabled() and any(value.requires_grad for value in tensors)


def shapes_of(inputs: Sequence[Any]) -> str | None:
    """The shapes of a call; None where a program is for several."""
    from torch.fx.experimental.symbolic_shapes import has_static_value

    sizes = [value.shape for value in inputs if isinstance(value, torch.Tensor)]
    if not all(has_static_value(size) for shape in sizes for size in shape):
        return None
    return ";".join([",".join([str(size) for size in shape]) for shape in sizes])


def _is_exported() -> bool:
    """Whether torch.export asks; inside torch.compile some versions of PyTorch say so of themselves."""
    return torch.compiler.is_exporting()


_is_exported._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _is_transformed() -> bool:
    """Whether a functorch transform or forward-mode differentiation runs; PyTorch guards that by itself."""
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


_is_transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _is_hooked(part: nn.Module) -> bool:
    hooks = part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks
    return any(len(one) > 0 for one in hooks)


def _take_apart(values: Sequence[Any]) -> tuple[str, list[torch.Tensor], list[float]] | None:
    """Values as a graph holds them: a letter for each, and the tensors and constants among them; None if it cannot.

    A number that may be another in the next run of the same graph is held in a tensor of its own, under a capital
    letter. It is the product with 1 that PyTorch knows how to keep a symbol in.
    """
    from torch.fx.experimental.symbolic_shapes import has_static_value

    letters, tensors, floats = "", [], []
    for value in values:
        if isinstance(value, torch.Tensor):
            letters += "t"
            tensors.append(value)
        elif value is None:
            letters += "n"
        elif isinstance(value, bool):
            letters += "b"
            floats.append(float(value))
        elif not isinstance(value, int | float):
            return None
        elif not has_static_value(value):
            letters += "I" if isinstance(value, int) else "F"
            tensors.append(torch.ones((), dtype=torch.float64, device="cpu") * value)
        elif isinstance(value, int) and abs(value) <= _EXACT_INTEGER:
            letters += "i"
            floats.append(float(value))
        elif isinstance(value, float) and math.isfinite(value):
            letters += "f"
            floats.append(value)
        else:
            return None
    return letters, tensors, floats


class Given(NamedTuple):
    """What an operator is given, in the order of its schema.

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
        """The inputs of the call and the numbers of the module.

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
