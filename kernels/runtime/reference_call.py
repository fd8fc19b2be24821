"""Finds out what the reference does in one kind of call, by running it on tensors without memory.

What a tuned model has to know of its reference is found here, once for each kind of call: what identifies the problem
beside the sizes that the kernel's author names, which of PyTorch's settings matter, whether the forward can be run
again for a gradient, and which buffers move.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tunebench.kernels.runtime.gradients import replica
from tunebench.kernels.runtime.ordinary import held
from tunebench.kernels.runtime.random_state import host_state, random_state_kept
from tunebench.kernels.runtime.snapshot import every_attribute
from tunebench.tuner.problem import CALL_OPTION, Axes, Problem
from tunebench.tuner.settings import Setting, in_force

_UNTRACEABLE = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError)
"""Errors of a reference that needs the values of its tensors, or that refuses the call."""

_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "vdot", "addbmm", "linear", "matmul", "einsum"}
_VALUES = {"tolist", "numpy", "__array__", "data_ptr"}
"""Names of the functions that give values to Python without an operation."""
_NEED_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_MOST_SHOWN = 3
_DIGITS = 12


@dataclass(frozen=True)
class ReferenceCall:
    """The work of the reference in a call.

    Attributes:
        output: the dtype of its result; None where that is not one tensor.
        dtypes: of all that its operations return.
        obstacle: why its forward, run again, may give something else; empty where it gives the same.
        written: for each of the module's buffers, as `held` has them, whether it is written to.
        moved: the places of those that are written to and may decide the result.
        operations: a digest of the shapes and whole numbers of all calls of PyTorch's functions; empty where they are
            not known.
        settings: those of PyTorch's that decide how it is computed.
        differentiable: for each tensor of its result whether it needs a gradient; None where that was not looked at.
    """

    output: torch.dtype | None
    dtypes: frozenset[torch.dtype]
    obstacle: str
    written: tuple[bool, ...]
    moved: tuple[int, ...]
    operations: str
    settings: tuple[Setting, ...]
    differentiable: tuple[bool, ...] | None = None


class Blank(NamedTuple):
    """An input tensor of which only this is known."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class WithoutMemory(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Tensors without memory, among which real ones may be; nothing is copied to a device.

    A constant on a GPU would be, which waits for the GPU and fails while a CUDA graph is captured.
    """

    avoid_device_init = True

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)


def trace_reference(module: nn.Module, inputs: Sequence[Any]) -> ReferenceCall:
    """Run a tuned module's reference on tensors without memory, under the autocast that is on; this changes nothing.

    What cannot be traced, since it depends on values, has an obstacle and all settings.

    Args:
        inputs: of the call; a `Blank` stands for a tensor.
    """
    parameters, buffers = held(module)
    try:
        with random_state_kept() as has_drawn, WithoutMemory() as mode, torch.no_grad():
            given, fakes, moving = (
                [_without_memory(mode, one) for one in all] for all in (inputs, parameters, buffers)
            )
            made: Any = replica(module, fakes, moving)
            before = _attributes(made)
            with Calls() as calls, Watch(moving, [*given, *fakes]) as watch:
                result = made.reference_forward(*given)
            return _described(result, calls, watch, before, _attributes(made), has_drawn=has_drawn())
    except _UNTRACEABLE as error:
        return _depends_on_values(type(error).__name__, len(buffers))


def is_quick_to_trace() -> bool:
    """Return whether PyTorch's compiler, which tracing needs, is imported already."""
    return "torch._dynamo" in sys.modules


def watch_reference(module: Any, inputs: Sequence[Any]) -> tuple[Any, ReferenceCall]:
    """Run a tuned module's reference for a call, and describe it as `trace_reference` does.

    To run it without memory needs PyTorch's compiler, whose import takes 1 to 4 s: a call that the reference serves in
    any case need not wait for that.

    Returns:
        The call's result, and what was seen.

    Raises:
        Exception: the reference's own.
    """
    parameters, buffers = held(module)
    before, drawn = _attributes(module), host_state()
    with Calls() as calls, Watch(buffers, [*inputs, *parameters], real=True) as watch:
        result = module.reference_forward(*inputs)
    seen = _described(result, calls, watch, before, _attributes(module), has_drawn=drawn != host_state())
    needs = tuple(one.requires_grad for one in _flat(result) if isinstance(one, torch.Tensor))
    return result, replace(seen, differentiable=needs)


