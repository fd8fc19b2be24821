"""A duel: several ways to answer a call, timed in turns on its own inputs, where nobody measured its problem before."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from tunebench.kernels.runtime.random_state import random_state_kept
from tunebench.tuner.errors import LaunchError
from tunebench.tuner.gate.accuracy import Wrong
from tunebench.tuner.gate.comparison import compare, scale_of

Answer = Callable[[], Any]

MARGIN = 1.02
"""Least ratio to the reference's speed at which a kernel wins, so that noise does not make a slower one the winner."""

_FEWEST_ROUNDS, _ROUNDS, _MOST_ROUNDS = 3, 5, 15
_MOST_SECONDS = 0.05
_FEW_SECONDS = 0.01
"""Seconds during which rounds are added beyond `_ROUNDS`: calls of microseconds need many to be distinguished."""
_ROUND_SECONDS = 5e-4
"""Length of one round of the reference in seconds. Its calls share the cost of one synchronisation."""
_MOST_CALLS = 16
_HOPELESS = 1.25
"""Ratio to the fastest time of the first round from which on a contender is left out of the others."""
_LARGEST_DIFFERENCE = 1e-2
_OUT_OF_MEMORY = "there is not enough memory for it beside the reference"


@dataclass(frozen=True)
class Score:
    """The result of one contender against the reference.

    Attributes:
        ratio: how many times faster than the reference it is: the median of per-round ratios.
        obstacle: why it cannot serve, however fast; empty where it can.
    """

    ratio: float
    obstacle: str = ""

    @property
    def serves(self) -> bool:
        """Whether it may take the reference's place: it is faster, and its answer is the reference's."""
        return self.ratio >= MARGIN and not self.obstacle

    def __str__(self) -> str:
        return self.obstacle or f"{self.ratio:.2f}×"


def winner_of(scores: Sequence[Score]) -> int | None:
    """Return the number of the fastest contender that may serve; None where the reference does."""
    able = [number for number, score in enumerate(scores) if score.serves]
    return max(able, key=lambda number: scores[number].ratio, default=None)


def duel(
    contenders: Sequence[Answer],
    reference: Answer,
    device: torch.device,
    exact: Answer | None = None,
    round_seconds: float = _ROUND_SECONDS,
) -> list[Score]:
    """Time several answers to one call in turns: what a caller waits for, host and device together.

    It takes at most `_MOST_SECONDS` and what three rounds need of those who could still win, and more than five rounds
    only within `_FEW_SECONDS`. The answers are compared once; whether a kernel is right is for the gate to say, this is
    only the last line. A contender that runs out of memory, or whose launch is refused, has lost.

    Args:
        contenders, reference: give the same answer, and change nothing that the caller sees.
        exact: gives it in float64, where no contender may be more wrong than the reference.
        round_seconds: length of one round of the reference: for so long the host may be ahead of the device.

    Returns:
        The contenders' scores, in their order.
    """
    entrants = [_Entrant(contender) for contender in contenders]
    try:
        _compare(entrants, reference, exact, device)
        with random_state_kept(device):
            _race(entrants, _Entrant(reference), device, round_seconds)
    except torch.OutOfMemoryError:
        # It was the reference's: alone it has room, or else nothing could answer this call.
        return [Score(0.0, _OUT_OF_MEMORY) for _ in entrants]
    return [Score(statistics.median(one.ratios) if one.ratios else 0.0, one.obstacle) for one in entrants]


@dataclass(eq=False)
class _Entrant:
    """A participant of a duel: why it cannot go on, and its ratio in each round."""

    answer: Answer
    obstacle: str = ""
    ratios: list[float] = field(default_factory=list)


@contextmanager
def _excused(entrant: _Entrant) -> Iterator[None]:
    """Note a failure that is this contender's own, which costs it the duel; the others go on."""
    try:
        yield
    except torch.OutOfMemoryError:
        entrant.obstacle = _OUT_OF_MEMORY
    except LaunchError as error:
        entrant.obstacle = str(error)


def _compare(entrants: Sequence[_Entrant], reference: Answer, exact: Answer | None, device: torch.device) -> None:
    """Find those that give another answer than the reference, from the same random state, or none."""
    with random_state_kept(device):
        expected = _tensors(reference())
    with random_state_kept(device):
        truth = None if exact is None else _Truth(exact, expected)
    for entrant in entrants:
        with _excused(entrant), random_state_kept(device):
            answer = _tensors(entrant.answer())
            difference = _difference(answer, expected)
            limit = max([_LARGEST_DIFFERENCE, *(8 * torch.finfo(one.dtype).eps for one in expected if _is_real(one))])
            if not difference <= limit:
                entrant.obstacle = f"its answer is off the reference's by {difference:.1e} of its norm"
            elif truth is not None:
                entrant.obstacle = truth.obstacle_to(answer)


