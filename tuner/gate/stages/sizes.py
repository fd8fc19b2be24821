"""Stages about sizes: around the problem, size 1, size 0, and more elements than an int counts."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tunebench.tuner.gate.answers import Pair
from tunebench.tuner.gate.draw import Draw
from tunebench.tuner.gate.effort import Limit
from tunebench.tuner.gate.faults import FAILURES
from tunebench.tuner.gate.harness import Harness
from tunebench.tuner.gate.model import CallOptions, Model
from tunebench.tuner.gate.stage_log import StageRefused
from tunebench.tuner.users_code import described

_TOGETHER = ((1,), (5, 7, 9, 11), (23, 25, 27, 29, 31))
"""Sizes for all of the file's numbers at once; of each group one is drawn."""
_MOST_ELEMENTS = 1 << 20  # of the inputs of one call of `batches`
_MOST_AXES = 3
_MOST_PARTED = 48  # of sets of axes that the reference is asked about
_FAR = 2049  # beyond the threads of a block, and what is kept in a table of that many; or a little more
_MOST_ELEMENTS_FAR = 1 << 16
_MOST_MADE, _SECONDS, _TIMES = 1 << 24, 3.0, 4
"""Elements and seconds that the reference may take for a call of `sizes`, or so many times what it takes at the sizes
of other stages; and as many times the seconds for all calls that take too long."""
_EVERYTHING = 1 << 62
_MOST_INT = 2**31
_LARGE_COPIES = 12  # of the large tensor in float32: in and out, in float64 as well, and what comparing takes


def sizes(harness: Harness) -> None:
    """Every size of the reference's file by itself: 0, 1, a prime, a little more; then all of them together.

    Other constants of the file, such as a scale, take another value as well. A size at which the reference would take
    too much is passed over: numbers that are multiplied grow fast together.
    """
    source, started = harness.base, time.perf_counter()
    usual = harness.answers.effort(source, {}, Limit(_EVERYTHING, _SECONDS)) or 0
    seconds = max(_SECONDS, _TIMES * (time.perf_counter() - started))
    limit, left = Limit(max(_MOST_MADE, _TIMES * usual), seconds), _TIMES * seconds
    varied = False
    for changes in _sweep(source.sizes, harness.draw):
        if left <= 0:
            harness.pass_over("the reference has taken too long at others")
            continue
        started = time.perf_counter()
        harness.now(_told(harness, changes))
        if harness.answers.effort(source, changes, limit, usual) is None:
            left -= time.perf_counter() - started
            harness.pass_over("the reference would make too much there, or take too long")
            continue
        varied |= _ask(harness, changes)
    if source.sizes and not varied:
        harness.leave_out("the reference's file takes no other sizes")


def _sweep(base: Mapping[str, int | float], draw: Draw) -> Iterator[dict[str, int | float]]:
    whole = [name for name, size in base.items() if isinstance(size, int)]
    for name in draw.shuffled("sizes", whole):
        size = int(base[name])
        more = size + 1 + 2 * draw.within(f"more than {name}", 0, 3)
        for other in sorted({0, 1, more, _prime_below(size)} - {size}):
            yield {name: other}
    for sizes in _TOGETHER if whole else ():
        yield dict.fromkeys(whole, draw.shuffled(f"all of {sizes}", sizes)[0])
    for name, value in base.items():
        if isinstance(value, float):
            yield {name: draw.factor(name) * value + 0.375}


def _ask(harness: Harness, changes: Mapping[str, int | float]) -> bool:
    label = _told(harness, changes)
    source = harness.answers.at({**harness.base.sizes, **changes})
    if source is None:
        harness.pass_over("the reference's file refuses such sizes")
        return False
    harness.sizes_met.append(source)
    try:
        pair = harness.pair(source)
    except StageRefused as refusal:
        raise StageRefused(f"{label}: {refusal}") from refusal
    return harness.agree(pair, pair.inputs(1), label) is not None


