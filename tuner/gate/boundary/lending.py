"""How the bytes of large tensors on a GPU cross the boundary: in memory of the judge's, lent for one message.

The judge allocates it, clears it, and frees it; a sandbox only opens what it is lent, writes or reads there, and closes
it. So nothing of the judge's depends on memory that a file may free, and what a file writes there after its answer is
read by nobody: the judge takes a copy first. Where memory cannot be lent, all bytes go through the connection.

The memory travels as a file descriptor (the CUDA driver's virtual memory management): the older handles of
`cuIpcGetMemHandle` are opened within one namespace alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
from collections.abc import Iterator, Sequence
from functools import cache
from multiprocessing import reduction
from multiprocessing.connection import Connection
from types import SimpleNamespace

import torch

_LEAST_BYTES = 4 << 20  # less goes through the connection as quickly
_ALIGNMENT = 512
_BLOCK = 2 << 20  # what the driver maps, whole
_OWN_MEMORY, _ON_DEVICE, _BY_DESCRIPTOR, _READ_AND_WRITE = 1, 1, 1, 3  # of CUDA's `CUmem…` enumerations
_NO_FLAGS = ctypes.c_ulonglong(0)


class Passage:
    """How the bytes of a message's tensors cross; this one has nothing but the connection."""

    def chosen(self, blobs: Sequence[torch.Tensor]) -> list[int]:  # noqa: ARG002
        """The numbers of those that should cross in lent memory."""
        return []

    def put(self, connection: Connection, blobs: Sequence[torch.Tensor]) -> bool:  # noqa: ARG002
        """Have them cross in lent memory; whether they did."""
        return False

    @contextlib.contextmanager
    def taken(self, connection: Connection, sizes: Sequence[int]) -> Iterator[list[torch.Tensor] | None]:  # noqa: ARG002
        """Yield the tensors that cross in lent memory, one for each size in bytes; None where none can."""
        yield None


class Lending(Passage):
    """The judge's side.

    Args:
        device: whose memory is lent; nothing is where it is no GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lent: _Lent | None = None

    def chosen(self, blobs: Sequence[torch.Tensor]) -> list[int]:
        return _large([blob.device == self._device for blob in blobs], blobs) if self._device.type == "cuda" else []

    def put(self, connection: Connection, blobs: Sequence[torch.Tensor]) -> bool:
        self._end()
        self._lent = lent = self._lend(sum(map(_room_of, blobs)))
        if lent is not None:
            for piece, blob in zip(_pieces(lent.memory, [blob.nbytes for blob in blobs]), blobs, strict=True):
                piece.copy_(blob)
            torch.cuda.synchronize(self._device)
        self._tell(connection, lent)
        return lent is not None

    @contextlib.contextmanager
    def taken(self, connection: Connection, sizes: Sequence[int]) -> Iterator[list[torch.Tensor] | None]:
        self._end()  # an answer has come: what the question was lent is read
        self._lent = lent = self._lend(sum(map(_rounded, sizes)))
        self._tell(connection, lent)
        try:
            if lent is not None:
                connection.recv_bytes(1)
            yield None if lent is None else _pieces(lent.memory, sizes)
        finally:
            self._end()

    def _tell(self, connection: Connection, lent: _Lent | None) -> None:
        """Send the memory's device and descriptor; an empty message where there is none."""
        connection.send_bytes(b"" if lent is None else bytes([self._device.index or 0]))
        if lent is not None:
            lent.send_on(connection)

    def _lend(self, size: int) -> _Lent | None:
        if self._device.type != "cuda":
            return None  # a file's message may say what it likes
        try:
            return _Lent(_whole_blocks(size), self._device)
        except OSError:
            return None

    def _end(self) -> None:
        if self._lent is not None:
            torch.cuda.synchronize(self._device)
            self._lent.free()
            self._lent = None


class Borrowing(Passage):
    """The side of the process that runs a file."""

    def chosen(self, blobs: Sequence[torch.Tensor]) -> list[int]:
        first = next((blob.device for blob in blobs if blob.is_cuda), None)
        return [] if first is None else _large([blob.device == first for blob in blobs], blobs)

    def put(self, connection: Connection, blobs: Sequence[torch.Tensor]) -> bool:
        with self.taken(connection, [blob.nbytes for blob in blobs]) as pieces:
            if pieces is None:
                return False
            for piece, blob in zip(pieces, blobs, strict=True):
                piece.copy_(blob)
        connection.send_bytes(b".")
        return True

    @contextlib.contextmanager
    def taken(self, connection: Connection, sizes: Sequence[int]) -> Iterator[list[torch.Tensor] | None]:
        told = connection.recv_bytes(1)
        if not told:
            yield None
            return
        with socket.socket(fileno=os.dup(connection.fileno())) as passed:
            (descriptor,) = reduction.recvfds(passed, 1)
        device = torch.device("cuda", told[0])
        borrowed = _Mapped(_imported(descriptor, device), _whole_blocks(sum(map(_rounded, sizes))), device)
        try:
            yield _pieces(borrowed.memory, sizes)
            torch.cuda.synchronize(device)
        finally:
            borrowed.free()


