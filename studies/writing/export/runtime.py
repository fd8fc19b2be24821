"""The run time of an exported file: `write.py` copies from here what the file needs. Nothing runs here.

Each file states its own values of the names in capitals.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import cpp_extension

from tunebench.kernels.runtime.attributes import OF_EVERY_MODULE
from tunebench.kernels.runtime.gradients import DifferentiableForward, by_plan
from tunebench.kernels.runtime.ordinary import (
    Call,
    held,
    hooks_of_all,
    look_at,
    saves_differently,
    why_not_run,
)
from tunebench.tuner.settings import Setting, in_force, readers_of

NAME: str = ""
CUDA_SOURCE: str = ""
CUDA_FLAGS: list[str] = []
ARCHITECTURE: tuple[int, int] = (0, 0)
CONFIGURATION: Mapping[str, Any] = {}
INACTIVE: Mapping[str, Any] = {}
AXES: Mapping[str, int] = {}
DTYPE: str = ""
OPTIONS: Mapping[str, str] = {}
MODES: Sequence[str] = ()
INPUT_SHAPES: Sequence[tuple[int, ...] | None] = ()
INPUT_TYPES: Sequence[str | None] = ()
HELD_SHAPES: Sequence[tuple[int, ...]] = ()
SUBMODULES: Sequence[str] = ()
NUMBERS: Sequence[str] = ()
FIXED: Mapping[str, object] = {}
REDRAWS: Mapping[bool, bool] = {}
MOVED: Mapping[bool, Sequence[int]] = {}
WATCHED: Sequence[str] = ()
SETTINGS: Mapping[str, str] = {}
BY_KERNEL: bool = True


@dataclass(frozen=True)
class Problem:
    """The sizes, dtype and options of a call."""

    axes: Mapping[str, int]
    dtype: str = "float32"
    options: Mapping[str, str] = field(default_factory=dict)


class Mode:
    """The state of a module that a call is made in."""

    EVAL, TRAIN, FROZEN = "eval", "train", "frozen"


class Kernels:
    """The kernels of a library; `_launcher` gives what launches one, and what packs its arguments."""

    _launcher: Any

    def launch(
        self,
        entry_point: str,
        device: int,
        extents: Sequence[int],
        shared: int,
        arguments: Sequence[Any],
        *,
        early: bool = False,
    ) -> None:
        """Launch on torch's current stream of a device, which is the current one.

        An early launch may begin before the one in front of it has ended, for which its kernel waits by itself.
        A tensor or a place in one gives its address and None a null pointer; numbers are taken in the parameter's type.
        """
        launcher, pack = self._launcher(entry_point)
        stream = torch._C._cuda_getCurrentRawStream(device)
        status = launcher(pack(*extents, shared, stream, *numbers(arguments)), early)
        if status:
            raise RuntimeError(f"launch of '{entry_point}' with blocks and threads {extents}: CUDA error {status}")


class Library(Kernels):
    """The CUDA source as nvcc builds it; no header of torch is in it, so that this takes seconds and not a minute."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(
            cpp_extension.load_inline(
                name=NAME,
                cpp_sources=[],
                cuda_sources=[CUDA_SOURCE],
                extra_cuda_cflags=CUDA_FLAGS,
                is_python_module=False,
                no_implicit_headers=True,
            )
        )

    @functools.cache  # noqa: B019 - there is one library
    def _launcher(self, entry_point: str) -> tuple[Any, Callable[..., bytes]]:
        """Return the function that launches an entry point, and the one that packs what it takes: the extents, the
        shared memory, the stream, and the arguments."""
        launcher, kinds = (getattr(self._library, f"{name}_{entry_point}") for name in ("launch", "kinds"))
        launcher.argtypes = (ctypes.c_char_p, ctypes.c_int)
        kinds.restype = ctypes.c_char_p
        return launcher, struct.Struct(f"8q{kinds().decode()}").pack

    @functools.cache  # noqa: B019 - there is one library
    def resident_blocks(self, entry_point: str, threads: int, shared: int = 0) -> int:
        """Return how many blocks of that many threads one multiprocessor holds at once."""
        blocks = ctypes.c_int(1)
        getattr(self._library, f"resident_{entry_point}")(ctypes.byref(blocks), threads, ctypes.c_size_t(shared))
        return max(1, blocks.value)


