"""Each kernel as an operator of PyTorch's: what a compiled or exported program calls where eager mode calls `forward`.

Such a program is a graph of operators on tensors and constants, and a module is neither. So a call is taken apart: the
operator is given the inputs, the module's parameters and buffers, the numbers among its attributes, and a key by which
the module is found when the program runs. What the graph is made from is thereby what the result depends on: after a
change to it PyTorch traces the call again, or hands over the new value, as it does with the reference.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import math
import operator
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode, is_fake
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from tunebench.kernels.runtime.gradients import differentiate, replica
from tunebench.kernels.runtime.ordinary import held
from tunebench.kernels.runtime.policy import Policy, use_policy

Path: TypeAlias = tuple[str, ...]
"""Where an attribute is: the names from the module down to it."""
Tensors: TypeAlias = Sequence[torch.Tensor]
Operator: TypeAlias = Any  # torch._ops.OpOverload

_GIVEN = "Tensor[] tensors, Tensor[] parameters, Tensor[] buffers, float[] numbers, str layout, str module"
_EXACT_INTEGER = 2**53
"""Whole numbers up to here survive as float64, which is how a graph holds numbers."""
_NOT_IN_A_GRAPH = (torch.Tag.cudagraph_unsafe,) if hasattr(torch.Tag, "cudagraph_unsafe") else ()
OWN = ("_handle", "_settled", "_lost")
"""Attributes that `note` gives a module, and that a copy does not take over.

`_settled` has what the operator found out about calls that the module itself can serve, `_lost` the shapes at which the
reference serves, so that programs are compiled with its operations.
"""
_READ_WHEN_RUN = ("policy", "wait")
"""Attributes that the graph does not depend on: they are read from the module itself whenever the program runs."""

_MOST_SETTLED = 256
_NOTHING = torch.empty(0, device="meta")

_library = torch.library.Library("tunebench", "FRAGMENT")  # type: ignore[no-untyped-call]
_defined: set[str] = set()
_handles = itertools.count()
_originals: weakref.WeakValueDictionary[str, nn.Module] = weakref.WeakValueDictionary()
_outlines: dict[tuple[type[Any], str], Outline] = {}


@dataclass(frozen=True)
class Facts:
    """What a module is made of, beside its tensors.

    Attributes:
        parts: the type of each submodule.
        numbers: where its numbers are.
        settings: its other attributes that can be compared, such as text and tuples.
        others: where attributes are that cannot.
        has_tensors: there are tensors among the attributes that are neither parameters nor buffers.
    """

    parts: tuple[tuple[Path, type], ...]
    numbers: tuple[Path, ...]
    settings: tuple[tuple[Path, Any], ...]
    others: tuple[Path, ...]
    has_tensors: bool

    @classmethod
    def of(cls, module: nn.Module) -> Facts:
        """The facts of a module; names that begin with an underscore are its own business."""
        parts = [(tuple(where.split(".")) if where else (), part) for where, part in module.named_modules()]
        every = [((*path, name), value) for path, part in parts for name, value in part.__dict__.items()]
        public = [(path, value) for path, value in every if path[-1][0] != "_" and path[-1] not in _READ_WHEN_RUN]
        return cls(
            tuple((path, type(part)) for path, part in parts),
            tuple(path for path, value in public if isinstance(value, int | float)),
            tuple((path, value) for path, value in public if _is_setting(value)),
            tuple(path for path, value in public if not (isinstance(value, int | float) or _is_setting(value))),
            any(isinstance(value, torch.Tensor) for _, value in every),
        )


def _is_setting(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_is_setting(one) or isinstance(one, int | float) for one in value)
    return value is None or isinstance(value, str)


@dataclass(frozen=True, eq=False)
class Outline:
    """A module as a graph knows it: all but its tensors and its numbers, which the graph hands over.

    Attributes:
        module: a replica without memory.
        facts: what it is made of; a module of other facts has another outline.
        original: the module itself while it lives in this process; None in a program that was loaded from a file.
        written: which buffers a forward writes to, by the whole numbers and flags that can decide it.
    """

    module: Any
    facts: Facts
    original: weakref.ref[nn.Module] | None = None
    written: dict[tuple[Any, ...], list[bool]] = field(default_factory=dict)

    @classmethod
    def of(cls, module: nn.Module, original: nn.Module | None = None) -> Outline:
        """The outline of a module."""
        parameters, buffers = held(module)
        bare = replica(module, [_NOTHING] * len(parameters), [_NOTHING] * len(buffers))
        # These hold tensors, and are about the module that they belong to.
        bare.__dict__.update(_derived=None, _known=type(module.__dict__["_known"])(), _settled={}, _lost={})
        return cls(bare, Facts.of(module), None if original is None else weakref.ref(original))

    def bind(self, parameters: Tensors, buffers: Tensors, numbers: Sequence[Any]) -> Any:
        """A module of its own with these tensors and numbers."""
        module = replica(self.module, parameters, buffers)
        for path, value in zip(self.facts.numbers, numbers, strict=True):
            _owner(module, path).__dict__[path[-1]] = value
        return module

    def whole(self, parameters: Tensors, buffers: Tensors, numbers: Sequence[Any]) -> Any:
        """The module itself where it holds these very tensors and numbers, else None."""
        module = None if self.original is None else self.original()
        if module is None:
            return None
        own = held(module)
        if len(own[0]) != len(parameters) or len(own[1]) != len(buffers):
            return None
        if not all(map(operator.is_, (*own[0], *own[1]), (*parameters, *buffers))):
            return None
        return module if [_value(module, path) for path in self.facts.numbers] == numbers else None


def _owner(module: Any, path: Path) -> Any:
    for name in path[:-1]:
        module = getattr(module, name)
    return module


def _value(module: Any, path: Path) -> Any:
    return getattr(_owner(module, path), path[-1])


def note(module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Remember a module that has just been made, and what its constructor is given."""
    handle = str(next(_handles))
    module.__dict__.update(_handle=handle, _settled={}, _lost={})
    module.__dict__["_made_with"] = repr((arguments, named)) if _is_constant([*arguments, *named.values()]) else None
    _originals[handle] = module


