"""The state that all code of a process shares: torch's settings and functions, clocks, signals. A file leaves it alone.

It is looked at by the process that runs the file: that finds mistakes and lazy tricks, such as a precision that is
lowered for everybody, and not malice. Where a patch would forge the judge's figures, the judge has its own: its clock,
and its comparison in another process.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from types import GetSetDescriptorType
from typing import Any

import torch
from torch import nn

_SUBNORMAL = 1e-40
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_ROOTS = {"torch": torch, "os": os, "sys": sys, "gc": gc, "threading": threading}

_SETTINGS = (
    "torch.get_default_dtype()",
    "torch.get_default_device()",
    "torch.is_grad_enabled()",
    "torch.is_inference_mode_enabled()",
    "torch.is_anomaly_enabled()",
    "torch.get_float32_matmul_precision()",
    "torch.backends.fp32_precision",
    "torch.backends.cuda.matmul.fp32_precision",
    "torch.backends.cuda.matmul.allow_tf32",
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "torch.backends.cudnn.allow_tf32",
    "torch.backends.cudnn.conv.fp32_precision",
    "torch.backends.cudnn.benchmark",
    "torch.backends.cudnn.deterministic",
    "torch.backends.cudnn.enabled",
    "torch.backends.mkldnn.enabled",
    "torch.backends.mkldnn.matmul.fp32_precision",
    "torch.are_deterministic_algorithms_enabled()",
    "torch.utils.deterministic.fill_uninitialized_memory",
    "torch.get_num_threads()",
    "torch.get_num_interop_threads()",
    "torch._C._len_torch_function_stack()",
    "torch._C._len_torch_dispatch_stack()",
    "torch.backends.cuda.flash_sdp_enabled()",
    "torch.backends.cuda.mem_efficient_sdp_enabled()",
    "torch.backends.cuda.math_sdp_enabled()",
    "torch.backends.cuda.cudnn_sdp_enabled()",
    "os.getcwd()",
    "gc.isenabled()",
    "gc.get_threshold()",
    "gc.callbacks",
    "sys.gettrace()",
    "sys.getprofile()",
    "threading.gettrace()",
    "threading.getprofile()",
)
"""By the name that a user knows them by. `sys.path` is not among them, nor most of the environment: right files change
both to build extensions."""

_GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
    "_global_parameter_registration_hooks",
    "_global_buffer_registration_hooks",
    "_global_module_registration_hooks",
)

_MORE_SETTINGS: Mapping[str, Callable[[], object]] = {
    "torch.is_autocast_enabled()": lambda: (torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")),
    "torch.get_autocast_dtype()": lambda: (torch.get_autocast_dtype("cpu"), torch.get_autocast_dtype("cuda")),
    "hooks for what autograd saves": lambda: torch._C._autograd._top_saved_tensors_default_hooks(False),
    "a timer of signal.setitimer": lambda: [signal.getitimer(timer)[0] > 0 for timer in _TIMERS],
    "torch.set_flush_denormal": lambda: float(torch.tensor(_SUBNORMAL, dtype=torch.float32) * 1) == 0.0,
    "the CUDA device": lambda: torch.cuda.current_device() if _uses_cuda() else 0,
    "the CUDA stream": lambda: torch.cuda.current_stream().cuda_stream if _uses_cuda() else 0,
    "hooks of all modules": lambda: [len(getattr(nn.modules.module, name)) for name in _GLOBAL_HOOKS],
    "os.sched_getaffinity(0)": lambda: sorted(os.sched_getaffinity(0)),
    "NVIDIA_TF32_OVERRIDE": lambda: os.environ.get("NVIDIA_TF32_OVERRIDE"),
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": lambda: os.environ.get("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
}

_COMPUTING_KEYS = ("CPU", "CUDA", "Autograd", "Composite")

_MODULES = (
    "builtins",
    "gc",
    "math",
    "numpy",
    "os",
    "random",
    "sys",
    "threading",
    "time",
    "torch",
    "torch.autograd",
    "torch.cuda",
    "torch.fft",
    "torch.linalg",
    "torch.nn.functional",
    "torch.nn.init",
    "torch.special",
    "torch.testing",
)
"""Modules whose functions are watched, as far as they are there; what a file imports first is not."""

_CLASSES: Mapping[str, type] = {
    "torch.Tensor": torch.Tensor,
    "torch.autograd.Function": torch.autograd.Function,
    "torch.cuda.Event": torch.cuda.Event,
    "torch.cuda.Stream": torch.cuda.Stream,
}
_LAYERS = {f"torch.nn.{name}": one for name, one in vars(nn).items() if isinstance(one, type)}
_PARENTS = {
    f"{parent.__module__}.{parent.__qualname__}": parent
    for one in _LAYERS.values()
    for parent in one.__mro__
    if parent.__module__.startswith("torch.nn.") and parent not in _LAYERS.values()
}
_OF_CLASSES = (property, classmethod, staticmethod, GetSetDescriptorType)


_REPLACED_BY_TORCH = ("torch.Storage", "torch.manual_seed", "torch.nn.Module.__init__", "torch.nn.Module.__setstate__")
"""Names that torch itself replaces, with the default dtype or when its compiler is imported or used first."""


def settings() -> dict[str, str]:
    """Every setting as a text; some tens of microseconds."""
    return {name: _text(read) for name, read in _READ.items()}


def _text(read: Callable[[], object]) -> str:
    try:
        return str(read())
    except (RuntimeError, OSError) as error:  # two of torch's interfaces to one flag, mixed; a folder that is gone
        return f"unreadable ({type(error).__name__})"


def _reader(name: str) -> Callable[[], object]:
    """Return a function that reads `module.attribute`, or calls `module.function()`."""
    module, _, path = name.removesuffix("()").partition(".")
    holder, _, attribute = path.rpartition(".")
    found = attrgetter(holder)(_ROOTS[module]) if holder else _ROOTS[module]
    if name.endswith("()"):
        function: Callable[[], object] = getattr(found, attribute)  # the one of now: a later one may lie
        return function
    return lambda: getattr(found, attribute)


_READ: Mapping[str, Callable[[], object]] = {**{name: _reader(name) for name in _SETTINGS}, **_MORE_SETTINGS}


def functions() -> dict[str, tuple[object, object]]:
    """Every function of torch and of some of Python's modules, and every handler of a signal, each with its code; some
    milliseconds."""
    found = {name: (one, getattr(one, "__code__", None)) for name, one in _functions()}
    for name in _REPLACED_BY_TORCH:
        found.pop(name, None)
    return found


def _functions() -> Iterator[tuple[str, object]]:
    for holder in _MODULES:
        # Callables alone: torch puts other values there when it is used first.
        found = vars(sys.modules[holder]).items() if holder in sys.modules else ()
        yield from ((f"{holder}.{name}", one) for name, one in found if callable(one))
    for holder, kind in _CLASSES.items():
        # What stands in a class in front of what it inherits counts too.
        for parent in reversed(kind.__mro__[:-1]):
            yield from ((f"{holder}.{name}", one) for name, one in vars(parent).items() if _runs(one))
    for holder, layer in (*_LAYERS.items(), *_PARENTS.items()):
        yield from ((f"{holder}.{name}", one) for name, one in vars(layer).items() if _runs(one))
    for number in signal.valid_signals():
        yield f"the handler of signal {number}", signal.getsignal(number)


def _runs(one: object) -> bool:
    """Whether an attribute of a class is code."""
    return callable(one) or isinstance(one, _OF_CLASSES)


def _replaced_operators() -> set[str]:
    """Python's kernels for operators of torch, beside those that torch itself adds for shapes and transforms."""
    own = (name for name in torch.library._impls if name.startswith("aten/"))
    return {name for name in own if name.rpartition("/")[2].startswith(_COMPUTING_KEYS)}


