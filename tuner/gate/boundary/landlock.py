"""Landlock (`landlock(7)`): a process gives up rights of its own, without any privilege and for good.

A process in a domain cannot trace or read one outside, through `ptrace`, `/proc` or a descriptor of a process; from
its sixth version on neither signal it nor reach its abstract sockets.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

from tunebench.tuner.gate.boundary.system_call import asked, libc

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
_WHOLE = 6
"""The version that also confines signals."""

_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_ALL_WRITES = _WRITE_FILE | _TRUNCATE | sum(1 << bit for bit in (4, 5, *range(6, 13), 13))
_ALL_TCP = 0b11
_ALL_SCOPES = 0b11


class _Ruleset(ctypes.Structure):
    """Linux's `struct landlock_ruleset_attr`."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("files", "network", "scopes"))


class _Beneath(ctypes.Structure):
    """Linux's `struct landlock_path_beneath_attr`."""

    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def confine(folders: Sequence[Path]) -> None:
    """Let this process and its children write in these folders, to devices and to this process's threads alone (CUDA's
    driver names them), and reach no other process.

    Raises:
        OSError: the kernel cannot do all of it.
    """
    if asked(libc.syscall(_CREATE_RULESET, None, 0, _VERSION)) < _WHOLE:
        raise OSError(0, "Landlock is older than its sixth version (Linux 6.12)")
    rules = _Ruleset(_ALL_WRITES, _ALL_TCP, _ALL_SCOPES)
    ruleset = asked(libc.syscall(_CREATE_RULESET, ctypes.byref(rules), ctypes.sizeof(rules), 0))
    files = [(Path(path), _WRITE_FILE | _TRUNCATE) for path in ("/dev", "/proc/self/task")]
    for path, allowed in [*((folder, _ALL_WRITES) for folder in folders), *files]:
        opened = os.open(path, os.O_PATH)
        rule = _Beneath(allowed, opened)
        asked(libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0))
        os.close(opened)
    asked(libc.syscall(_RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)
