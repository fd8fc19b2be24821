"""Memory that tells on a kernel: poisoned before each run, guarded on both sides, compared bit by bit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch.overrides import TorchFunctionMode

from tunebench.tuner.gate.dispatch import OperationMode
from tunebench.tuner.gate.values import mapped, tensors_in

SENTINELS = (0xFF, 0x7F)
"""Bytes that memory is filled with before a run: a NaN that no arithmetic makes, and a large finite number."""

BAND_BYTES = 1 << 15
"""Guarded memory on either side of a buffer: a multiple of every alignment that kernels rely on."""

_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@contextmanager
def room_for(size: int, device: torch.device) -> Iterator[None]:
    """Let a block take at most so many bytes of a GPU's memory beside what this process has; more is out of memory."""
    whole = torch.cuda.mem_get_info(device)[1]
    most = min(1.0, (torch.cuda.memory_reserved(device) + size) / whole)
    torch.cuda.set_per_process_memory_fraction(most, device.index)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device.index)


class Bands:
    """Guard bands around buffers: filled with a byte before a run, and still of that byte after it.

    What a kernel reads out of bounds is a NaN in one run and a large number in the next, so that using it shows.
    """

    def __init__(self) -> None:
        self._bands: list[torch.Tensor] = []
        self._byte = SENTINELS[0]

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Uninitialised memory of a tensor's shape, strides and alignment, between two bands."""
        size = tensor.untyped_storage().nbytes()
        start = tensor.storage_offset() * tensor.element_size()
        whole = torch.empty(size + 2 * BAND_BYTES, dtype=torch.uint8, device=tensor.device)
        self._bands += [whole[:BAND_BYTES], whole[BAND_BYTES + size :]]
        for band in self._bands[-2:]:
            band.fill_(self._byte)
        inner = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        offset = (BAND_BYTES + start) // tensor.element_size()
        return inner.set_(whole.untyped_storage(), offset, tensor.size(), tensor.stride())

    def around(self, value: Any) -> Any:
        """A copy of a tensor, or of each within a value, between two bands, with its strides and all the memory that
        they span."""
        if not isinstance(value, torch.Tensor):
            return mapped(value, self.around)
        if value.layout is not torch.strided:
            return value
        guarded = self.like(value)
        _bytes_of(guarded)[BAND_BYTES:-BAND_BYTES].copy_(_bytes_of(value))
        return guarded.requires_grad_(value.requires_grad)

    def take_in(self, tensors: Iterable[torch.Tensor]) -> None:
        """Move tensors between bands; the objects stay what they are."""
        for tensor in tensors:
            tensor.data = self.around(tensor.data)

    def fill(self, byte: int) -> None:
        """Fill every band."""
        self._byte = byte
        for band in self._bands:
            band.fill_(byte)

    @property
    def intact(self) -> bool:
        """Whether every byte of every band is what it was filled with."""
        if not self._bands:
            return True
        return bool(torch.stack([(band == self._byte).all() for band in self._bands]).all())


class _Poison:
    """Fills every tensor that a model allocates without initialising it with one byte, between guard bands.

    An element that a kernel never writes then shows, whatever the allocator handed out before, and so does one that it
    writes out of bounds.

    Attributes:
        bands: around everything that was allocated.
        only_allocates: tensors are real under it, so that kernels, exported ones too, run as they do without.
    """

    only_allocates: ClassVar = True

    def __init__(self, byte: int) -> None:
        super().__init__()
        self.bands = Bands()
        self.bands.fill(byte)
        self._byte = byte

    def _given_out(self, result: torch.Tensor, *, is_own: bool = True) -> torch.Tensor:
        """Poison what was allocated, and where it is the operation's own give out guarded memory in its place."""
        if result.device.type == "meta" or result.layout is not torch.strided:
            return result
        if is_own:
            result = self.bands.like(result).requires_grad_(result.requires_grad)
        _bytes_of(result).fill_(self._byte)
        return result


