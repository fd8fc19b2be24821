"""How several calls are compared: interleaved rounds, their stop, and what they decide.

A round takes one sample of every contender. The order rotates from round to round and is reversed in every other one,
so that nobody always follows the same neighbour. The statistic is the ratio within a round: whatever drifts (clocks,
temperature, a neighbour) drifts for all alike and cancels.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

from tunebench.tuner.errors import UserError
from tunebench.tuner.result import CONTROL, Decision
from tunebench.tuner.timing.measure import Call, Clock, Control
from tunebench.tuner.timing.statistics import CONFIDENCE, Samples, control_ratio, samples_needed, speedup

WITHIN = 0.005
"""Rounds end when the interval of every contender's ratio to the fastest is within ± this share of it."""

MOST_ROUNDS = 160
MOST_SECONDS = 10.0
"""Of rounds, whichever comes first; at least as many rounds as an interval needs. `TUNEBENCH_CONFIRM_SECONDS` in the
environment says otherwise: where times scatter, as on a busy CPU, intervals stay wide however long one waits."""

ROUNDS_BETWEEN_LOOKS = 4
"""So often the control call runs, and the intervals are looked at."""

MOST_TURNED_BACK = 3
"""So often rounds during which the device changed its state are thrown away; after that they are kept, since the ratios
within a round hold in any state."""


def confirm(
    calls: Mapping[str, Call], pivot: str, twin: Call, clock: Clock, control: Control, seconds: float | None = None
) -> Samples:
    """Time contenders in interleaved rounds, with a second copy of one of them as the control.

    Where the rounds find a difference between the two copies, they are taken once more; whoever uses them looks whether
    it is still there (`control_ratio`).

    Args:
        pivot: the contender that `twin` is a second copy of.
        seconds: of rounds at most; None for `MOST_SECONDS`.

    Raises:
        UserError: `TUNEBENCH_CONFIRM_SECONDS` is not a number of seconds.
    """
    seconds = most_seconds() if seconds is None else seconds
    contenders = {**calls, CONTROL: twin}
    for call in contenders.values():
        clock.warm_up(call)
    samples: Samples = {}
    for _ in range(2):
        control.settle()
        samples = take_rounds(contenders, clock, control, seconds)
        if control_ratio(samples, pivot).decision is Decision.TIE:
            break
    return samples


def most_seconds() -> float:
    """How long rounds may take: `MOST_SECONDS`, or what the environment says.

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


def take_rounds(calls: Mapping[str, Call], clock: Clock, control: Control, seconds: float = MOST_SECONDS) -> Samples:
    """Interleaved rounds until every ratio to the fastest is known well, or the most rounds or seconds are over."""
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
    """Whether every contender's ratio to the fastest has a narrow interval."""
    first = next(iter(samples.values()))
    fastest = samples[max(samples, key=lambda name: speedup(samples[name], first).value)]
    for times in samples.values():
        slowdown = speedup(fastest, times)
        if max(slowdown.high - slowdown.value, slowdown.value - slowdown.low) > WITHIN * slowdown.value:
            return False
    return True


def choose(candidates: Sequence[str], samples: Samples, pivot: str) -> str:
    """The winner: of those that the fastest is not faster than, the simplest.

    Args:
        candidates: the simplest first. Simpler is closer to the kernel's default configuration, which is the simplest:
            fewer tunables that differ from it, then fewer steps along their values (`ValidSpace.simplest_first`).
        pivot: as in `confirm`; where its two copies were found to differ, nothing is told apart and the simplest wins.
    """
    if control_ratio(samples, pivot).decision is not Decision.TIE:
        return candidates[0]
    fastest = max(candidates, key=lambda name: speedup(samples[name], samples[pivot]).value)
    return next(name for name in candidates if speedup(samples[fastest], samples[name]).decision is not Decision.FASTER)
