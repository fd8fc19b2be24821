"""Counts what a reference makes in one call, within limits of size and time, before anybody is asked about it."""

from __future__ import annotations

import ctypes
import math
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from tunebench.tuner.errors import UserError
from tunebench.tuner.gate.dispatch import OperationMode
from tunebench.tuner.gate.faults import FAILURES
from tunebench.tuner.gate.indices import require_in_range
from tunebench.tuner.gate.values import tensors_in

_AGAIN_SECONDS = 0.01
_STEPS = 1000
"""Python looks for what another thread raises in every one of them."""


@dataclass(frozen=True)
class Limit:
    """The most that a reference may take for one call.

    Attributes:
        elements: of all tensors that its operations make.
        seconds: of time.
    """

    elements: int
    seconds: float


class _BeyondError(BaseException):
    """A limit is reached; no `except Exception` of the reference's is to stop it."""


def elements_made(call: Callable[[torch.device], object], places: Sequence[torch.device], limit: Limit) -> int | None:
    """Count the elements of all tensors that a call makes.

    Args:
        call: makes the inputs and the model on a device, and calls it; what it raises is passed over.
        places: devices, of which the next is tried where it does not run on one. On `meta` it takes no memory; torch
            imports its compiler for some operations there, which takes seconds.

    Returns:
        None where a limit is reached.
    """
    for place in places:
        counter = _Counter(limit.elements)
        try:
            with _no_longer_than(limit.seconds), torch.no_grad(), counter:
                call(place)
        except _BeyondError:
            return None
        except (*FAILURES, UserError):
            continue
        break
    return counter.elements


class _Counter(OperationMode):
    """Counts the elements of what operations return, and stops one that would go beyond the limit before it runs."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.elements = 0
        self._most = most

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return False

    def run(self, operation: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Run the operation, and count what it makes."""
        first = arguments[0] if arguments else None
        if isinstance(first, list) and all(type(size) is int for size in first):  # the shape of what is made
            self._require(math.prod(first))
        require_in_range(operation, arguments)
        result = operation(*arguments, **named)
        self.elements += sum(tensor.numel() for tensor in tensors_in([result]))
        self._require(0)
        return result

    def _require(self, more: int) -> None:
        if self.elements + more > self._most:
            raise _BeyondError


@contextmanager
def _no_longer_than(seconds: float) -> Iterator[None]:
    """Raise `_BeyondError` in the block when so many seconds have passed: Python code in a loop ends, too."""
    thread, is_done, is_over = threading.get_ident(), threading.Event(), threading.Event()

    def end() -> None:
        while _is_importing(thread):  # a module that is half imported stays so
            if is_done.wait(_AGAIN_SECONDS):
                return
        is_over.set()
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_BeyondError))

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        is_done.set()
        timer.join()
        # What was raised at the last moment comes here. Taking it back would leave Python looking for it for good.
        for _ in range(_STEPS * is_over.is_set()):
            pass


def _is_importing(thread: int) -> bool:
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
