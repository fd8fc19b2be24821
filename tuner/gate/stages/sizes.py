"""Stages about sizes: around the problem, size 1, size 0, and more elements than an int counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from tunebench.tuner.gate.faults import FAILURES
from tunebench.tuner.gate.harness import Harness
from tunebench.tuner.gate.stage_log import StageRefused
from tunebench.tuner.users_code import described

_TOGETHER = (1, 7, 31)
_MOST_INT = 2**31
_LARGE_COPIES = 12  # of the large tensor in float32: in and out, in float64 as well, and what comparing takes


def sizes(harness: Harness) -> None:
    """Every size of the reference's file by itself: 0, 1, a prime, one more; then all of them together.

    Other constants of the file, such as a scale, take another value as well.
    """
    for changes in _sweep(harness.base.sizes):
        _ask(harness, changes)


def _sweep(base: Mapping[str, int | float]) -> Iterator[dict[str, int | float]]:
    whole = [name for name, size in base.items() if isinstance(size, int)]
    for name in whole:
        size = int(base[name])
        for other in sorted({0, 1, size + 1, _prime_below(size)} - {size}):
            yield {name: other}
    for size in _TOGETHER:
        yield dict.fromkeys(whole, size)
    for name, value in base.items():
        if isinstance(value, float):
            yield {name: 1.5 * value + 0.375}


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


def _prime_below(size: int) -> int:
    return next((n for n in range(size - 1, 1, -1) if all(n % d for d in range(2, int(n**0.5) + 1))), 1)


def large(harness: Harness) -> None:
    """An output of more than 2^31 elements, where one size of the file makes it so and the device has room for it."""
    if harness.device.type != "cuda":
        harness.pass_over("asked on CUDA devices only")
        return
    source = harness.answers.source
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
