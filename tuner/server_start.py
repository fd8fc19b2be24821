"""The first that a server imports from which processes are forked, and what holds while it imports the rest.

`tuner/forked.py`, which it imports last, ends that: a ready server sees by itself that its parent is gone, and what is
forked from it has the user's own environment.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

_PR_SET_PDEATHSIG = 1
_PARENT = "TUNEBENCH_SERVER_OF"
_WHILE_IMPORTING = {"TORCHINDUCTOR_CACHE_DIR": tempfile.gettempdir(), "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""The environment variables of torch that the server has meanwhile, where its user has none: importing `torch._dynamo`
makes the folder in which torch compiles, unless it is there; importing Inductor asks whether there is a GPU, and where
it asks the driver and not NVML, no fork can use that GPU."""

_own = [name for name in _WHILE_IMPORTING if name not in os.environ]


@contextmanager
def own_server() -> Iterator[None]:
    """Let a server that this block starts know whose it is."""
    os.environ[_PARENT] = str(os.getpid())
    try:
        yield
    finally:
        os.environ.pop(_PARENT, None)


def _begin(parent: str) -> None:
    """End the server as soon as its parent is gone, keep torch off folders and GPUs, and look for no garbage.

    Importing torch makes little of that, and a fifth of its seconds would go into looking.
    """
    gc.disable()
    _die_with_parent(signal.SIGKILL)
    if os.getppid() != int(parent):
        os._exit(1)  # the parent was gone before
    os.environ.update({name: _WHILE_IMPORTING[name] for name in _own})


def end() -> None:
    """Let nothing of that hold any more."""
    gc.enable()
    _die_with_parent(0)
    for name in _own:
        os.environ.pop(name, None)


def _die_with_parent(number: int) -> None:
    """Get this signal when the thread that started this process ends; none of 0."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


if (parent := os.environ.pop(_PARENT, None)) is not None:
    _begin(parent)
