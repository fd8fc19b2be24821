"""Comparison of several calls: interleaved rounds, when they end, and the decision.

A round takes one sample of every contender. The order rotates from round to round and is reversed in every other one,
so that nobody always follows the same neighbour. The statistic is the ratio within a round: whatever drifts (clocks,
temperature, a neighbour) drifts for all alike and cancels.

The rounds end when the decision is made: a group-sequential test (Pocock 1977). The outcome is looked at after `LOOKS`
rounds, each time by intervals of the same confidence, so high that all looks together err as rarely as `CONFIDENCE`
says. The intervals are order statistics, and the bound is Bonferroni's: neither asks how times are distributed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from tunebench.tuner.errors import UserError
from tunebench.tuner.result import CONTROL, MEANINGFUL, Baseline, Decision, Ratio
from tunebench.tuner.timing.measure import Call, Clock, Control
from tunebench.tuner.timing.statistics import Samples, control_ratio, speedup

WITHIN = 0.005
"""A ratio is known when its interval is within ± this share of it; more rounds do not change what is made of it."""

LOOKS = (12, 20, 28, 40, 60, 88, 132, 200, 300, 480)
"""Numbers of rounds after which the outcome is looked at: `MOST_LOOKS`, each half as many again as the one before, so
that little is taken after a decision could be made. The first has as many as an interval needs; the last ends them."""

MOST_SECONDS = 10.0
"""Limit of all rounds, which are at least as many as the first look needs. `TUNEBENCH_CONFIRM_SECONDS` in the
environment gives another limit in seconds: where times scatter, as on a busy CPU, intervals stay wide."""

ROUNDS_BETWEEN_CONTROLS = 4
"""Number of rounds after which the control call runs."""

MOST_TURNED_BACK = 3
"""Number of times that rounds are thrown away because the device changed its state; after that they are kept, since the
ratios within a round hold in any state."""


def confirm(
    calls: Mapping[str, Call],
    pivot: str,
    twin: Call,
    clock: Clock,
    control: Control,
    seconds: float | None = None,
    *,
    is_decided: Callable[[Samples], bool] | None = None,
    leaving: Callable[[Samples], Collection[str]] = lambda _: (),
) -> Samples:
    """Time contenders in interleaved rounds, with a second copy of one of them as the control.

    Where rounds find a difference between the two copies, they count as warming up and are taken once more; where that
    difference is still there, `control_ratio` says so.

    Args:
        pivot: the contender that `twin` is a second copy of.
        seconds: limit of all rounds; None for `most_seconds()`.
        is_decided: whether samples answer what is asked; by default that every ratio is known within `WITHIN`.
        leaving: the contenders that need no more rounds; the pivot and its twin stay.

    Raises:
        UserError: `TUNEBENCH_CONFIRM_SECONDS` is not a number of seconds.
    """
    deadline = time.monotonic() + (most_seconds() if seconds is None else seconds)
    is_decided = is_decided or _known
    contenders = {**calls, CONTROL: twin}
    for call in contenders.values():
        clock.warm_up(call)
    for _ in range(2):
        control.settle(deadline - time.monotonic())
        rounds = _Rounds(contenders, clock, control, deadline)
        for look in LOOKS:
            samples = rounds.until(look)
            differs = control_ratio(samples, pivot).differs
            if differs or is_decided(samples) or rounds.late:
                break
            rounds.leave(set(leaving(samples)) - {pivot, CONTROL})
        if not differs:
            break
    return samples


def tells(first: str, second: str) -> Callable[[Samples], bool]:
    """Return what decides whether rounds say how two of their contenders compare."""
    return lambda samples: _is_settled(speedup(samples[first], samples[second]))


def most_seconds() -> float:
    """Return the limit of the rounds of one comparison: `MOST_SECONDS`, or the environment's.

    Raises:
        UserError: `TUNEBENCH_CONFIRM_SECONDS` is not a number of seconds.
    """
    given = os.environ.get("TUNEBENCH_CONFIRM_SECONDS", "")
    try:
        seconds = float(given or MOST_SECONDS)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds < float("inf"):
        raise UserError(f"TUNEBENCH_CONFIRM_SECONDS is '{given}': give a number of seconds, or unset it")
    return seconds


class _Rounds:
    """Interleaved rounds, which contenders may leave."""

    def __init__(self, calls: Mapping[str, Call], clock: Clock, control: Control, deadline: float) -> None:
        self._calls = calls
        self._names = list(calls)
        self._clock = clock
        self._control = control
        self._deadline = deadline
        self._rounds: list[dict[str, float]] = []
        self._turned_back = 0

    @property
    def late(self) -> bool:
        """Whether their time is over."""
        return time.monotonic() > self._deadline

    def until(self, count: int) -> Samples:
        """Take rounds until there are so many, or their time is over; return what all of them have found."""
        certain = len(self._rounds)  # rounds that ended in the state they began in
        while certain < count and not (certain >= LOOKS[0] and self.late):
            for _ in range(ROUNDS_BETWEEN_CONTROLS):
                order = _order(self._names, len(self._rounds))
                times = self._clock.sample([self._calls[name] for name in order])
                self._rounds.append(dict(zip(order, times, strict=True)))
            if not self._control.steady() and self._turned_back < MOST_TURNED_BACK:
                self._turned_back += 1
                del self._rounds[certain:]
                self._control.settle(self._deadline - time.monotonic())
            certain = len(self._rounds)
        return {name: tuple(one[name] for one in self._rounds if name in one) for name in self._calls}

    def leave(self, names: Collection[str]) -> None:
        """Take no more samples of these."""
        self._names = [name for name in self._names if name not in names]


def _order(names: Sequence[str], number: int) -> list[str]:
    shift = number // 2 % len(names)
    order = [*names[shift:], *names[:shift]]
    return order[::-1] if number % 2 else order


def _known(samples: Samples) -> bool:
    """Return whether every contender's ratio to the fastest has a narrow interval."""
    first = next(iter(samples.values()))
    fastest = samples[max(samples, key=lambda name: speedup(samples[name], first).value)]
    return all(_is_known(speedup(fastest, times)) for times in samples.values())