def _is_constant(value: Any) -> bool:
    """Whether text can stand for a value."""
    if type(value) in (tuple, list):
        return all(map(_is_constant, value))
    return value is None or type(value) in (str, int, bool) or (type(value) is float and math.isfinite(value))


def _outline_of(handle: str, exported: bool) -> tuple[str, tuple[Path, ...], tuple[tuple[Path, Any], ...]] | None:
    """The key, numbers and settings of a module's outline; None where no operator can stand for it.

    In a program that may be loaded elsewhere, the key is what the module was constructed with, and the module has to be
    what its constructor makes.
    """
    module: Any = _originals[handle]
    facts = Facts.of(module)
    if facts.has_tensors or not all(kind.__module__.startswith("torch.nn.") for _, kind in facts.parts[1:]):
        return None
    key = _key_of_constructor(module, facts) if exported else _key_in_process(handle, module, facts)
    return None if key is None else (key, facts.numbers, facts.settings)


# As torch.compiler.assume_constant_result does, which would import the compiler: to it the answer is a constant.
_outline_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _key_in_process(handle: str, module: Any, facts: Facts) -> str:
    model = module._operators.model
    for count in itertools.count():
        key = f"{handle}.{count}"
        if (model, key) not in _outlines:
            _outlines[model, key] = Outline.of(module, module)
        if _outlines[model, key].facts == facts:
            return key
    raise AssertionError


def _key_of_constructor(module: Any, facts: Facts) -> str | None:
    model, key = module._operators.model, module._made_with
    if key is None or type(module) is not model or facts.others:
        return None
    try:
        made = _outline(model, key)
    except RuntimeError:
        return None  # its constructor needs real memory
    return key if made.facts == facts else None


def _outline(model: type[Any], key: str) -> Outline:
    """The outline under a key, which is made now where the key says how."""
    if (model, key) not in _outlines:
        # In a thread of its own, since what traces this one would take the constructor's operations for the program's.
        with ThreadPoolExecutor(1) as executor:
            _outlines[model, key] = executor.submit(_construct, model, *ast.literal_eval(key)).result()
    return _outlines[model, key]