def describe_reference(module: Any, inputs: Sequence[Any]) -> ReferenceCall:
    """Describe a call of a tuned module's reference: by tracing it, or by running it on copies where that is sooner.

    Raises:
        Exception: the reference's own, where it is run.
    """
    tensors = [one for one in inputs if isinstance(one, torch.Tensor)]
    device = tensors[0].device if tensors else torch.device("cpu")
    is_captured = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    is_real = all(type(one) is torch.Tensor and one.device.type != "meta" for one in tensors)
    if is_quick_to_trace() or is_captured or not is_real or any(isinstance(one, Blank) for one in inputs):
        return trace_reference(module, inputs)
    copies = [
        _copy_as_it_lies(one).requires_grad_(one.requires_grad) if isinstance(one, torch.Tensor) else one
        for one in inputs
    ]
    nothing_saved = saved_tensors_hooks(lambda _: None, lambda nothing: nothing)  # nobody goes backward
    with random_state_kept(device), nothing_saved:
        return watch_reference(replica(module), copies)[1]


def _copy_as_it_lies(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the tensor's own strides: `clone` closes gaps, and so changes a view's results."""
    copy = tensor.detach().clone()
    if copy.stride() == tensor.stride():
        return copy
    memory = tensor.detach().untyped_storage().clone()  # type: ignore[no-untyped-call]
    return torch.empty_like(copy).set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())


def _depends_on_values(reason: str, buffers: int) -> ReferenceCall:
    obstacle = f"its forward depends on values ({reason})"
    return ReferenceCall(None, frozenset(), obstacle, (True,) * buffers, (*range(buffers),), "", tuple(Setting))


def _described(
    result: Any, calls: Calls, watch: Watch, before: Mapping[str, Any], after: Mapping[str, Any], *, has_drawn: bool
) -> ReferenceCall:
    if watch.values_read or calls.values_read:
        return _depends_on_values("values are read, or tensors have no storage", len(watch.written))
    obstacles = [*watch.obstacles]
    obstacles += [f"its forward sets '{name}'" for name in after if before.get(name) != after[name]]
    obstacles += ["its forward draws random numbers"] * has_drawn
    if not (isinstance(result, torch.Tensor) or _are_tensors(result)):
        obstacles.append("its result is neither a tensor nor a tuple of tensors")
    return ReferenceCall(
        result.dtype if isinstance(result, torch.Tensor) else None,
        frozenset(watch.dtypes),
        obstacles[0] if obstacles else "",
        tuple(watch.written),
        tuple(place for place, is_read in enumerate(watch.read) if is_read and watch.written[place]),
        calls.digest(),
        tuple(watch.settings(calls.names)),
    )


def which_differ(module: nn.Module, inputs: Sequence[Any]) -> tuple[bool, ...]:
    """Return for each tensor of the reference's result whether autograd can differentiate it."""
    with random_state_kept(), WithoutMemory() as mode, torch.enable_grad():
        given, *own = ([_without_memory(mode, one) for one in all] for all in (inputs, *held(module)))
        made: Any = replica(module, *own)
        result = made.reference_forward(*given)
    return tuple(one.requires_grad for one in _flat(result))


def _without_memory(mode: FakeTensorMode, value: Any) -> Any:
    if isinstance(value, (Blank, FakeTensor)):  # one of another mode, as torch.export has them
        with mode:
            return torch.empty(value.shape, dtype=value.dtype, device=value.device)
    return mode.from_tensor(value) if isinstance(value, torch.Tensor) else value


def why_not_again(module: nn.Module, inputs: Sequence[Any], traced: ReferenceCall) -> str:
    """Say why the reference's forward, run again for a gradient, may not be the one that was run; empty if it is.

    A call with other floating-point numbers is served as this one is, so that these are tried too.
    """
    if not traced.obstacle and any(isinstance(one, float) for one in inputs):
        other = describe_reference(module, [one / 2 + 0.25 if isinstance(one, float) else one for one in inputs])
        return other.obstacle if other.operations else ""
    return traced.obstacle


def identify(
    problem: Problem, module: nn.Module, inputs: Mapping[str, Any], axes: Axes | None, traced: ReferenceCall
) -> Problem:
    """Return the problem with what else identifies the call, and the settings that matter and are not the default.

    What a kernel's author names are sizes to read and to compare. Two calls are one problem only if all tensors that go
    into them, parameters and buffers too, have the same shapes and dtypes, and the reference computes the same shapes.

    Args:
        inputs: by their names.
        axes: what the kernel's author calls the dimensions of tensors.
    """
    given = {name: one for name, one in inputs.items() if isinstance(one, torch.Tensor)}
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    told: list[object] = [[name, str(one.dtype), list(one.shape)] for name, one in (*given.items(), *own.items())]
    # Of a floating-point number it is the type alone: what it decides shows in the shapes.
    told += [[name, float if isinstance(one, float) else one] for name, one in inputs.items() if name not in given]
    told.append([traced.operations] if traced.operations else sorted(_attributes(module).items()))
    digest = hashlib.sha256(json.dumps(told, default=str).encode()).hexdigest()[:_DIGITS]
    unnamed = [name for name, one in given.items() if not _is_named(one, name, axes)]
    unnamed += [name for name, one in own.items() if not (axes and name in axes) and not _is_told(one, problem)]
    shown = [f"{name}={'x'.join(map(str, {**given, **own}[name].shape))}" for name in unnamed[:_MOST_SHOWN]]
    device = next((one.device.type for one in (*given.values(), *own.values())), "cpu")
    options = {**problem.options, **in_force(traced.settings, device), CALL_OPTION: " ".join((*shown, f"#{digest}"))}
    return replace(problem, options=options)


def _is_named(tensor: torch.Tensor, name: str, axes: Axes | None) -> bool:
    """Return whether axes name the dimensions of an input; one name is that of its number of elements."""
    names = () if axes is None else axes.get(name)
    return names is not None and tensor.dim() == (len(names) if isinstance(names, tuple) else 1)


def _is_told(tensor: torch.Tensor, problem: Problem) -> bool:
    """Return whether a parameter's or buffer's sizes are among those that a problem names, as a layer's bias's."""
    return all(size == 1 or size in problem.axes.values() for size in tensor.shape)


class Calls(TorchFunctionMode):
    """A mode that notes which functions of PyTorch's are called, with which shapes and whole numbers.

    Seen as the reference's author wrote them: the operations that PyTorch makes of a function differ between devices,
    versions and layouts in memory, and what was measured on a GPU is identified on machines without one.

    Attributes:
        names: of the functions.
        values_read: whether one gave values, or their memory, to Python, or tensors that cannot be described.
    """

    def __init__(self) -> None:
        super().__init__()
        self.values_read = False
        self.names: set[str] = set()
        self._made: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        try:
            self._note(func, args, kwargs, result)
        except _UNTRACEABLE:  # such as a nested tensor, which has no shape
            self.values_read = True
        return result

    def _note(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        returned = [one for one in _flat(result) if isinstance(one, torch.Tensor)]
        self.values_read |= getattr(func, "__name__", "") in _VALUES
        if returned or result is None:  # else it asks for a property
            self.names.add(getattr(func, "__name__", ""))
            given = list(_flat([*args, *(value for _, value in sorted(kwargs.items()))]))
            shapes = [tuple(one.shape) for one in (*given, *returned) if isinstance(one, torch.Tensor)]
            self._made[f"{shapes} {[one for one in given if isinstance(one, int)]}"] += 1

    def digest(self) -> str:
        """Return a digest of the shapes and numbers of all calls, and how often each was."""
        return hashlib.sha256(repr(sorted(self._made.items())).encode()).hexdigest()


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that sees what operations return, draw, read and write.

    Args:
        buffers: of the module.
        others: tensors that the module or the caller keeps, which no forward should write to.
        real: tensors have memory, so that only those that were returned before are the forward's own.

    Attributes:
        written, read: for each buffer whether it is.
        values_read: whether an operation gave values to Python, a shape that depends on them, or a tensor that has no
            storage.
        dtypes: of what is returned.
        obstacles: why the operations, run again, may give something else.
    """

    def __init__(self, buffers: Sequence[torch.Tensor], others: Sequence[Any] = (), *, real: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.values_read = False
        self._made: set[int] | None = set() if real else None
        self.written, self.read = [False] * len(buffers), [False] * len(buffers)
        self.dtypes: set[torch.dtype] = set()
        self.obstacles: list[str] = []
        self._places: dict[int, list[int]] = {}
        for place, buffer in enumerate(buffers):
            self._places.setdefault(_memory_of(buffer), []).append(place)
        self._others = {_memory_of(one) for one in others if isinstance(one, torch.Tensor)}
        self._held = (buffers, others)  # no other memory can have their address
        self._names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self._noting():
            self._note_arguments(func._schema, args, kwargs)
        result = func(*args, **kwargs)
        with self._noting():
            self._note_result(func, args, kwargs, result)
        return result

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Let no tensor that cannot be looked at, such as a sparse one without a storage, end the call."""
        try:
            yield
        except _UNTRACEABLE:
            self.values_read = True

    def _note_result(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        tensors = [one for one in _flat(result) if isinstance(one, torch.Tensor)]
        name = func._schema.name.partition("::")[2].strip("_")
        self._names.add(name)
        self.dtypes.update(one.dtype for one in tensors)
        if func.is_view and not self._is_own(args[0], _memory_of(args[0])):
            self._others.update(map(_memory_of, tensors))
        if self._made is not None:
            given = {_memory_of(one) for one in _flat([*args, *kwargs.values()]) if isinstance(one, torch.Tensor)}
            self._made.update({*map(_memory_of, tensors)} - given)
        if _NEED_VALUES.intersection(func.tags):
            self.values_read |= not (name == "index" and _are_places(args[1]))
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.obstacles.append("its forward draws random numbers")

    def _note_arguments(self, schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note which buffers an operation reads and writes.

        Batch normalisation does not declare that it moves its running statistics, which it then does not read.
        """
        given = {**dict(zip((one.name for one in schema.arguments), args, strict=False)), **kwargs}
        moves = ("running_mean", "running_var") if given.get("training", "running_mean" in given) else ()
        for argument in schema.arguments:
            writes = argument.is_write or argument.name in moves
            for value in _flat(given.get(argument.name)):
                if not isinstance(value, torch.Tensor):
                    continue
                memory = _memory_of(value)
                for place in self._places.get(memory, ()):
                    (self.written if writes else self.read)[place] = True
                if writes and (memory in self._others or not self._is_own(value, memory)):
                    self.obstacles.append("its forward writes to a tensor that is no buffer")

    def _is_own(self, tensor: torch.Tensor, memory: int) -> bool:
        if self._made is None:
            return isinstance(tensor, FakeTensor)
        return memory in self._made or memory in self._places

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # PyTorch's way of skipping imports its compiler, see `watch_reference`

    def settings(self, functions: Collection[str]) -> Iterator[Setting]:
        """Return PyTorch's settings that decide how what was computed is.

        Args:
            functions: the names of those that were called; on some devices a recurrent layer is many operations.
        """
        names = {*self._names, *functions}
        # Where autograd is left out, as in an operator, a function is one operation under its own name.
        convolves = any(
            "convolution" in name or name.startswith(("conv1", "conv2", "conv3", "conv_t")) for name in names
        )
        recurs = any(name.endswith(("lstm", "gru", "rnn_tanh", "rnn_relu", "cudnn_rnn")) for name in names)
        multiplies = recurs or any(name in _PRODUCTS or "attention" in name for name in names)
        if torch.float32 in self.dtypes:
            yield from [Setting.MATMUL] * multiplies
            yield from [Setting.CONVOLUTION] * convolves
            yield from [Setting.RECURRENT] * recurs
        if multiplies and self.dtypes & {torch.float16, torch.bfloat16}:
            yield Setting.REDUCTIONS
        if convolves or recurs:
            yield Setting.CUDNN
        yield Setting.ALGORITHMS


def _are_tensors(result: Any) -> bool:
    return type(result) is tuple and all(isinstance(one, torch.Tensor) for one in result)


def _are_places(indices: Sequence[torch.Tensor | None]) -> bool:
    """Return whether all are positions, so that the shape of what they choose is known; of masks it is not."""
    return not any(one is not None and one.dtype in {torch.bool, torch.uint8} for one in indices)


def _memory_of(tensor: torch.Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for one in value:
            yield from _flat(one)
    else:
        yield value


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Return the public attributes of a module and its submodules by their paths: plain values, else the identity."""
    found = every_attribute(module)
    return {f"{'.'.join(path)}.{name}": _plain(value) for (*path, name), value in found if name[:1] != "_"}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [*map(_plain, value)]
    return [*map(id, value.values())] if isinstance(value, dict) else id(value)
