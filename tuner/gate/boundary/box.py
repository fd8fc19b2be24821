"""The box that a process of somebody's file runs in: it reaches no other process, writes nowhere but in its own
temporary folders, and has limits.

Namespaces make the box where the kernel grants them (`namespaces(7)`, as bubblewrap uses them), else Landlock does
(`landlock(7)`); a filter of system calls (`seccomp(2)`), resource limits, no capabilities and a fixed environment hold
in both.
"""

from __future__ import annotations

import ctypes
import enum
import fcntl
import os
import resource
import site
import socket
import stat
import struct
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_data_dir

from tunebench.tuner.device import host_memory_bytes
from tunebench.tuner.errors import TunebenchError
from tunebench.tuner.gate.boundary import landlock, seccomp
from tunebench.tuner.gate.boundary.system_call import asked, libc

_NEW_USER, _NEW_PID, _NEW_MOUNTS, _NEW_NETWORK, _NEW_IPC = 0x10000000, 0x20000000, 0x20000, 0x40000000, 0x08000000
_NAMESPACES = _NEW_USER | _NEW_PID | _NEW_MOUNTS | _NEW_NETWORK | _NEW_IPC

_READ_ONLY, _NO_SETUID, _NO_DEVICES, _NO_PROGRAMS, _BIND, _RECURSIVE, _PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE = 442, -100, 0x8000

_SET_FLAGS, _UP = 0x8914, 1  # of a network's interface
_SET_DUMPABLE, _NO_NEW_PRIVILEGES = 4, 38
_CAPABILITY_VERSION = 0x20080522

_TEMPORARY = Path("/tmp")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_GPU_NODES = ("nvidia*", "dxg")
_MOST_PROCESSES = 1024
_MOST_FILES = 4096
_MOST_FILE_BYTES = 1 << 32
_SHARE_OF_MEMORY = 2
_SHARE_OF_FOLDER = 8

_KEPT = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "TZ", "CC", "CXX", "USER", "LOGNAME", "SYSTEMROOT", "TERM")
_WRITTEN = ("TORCH_EXTENSIONS_DIR",)
_KEPT_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "OMP_", "MKL_", "TORCH_", "PYTORCH_", "TUNEBENCH_")


class Box(enum.StrEnum):
    """Whether somebody's file runs in a box."""

    AUTO = "auto"
    """As far as the machine allows it; the verdict says how far."""
    REQUIRE = "require"
    """Nothing runs without."""
    OFF = "off"
    """No."""


class Walls(enum.StrEnum):
    """The means that separate a box from everything else, the better first."""

    NAMESPACES = "namespaces"
    LANDLOCK = "Landlock"
    FILTER = "a filter of system calls"
    """Alone it closes nothing, but keeps a file from tracing other processes."""


_BOXES = (Walls.NAMESPACES, Walls.LANDLOCK)


class BoxError(TunebenchError):
    """The kernel does not allow this box; the message says what it refused."""


@dataclass(frozen=True)
class Room:
    """One box.

    Attributes:
        walls: how it is closed.
        folder: for temporary files. Namespaces have a `/tmp` and a home in memory, which end with them.
        readable: folders that it needs of those that the box hides, which may be symbolic links there.
        shared: a folder that it writes in for whoever reads it afterwards, if there is one; such a box is a tool's,
            whose processes connect to each other.
        is_on_gpu: the GPU's nodes are passed in, and addresses are not limited: a driver reserves them.
    """

    walls: Walls
    folder: Path
    readable: Sequence[Path]
    is_on_gpu: bool
    shared: Path | None = None


def room_for(walls: Walls, folder: Path, files: Sequence[Path], *, is_on_gpu: bool, shared: Path | None = None) -> Room:
    """Return the box for a process that runs these files.

    Args:
        folder: where it may write, if it has no namespaces.
        shared: see `Room`.
    """
    folder = _TEMPORARY if walls is Walls.NAMESPACES else folder
    return Room(walls, folder, tuple(_needed(files)), is_on_gpu, shared)