_NUMBERS = frozenset((int, float, bool))


def numbers(arguments: Sequence[Any]) -> list[float]:
    """Return the arguments of a launch as numbers. It stands in every launch, so that the common cases make no call."""
    return [
        one if type(one) in _NUMBERS else one.data_ptr() if isinstance(one, torch.Tensor) else _address(one)
        for one in arguments
    ]


def _address(argument: Any) -> int:
    """Return the address of a place in a tensor's memory, or of a tensor map; None is a null pointer."""
    return 0 if argument is None else argument.address


def built_library() -> Library | None:
    """Build the library; None where nothing could run it, or there is no nvcc to build it."""
    toolkit = cpp_extension.CUDA_HOME if torch.version.cuda and torch.cuda.is_available() else None
    return Library() if toolkit and os.access(f"{toolkit}/bin/nvcc", os.X_OK) else None


LIBRARY: Library | None = None


class Device:
    """The properties of a CUDA device that the kernel's host code reads."""

    def __init__(self, index: int) -> None:
        found = torch.cuda.get_device_properties(index)
        self.index = index
        self.multiprocessors = found.multi_processor_count
        self.max_threads_per_multiprocessor = found.max_threads_per_multi_processor
        self.torch_device = torch.device("cuda", index)


class Plan:
    """The plan that the recorded problem runs by on one device."""

    def __init__(self, index: int, module: Library) -> None:
        self.configuration = CONFIGURATION
        self.problem = Problem(AXES, DTYPE, OPTIONS)
        self.device = Device(index)
        self.module = module
        self._made: dict[tuple[Any, ...], Any] = {}

    def __getitem__(self, tunable: str) -> Any:
        """Return the value of a tunable; where it is inactive, the one that the binary is compiled with."""
        return CONFIGURATION[tunable] if tunable in CONFIGURATION else INACTIVE[tunable]

    def integer(self, tunable: str) -> int:
        """Return the value of an integer tunable."""
        return int(self[tunable])

    def once(self, make: Callable[..., Any], *arguments: Any) -> Any:
        """Return `make(plan, *arguments)`; made once for equal arguments."""
        key = (make, *arguments)
        if key not in self._made:
            self._made[key] = make(self, *arguments)
        return self._made[key]

    def launch(
        self, entry_point: str, *arguments: Any, blocks: Any, threads: Any, shared: int = 0, early: bool = False
    ) -> None:
        """Launch an entry point; extents are an int or up to three of them."""
        extents = [
            *((blocks, 1, 1) if isinstance(blocks, int) else (*blocks, 1, 1)[:3]),
            *((threads, 1, 1) if isinstance(threads, int) else (*threads, 1, 1)[:3]),
        ]
        self.module.launch(entry_point, self.device.index, extents, shared, arguments, early=early)

    def resident_blocks(self, entry_point: str, threads: int, shared: int = 0) -> int:
        """Return how many blocks of that entry point the whole device holds at once."""
        return self.device.multiprocessors * self.module.resident_blocks(entry_point, threads, shared)


