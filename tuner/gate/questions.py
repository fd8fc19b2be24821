"""Questions to a module that take many calls, and the numbers that it holds as plain attributes."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import inspect
import io
import pickle
import random
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from tunebench.tuner.gate.faults import FAILURES
from tunebench.tuner.gate.memory import same_bits, shares_memory
from tunebench.tuner.gate.values import Values, cloned

Call = Callable[[Sequence[Any]], object]
"""One call of a module on these inputs."""

Setting = int | float | tuple[int, ...]
_ARGUMENTS = (bool, int, float, str, tuple)

Settings = Mapping[str, Setting]
"""Numbers and tuples of whole numbers that a module and its parts hold, by dotted name."""

_MOST_HELD_BYTES = 1 << 28
_SWITCH_SECONDS = 1e-5
_MOST_TURNS = 64
LEAK_BYTES = 1024
"""For each call, that are still in use after it: less is what any program's memory moves by."""
_WARMING = 8


def held_and_changed(call: Call, turns: Sequence[Sequence[Any]], count: int) -> int:
    """Hold the outputs of so many calls, or of as many as there is room for; how many of them changed later.

    Not those that are memory of an input, which the caller has given twice. Which inputs come next is drawn, so that
    memory which is used again gets other values, after however many calls.
    """
    draw = random.Random(0)
    held: list[torch.Tensor] = []
    copies: list[torch.Tensor] = []
    size = 0
    for _ in range(count):
        inputs = draw.choice(turns)
        outputs = [output for output in _tensors(call(inputs)) if not shares_memory(output, inputs)]
        held += outputs
        copies += [output.clone() for output in outputs]
        size += sum(output.nbytes for output in outputs)
        if size > _MOST_HELD_BYTES:
            break
    return sum(not same_bits(one, copy) for one, copy in zip(held, copies, strict=True))


def outputs_in_turns(call: Call, turns: Sequence[Sequence[Any]], count: int) -> list[list[object]]:
    """Return the outputs of `count` calls on inputs that take turns, by the inputs; of those equal bit by bit only the
    first."""
    found = [Distinct() for _ in turns]
    for number in range(count):
        found[number % len(turns)].add(call(cloned(turns[number % len(turns)])))
    return [outputs.all() for outputs in found]


def outputs_at_once(call: Call, turns: Sequence[Sequence[Any]], count: int) -> list[list[object]]:
    """Return a thread's outputs for each turn, of `count` calls or more; of those equal bit by bit only the first."""
    found = [Distinct() for _ in turns]
    raised: list[BaseException] = []
    start = threading.Barrier(len(turns))
    width = torch.get_num_threads()

    def work(number: int) -> None:
        torch.set_num_threads(width)  # it is each thread's own
        start.wait()
        try:
            with torch.no_grad():
                # Until every thread has had its calls: one may have slept through another's.
                while len(found[number]) < count or (
                    len(found[number]) < _MOST_TURNS * count and min(map(len, found)) < count and not raised
                ):
                    found[number].add(call(cloned(turns[number])))
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that asked
            raised.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(turns))]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if raised:
        raise raised[0]
    return [outputs.all() for outputs in found]


class Distinct:
    """The outputs of calls; of those that are equal bit by bit the first.

    They are compared when there are enough of them to matter, so that callers of small modules are not held up between
    two calls, and results of gigabytes fit into memory.
    """

    def __init__(self) -> None:
        self._kept: list[object] = []
        self._new: list[object] = []
        self._bytes = 0
        self._count = 0

    def __len__(self) -> int:
        """How many were added."""
        return self._count

    def add(self, output: object) -> None:
        """One more."""
        self._new.append(output)
        self._count += 1
        self._bytes += sum(tensor.nbytes for tensor in _tensors(output))
        if self._bytes > _MOST_HELD_BYTES:
            self._compare()

    def all(self) -> list[object]:
        """The different ones."""
        self._compare()
        return self._kept

    def _compare(self) -> None:
        for output in self._new:
            if not any(_same(output, other) for other in self._kept):
                self._kept.append(output)
        self._new, self._bytes = [], 0


def _same(one: object, other: object) -> bool:
    mine, theirs = _tensors(one), _tensors(other)
    return len(mine) == len(theirs) and all(
        a.shape == b.shape and a.dtype == b.dtype and same_bits(a, b) for a, b in zip(mine, theirs, strict=True)
    )


