"""The first that a server imports from which processes are forked, and what holds while it imports the rest.

`tuner/forked.py`, which it imports last, ends that: a ready server sees by itself that its parent is gone, and what is
forked from it keeps Inductor's compiled code where the user has it.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from tunebench.tuner.bytecode import keep_bytecode

_PR_SET_PDEATHSIG = 1
_PARENT = "TUNEBENCH_SERVER_OF"
_INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"
"""The environment variable that says in which folder torch compiles; importing `torch._dynamo` makes that folder."""

_has_inductor = _INDUCTOR in os.environ


@contextmanager
def own_server() -> Iterator[None]:
    """Let a server that this block starts know whose it is."""
    os.environ[_PARENT] = str(os.getpid())
    try:
        yield
    finally:
        os.environ.pop(_PARENT, None)


def _begin(parent: str) -> None:
    """End the server as soon as its parent is gone, keep torch from making a folder, and look for no garbage.

    Importing torch makes little of that, and a fifth of its seconds would go into looking.
    """
    gc.disable()
    keep_bytecode()
    _die_with_parent(signal.SIGKILL)
    if os.getppid() != int(parent):
        os._exit(1)  # the parent was gone before
    if not _has_inductor:
        os.environ[_INDUCTOR] = tempfile.gettempdir()  # it is there


def end() -> None:
    """Let nothing of that hold any more."""
    gc.enable()
    _die_with_parent(0)
    if not _has_inductor:
        os.environ.pop(_INDUCTOR, None)


def _die_with_parent(number: int) -> None:
    """Get this signal when the thread that started this process ends; none of 0."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


if (parent := os.environ.pop(_PARENT, None)) is not None:
    _begin(parent)