def _empty_that_lasts(rows: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Allocate memory that outlives the call; no call of a file is one of torch.compile's."""
    return torch.empty(rows, dtype=dtype, device=device)


@functools.cache
def recorded_problem() -> Problem:
    """Return the problem that was measured."""
    return Problem(AXES, DTYPE, OPTIONS)


@functools.cache
def recorded_dtype() -> torch.dtype:
    """Return the type that was measured."""
    dtype: torch.dtype = getattr(torch, DTYPE)
    return dtype


@functools.cache
def settings_readers() -> list[Callable[[], Any]]:
    """Return what reads the settings that matter."""
    return [read for name in WATCHED for read in readers_of(Setting(name), "cuda")]


SETTINGS_SEEN: list[Any] = []


def settings_are_recorded() -> bool:
    """Return whether PyTorch's settings are those that were measured; what was found right is not asked again."""
    seen = [read() for read in settings_readers()]
    if [seen] != SETTINGS_SEEN:
        if in_force([Setting(name) for name in WATCHED], "cuda") != SETTINGS:
            return False
        SETTINGS_SEEN[:] = [seen]
    return True


@functools.cache
def plan_on(device: torch.device) -> Plan | None:
    """Return the plan on a device; None where the library is not built for it, or not built at all."""
    if LIBRARY is None or device.type != "cuda" or torch.cuda.get_device_capability(device) != ARCHITECTURE:
        return None
    return Plan(device.index, LIBRARY)


_KNOWS_GUARDS = tuple(map(int, torch.__version__.split(".")[:2])) <= (2, 14)
"""Whether this PyTorch's guards of tensors, which are private to it, are made as is known here."""


class Precedent(NamedTuple):
    """A call that the kernel may serve, and what tells whether another one is like it.

    Attributes:
        needs_gradient: whether its result belongs to an autograd graph.
        objects: all attributes of the module and its submodules, and the inputs that are no tensors.
        tensors: how many there are, of inputs, parameters and buffers.
        same_tensors: whether as many others are like them in type, shape, strides, device, and in needing a gradient.
        grad: whether gradients were enabled.
    """

    needs_gradient: bool
    objects: list[Any]
    tensors: int
    same_tensors: Callable[..., bool]
    grad: bool

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Become None in a copy of the module, which has objects of its own."""
        return type(None), ()


def _all_modules(module: nn.Module) -> list[nn.Module]:
    """Return the module and its submodules."""
    modules = [module]
    for one in modules:
        modules += [child for child in one._modules.values() if child is not None]
    return modules


def _objects(module: nn.Module, inputs: Sequence[Any]) -> list[Any]:
    """Return what a call depends on by identity: attributes, hooks of submodules, and inputs that are no tensors."""
    objects = [one for one in inputs if not isinstance(one, torch.Tensor)]
    for one in _all_modules(module):
        objects += vars(one).values()
        if one is not module:
            objects += [*one._forward_hooks.values(), *one._forward_pre_hooks.values()]
    return objects


class TunedModule(nn.Module):
    """A module that runs the kernel in calls like those it was measured for, and the reference in all others.

    Others are calls of other shapes, types, layouts or devices; calls under autocast, torch.compile, a functorch
    transform or a tracer; and, once a gradient has been taken, those that need one, until `eval()`. A gradient is that
    of the reference's operations, which run again for it. Nothing that a result depends on is kept between calls.
    """

    is_frozen = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._of_reference = frozenset(vars(self))  # and none of what a kernel keeps, which is set later
        self._trains = False
        self._precedent: list[Precedent | None] = [None]  # copies that threads run share this list

    def __del__(self) -> None:
        """Let go of the known call: it holds tensors, whose memory would wait for Python to look for cycles."""
        (known,) = vars(self).get("_precedent", [None])
        if known is not None and any(one is self._parameters for one in known.objects):  # and is no copy's
            self._precedent[0] = None

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Run the reference's forward, by the kernel where that can serve."""
        if named or not BY_KERNEL or torch.compiler.is_compiling():
            return self.reference_forward(*inputs, **named)
        call = self._by_precedent(inputs)
        if call is None:
            call = look_at(self, inputs)
            by_reference = call.needs_gradient and (self._trains or REDRAWS[self.training] or saves_differently())
            if call.obstacle or by_reference or not self._is_as_measured(inputs, call):
                return self.reference_forward(*inputs)
            self._remember(inputs, call)
        plan = plan_on(call.inputs[0].device)
        if plan is None:
            return self.reference_forward(*inputs)
        with torch.cuda.device(plan.device.index):
            if not call.needs_gradient:
                return self.tuned_forward(plan, *inputs)
            moved = MOVED[self.training]
            return DifferentiableForward(by_plan(plan), call.parameters, call.buffers, moved)(self, *inputs)

    def reference_forward(self, *inputs: Any, **named: Any) -> torch.Tensor:
        """Run the reference's operations."""
        output: torch.Tensor = super().forward(*inputs, **named)
        return output

    def tuned_forward(self, plan: Plan, *inputs: Any) -> torch.Tensor:
        """Run the kernel, for inputs like those it was measured for."""
        raise NotImplementedError

    def problem(self, *inputs: Any) -> Problem | None:  # noqa: ARG002
        """Return the problem of a call whose shapes are the recorded ones."""
        return Problem(AXES, DTYPE, {"mode": self.mode()} if len(MODES) > 1 else {})

    def unserved(self, reason: str) -> None:
        """Return None, which `problem` returns where the kernel cannot serve a call."""

    def _by_precedent(self, inputs: Sequence[Any]) -> Call | None:
        """Return a call that is like one that the kernel may serve; None where it has to be looked at.

        Modules have the attributes, and the call the numbers, that they had: the same objects, of which none of a
        user's own may change in place. Tensors, PyTorch's settings and its modes are compared in each call.
        """
        (one,) = self._precedent
        if one is None or torch.is_grad_enabled() != one.grad or torch._C._is_any_autocast_enabled():
            return None
        if why_not_run() or hooks_of_all() or (one.needs_gradient and saves_differently()):
            return None
        objects = _objects(self, inputs)
        if len(objects) != len(one.objects) or not all(map(operator.is_, objects, one.objects)):
            return None
        given, (parameters, buffers) = [value for value in inputs if isinstance(value, torch.Tensor)], held(self)
        tensors = [*given, *parameters, *buffers]
        if len(tensors) != one.tensors or not one.same_tensors(*tensors) or not settings_are_recorded():
            return None
        return Call(given, parameters, buffers, None, one.needs_gradient)

    def _remember(self, inputs: Sequence[Any], call: Call) -> None:
        """Remember a call that the kernel may serve, unless a module has what may change in place."""
        if not _KNOWS_GUARDS:
            return
        for module in _all_modules(self):
            for name in (self._of_reference if module is self else {*vars(module)}) - OF_EVERY_MODULE:
                if isinstance(vars(module).get(name), (list, dict, set)):
                    return
        tensors = [*call.inputs, *call.parameters, *call.buffers]
        guards = torch._C._dynamo.guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        objects, grad = _objects(self, inputs), torch.is_grad_enabled()
        self._precedent[0] = Precedent(call.needs_gradient, objects, len(tensors), guards.check, grad)

    def _is_as_measured(self, inputs: Sequence[Any], call: Call) -> bool:
        """Return whether a call is of the problem that was measured, by a module like the one that was."""
        children = _all_modules(self)[1:]
        return (
            bool(call.inputs)
            and self._has_measured_tensors(inputs, call)
            and settings_are_recorded()
            and all(isinstance(one, (torch.Tensor, int, float)) for one in inputs)
            and all(isinstance(getattr(self, name), (int, float)) for name in NUMBERS)
            and all(operator.attrgetter(path)(self) == value for path, value in FIXED.items())
            and [type(child).__name__ for child in children] == SUBMODULES
            and all(child.training == self.training for child in children)
            and not any(child._forward_hooks or child._forward_pre_hooks for child in children)
            and self.problem(*inputs) == recorded_problem()
        )

    def _has_measured_tensors(self, inputs: Sequence[Any], call: Call) -> bool:
        """Return whether inputs, parameters and buffers are the reference's at the measured sizes."""
        held_ones = [*call.parameters, *call.buffers]
        device, dtype = call.inputs[0].device, recorded_dtype()
        for one in (*call.inputs, *held_ones):
            is_of_type = one.dtype is dtype or not one.is_floating_point()
            if not is_of_type or one.device != device or not one.is_contiguous():
                return False
        return (
            [one.shape if isinstance(one, torch.Tensor) else None for one in inputs] == INPUT_SHAPES
            and [str(one.dtype) if isinstance(one, torch.Tensor) else None for one in inputs] == INPUT_TYPES
            and [one.shape for one in held_ones] == HELD_SHAPES
        )

    def mode(self) -> str:
        """Return the mode of a call."""
        return Mode.TRAIN if self.training and Mode.TRAIN in MODES else Mode.EVAL

    def derived(self, name: str, make: Callable[[], Any], sources: Any, settings: Any = ()) -> Any:  # noqa: ARG002
        """Return `make()`; nothing is kept between calls."""
        return make()

    def _note_backward(self) -> None:
        self._trains = True

    def train(self, mode: bool = True) -> Any:
        """See `nn.Module.train`; without training mode gradients are not expected until one is taken."""
        if not mode:
            self._trains = False
        return super().train(mode)