def bytes_left_behind(call: Call, turns: Sequence[Sequence[Any]], count: int, device: torch.device) -> int | None:
    """Bytes of memory that each of so many calls leaves behind; None where the system does not say.

    Each call has new inputs. Counted is what both halves of the calls leave, so that a cache that fills once is not;
    what only Python's collector lets go of is not left behind.
    """
    gc.collect()  # what others have left to it would hide as much, if it were let go of meanwhile
    levels = [_level(call, turns, number, device) for number in (_WARMING, count // 2, count // 2)]
    if (left := _steady(levels, count)) is not None and left >= LEAK_BYTES:
        levels = [_level(call, turns, number, device, collects=True) for number in (0, count // 2, count // 2)]
        left = _steady(levels, count)
    return left


def _level(
    call: Call, turns: Sequence[Sequence[Any]], number: int, device: torch.device, *, collects: bool = False
) -> int | None:
    """Bytes in use after so many calls."""
    for position in range(number):
        call(cloned(turns[position % len(turns)]))
    if collects:
        gc.collect()
    return _bytes_in_use(device)


def _steady(levels: Sequence[int | None], count: int) -> int | None:
    first, second, third = levels
    if first is None or second is None or third is None:
        return None
    return max(0, min(second - first, third - second)) // (count // 2)


_MALLOC_FIELDS = (
    "arena",
    "ordblks",
    "smblks",
    "hblks",
    "hblkhd",
    "usmblks",
    "fsmblks",
    "uordblks",
    "fordblks",
    "keepcost",
)


class _MallocInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _MALLOC_FIELDS)
    hblkhd: int
    uordblks: int


def _bytes_in_use(device: torch.device) -> int | None:
    """Return the bytes in use, on a GPU those of torch's allocator, else malloc's; None where it cannot tell."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return torch.cuda.memory_allocated(device)
    told = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if told is None:
        return None
    told.restype = _MallocInfo
    info: _MallocInfo = told()
    return info.uordblks + info.hblkhd


def saved_and_loaded(module: nn.Module) -> nn.Module:
    """Return what `torch.load` makes of what `torch.save` writes of a module.

    Its classes are found where its file would be imported from: the file was run without that.

    Raises:
        TypeError: it cannot be pickled.
    """
    stream = io.BytesIO()
    with _importable([type(part) for part in module.modules()]):
        try:
            torch.save(module, stream)
        except pickle.PickleError as error:
            raise TypeError(str(error)) from error
        stream.seek(0)
        loaded: nn.Module = torch.load(stream, weights_only=False)
    return loaded


@contextlib.contextmanager
def _importable(classes: Sequence[type]) -> Iterator[None]:
    """Have the modules that define these classes among those that are imported."""
    added: dict[str, types.ModuleType] = {}
    for one in classes:
        if one.__module__ in sys.modules:
            continue
        module = added.setdefault(one.__module__, types.ModuleType(one.__module__))
        for function in vars(one).values():
            if isinstance(function, types.FunctionType):
                vars(module).update(function.__globals__)
    for one in classes:
        if one.__module__ in added:
            setattr(added[one.__module__], one.__qualname__, one)
    sys.modules.update(added)
    try:
        yield
    finally:
        for name in added:
            del sys.modules[name]


def is_setting(value: object) -> bool:
    """Whether a value can be one of `Settings`."""
    return type(value) in (int, float) or (type(value) is tuple and all(type(number) is int for number in value))


def settings_of(module: nn.Module) -> dict[str, Setting]:
    """Numbers that a module and its parts hold as plain attributes, such as `norm.eps`, and tuples of them, such as
    `conv.stride`: of the module itself, whose whole numbers say how it is built, those with a point only."""
    return {
        f"{path}.{name}" if path else name: value
        for path, part in module.named_modules()
        for name, value in _plain_of(part).items()
        if type(value) is float or path
    }


def _plain_of(part: nn.Module) -> dict[str, Setting]:
    return {name: value for name, value in vars(part).items() if not name.startswith("_") and is_setting(value)}


def could_hold(module: nn.Module, name: str, value: Setting) -> bool:
    """Say whether a module's part could have been made with another value of one of `settings_of`.

    With any number that has a point. With whole numbers where the part's constructor takes them by that name, and they
    change nothing else: else the part would be one that no program has, such as a stride beside the padding of another.
    """
    if isinstance(value, float):
        return True
    path, _, attribute = name.rpartition(".")
    part = module.get_submodule(path)
    try:
        taken = inspect.signature(type(part)).parameters
        given = {key: held for key, held in vars(part).items() if key in taken and isinstance(held, _ARGUMENTS)}
        with torch.device("meta"):
            now, other = type(part)(**given), type(part)(**{**given, attribute: value})
    except FAILURES:
        return False
    return attribute in taken and {**_plain_of(now), attribute: value} == _plain_of(other)


def set_setting(module: nn.Module, name: str, value: Setting) -> None:
    """Give one of `settings_of` another value."""
    path, _, attribute = name.rpartition(".")
    setattr(module.get_submodule(path), attribute, value)


def _tensors(output: object) -> list[torch.Tensor]:
    return list(Values.of(output).tensors.values())
