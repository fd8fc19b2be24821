"""Messages across the boundary: one JSON text and the bytes of the tensors in it. Nothing is unpickled.

The bytes go through the connection, those of large tensors on a GPU through memory that the judge lends. A value is
None, a bool, a number, a text, a tensor, a dtype, or a tuple, list or dictionary by text of such values. A message is
read by whoever expects a hostile writer: every tensor must lie within the bytes that came with it, and there is a limit
to how many bytes come.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Self

import torch

from tunebench.tuner.errors import TunebenchError
from tunebench.tuner.gate.boundary.lending import Passage

_MOST_TEXT = 1 << 22
_MOST_DIMENSIONS = 64
_MOST_OFFSET = 1 << 12  # a multiple of every alignment that kernels rely on
_DTYPES = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
_CONNECTION = Passage()
_PLAIN = (bool, int, float, str)


class WireError(TunebenchError):
    """A value that cannot cross, or a message that is none."""


def send(connection: Connection, value: object, passage: Passage = _CONNECTION) -> None:
    """Send one value.

    Raises:
        WireError: it has a part that cannot cross; nothing was sent.
        OSError: the other side is gone.
    """
    blobs: list[torch.Tensor] = []
    content = _packed(value, blobs)
    lent = passage.chosen(blobs)
    text = json.dumps([content, [blob.nbytes for blob in blobs], lent]).encode()
    if len(text) > _MOST_TEXT:
        raise WireError(f"a message of {len(text)} bytes beside its tensors is too long")
    if lent:
        torch.cuda.synchronize(blobs[lent[0]].device)  # what a kernel did wrong shows before anything is sent
    blobs = [blob if number in lent else blob.cpu() for number, blob in enumerate(blobs)]
    connection.send_bytes(text)
    if lent and passage.put(connection, [blobs[number] for number in lent]):
        blobs = [blob for number, blob in enumerate(blobs) if number not in lent]
    for blob in blobs:
        connection.send_bytes(blob.cpu().numpy().data)


@dataclass(frozen=True)
class Kept:
    """A value as it crosses, kept on this side: whoever takes it gets one of their own.

    Attributes:
        nbytes: of its tensors.
    """

    content: Any
    blobs: Sequence[torch.Tensor]
    nbytes: int

    @classmethod
    def of(cls, value: object, most_bytes: int) -> Self | None:
        """Keep a copy of a value; None where its tensors have more bytes."""
        blobs: list[torch.Tensor] = []
        content = _packed(value, blobs)
        nbytes = sum(blob.nbytes for blob in blobs)
        return None if nbytes > most_bytes else cls(content, [blob.clone() for blob in blobs], nbytes)

    def value(self) -> Any:
        """Return the value, in memory of its own."""
        return _unpacked(self.content, self.blobs, sys.maxsize)


def digest(value: object, most_bytes: int) -> bytes | None:
    """Return what tells a value from every other one; None where its tensors have more bytes.

    Raises:
        WireError: it has a part that cannot cross.
    """
    blobs: list[torch.Tensor] = []
    found = hashlib.blake2b(json.dumps(_packed(value, blobs)).encode(), digest_size=16)
    if sum(blob.nbytes for blob in blobs) > most_bytes:
        return None
    for blob in blobs:
        found.update(blob.cpu().numpy().data)
    return found.digest()


def receive(connection: Connection, most_bytes: int, passage: Passage = _CONNECTION) -> Any:
    """The next value; its tensors are on the devices that they were on.

    Args:
        most_bytes: of all its tensors.

    Raises:
        WireError: it is no value, or too large.
        EOFError, OSError: the other side is gone.
    """
    try:
        content, sizes, lent = json.loads(connection.recv_bytes(_MOST_TEXT))
        if not all(type(size) is int and size >= 0 for size in sizes) or sum(sizes) > most_bytes:
            raise WireError(f"an answer is larger than {most_bytes} bytes")
        if not lent:
            return _unpacked(content, [_read(connection, size) for size in sizes], most_bytes)
        with passage.taken(connection, [sizes[number] for number in lent]) as pieces:
            taken = {} if pieces is None else dict(zip(lent, pieces, strict=True))
            blobs = [taken[number] if number in taken else _read(connection, size) for number, size in enumerate(sizes)]
            return _unpacked(content, blobs, most_bytes)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, RuntimeError, OverflowError) as error:
        raise WireError(f"an answer that cannot be read: {type(error).__name__}") from error


def _read(connection: Connection, size: int) -> torch.Tensor:
    blob = connection.recv_bytes(size)
    if len(blob) != size:
        raise WireError("an answer is not what it says")
    return torch.frombuffer(bytearray(blob), dtype=torch.uint8) if blob else torch.empty(0, dtype=torch.uint8)


def _packed(value: object, blobs: list[torch.Tensor]) -> Any:
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        return _packed_tensor(value.detach().resolve_conj().resolve_neg(), value.requires_grad, blobs)
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, tuple | list):
        items = [_packed(item, blobs) for item in value]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, Mapping) and all(type(key) is str for key in value):
        return {"map": [[key, _packed(item, blobs)] for key, item in value.items()]}
    raise WireError(f"a value of type {type(value).__name__} cannot be passed on: pass tensors, numbers and texts")


def _packed_tensor(tensor: torch.Tensor, requires_grad: bool, blobs: list[torch.Tensor]) -> Any:
    """The memory that the elements span, and where in it they lie; the offset keeps the alignment."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        what = "a quantized tensor" if tensor.is_quantized else f"a tensor of layout {tensor.layout}"
        raise WireError(f"{what} cannot be passed on")
    if tensor.is_meta:
        raise WireError("a tensor without memory cannot be passed on")
    span = _span(tensor.shape, tensor.stride())
    flat = tensor.as_strided((span,), (1,)) if span else tensor.new_empty(0)
    blobs.append(flat.contiguous().view(torch.uint8) if span else flat.cpu().to(torch.uint8))
    return {
        "tensor": len(blobs) - 1,
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "offset": tensor.storage_offset() % _MOST_OFFSET,
        "device": str(tensor.device),
        "grad": requires_grad,
    }