def _construct(model: type[Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> Outline:
    with torch.device("meta"):
        return Outline.of(model(*arguments, **named))


def _inputs_of(handle: str) -> tuple[tuple[str, bool, Any], ...]:
    """The inputs by the reference's own signature: their names, whether they have defaults, and which."""
    module: Any = _originals[handle]
    empty = inspect.Parameter.empty
    parameters = list(module._signature().parameters.values())[1:]
    return tuple(
        (one.name, one.default is not empty, None if one.default is empty else one.default) for one in parameters
    )


_inputs_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _in_order(handle: str, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """The inputs as they stand in the reference's signature, in code that a compiler can read.

    Raises:
        TypeError: they do not fit it.
    """
    expected = _inputs_of(handle)
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
    results = module._operators.forward[module.is_frozen and not exported, differentiable](*arguments)
    for buffer, value in zip(arguments.buffers, results[1:], strict=False):
        if value.numel():
            buffer.copy_(value)
    return results[0]  # type: ignore[no-any-return]


def operands(module: Any, inputs: tuple[Any, ...]) -> Given | None:
    """What a module's operator is given for a call; None where no operator can stand for the module or the call."""
    found = _outline_of(module._handle, _is_exported())
    if found is None:
        return None
    key, numbers, settings = found
    if any(_is_hooked(_owner(module, path)) for path in numbers if len(path) > 1):
        return None
    if not all(_value(module, path) == value for path, value in settings):
        return None
    of_call, of_module = _take_apart(inputs), _take_apart([_value(module, path) for path in numbers])
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
            if hasattr(value, "__tensor_flatten__"):
                return False
            if not (value.is_cuda or value.is_cpu) or value.layout is not torch.strided:
                return False
    if module._trains and _needs_gradient(module, inputs):
        return False
    shapes = _shapes(inputs)
    return shapes is None or shapes not in module._lost


def _needs_gradient(module: Any, inputs: Sequence[Any]) -> bool:
    tensors = (*(value for value in inputs if isinstance(value, torch.Tensor)), *held(module)[0])
    return torch.is_grad_enabled() and any(value.requires_grad for value in tensors)


def _shapes(inputs: Sequence[Any]) -> str | None:
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


@dataclass(frozen=True, eq=False)
class Operators:
    """The operators of one kernel.

    Attributes:
        model: the kernel's own.
        forward: by whether the module is frozen, and whether a gradient may be taken. Gives the output, and where the
            forward writes to buffers, for each buffer its new value, or nothing (an empty tensor) if it keeps its own.
            A frozen one is never recorded into a CUDA graph by `torch.compile`: what is derived from tensors is looked
            at in every call. Where no gradient is taken, one that cannot give any costs the host 20 µs less.
        backward: the wanted gradients of the output, by tensors and parameters.
    """

    model: type[Any]
    forward: Mapping[tuple[bool, bool], Operator]
    backward: Operator

    @classmethod
    def define(cls, model: type[Any]) -> Operators:
        """Define the operators of a kernel's model, under the kernel's name."""
        name = _free_name(model.kernel.name)
        backward = _define(f"{name}_backward(Tensor gradient, {_GIVEN}, bool[] wanted) -> Tensor[]")
        forward = {}
        for frozen, differentiable in itertools.product((False, True), repeat=2):
            full = f"{name}{'_frozen' if frozen else ''}{'' if differentiable else '_inference'}"
            forward[frozen, differentiable] = _define(
                f"{full}({_GIVEN}) -> Tensor[]", *(_NOT_IN_A_GRAPH if frozen else ())
            )
        made = cls(model, forward, backward)
        _implement(backward, made.run_backward, made.run_backward_on_fakes)
        for (_, differentiable), one in forward.items():
            _implement(one, made.run, made.run_on_fakes)
            if differentiable:
                torch.library.register_autograd(one.name(), made.differentiate, setup_context=_save, lib=_library)
            torch.library.register_vmap(one.name(), made.run_batched, lib=_library)
        return made

    def run(self, *arguments: Any) -> list[torch.Tensor]:
        """The module's own eager forward, which chooses what serves."""
        given = Given(*arguments)
        outline = _outline(self.model, given.module)
        original: Any = None if outline.original is None else outline.original()
        call = (given.layout, *given.numbers)
        if original is not None and (settled := original._settled.get(call)) is not None:
            holdings, values = settled
            if (
                original._known.of(original) is holdings
                and all(map(operator.is_, holdings.parameters, given.parameters))
                and all(map(operator.is_, holdings.buffers, given.buffers))
            ):
                rest = iter(given.tensors)
                return [_forward(original, [next(rest) if value is _NOTHING else value for value in values])]
        inputs, numbers = given.put_together(given.tensors)
        written = self._written(outline, given, numbers)
        whole = None if any(written) else outline.whole(given.parameters, given.buffers, numbers)
        if whole is not None:
            result = _forward(whole, inputs)
            if given.layout.lower() == given.layout:
                _settle(whole, call, inputs)
            return [result]
        buffers = [value.clone() if one else value for value, one in zip(given.buffers, written, strict=True)]
        module = outline.bind(given.parameters, buffers, numbers)
        return _results(_forward(module, inputs), held(module)[1], written)

    def run_on_fakes(self, *arguments: Any) -> list[torch.Tensor]:
        """What `run` gives, in shapes and types alone."""
        given = Given(*arguments)
        return _results(*_run_on_fakes(_outline(self.model, given.module), given))

    def _written(self, outline: Outline, given: Given, numbers: Sequence[Any]) -> list[bool]:
        """Which buffers a forward writes to; asked once of the reference, without running it."""
        if not given.buffers:
            return []
        decides = tuple(number for number in numbers if isinstance(number, int))
        if decides not in outline.written:
            with FakeTensorMode() as mode, torch.no_grad():
                tensors, parameters, buffers = ([mode.from_tensor(one) for one in values] for values in given[:3])
                fakes = given._replace(tensors=tensors, parameters=parameters, buffers=buffers)
                try:
                    _, _, outline.written[decides] = _run_on_fakes(outline, fakes)
                except (RuntimeError, TypeError, ValueError):
                    # What cannot run on shapes alone, such as momentum by counting, may write to any of them.
                    outline.written[decides] = [True] * len(given.buffers)
        return outline.written[decides]

    def differentiate(self, ctx: Any, gradients: list[torch.Tensor | None]) -> tuple[Any, ...]:
        """The operator's backward: an operator of its own, which a graph runs only if somebody takes a gradient."""
        counts, constants = ctx.counts, ctx.constants
        tensors, parameters, buffers = _split(ctx.saved_tensors, counts)
        wanted = [*ctx.needs_input_grad[0], *ctx.needs_input_grad[1]]
        found: list[torch.Tensor | None] = [None] * len(wanted)
        if gradients[0] is not None and any(wanted):
            arguments = (gradients[0], tensors, parameters, buffers, *constants, wanted)
            if torch.is_grad_enabled() and not torch.compiler.is_compiling():
                found = self._gradients(*arguments, higher=True)  # to be differentiated once more
            else:
                made = iter(self.backward(*arguments))
                found = [next(made) if one else None for one in wanted]
        # An empty list of numbers counts as a list, any other as one argument.
        for_numbers: list[None] | None = None if constants[0] else []
        return found[: counts[0]], found[counts[0] :], [None] * counts[2], for_numbers, None, None

    def run_backward(self, gradient: torch.Tensor, *arguments: Any) -> list[torch.Tensor]:
        """The gradients that are wanted, by the reference's operations; zeros where there is none."""
        given, wanted = Given(*arguments[:-1]), arguments[-1]
        outline = _outline(self.model, given.module)
        original: Any = None if outline.original is None else outline.original()
        if original is not None:
            original._note_backward()
        flags = iter(wanted)
        tensors, parameters = (
            [value.detach().requires_grad_(next(flags)) for value in values]
            for values in (given.tensors, given.parameters)
        )
        found = self._gradients(gradient, tensors, parameters, *arguments[2:], higher=False)
        every = zip((*tensors, *parameters), found, wanted, strict=True)
        return [_like(value, one) for value, one, is_wanted in every if is_wanted]

    @staticmethod
    def run_backward_on_fakes(_: torch.Tensor, *arguments: Any) -> list[torch.Tensor]:
        """What `run_backward` gives, in shapes and types alone."""
        given, wanted = Given(*arguments[:-1]), arguments[-1]
        every = (*given.tensors, *given.parameters)
        return [torch.empty_like(value) for value, one in zip(every, wanted, strict=True) if one]

    def _gradients(self, gradient: torch.Tensor, *arguments: Any, higher: bool) -> list[torch.Tensor | None]:
        given, wanted = Given(*arguments[:-1]), arguments[-1]
        outline = _outline(self.model, given.module)
        buffers = [value.detach().clone() for value in given.buffers]

        def run(values: Tensors) -> torch.Tensor:
            inputs, numbers = given.put_together(values[: len(given.tensors)])
            module = outline.bind(values[len(given.tensors) :], buffers, numbers)
            return module.reference_forward(*inputs)  # type: ignore[no-any-return]

        return differentiate(run, (*given.tensors, *given.parameters), wanted, gradient, higher=higher)

    def run_batched(self, info: Any, dimensions: Any, *arguments: Any) -> tuple[list[torch.Tensor], list[int]]:
        """The operator under `vmap`: one call for each member of the batch."""
        given = Given(*arguments)

        def member(number: int) -> Given:
            pairs = (zip(values, where, strict=True) for values, where in zip(given[:3], dimensions[:3], strict=True))
            chosen = [[one if at is None else one.select(at, number) for one, at in values] for values in pairs]
            return given._replace(tensors=chosen[0], parameters=chosen[1], buffers=chosen[2])

        results = [self.forward[False, True](*member(number)) for number in range(info.batch_size)]
        batched = [torch.stack(values) for values in zip(*results, strict=True)]
        return batched, [0] * len(batched)


def _settle(module: Any, call: tuple[Any, ...], inputs: Sequence[Any]) -> None:
    """Remember that the module itself serves such calls; or where the reference does so for good, at which shapes."""
    problem = module.problem(*inputs)
    decided = [
        plan
        for occasion, (_, plan) in module._plans.items()
        if occasion.problem == problem and occasion.policy is not Policy.REFERENCE
    ]
    if module._pinned is None and decided and not any(decided):
        module._lost[_shapes(inputs)] = None
    elif module._pinned is not None or decided:
        if len(module._settled) >= _MOST_SETTLED:
            module._settled.clear()
        values = [_NOTHING if isinstance(value, torch.Tensor) else value for value in inputs]
        module._settled[call] = (module._known.of(module), values)


def _forward(module: Any, inputs: Sequence[Any]) -> torch.Tensor:
    # While a compiler runs it, as to fold constants, forward would ask for this operator again.
    forward = module.reference_forward if torch.compiler.is_compiling() else module.forward
    if "torch._inductor.cudagraph_trees" not in sys.modules:
        return forward(*inputs)  # type: ignore[no-any-return]
    # This call may be the one before a CUDA graph is recorded: what is not ready now would be missing in every replay.
    with use_policy(wait=True):
        return forward(*inputs)  # type: ignore[no-any-return]


def _results(result: torch.Tensor, buffers: Tensors, written: Sequence[bool]) -> list[torch.Tensor]:
    if not any(written):
        return [result]
    return [result, *(value if one else value.new_empty(0) for value, one in zip(buffers, written, strict=True))]


def _run_on_fakes(outline: Outline, given: Given) -> tuple[torch.Tensor, Tensors, list[bool]]:
    """The reference's forward on tensors without memory: the output, the buffers, and which of them it wrote to.

    Not every operation that writes says so (batch normalisation does not), so that where one buffer of a part is
    written, all of them count.
    """
    inputs, numbers = given.put_together(given.tensors)
    before = [value.clone() for value in given.buffers]
    module = outline.bind(given.parameters, before, numbers)
    with _Writes() as writes:
        result = module.reference_forward(*inputs)
    known = {id(value) for value in before} - writes.seen
    parts = [list(part._buffers.values()) for part in module.modules()]
    written = {
        id(one) for part in parts for one in part if any(id(other) not in known for other in part if other is not None)
    }
    buffers = held(module)[1]
    return result, buffers, [id(value) in written for value in buffers]


class _Writes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees which tensors are written to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.is_write:
                self.seen.add(id(value))
        return func(*args, **(kwargs or {}))


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[torch.Tensor]) -> None:
    given = Given(*inputs)
    # A buffer that is about to be written to is not what it was when the gradient is taken.
    kept = [old.clone() if new.numel() else old for old, new in zip(given.buffers, output[1:], strict=False)]
    ctx.save_for_backward(*given.tensors, *given.parameters, *(kept or given.buffers))
    ctx.counts, ctx.constants = [len(values) for values in given[:3]], given[3:]
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _split(values: Tensors, counts: Sequence[int]) -> Iterator[list[torch.Tensor]]:
    rest = iter(values)
    return (list(itertools.islice(rest, count)) for count in counts)


def _like(value: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor:
    """A gradient as `run_backward_on_fakes` announces it: in memory of its own, with the tensor's strides."""
    made = torch.empty_like(value)
    return made.zero_() if gradient is None else made.copy_(gradient)


def _free_name(name: str) -> str:
    """The kernel's name, numbered where this process has another kernel of that name."""
    names = itertools.chain([name], (f"{name}_{count}" for count in itertools.count(2)))
    free = next(one for one in names if one not in _defined)
    _defined.add(free)
    return free


def _define(schema: str, *tags: torch.Tag) -> Operator:
    name: str = _library.define(schema, tags=(torch.Tag.pt2_compliant_tag, *tags))  # type: ignore[no-untyped-call]
    return getattr(torch.ops.tunebench, name.partition("(")[0]).default


def _implement(one: Operator, run: Callable[..., Any], on_fakes: Callable[..., Any]) -> None:
    torch.library.impl(one.name(), ("cpu", "cuda"), run, lib=_library)
    torch.library.register_fake(one.name(), on_fakes, lib=_library)
