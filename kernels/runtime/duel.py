"""A duel: two ways to answer a call, timed in turns on its own inputs, where nobody measured its problem before."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

Answer = Callable[[], torch.Tensor]

MARGIN = 1.02
"""So many times faster than the reference a kernel has to be, so that noise does not make a slower one the winner."""

_ROUNDS = 5
_FEWEST_ROUNDS = 3
_MOST_SECONDS = 0.05
_ROUND_SECONDS = 2e-4
_MOST_CALLS = 16
_LARGEST_DIFFERENCE = 1e-2


@dataclass(frozen=True)
class DuelResult:
    """What came of a duel.

    Attributes:
        ratio: how many times faster the kernel is than the reference: the median of per-round ratios.
        difference: of the two answers, relative to the reference's norm.
    """

    ratio: float
    difference: float

    @property
    def won(self) -> bool:
        """Whether the kernel serves: it is faster, and its answer is the reference's."""
        return self.ratio >= MARGIN and self.difference <= _LARGEST_DIFFERENCE

    def __str__(self) -> str:
        if not self.difference <= _LARGEST_DIFFERENCE:
            return f"its answer is off the reference's by {self.difference:.1e} of its norm"
        return f"{self.ratio:.2f}× the reference's speed on the first call's inputs"


def duel(kernel: Answer, reference: Answer, device: torch.device) -> DuelResult:
    """Time two answers to one call in turns: what a caller waits for, host and device together.

    It takes the time of some ten calls: of at most `_MOST_SECONDS` and what three rounds need. The answers are compared
    once; whether a kernel is right is for the gate to say, this is only the last line.

    Args:
        kernel, reference: give the same answer, and change nothing that the caller sees.
    """
    answer, wanted = kernel().detach(), reference().detach()
    difference = _difference(answer, wanted)
    del answer, wanted
    if not difference <= _LARGEST_DIFFERENCE:
        return DuelResult(0.0, difference)
    ratios: list[float] = []
    began = time.perf_counter()
    calls = max(1, min(_MOST_CALLS, int(_ROUND_SECONDS / _seconds(reference, 1, device))))
    while len(ratios) < _ROUNDS:
        # The order turns, so that whoever comes second is not always the same.
        order = (kernel, reference) if len(ratios) % 2 else (reference, kernel)
        taken = {answer: _seconds(answer, calls, device) for answer in order}
        ratios.append(taken[reference] / taken[kernel])
        if len(ratios) >= _FEWEST_ROUNDS and time.perf_counter() - began > _MOST_SECONDS:
            break
    return DuelResult(statistics.median(ratios), difference)


def _seconds(answer: Answer, calls: int, device: torch.device) -> float:
    """What so many calls one after the other take."""
    _wait(device)
    began = time.perf_counter()
    for _ in range(calls):
        answer()
    _wait(device)
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def _difference(answer: torch.Tensor, wanted: torch.Tensor) -> float:
    """The norm of the difference over the reference's; infinite where shape or type differ, or what is finite."""
    if answer.shape != wanted.shape or answer.dtype != wanted.dtype:
        return math.inf
    # Where the reference itself is not finite there is nothing to compare.
    apart = torch.where(wanted.isfinite(), answer - wanted, 0.0)
    size = torch.where(wanted.isfinite(), wanted, 0.0)
    off, norm = float(torch.linalg.vector_norm(apart)), float(torch.linalg.vector_norm(size))
    if not math.isfinite(off):
        return math.inf
    return off / norm if norm > 0 else off
