"""Comparison of several calls: interleaved rounds, their stop, and the decision.

A round takes one sample of every contender. The order rotates from round to round and is reversed in every other one,
so that nobody always follows the same neighbour. The statistic is the ratio within a round: whatever drifts (clocks,
temperature, a neighbour) drifts for all alike and cancels.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

from tunebench.tuner.errors import UserError
from tunebench.tuner.result import CONTROL, Baseline, Decision
from tunebench.tuner.timing.measure import Call, Clock, Control
from tunebench.tuner.timing.statistics import CONFIDENCE, Samples, control_ratio, samples_needed, speedup

WITHIN = 0.005
"""Rounds end when the interval of every contender's ratio to the fastest is within ± this share of it."""

MOST_ROUNDS = 160
MOST_SECONDS = 10.0
"""Limits of one series of rounds, whichever comes first; it has at least as many rounds as an interval needs.
`TUNEBENCH_CONFIRM_SECONDS` in the environment gives another limit in seconds: where times scatter, as on a busy CPU,
intervals stay wide however long one waits."""

MOST_SERIES = 3
"""Number of series, each within the same limits, before what they leave open stays inconclusive."""

SURE = 0.999
"""Confidence of the intervals that end the series early. It is above that of the outcome's own, since whoever looks
several times is more often misled by chance."""

ROUNDS_BETWEEN_LOOKS = 4
"""Number of rounds after which the control call runs, and the widths of the intervals are looked at."""

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
    is_decided: Callable[[Samples], bool] = lambda _: True,
) -> Samples:
    """Time contenders in interleaved rounds, with a second copy of one of them as the control.

    Where the first rounds find a difference between the two copies, they count as warming up and are taken once more;
    where that difference is still there, `control_ratio` says so. While the outcome is open, rounds are added.

    Args:
        pivot: the contender that `twin` is a second copy of.
        seconds: limit of one series of rounds; None for `MOST_SECONDS`.
        is_decided: whether samples answer what is asked; by default one series is all that is asked for.

    Raises:
        UserError: `TUNEBENCH_CONFIRM_SECONDS` is not a number of seconds.
    """
    seconds = most_seconds() if seconds is None else seconds
    contenders = {**calls, CONTROL: twin}
    for call in contenders.values():
        clock.warm_up(call)

    def series() -> Samples:
        control.settle()
        return take_rounds(contenders, clock, control, seconds)

    samples = series()
    if control_ratio(samples, pivot).differs:
        samples = series()
    for _ in range(MOST_SERIES - 1):
        if is_decided(samples) or control_ratio(samples, pivot).differs:
            break
        more = series()
        samples = {name: (*times, *more[name]) for name, times in samples.items()}
    return samples


def tells(first: str, second: str) -> Callable[[Samples], bool]:
    """Return what decides whether rounds say how two of their contenders compare."""
    return lambda samples: speedup(samples[first], samples[second], SURE).decision is not Decision.INCONCLUSIVE


def most_seconds() -> float:
    """Return the limit of one series of rounds: `MOST_SECONDS`, or the environment's.

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


def longest_seconds() -> float:
    """Return the longest that all series of one comparison may take, for deadlines.

    Raises:
        UserError: `TUNEBENCH_CONFIRM_SECONDS` is not a number of seconds.
    """
    return (MOST_SERIES + 1) * most_seconds()  # the first series may be taken twice


def take_rounds(calls: Mapping[str, Call], clock: Clock, control: Control, seconds: float = MOST_SECONDS) -> Samples:
    """Time interleaved rounds until every ratio to the fastest is known well, or the rounds or seconds are over."""
    names = list(calls)
    rounds: list[dict[str, float]] = []
    certain = 0  # rounds that ended in the state they began in
    turned_back = 0
    deadline = time.monotonic() + seconds
    while len(rounds) < MOST_ROUNDS:
        order = _order(names, len(rounds))
        rounds.append(dict(zip(order, clock.sample([calls[name] for name in order]), strict=True)))
        if len(rounds) % ROUNDS_BETWEEN_LOOKS:
            continue
        if not control.steady() and turned_back < MOST_TURNED_BACK:
            turned_back += 1
            del rounds[certain:]
            control.settle()
            continue
        certain = len(rounds)
        enough = certain >= samples_needed(CONFIDENCE)
        if enough and (time.monotonic() > deadline or _known(_by_contender(rounds))):
            break
    return _by_contender(rounds)


def _by_contender(rounds: Sequence[Mapping[str, float]]) -> Samples:
    return {name: tuple(one[name] for one in rounds) for name in rounds[0]}


def _order(names: Sequence[str], number: int) -> list[str]:
    shift = number // 2 % len(names)
    order = [*names[shift:], *names[:shift]]
    return order[::-1] if number % 2 else order


def _known(samples: Samples) -> bool:
    """Return whether every contender's ratio to the fastest has a narrow interval."""
    first = next(iter(samples.values()))
    fastest = samples[max(samples, key=lambda name: speedup(samples[name], first).value)]
    for times in samples.values():
        slowdown = speedup(fastest, times)
        if max(slowdown.high - slowdown.value, slowdown.value - slowdown.low) > WITHIN * slowdown.value:
            return False
    return True


def winner_of(
    candidates: Sequence[str], samples: Samples, pivot: str, leader: str, confidence: float = CONFIDENCE
) -> tuple[str, bool]:
    """Return the winner, the simplest that ties with the fastest by measurement, and whether the rounds decided it.

    Where the rounds leave open whether the fastest beats the leader, or how the winner compares with the reference, the
    leader stays the best and nothing is decided. Nor is it while the fastest may be faster than the pivot or not.

    Args:
        candidates: the simplest first. Simpler is closer to the kernel's default configuration, which is the simplest:
            fewer tunables that differ from it, then fewer steps along their values (`ValidSpace.simplest_first`).
        pivot: as in `confirm`; where its two copies were found to differ, the rounds decide nothing.
        leader: the candidate that was the fastest in the search.
        confidence: of the intervals that decide.
    """
    if control_ratio(samples, pivot).differs:
        return leader, False
    fastest = max(candidates, key=lambda name: speedup(samples[name], samples[pivot]).value)

    def decision(first: str, second: str) -> Decision:
        return speedup(samples[first], samples[second], confidence).decision

    def ties(name: str) -> bool:
        return name == fastest or decision(fastest, name) is Decision.TIE

    def leaves_open(first: str, second: str) -> bool:
        return first != second and decision(first, second) is Decision.INCONCLUSIVE

    winner = next(filter(ties, candidates))
    reference = Baseline.REFERENCE.value
    is_open = leaves_open(fastest, leader) or (reference in samples and leaves_open(winner, reference))
    return leader if is_open else winner, not (is_open or leaves_open(fastest, pivot))
