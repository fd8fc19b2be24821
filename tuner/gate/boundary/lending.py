"""How the bytes of large tensors on a GPU cross the boundary: in memory of the judge's, lent for one message.

The judge allocates it, clears it, and frees it; a sandbox only opens what it is lent, writes or reads there, and closes
it. So nothing of the judge's depends on memory that a file may free, and what a file writes there after its answer is
read by nobody: the judge takes a copy first. Where memory cannot be lent, all bytes go through the connection.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from functools import cache
from multiprocessing.connection import Connection
from types import SimpleNamespace

import torch

_LEAST_BYTES = 4 << 20  # less goes through the connection as quickly
_ALIGNMENT = 512
_BLOCK = 2 << 20  # what the driver maps for another process, whole
_HANDLE_BYTES = 64
_LAZY_PEER_ACCESS = 1


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
        connection.send_bytes(self._told(lent))
        return lent is not None

    @contextlib.contextmanager
    def taken(self, connection: Connection, sizes: Sequence[int]) -> Iterator[list[torch.Tensor] | None]:
        self._end()  # an answer has come: what the question was lent is read
        self._lent = lent = self._lend(sum(map(_rounded, sizes)))
        connection.send_bytes(self._told(lent))
        try:
            if lent is not None:
                connection.recv_bytes(1)
            yield None if lent is None else _pieces(lent.memory, sizes)
        finally:
            self._end()

    def _told(self, lent: _Lent | None) -> bytes:
        return b"" if lent is None else bytes([self._device.index or 0]) + lent.handle

    def _lend(self, size: int) -> _Lent | None:
        if self._device.type != "cuda":
            return None  # a file's message may say what it likes
        try:
            return _Lent(size, self._device)
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
        told = connection.recv_bytes(1 + _HANDLE_BYTES)
        if not told:
            yield None
            return
        device, handle = torch.device("cuda", told[0]), _Handle.from_buffer_copy(told[1:])
        torch.cuda.synchronize(device)  # makes its context the current one
        pointer = ctypes.c_uint64()
        _ask(_driver().cuIpcOpenMemHandle_v2, ctypes.byref(pointer), handle, _LAZY_PEER_ACCESS)
        try:
            yield _pieces(_tensor(pointer.value, sum(map(_rounded, sizes)), device), sizes)
            torch.cuda.synchronize(device)
        finally:
            _ask(_driver().cuIpcCloseMemHandle, pointer)


class _Handle(ctypes.Structure):
    """Passed by value, as the driver wants it."""

    _fields_ = (("reserved", ctypes.c_byte * _HANDLE_BYTES),)


class _Lent:
    """Memory of this process's that another one may open.

    Raises:
        OSError: the driver gives none, or cannot export it here.

    Attributes:
        handle: what the other one opens it by.
        memory: as bytes; cleared, so that nothing of an earlier message is in it.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        torch.cuda.synchronize(device)  # makes its context the current one
        self._pointer = ctypes.c_uint64()
        whole = -(-size // _BLOCK) * _BLOCK
        _ask(_driver().cuMemAlloc_v2, ctypes.byref(self._pointer), ctypes.c_size_t(whole))
        exported = _Handle()
        try:
            _ask(_driver().cuIpcGetMemHandle, ctypes.byref(exported), self._pointer)
        except OSError:
            self.free()
            raise
        self.handle = bytes(exported)
        self.memory = _tensor(self._pointer.value, whole, device).zero_()
        torch.cuda.synchronize(device)

    def free(self) -> None:
        """Give it back; nothing may use `memory` any more."""
        _ask(_driver().cuMemFree_v2, self._pointer)


def _large(here: Sequence[bool], blobs: Sequence[torch.Tensor]) -> list[int]:
    numbers = [number for number, is_here in enumerate(here) if is_here]
    return numbers if sum(blobs[number].nbytes for number in numbers) >= _LEAST_BYTES else []


def _rounded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _room_of(blob: torch.Tensor) -> int:
    return _rounded(blob.nbytes)


def _pieces(memory: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
    pieces, start = [], 0
    for size in sizes:
        pieces.append(memory[start : start + size])
        start += _rounded(size)
    return pieces


def _tensor(pointer: int, size: int, device: torch.device) -> torch.Tensor:
    """Memory at an address, as bytes."""
    interface = {"data": (pointer, False), "shape": (size,), "typestr": "|u1", "version": 2}
    return torch.as_tensor(SimpleNamespace(__cuda_array_interface__=interface), device=device)


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _ask(function: ctypes._NamedFuncPointer, *arguments: object) -> None:
    """Ask the driver for something.

    Raises:
        OSError: it does not do it.
    """
    if status := function(*arguments):
        raise OSError(f"{function.__name__}: CUDA error {status}")