def walls_for(box: Box) -> Sequence[Walls | None]:
    """Return the walls that may be tried for a box, the best first; None is none."""
    return {Box.AUTO: (*Walls, None), Box.REQUIRE: _BOXES, Box.OFF: (None,)}[box]


def told(box: Box, walls: Walls | None, refused: Mapping[Walls, str]) -> str:
    """Say how a file is boxed, and what better walls the machine has refused.

    Args:
        walls: that hold.
        refused: why each of the better ones could not be had.
    """
    why = "; ".join(f"{name}: {reason}" for name, reason in refused.items()) or f"--box {box}"
    if walls in _BOXES:
        return f"boxed by {walls}" + (f" ({why})" if refused else "")
    return f"not boxed ({why})" + (f"; {walls} holds" if walls else "")


def _needed(files: Sequence[Path]) -> Iterator[Path]:
    """Yield what Python, its packages, compilers and the files need to be read, by the names they are known by."""
    environment = [os.environ.get(name, "") for name in ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH")]
    named = [sys.prefix, sys.base_prefix, *sys.path, *(part for one in environment for part in one.split(os.pathsep))]
    own = Path(__file__).resolve().parents[3]  # the packages may be links to it
    named += [value for name, value in os.environ.items() if name.startswith("TUNEBENCH_")]  # such as results
    named += [user_data_dir("tunebench"), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    for path in {own, *files, *(Path(name) for name in named if name)}:
        if path.exists():
            yield from ((path.absolute(), path.resolve()) if path.is_dir() else (path.resolve().parent,))


def enter_namespaces() -> None:
    """Put this process, and what it forks, into namespaces of their own; the first fork is PID 1.

    Raises:
        OSError: the kernel does not grant them.
    """
    user, group = os.getuid(), os.getgid()
    asked(libc.unshare(_NAMESPACES))
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")


def furnish(room: Room) -> None:
    """Mount what a box in namespaces sees: everything read only, and its own `/tmp`, home, `/dev` and `/proc`.

    Raises:
        OSError: the kernel does not grant it.
    """
    bytes_of_folder = host_memory_bytes() // _SHARE_OF_FOLDER
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)
    hidden = sorted(
        {Path(name).resolve() for name in (_TEMPORARY, tempfile.gettempdir(), "/var/tmp", "/run", "/dev", Path.home())}
    )
    hidden = [path for path in hidden if path.is_dir() and path != Path("/")]
    shared = [room.shared.resolve()] if room.shared else []
    needed = {path: os.open(path, os.O_PATH) for path in (*_outermost(room.readable, hidden), *shared)}
    nodes = {path: os.open(path, os.O_PATH) for path in _nodes(room)}
    _change_mounts("/", _READ_ONLY | _NO_SETUID)
    for path in hidden:
        _mount("tmpfs", path, "tmpfs", _NO_SETUID | _NO_DEVICES, f"size={bytes_of_folder},mode=0755")
    for path, opened in needed.items():
        path.mkdir(parents=True, exist_ok=True)
        _mount(f"/proc/self/fd/{opened}", path, None, _BIND | _RECURSIVE)
    for path in shared:
        _change_mounts(path, 0, _READ_ONLY)
    for path, opened in nodes.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        _mount(f"/proc/self/fd/{opened}", path, None, _BIND)
    for opened in (*needed.values(), *nodes.values()):
        os.close(opened)
    Path("/dev/shm").mkdir(mode=0o1777)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        Path("/dev", name).symlink_to(f"/proc/self/fd/{number}")
    Path("/dev/fd").symlink_to("/proc/self/fd")
    _mount("proc", "/proc", "proc", _NO_SETUID | _NO_DEVICES | _NO_PROGRAMS)
    _limit_processes()
    _keep_from_writing()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14x", b"lo", _UP))


def _keep_from_writing() -> None:
    """Let a process write in its own folder of `/proc` alone, where CUDA's driver names its threads."""
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal() and not path.is_symlink():
            _mount(str(path), path, None, _BIND)
            _change_mounts(path, _READ_ONLY)


def _limit_processes() -> None:
    """Limit root's processes, which no resource limit does, where the kernel counts PIDs by namespace (since 6.14)."""
    release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
    if os.getuid() == 0 and release >= (6, 14):
        Path("/proc/sys/kernel/pid_max").write_text(str(_MOST_PROCESSES), encoding="ascii")


def _outermost(readable: Sequence[Path], hidden: Sequence[Path]) -> list[Path]:
    """Return the folders that lie under a hidden one, without those that lie in another one of them.

    None is a link to a hidden folder as a whole, or to one that it lies in.
    """
    found: list[Path] = []
    for path in sorted({_below(hidden, path) for path in readable}):
        if not any(root in path.parents for root in hidden) or any(outer in path.parents for outer in found):
            continue
        if not any(root.is_relative_to(path.resolve()) for root in hidden):
            found.append(path)
    return found


def _below(hidden: Sequence[Path], path: Path) -> Path:
    """Return the path with what leads to a hidden folder resolved, and the names below it kept: they may be links."""
    for parent in path.parents:
        if (resolved := parent.resolve()) in hidden:
            return resolved / path.relative_to(parent)
    return path


def _nodes(room: Room) -> list[Path]:
    devices, patterns = Path("/dev"), _GPU_NODES if room.is_on_gpu else ()
    found = [devices / name for name in _DEVICES]
    for pattern in patterns:
        for path in devices.glob(pattern):
            found += path.iterdir() if path.is_dir() else [path]
    return [path for path in found if stat.S_ISCHR(path.stat().st_mode)]


def _mount(source: str | None, target: str | Path, kind: str | None, flags: int, data: str | None = None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    try:
        asked(libc.mount(*texts, ctypes.c_ulong(flags), None if data is None else data.encode()))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from error


class _MountAttributes(ctypes.Structure):
    """Linux's `struct mount_attr`."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "user_namespace"))


def _change_mounts(path: str | Path, added: int, cleared: int = 0) -> None:
    """Change the attributes of every mount from here on."""
    change = _MountAttributes(added, cleared, 0, 0)
    size = ctypes.sizeof(change)
    asked(libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), _AT_RECURSIVE, ctypes.byref(change), size))


def close(room: Room) -> None:
    """Close the box behind this process, for good: no capabilities, limits, the filter, and under Landlock the walls.

    Raises:
        OSError: the kernel does not grant it.
    """
    _keep_environment()
    os.environ["TMPDIR"], tempfile.tempdir = str(room.folder), None
    if room.walls is not Walls.NAMESPACES:
        os.environ["HOME"] = str(room.folder)
    os.chdir(room.folder)
    _set_limits(room)
    _drop_capabilities()
    asked(libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    if room.walls is Walls.LANDLOCK:
        landlock.confine([room.folder, *([room.shared] if room.shared else [])])
    seccomp.refuse_system_calls(may_connect=room.shared is not None or room.walls not in _BOXES)


def _keep_environment() -> None:
    """Keep of the environment what programs need to run; tokens, paths of caches and of code to preload go."""
    for name in list(os.environ):
        if name in _WRITTEN or (name not in _KEPT and not name.startswith(_KEPT_PREFIXES)):
            del os.environ[name]


def _set_limits(room: Room) -> None:
    memory = host_memory_bytes() // _SHARE_OF_MEMORY
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: _MOST_FILE_BYTES,
        resource.RLIMIT_NOFILE: _MOST_FILES,
        **({resource.RLIMIT_NPROC: _MOST_PROCESSES} if room.walls is Walls.NAMESPACES else {}),
        **({} if room.is_on_gpu else {resource.RLIMIT_DATA: memory}),
    }
    for kind, most in limits.items():
        _, hard = resource.getrlimit(kind)
        limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (limit, limit))


def _drop_capabilities() -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    asked(libc.capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)())))
    asked(libc.prctl(_SET_DUMPABLE, 1, 0, 0, 0))  # with fewer capabilities its /proc is unreadable