def _uses_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def draws() -> tuple[Any, ...]:
    """Where the generators of random numbers stand: torch's on each device, Python's, and numpy's where it is there."""
    stand: list[Any] = [torch.default_generator.get_state().numpy().tobytes(), random.getstate()]
    if _uses_cuda():
        stand += [one.get_state().numpy().tobytes() for one in torch.cuda.default_generators]
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        kind, keys, *rest = numpy_random.get_state()
        stand += [kind, keys.tobytes(), *rest]
    return tuple(stand)


class Watch:
    """Notes what a file changes, from its `start` on; nothing before."""

    def __init__(self) -> None:
        self._settings: dict[str, str] = {}
        self._functions: dict[str, tuple[object, object]] = {}
        self._operators: set[str] = set()
        self._changes: dict[str, str] = {}

    def start(self) -> None:
        """Begin, or begin anew: what was changed before is as it should be."""
        self._settings = settings()
        self._functions = functions()
        self._operators = _replaced_operators()
        self._changes = {}

    def forget(self) -> None:
        """Accept the present settings as they are; what was noted stays."""
        self._settings = settings()

    def look(self, when: str) -> None:
        """Note the settings that are others now.

        Args:
            when: for people, such as `in a call`.
        """
        if not self._settings:
            return
        before, self._settings = self._settings, settings()
        for name, value in before.items():
            if self._settings[name] != value:
                self._changes.setdefault(name, f"{name} is {self._settings[name]} and was {value} ({when})")

    def changes(self, when: str) -> list[str]:
        """A line for everything that was changed so far; a change that was taken back counts where it was seen."""
        if not self._settings:
            return []
        self.look(when)
        now = functions()
        for name, (one, code) in self._functions.items():
            other = now.get(name, (None, None))  # what came since does not count: torch imports lazily
            if one is not other[0] or code is not other[1]:
                self._changes.setdefault(name, f"{name} is replaced")
        for name in sorted(_replaced_operators() - self._operators):
            self._changes.setdefault(name, f"the operator {name} is replaced")
        return list(self._changes.values())