class PoisonedMemory(_Poison, TorchFunctionMode):
    """Poisons what the model's Python code allocates."""

    _ALLOCATORS = (
        torch.empty,
        torch.empty_like,
        torch.empty_strided,
        torch.empty_permuted,
        torch.Tensor.new_empty,
        torch.Tensor.new_empty_strided,
    )

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation."""
        result = func(*args, **(kwargs or {}))
        if func not in self._ALLOCATORS:
            return result
        return self._given_out(result, is_own=(kwargs or {}).get("out") is None)


class PoisonedAllocations(_Poison, OperationMode):
    """Poisons every allocation that goes through torch's dispatcher, as those of C++ extensions do; kernels of ours do
    without."""

    def run(self, operation: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Run the operation, and poison what it has allocated."""
        before = arguments[0].untyped_storage().nbytes() if operation in _RESIZING else 0
        result = operation(*arguments, **named)
        if operation in _RESIZING:
            _bytes_of(result)[before:].fill_(self._byte)
        allocates = operation in _ALLOCATING and type(result) is torch.Tensor
        return self._given_out(result) if allocates else result


_ALLOCATING = (
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.empty_strided.default,
    torch.ops.aten.empty_permuted.default,
    torch.ops.aten.new_empty.default,
    torch.ops.aten.new_empty_strided.default,
)
_RESIZING = (torch.ops.aten.resize_.default,)


def checksum(tensor: torch.Tensor) -> torch.Tensor:
    """Sums of a tensor's bits along two axes: a tensor that was changed anywhere has another one.

    Two axes, since a plain sum does not see elements that changed places.
    """
    flat = bits(tensor).reshape(-1).contiguous()
    size = flat.element_size()
    if flat.numel() * size % 8 == 0 and flat.storage_offset() * size % 8 == 0:
        flat = flat.view(torch.int64)  # sums of wide numbers take half the time
    columns = 1 << max(0, (flat.numel().bit_length() - 1) // 2)
    whole = flat.numel() // columns * columns
    square = flat[:whole].view(-1, columns)
    return torch.cat([square.sum(0, dtype=torch.int64), square.sum(1, dtype=torch.int64), flat[whole:].long()])


def checksums(values: Iterable[Any]) -> list[torch.Tensor]:
    """The checksum of every tensor among the values and within them."""
    return [checksum(tensor) for tensor in tensors_in(values)]


def all_equal(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> list[bool]:
    """Which pairs are equal bit by bit, asked of the device in one go."""
    if not some:
        return []
    equal = [(bits(one) == bits(other)).all() for one, other in zip(some, others, strict=True)]
    return [bool(value) for value in torch.stack(equal).tolist()]


def synchronise(device: torch.device) -> None:
    """Wait for the device; what a kernel did wrong shows here at the latest."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def shares_memory(tensor: torch.Tensor, values: Iterable[Any]) -> bool:
    """Whether a tensor lives in the memory of one of the values."""
    if not tensor.numel():
        return False
    mine = tensor.untyped_storage().data_ptr()
    return any(mine == other.untyped_storage().data_ptr() for other in tensors_in(values))


def has_elements_of(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have an element in common, unlike two slices of one memory."""
    if not (other.numel() and shares_memory(one, [other])):
        return False
    seen = torch.zeros(one.untyped_storage().nbytes(), dtype=torch.bool, device=one.device)
    _in_bytes(seen, one).fill_(True)
    return bool(_in_bytes(seen, other).any())


def _in_bytes(memory: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """The first bytes of a tensor's elements, in a tensor that has a place for each byte of its memory."""
    size = tensor.element_size()
    return memory.as_strided(tensor.shape, [step * size for step in tensor.stride()], tensor.storage_offset() * size)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's bits as integers; complex numbers as pairs."""
    told = tensor.detach().resolve_conj().resolve_neg()
    real = torch.view_as_real(told) if told.is_complex() else told
    return real.view(_INTEGER_OF_SIZE[real.element_size()])


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are equal bit by bit."""
    return torch.equal(bits(one), bits(other))


def count_untouched(runs: Sequence[torch.Tensor], bytes_: Sequence[int]) -> int:
    """Elements that in every run still hold the byte that memory was filled with before that run."""
    untouched = torch.stack([(bits(run) == _pattern(run, byte)) for run, byte in zip(runs, bytes_, strict=True)])
    return int(untouched.all(dim=0).sum())


def _pattern(tensor: torch.Tensor, byte: int) -> int:
    size = bits(tensor).element_size()
    return int.from_bytes(bytes([byte] * size), "little", signed=size > 1)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """All of the memory that a tensor lives in."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