def _is_known(ratio: Ratio) -> bool:
    return max(ratio.high - ratio.value, ratio.value - ratio.low) <= WITHIN * ratio.value


def _is_settled(ratio: Ratio) -> bool:
    """Return whether more rounds would hardly change the decision: a tie that may be a difference is not settled."""
    if ratio.decision is not Decision.TIE:
        return ratio.decision is not Decision.INCONCLUSIVE
    return max(ratio.high, 1 / ratio.low) <= 1 + MEANINGFUL or _is_known(ratio)


@dataclass(frozen=True)
class Standing:
    """How candidates stand after some rounds.

    Attributes:
        best: the winner, the simplest that ties with the fastest by measurement.
        is_decided: the rounds have told every candidate from the fastest or measured a tie, and how the winner compares
            with the reference.
        out: candidates that are slower than the fastest, beyond doubt.
    """

    best: str
    is_decided: bool
    out: frozenset[str] = frozenset()


def standing_of(candidates: Sequence[str], samples: Samples, pivot: str, leader: str) -> Standing:
    """Return how candidates stand.

    Where the rounds leave open whether the fastest beats the leader, or how the winner compares with the reference, the
    leader stays the best.

    Args:
        candidates: the simplest first. Simpler is closer to the kernel's default configuration, which is the simplest:
            fewer tunables that differ from it, then fewer steps along their values (`ValidSpace.simplest_first`).
        pivot: as in `confirm`; where its two copies were found to differ, the rounds decide nothing.
        leader: the candidate that was the fastest in the search.
    """
    if control_ratio(samples, pivot).differs:
        return Standing(leader, is_decided=False)
    staying = [name for name in candidates if len(samples[name]) == len(samples[pivot])]
    fastest = max(staying, key=lambda name: speedup(samples[name], samples[pivot]).value)

    def ratio(first: str, second: str) -> Ratio:
        return speedup(samples[first], samples[second])

    behind = {name: ratio(fastest, name) for name in staying}
    winner = next(name for name in staying if behind[name].decision is Decision.TIE)
    baselines = [one for one in (Baseline.REFERENCE.value, Baseline.COMPILED.value) if one in samples]
    over = {one: ratio(winner, one) for one in baselines}
    unknown = {name for name, one in (behind | over).items() if one.decision is Decision.INCONCLUSIVE}
    return Standing(
        best=leader if leader in staying and not unknown.isdisjoint({leader, Baseline.REFERENCE}) else winner,
        is_decided=all(map(_is_settled, (behind | over).values())),
        out=frozenset(name for name in staying if behind[name].decision is Decision.FASTER),
    )
