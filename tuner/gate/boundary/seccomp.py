"""A filter of system calls (`seccomp(2)`) for whoever runs somebody's code: what reaches into other processes or the
kernel is refused."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tunebench.tuner.gate.boundary.system_call import asked, libc

_SET_SECCOMP, _FILTER = 22, 2
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # of `struct seccomp_data`
_OF_X32 = 0x40000000
_NEW_NAMESPACES = 0x7E020000  # flags of clone

_EVERYWHERE = {
    "pidfd_send_signal": 424,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_open": 434,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
}
"""Numbers of newer calls, the same on every architecture."""


@dataclass(frozen=True)
class _Architecture:
    """Numbers of an architecture: its own, of `clone` and `connect`, and of the calls that are refused."""

    number: int
    clone: int
    connect: int
    refused: Mapping[str, int]


_X86_64 = {
    "ptrace": 101,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "keyctl": 250,
    "add_key": 248,
    "request_key": 249,
    "bpf": 321,
    "perf_event_open": 298,
    "userfaultfd": 323,
    "mount": 165,
    "umount2": 166,
    "pivot_root": 155,
    "chroot": 161,
    "unshare": 272,
    "setns": 308,
    "open_by_handle_at": 304,
    "name_to_handle_at": 303,
    "init_module": 175,
    "finit_module": 313,
    "delete_module": 176,
    "kexec_load": 246,
    "kexec_file_load": 320,
    "acct": 163,
    "swapon": 167,
    "swapoff": 168,
    "reboot": 169,
    "quotactl": 179,
}
_AARCH64 = {
    "ptrace": 117,
    "process_vm_readv": 270,
    "process_vm_writev": 271,
    "kcmp": 272,
    "keyctl": 219,
    "add_key": 217,
    "request_key": 218,
    "bpf": 280,
    "perf_event_open": 241,
    "userfaultfd": 282,
    "mount": 40,
    "umount2": 39,
    "pivot_root": 41,
    "chroot": 51,
    "unshare": 97,
    "setns": 268,
    "open_by_handle_at": 265,
    "name_to_handle_at": 264,
    "init_module": 105,
    "finit_module": 273,
    "delete_module": 106,
    "kexec_load": 104,
    "kexec_file_load": 294,
    "acct": 89,
    "swapon": 224,
    "swapoff": 225,
    "reboot": 142,
    "quotactl": 60,
}
_ARCHITECTURES = {
    "x86_64": _Architecture(0xC000003E, 56, 42, _X86_64),
    "aarch64": _Architecture(0xC00000B7, 220, 203, _AARCH64),
}
_CLONE3 = 435


def refuse_system_calls(*, may_connect: bool) -> None:
    """Refuse them from now on, to this process and its children, for good; it must have given up new privileges.

    Args:
        may_connect: it may connect sockets. One may lie on the disk, where whoever listens runs what it is sent.

    Raises:
        OSError: the kernel has no such filter, or the calls of this architecture are not known here.
    """
    architecture = _ARCHITECTURES.get(platform.machine())
    if architecture is None:
        raise OSError(errno.ENOSYS, f"no filter of system calls is known for {platform.machine()}")
    program = b"".join(_program(architecture, may_connect=may_connect))
    code = ctypes.create_string_buffer(program, len(program))
    filter_of = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    asked(libc.prctl(_SET_SECCOMP, _FILTER, ctypes.create_string_buffer(filter_of, len(filter_of)), 0, 0))


def _program(architecture: _Architecture, *, may_connect: bool) -> Sequence[bytes]:
    """Return the filter's instructions (see Linux's `struct sock_filter`)."""
    refused = [*architecture.refused.values(), *_EVERYWHERE.values()]
    refused += [] if may_connect else [architecture.connect]
    refuse = _step(_RETURN, _REFUSE | errno.EPERM)
    unknown = _step(_RETURN, _REFUSE | errno.ENOSYS)
    return [
        _step(_LOAD, _ARCHITECTURE),
        _step(_IF_EQUAL, architecture.number, 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
        _step(_IF_AT_LEAST, _OF_X32, 0, 1),
        unknown,
        # Its flags lie in memory, where a filter cannot look; the C library then asks for `clone`.
        _step(_IF_EQUAL, _CLONE3, 0, 1),
        unknown,
        *(step for number in refused for step in (_step(_IF_EQUAL, number, 0, 1), refuse)),
        _step(_IF_EQUAL, architecture.clone, 0, 3),
        _step(_LOAD, _FIRST_ARGUMENT),
        _step(_IF_ANY_BIT, _NEW_NAMESPACES, 0, 1),
        refuse,
        _step(_RETURN, _ALLOW),
    ]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
