"""The server that all processes of tunebench's own are forked from.

It has imported what they need and never touched a device, so that a new process costs no import.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext

from tunebench.tuner import server_start
from tunebench.tuner.scratch import scratch_folder

TRACER = "torch._dynamo"
"""A module that torch imports at its first trace, in seconds. A server that has it spares forks that."""

_FIRST, _LAST = server_start.__name__, "tunebench.tuner.forked"
"""The modules that a server imports before and after those that it was started for."""

_preload: Sequence[str] = ()
_shares_server = False

_LONGEST_SOCKET = 107 - len("/listener-12345678")
"""Bytes of a folder's path in which multiprocessing can make a server's socket."""

_OF_THE_SERVER = ("_forkserver_address", "_forkserver_authkey")
"""Multiprocessing keeps the server's address and key under these names, which are not part of its interface."""


def start_forkserver(preload: Sequence[str] = ()) -> None:
    """Start the server, importing these modules; where it runs already, nothing happens.

    The sooner, the better: it imports torch while this process does.
    """
    if _shares_server:
        return
    global _preload  # noqa: PLW0603 - there is one server, which may have to be started again
    _preload = preload or _preload
    multiprocessing.set_forkserver_preload(in_order(_preload))
    _use_scratch()
    resource_tracker.ensure_running()  # it unblocks what is blocked here, so that it goes first
    # Ctrl-C goes to every process of the terminal, and is this one's to answer. What is blocked stays so in the server
    # and its forks, from their first instruction on.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        with without_main(), server_start.own_server():
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def known_server() -> Mapping[str, object]:
    """Return what another process needs to share the server of this one."""
    known = vars(forkserver._forkserver)
    return {name: known[name] for name in _OF_THE_SERVER if name in known}


def share_server(known: Mapping[str, object] = types.MappingProxyType({})) -> None:
    """Use another process's server from now on, by default that of the process that this one was forked from."""
    global _shares_server  # noqa: PLW0603 - there is one server
    _shares_server = True
    vars(forkserver._forkserver).update(known, ensure_running=lambda: None)


def in_order(preload: Sequence[str]) -> list[str]:
    """Return what a server imports: these modules, after the one that begins it and before the one that ends it."""
    return [_FIRST, *preload, _LAST]


def wake_server() -> None:
    """Have the server go on, which tells how processes end: a file without a box may have stopped it."""
    if (server := vars(forkserver._forkserver).get("_forkserver_pid")) is not None:
        with suppress(ProcessLookupError):
            os.kill(server, signal.SIGCONT)


def _use_scratch() -> None:
    """Have multiprocessing keep its socket in this process's scratch folder: its own would outlive a kill.

    Raises:
        DiskFullError: there is no room for the folder.
    """
    known = vars(multiprocessing.current_process())["_config"]
    if known.get("tempdir") is None and len(os.fsencode(folder := scratch_folder())) <= _LONGEST_SOCKET:
        known["tempdir"] = str(folder)


_without_main = threading.RLock()
"""Serialises the temporary change of `__main__`, so that concurrent starts restore the right value."""


@contextmanager
def without_main() -> Iterator[None]:
    """Keep multiprocessing from running the user's script again in every process: all that runs there is a module's."""
    with _without_main:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def _begin_in_fork() -> None:
    """Make a new lock in a forked process, where no thread is left to release the old one."""
    global _without_main  # noqa: PLW0603 - a thread of the parent may hold it
    _without_main = threading.RLock()


os.register_at_fork(after_in_child=_begin_in_fork)


def context() -> ForkServerContext:
    """The multiprocessing context of such processes."""
    return multiprocessing.get_context("forkserver")