def _span(shape: Sequence[int], stride: Sequence[int]) -> int:
    """The elements from the first to the last one."""
    if any(size == 0 for size in shape):
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def _unpacked(content: Any, blobs: Sequence[torch.Tensor], most_bytes: int) -> Any:
    if content is None or type(content) in _PLAIN:
        return content
    if isinstance(content, list):
        return [_unpacked(item, blobs, most_bytes) for item in content]
    if "tensor" in content:
        return _unpacked_tensor(content, blobs, most_bytes)
    if "dtype" in content:
        return _DTYPES[content["dtype"]]
    if "tuple" in content:
        return tuple(_unpacked(item, blobs, most_bytes) for item in content["tuple"])
    return {str(key): _unpacked(item, blobs, most_bytes) for key, item in content["map"]}


def _unpacked_tensor(content: Mapping[str, Any], blobs: Sequence[torch.Tensor], most_bytes: int) -> torch.Tensor:
    dtype, shape, stride, offset = (_DTYPES[content["dtype"]], content["shape"], content["stride"], content["offset"])
    blob, device = blobs[content["tensor"]], torch.device(content["device"])
    numbers = [*shape, *stride, offset]
    if (
        len(shape) != len(stride)
        or len(shape) > _MOST_DIMENSIONS
        or not all(type(n) is int and n >= 0 for n in numbers)
    ):
        raise WireError("a tensor whose shape is none")
    span, size = _span(shape, stride), dtype.itemsize
    if span * size != len(blob) or offset >= _MOST_OFFSET:
        raise WireError("a tensor that does not lie in its bytes")
    if math.prod(shape) * size > most_bytes:  # one element may stand for any number of them
        raise WireError(f"an answer is larger than {most_bytes} bytes")
    memory = torch.empty(offset * size + len(blob), dtype=torch.uint8, device=device)
    memory[offset * size :].copy_(blob)
    whole = torch.empty(0, dtype=dtype, device=device)
    tensor = whole.set_(memory.untyped_storage(), offset, tuple(shape), tuple(stride))
    return tensor.requires_grad_(bool(content["grad"])) if tensor.is_floating_point() else tensor