class _Location(ctypes.Structure):
    """CUDA's `CUmemLocation`."""

    _fields_ = (("kind", ctypes.c_int), ("number", ctypes.c_int))


class _Properties(ctypes.Structure):
    """CUDA's `CUmemAllocationProp`."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("exported_as", ctypes.c_int),
        ("location", _Location),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    """CUDA's `CUmemAccessDesc`."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class _Mapped:
    """Memory of a device, allocated here or by another process, at addresses of this one.

    Args:
        allocation: the driver's number for it, which is let go of.
        size: in bytes, whole blocks.

    Raises:
        OSError: the driver does not map it.

    Attributes:
        memory: as bytes.
    """

    def __init__(self, allocation: ctypes.c_uint64, size: int, device: torch.device) -> None:
        self._freeing = contextlib.ExitStack()
        with self._freeing:
            self._freeing.callback(_ask, "cuMemRelease", allocation)
            pointer, whole = ctypes.c_uint64(), ctypes.c_size_t(size)
            _ask("cuMemAddressReserve", ctypes.byref(pointer), whole, ctypes.c_size_t(0), ctypes.c_uint64(), _NO_FLAGS)
            self._freeing.callback(_ask, "cuMemAddressFree", pointer, whole)
            _ask("cuMemMap", pointer, whole, ctypes.c_size_t(0), allocation, _NO_FLAGS)
            self._freeing.callback(_ask, "cuMemUnmap", pointer, whole)
            access = _Access(_Location(_ON_DEVICE, device.index or 0), _READ_AND_WRITE)
            _ask("cuMemSetAccess", pointer, whole, ctypes.byref(access), ctypes.c_size_t(1))
            interface = {"data": (pointer.value, False), "shape": (size,), "typestr": "|u1", "version": 2}
            self.memory = torch.as_tensor(SimpleNamespace(__cuda_array_interface__=interface), device=device)
            self._freeing = self._freeing.pop_all()

    def free(self) -> None:
        """Give it back; nothing may use `memory` any more."""
        self._freeing.close()


class _Lent(_Mapped):
    """Memory of this process's, cleared, that another one may open.

    Raises:
        OSError: the driver gives none, or cannot export it here.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        torch.cuda.synchronize(device)  # makes its context the current one
        properties = _Properties(_OWN_MEMORY, _BY_DESCRIPTOR, _Location(_ON_DEVICE, device.index or 0))
        allocation = ctypes.c_uint64()
        _ask("cuMemCreate", ctypes.byref(allocation), ctypes.c_size_t(size), ctypes.byref(properties), _NO_FLAGS)
        super().__init__(allocation, size, device)
        descriptor = ctypes.c_int()
        try:
            _ask("cuMemExportToShareableHandle", ctypes.byref(descriptor), allocation, _BY_DESCRIPTOR, _NO_FLAGS)
        except OSError:
            self.free()
            raise
        self._descriptor = descriptor.value
        self.memory.zero_()
        torch.cuda.synchronize(device)

    def send_on(self, connection: Connection) -> None:
        """Let whoever is at the other end open it, once."""
        try:
            with socket.socket(fileno=os.dup(connection.fileno())) as passing:
                reduction.sendfds(passing, [self._descriptor])
        finally:
            os.close(self._descriptor)


def _imported(descriptor: int, device: torch.device) -> ctypes.c_uint64:
    """Return the driver's number for memory of another process; the descriptor is closed."""
    torch.cuda.synchronize(device)  # makes its context the current one
    allocation = ctypes.c_uint64()
    try:
        _ask(
            "cuMemImportFromShareableHandle",
            ctypes.byref(allocation),
            ctypes.c_void_p(descriptor),
            _BY_DESCRIPTOR,
        )
    finally:
        os.close(descriptor)
    return allocation


def _large(here: Sequence[bool], blobs: Sequence[torch.Tensor]) -> list[int]:
    numbers = [number for number, is_here in enumerate(here) if is_here]
    return numbers if sum(blobs[number].nbytes for number in numbers) >= _LEAST_BYTES else []


def _rounded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _whole_blocks(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _room_of(blob: torch.Tensor) -> int:
    return _rounded(blob.nbytes)


def _pieces(memory: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
    pieces, start = [], 0
    for size in sizes:
        pieces.append(memory[start : start + size])
        start += _rounded(size)
    return pieces


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _ask(function: str, *arguments: object) -> None:
    """Ask the driver for something.

    Raises:
        OSError: it does not do it.
    """
    if status := getattr(_driver(), function)(*arguments):
        raise OSError(f"{function}: CUDA error {status}")