def _tensors(result: Any) -> list[torch.Tensor]:
    """Return the tensors of a result, whatever holds them."""
    return [one.detach() for one in tree_leaves(result) if isinstance(one, torch.Tensor)]


def _is_real(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point


class _Truth:
    """The answer in float64, and how far the reference is from it."""

    def __init__(self, exact: Answer, reference: Sequence[torch.Tensor]) -> None:
        self._missing = ""
        try:
            self._values = _tensors(exact())
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError, ValueError) as error:
            self._missing = f"there is no answer in float64 to compare with: {error}"
            return
        self._own = self._wrong(reference)

    def obstacle_to(self, answer: Sequence[torch.Tensor]) -> str:
        """Return why an answer may not take the reference's place; empty where it is no more wrong."""
        if self._missing:
            return self._missing
        for wrong, own in zip(self._wrong(answer), self._own, strict=True):
            if wrong.exceeds(own):
                return f"less exact than eager: error {wrong}, eager's own {own}"
        return ""

    def _wrong(self, answer: Sequence[torch.Tensor]) -> list[Wrong]:
        pairs = zip(answer, self._values, strict=True)
        return [Wrong.of(compare(one, values, scale_of(values), math.inf)) for one, values in pairs]


def _race(entrants: Sequence[_Entrant], reference: _Entrant, device: torch.device, round_seconds: float) -> None:
    """Time the reference and those who are left, in rounds."""
    left = [entrant for entrant in entrants if not entrant.obstacle]
    if not left:
        return
    began = time.perf_counter()
    calls = max(1, min(_MOST_CALLS, int(round_seconds / _seconds(reference.answer, 1, device))))
    if round_seconds > _ROUND_SECONDS:
        # Calls in a row need memory that one call does not: it is allocated before the round that may leave one out.
        for entrant in left:
            with _excused(entrant):
                _seconds(entrant.answer, 2, device)
        left = [entrant for entrant in left if not entrant.obstacle]
    for number in range(_MOST_ROUNDS):
        limit = math.inf if number < _FEWEST_ROUNDS else _MOST_SECONDS if number < _ROUNDS else _FEW_SECONDS
        if not left or time.perf_counter() - began > limit:
            break
        # The order turns, so that the last one is not always the same.
        order = [reference, *left]
        turn = number % len(order)
        taken: dict[_Entrant, float] = {}
        for entrant in order[turn:] + order[:turn]:
            with nullcontext() if entrant is reference else _excused(entrant):
                taken[entrant] = _seconds(entrant.answer, calls, device)
        left = [entrant for entrant in left if entrant in taken]
        for entrant in left:
            entrant.ratios.append(taken[reference] / taken[entrant])
        if number == 0:
            fastest = max([1.0, *(entrant.ratios[0] for entrant in left)])
            left = [entrant for entrant in left if entrant.ratios[0] * _HOPELESS > fastest]


def _seconds(answer: Answer, calls: int, device: torch.device) -> float:
    """Measure how long a number of calls in a row take, in seconds."""
    _wait(device)
    began = time.perf_counter()
    for _ in range(calls):
        answer()
    _wait(device)
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def _difference(answer: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """Return the largest difference of two results' tensors; infinite where there are not as many."""
    if len(answer) != len(expected):
        return math.inf
    return max(map(_difference_of_one, answer, expected), default=0.0)


def _difference_of_one(answer: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the norm of the difference over the reference's; infinite where shape, type or what is finite differ."""
    if answer.shape != expected.shape or answer.dtype != expected.dtype:
        return math.inf
    if not _is_real(expected):
        return 0.0 if torch.equal(answer, expected) else math.inf
    # Where the reference itself is not finite there is nothing to compare. A half type cannot hold its own norm.
    wide = torch.promote_types(expected.dtype, torch.float32)
    apart = torch.where(expected.isfinite(), answer - expected, 0.0)
    size = torch.where(expected.isfinite(), expected, 0.0)
    off, norm = (float(torch.linalg.vector_norm(one, dtype=wide)) for one in (apart, size))
    if not math.isfinite(off):
        return math.inf
    return off / norm if norm > 0 else off