def _told(harness: Harness, changes: Mapping[str, int | float]) -> str:
    return ", ".join(f"{name}={value:g}{_whose(harness, name)}" for name, value in changes.items())


def _whose(harness: Harness, name: str) -> str:
    """Say which axes of the inputs have a size without a name of its own."""
    size, drawn = harness.base.sizes[name], harness.answers.draws(harness.base)[0]
    if not name.startswith("the number ") or not isinstance(size, int):
        return ""
    numbered = [f"input {number}" for number in range(1, len(drawn) + 1)]
    told = _Resizing(size).told(drawn, numbered)
    return f" ({told})" if told else ""


def batches(harness: Harness) -> None:
    """One model, called at several sizes in turn: what it keeps of the first shape it has met is wrong for the next.

    The sizes are taken from the inputs themselves: first the leading one, then every other that they have.
    """
    pair = harness.pair()
    inputs = pair.inputs(1)
    shapes = [value.shape for value in inputs if isinstance(value, torch.Tensor) and value.dim()]
    if not shapes or not all(math.prod(shape) for shape in shapes):
        harness.pass_over("no input has a size")
        return
    batch = shapes[0][0]
    room = batch * _MOST_ELEMENTS // sum(math.prod(shape) for shape in shapes)
    first = max(1, min(batch, (room - 3) // 4))
    names, varied = pair.names(inputs), False

    def ask(pair: Pair, way: _Resizing, size: int, again: str = "") -> Pair:
        """Ask about inputs of another size; return the pair to go on with."""
        nonlocal varied
        label = f"inputs with {size} in place of {way.old} ({way.told(inputs, names)}) {again}".rstrip()
        answered = harness.agree(pair, harness.in_form(pair, way.of(inputs, size)), label) is not None
        varied |= answered and size != way.old
        return pair if answered else harness.pair()  # a call that the reference refuses may have moved its buffers

    # The axis in front, or all of that size, such as the rows of one input and the columns of another.
    ways = (_Resizing(batch, leading=True), _Resizing(batch))
    way = next((way for way in ways if _takes(pair.twin(), way.of(inputs, batch + 1))), ways[0])
    for size in dict.fromkeys((first, (first + 1) // 2, first + 1, 2 * first, 4 * first + 3)):
        pair = ask(pair, way, size)
    pair = ask(pair, way, first, "again")
    others = [size for size in dict.fromkeys(itertools.chain(*shapes)) if size not in (1, batch)]
    for old in others[:_MOST_AXES]:
        for size in (old + 1, _prime_below(old), *([4 * old + 3] if room >= 4 * batch else [])):
            pair = ask(pair, _Resizing(old), size)
    row = shapes[0][-1]
    far = _FAR + 2 * harness.draw.within("far", 0, 31)
    if row in others and sum(math.prod(far if size == row else size for size in shape) for shape in shapes) <= (
        _MOST_ELEMENTS_FAR
    ):
        pair = ask(pair, _Resizing(row), far)
    for way in _parted(pair.twin(), inputs):
        pair = ask(pair, way, way.old + 1)
    if not varied:
        harness.leave_out("the reference takes its inputs at no other size")


_Place = tuple[int, int]
"""The number of an input, and an axis of it."""


@dataclass(frozen=True)
class _Resizing:
    """Which axes of inputs get another size: all of one size, of these the leading ones only, or these places."""

    old: int
    leading: bool = False
    only: frozenset[_Place] | None = None

    def places(self, inputs: Sequence[Any]) -> list[_Place]:
        """Return the places that change."""
        return [
            (number, axis)
            for number, value in enumerate(inputs)
            if isinstance(value, torch.Tensor)
            for axis, size in enumerate(value.shape)
            if size == self.old and not (self.leading and axis) and (self.only is None or (number, axis) in self.only)
        ]

    def told(self, inputs: Sequence[Any], names: Sequence[str]) -> str:
        """Return the places for people, such as `axis 0 of x`."""
        return ", ".join(f"axis {axis} of {names[number]}" for number, axis in self.places(inputs))

    def of(self, inputs: Sequence[Any], new: int) -> tuple[Any, ...]:
        """Inputs with another size there, filled with elements of their own."""
        axes: dict[int, list[int]] = {}
        for number, axis in self.places(inputs):
            axes.setdefault(number, []).append(axis)
        return tuple(
            self._resized(value, axes[number], new, number) if number in axes else value
            for number, value in enumerate(inputs)
        )

    def _resized(self, value: torch.Tensor, axes: Sequence[int], new: int, seed: int) -> torch.Tensor:
        if value.is_floating_point() or value.is_complex():
            generator = torch.Generator(value.device).manual_seed(seed)
            shape = [new if n in axes else size for n, size in enumerate(value.shape)]
            picks = torch.randint(value.numel(), shape, generator=generator, device=value.device)
            return value.flatten()[picks]
        for axis in axes:  # in their order: they may be sorted, or count something
            value = value.index_select(axis, torch.arange(new, device=value.device) % self.old)
        return value


def _parted(reference: Model, inputs: Sequence[Any]) -> Iterator[_Resizing]:
    """Yield the fewest axes of one size that the reference takes at another, beside others that are as large by chance,
    as the queries of an attention may be as many as its keys."""
    sizes = dict.fromkeys(size for value in inputs if isinstance(value, torch.Tensor) for size in value.shape)
    left = _MOST_PARTED
    for old in sizes:
        places = _Resizing(old).places(inputs)
        taken: list[set[_Place]] = []
        subsets = (set(some) for count in range(1, len(places)) for some in itertools.combinations(places, count))
        for some in subsets if old > 1 else ():
            way = _Resizing(old, only=frozenset(some))
            if left <= 0 or way.only == frozenset(_Resizing(old, leading=True).places(inputs)):
                continue
            if not any(some >= fewer for fewer in taken):
                left -= 1
                if _takes(reference, way.of(inputs, old + 1)):
                    taken.append(some)
                    yield way


def _takes(reference: Model, inputs: tuple[Any, ...]) -> bool:
    try:
        reference.call(inputs, CallOptions(byte=None, guarded=False))
    except FAILURES:
        return False
    return True


def _prime_below(size: int) -> int:
    return next((n for n in range(size - 1, 1, -1) if all(n % d for d in range(2, int(n**0.5) + 1))), 1)


def large(harness: Harness) -> None:
    """An output of more than 2^31 elements, where one size of the file makes it so and the device has room for it."""
    if harness.device.type != "cuda":
        harness.pass_over("asked on CUDA devices only")
        return
    source = harness.answers.source
    if source.is_remote:
        harness.pass_over("a file's tensors are passed on by their bytes, and these are too many")
        return
    try:
        elements, _ = source.elements({})
    except FAILURES as error:
        harness.pass_over(f"not told without memory: {described(error)}")
        return
    needed = _LARGE_COPIES * 4 * (_MOST_INT + elements)
    torch.cuda.empty_cache()
    if elements == 0 or needed > torch.cuda.mem_get_info(harness.device)[0]:
        harness.pass_over(f"needs {needed / 1e9:.0f} GB of free memory")
        return
    for name, size in source.sizes.items():
        if not isinstance(size, int):
            continue
        changes = {name: -(-size * _MOST_INT // elements) + 1}
        if _reaches(harness, changes):
            _ask(harness, {**source.sizes, **changes})
            torch.cuda.empty_cache()
            return
    harness.pass_over("no size of the file makes the output that large")


def _reaches(harness: Harness, changes: Mapping[str, int | float]) -> bool:
    """Whether the output then has so many elements, told without memory for them."""
    try:
        output, weights = harness.answers.source.elements(changes)
        return output > _MOST_INT and weights < _MOST_INT // 8
    except FAILURES as error:
        harness.pass_over(f"not told without memory: {described(error)}")
        return False
