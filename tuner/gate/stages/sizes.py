"""Stages about sizes: around the problem, size 1, size 0, and more elements than an int counts."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tunebench.tuner.gate.draw import Draw
from tunebench.tuner.gate.effort import Limit
from tunebench.tuner.gate.faults import FAILURES
from tunebench.tuner.gate.harness import Harness, Pair
from tunebench.tuner.gate.model import CallOptions
from tunebench.tuner.gate.stage_log import StageRefused
from tunebench.tuner.users_code import described

_TOGETHER = ((1,), (5, 7, 9, 11), (23, 25, 27, 29, 31))
"""Sizes for all of the file's numbers at once; of each group one is drawn."""
_MOST_ELEMENTS = 1 << 20  # of the inputs of one call of `batches`
_MOST_AXES = 3
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
    usual = source.effort({}, Limit(_EVERYTHING, _SECONDS)) or 0
    seconds = max(_SECONDS, _TIMES * (time.perf_counter() - started))
    limit, left = Limit(max(_MOST_MADE, _TIMES * usual), seconds), _TIMES * seconds
    for changes in _sweep(source.sizes, harness.draw):
        if left <= 0:
            harness.pass_over("the reference has taken too long at others")
            continue
        started = time.perf_counter()
        if source.effort(changes, limit) is None:
            left -= time.perf_counter() - started
            harness.pass_over("the reference would make too much there, or take too long")
            continue
        _ask(harness, changes)


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


def _ask(harness: Harness, changes: Mapping[str, int | float]) -> None:
    label = ", ".join(f"{name}={value:g}" for name, value in changes.items())
    source = harness.answers.at({**harness.base.sizes, **changes})
    if source is None:
        harness.pass_over("the reference's file refuses such sizes")
        return
    try:
        pair = harness.pair(source)
    except StageRefused as refusal:
        raise StageRefused(f"{label}: {refusal}") from refusal
    harness.agree(pair, pair.inputs(1), label)


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
    # The axis in front, or all of that size, such as the rows of one input and the columns of another.
    ways = (_Resizing(batch, leading=True), _Resizing(batch))
    way = next((way for way in ways if _takes(pair, way.of(inputs, batch + 1))), ways[0])
    for size in dict.fromkeys((first, (first + 1) // 2, first + 1, 2 * first, 4 * first + 3)):
        pair = _ask_at(harness, pair, way, inputs, size)
    pair = _ask_at(harness, pair, way, inputs, first, "again")
    others = [size for size in dict.fromkeys(itertools.chain(*shapes)) if size not in (1, batch)]
    for old in others[:_MOST_AXES]:
        for size in (old + 1, _prime_below(old), *([4 * old + 3] if room >= 4 * batch else [])):
            pair = _ask_at(harness, pair, _Resizing(old), inputs, size)
    row = shapes[0][-1]
    far = _FAR + 2 * harness.draw.within("far", 0, 31)
    if row in others and sum(math.prod(far if size == row else size for size in shape) for shape in shapes) <= (
        _MOST_ELEMENTS_FAR
    ):
        _ask_at(harness, pair, _Resizing(row), inputs, far)


@dataclass(frozen=True)
class _Resizing:
    """Which axes of inputs get another size: all of one size, or of these the leading ones only."""

    old: int
    leading: bool = False

    def of(self, inputs: Sequence[Any], new: int) -> tuple[Any, ...]:
        """Inputs with another size there, filled with elements of their own."""
        return tuple(self._resized(value, new, seed) for seed, value in enumerate(inputs))

    def _resized(self, value: Any, new: int, seed: int) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        axes = [n for n, size in enumerate(value.shape) if size == self.old and not (self.leading and n)]
        if not axes:
            return value
        if value.is_floating_point():
            generator = torch.Generator(value.device).manual_seed(seed)
            shape = [new if n in axes else size for n, size in enumerate(value.shape)]
            picks = torch.randint(value.numel(), shape, generator=generator, device=value.device)
            return value.flatten()[picks]
        for axis in axes:  # in their order: they may be sorted, or count something
            value = value.index_select(axis, torch.arange(new, device=value.device) % self.old)
        return value


def _takes(pair: Pair, inputs: tuple[Any, ...]) -> bool:
    """Whether the reference does, asked of one of its own."""
    try:
        pair.source.model(pair.mode).call(inputs, CallOptions(byte=None, guarded=False))
    except FAILURES:
        return False
    return True


def _ask_at(harness: Harness, pair: Pair, way: _Resizing, inputs: Sequence[Any], size: int, again: str = "") -> Pair:
    """Ask about inputs of another size; the pair to go on with."""
    label = f"inputs with {size} in place of {way.old} {again}".rstrip()
    answered = harness.agree(pair, way.of(inputs, size), label) is not None
    return pair if answered else harness.pair()  # a call that the reference refuses may have moved its buffers


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
