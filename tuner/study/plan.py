"""The plan of a study's seconds: how long it searches, and what there is time to ask of the winner afterwards.

What things cost is learnt from what they have cost in this run, on this host. More than half of the seconds are for the
search; what does not fit in the rest is not asked, and the study says so.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence

from tunebench.tuner.gate.battery import of_full_battery
from tunebench.tuner.result import TrialResult
from tunebench.tuner.timing.confirm import LOOKS, most_seconds

SLACK_SECONDS = 2.0
"""A command may take three seconds beyond its own; the study takes so many of them, and closing it takes the rest."""

AFTER = 0.45
"""The largest share of a run's seconds that is kept for what comes after the search."""

ROUNDS = 0.15
"""The largest share of a run's seconds that is kept for the final rounds, within their own limit."""

LIKELY_ROUNDS = 100
"""The number of rounds for which time is kept: most comparisons end after fewer."""

COMPILED_SECONDS = 30.0
"""A study whose reference torch.compile may compile for so long does that without being asked to."""

LEAST_COMPILE_SECONDS = 10.0
"""In less nothing is compiled."""

MOST_COMPILE_SECONDS = 90.0
"""Upper limit of compiling a reference, where so much is left: what takes longer has no part in the final rounds."""

SANITIZER_SECONDS = 1.5
"""The assumed cost of compute-sanitizer, most of which is its start; what takes longer is ended."""

_LATER = 0.25
"""The assumed share of the first full battery's seconds that another takes, which finds the reference's answers."""

_PROCESSES = 2.0
_PROCESSES_SECONDS = 0.5
"""The winner's last check begins processes as the worker was begun: so many times its seconds, and these for asking."""

_CALLS_OF_A_ROUND = 2.0
"""A sample on a CPU is a call that warms the caches, and one that is timed; on a GPU caches are emptied before it."""

_ROUNDS_SECONDS = 0.3
"""For the clock to warm up and the control call to settle, and for the rounds that end after their limit."""


def has_time_to_compile(seconds: float | None) -> bool:
    """Whether a run of so many seconds, or without a limit, can have torch compile its reference."""
    return seconds is None or AFTER * seconds >= COMPILED_SECONDS


class Plan:
    """The seconds of one run of a study.

    Args:
        seconds: of the run, all that it does included; None for no limit, and less than 0 where it begins too late.
        prepared: that its worker took to get ready.
        contenders: how many take part in the final rounds.
        compiled: see `Budget`.
        sanitized: compute-sanitizer is there for the device.
        clock: seconds since whenever.
    """

    def __init__(
        self,
        seconds: float | None = None,
        prepared: float = 0.0,
        *,
        contenders: int = 0,
        compiled: bool = False,
        sanitized: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds = None if seconds is None else max(0.0, seconds)
        self._clock = clock
        self._ends = float("inf") if seconds is None else clock() + seconds + SLACK_SECONDS
        self._prepared = prepared
        self.compiles = compiled
        self._watched = sanitized * SANITIZER_SECONDS
        self._contenders = contenders
        self._best_ms = math.inf
        self._trials: list[float] = []
        self._full: list[float] = []
        self._last_check = _PROCESSES * prepared + _PROCESSES_SECONDS

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit at all."""
        return self._seconds is not None

    @property
    def left(self) -> float:
        """Seconds until everything has to be over."""
        return self._ends - self._clock()

    @property
    def searches(self) -> bool:
        """Whether another configuration is begun: it may lead, and be proven."""
        return self.left >= self._after + self.proof

    @property
    def evaluation(self) -> float:
        """Seconds that a configuration begun now may take: those of another worker and of the rounds are not for it."""
        return max(0.0, self.left - self._prepared - self.rounds - _ROUNDS_SECONDS)

    @property
    def proof(self) -> float:
        """Seconds of putting another configuration through the full battery."""
        later = self._full[1:] or [_LATER * one for one in self._full]
        return _typical(self._trials) + _typical(later)

    @property
    def rounds(self) -> float:
        """Seconds that are kept for the final rounds."""
        if self._seconds is None:
            return 0.0
        likely = _ROUNDS_SECONDS + LIKELY_ROUNDS * _seconds_of_round([self._best_ms] * self._contenders)
        return min(likely, ROUNDS * self._seconds, most_seconds())

    def learn(self, result: TrialResult) -> None:
        """Take in what a configuration has cost.

        Only the first one waits for the whole of its build; those of others run ahead.
        """
        if result.measurement is not None:
            self._best_ms = min(self._best_ms, result.measurement.median_ms)
        stages = result.verdict.stages if result.verdict else ()
        full = sum(stage.seconds for stage in stages if of_full_battery(stage.name))
        self._full += [full] if full else []
        apart = ("compile",) if self._trials else ("compile", "wait")
        self._trials.append(sum(one for name, one in result.seconds.items() if name not in apart) - full)

    def lose_worker(self) -> None:
        """Keep the time for another worker, since one was killed with what it evaluated."""
        self._ends -= self._prepared

    @property
    def can_check(self) -> bool:
        """Whether the winner's last check may be over in time; it is ended where it is not."""
        return self.left >= self._last_check / 2

    @property
    def can_prove(self) -> bool:
        """Whether the rounds and the proof of whoever wins them have time."""
        return self.left >= self.rounds + self.proof

    @property
    def compile_seconds(self) -> float:
        """Seconds that compiling the reference may take, after which another worker may have to come up; 0 for none."""
        room = self.left_before_the_end - self.rounds - self._prepared
        return min(room, MOST_COMPILE_SECONDS) if room >= LEAST_COMPILE_SECONDS else 0.0

    @property
    def left_before_the_end(self) -> float:
        """Seconds until the winner has to be proven and, beside that, judged once more."""
        return self.left - max(self._last_check, self.proof)

    def round_seconds(self, medians_ms: Sequence[float]) -> float | None:
        """Return the limit of the final rounds; None where not even the first look at them has time.

        Args:
            medians_ms: of all that takes part.
        """
        if self.left < LOOKS[0] * _seconds_of_round(medians_ms) + _ROUNDS_SECONDS:
            return None
        return min(most_seconds(), max(0.0, self.left_before_the_end - _ROUNDS_SECONDS))

    @property
    def _after(self) -> float:
        """Seconds that are kept for what comes after the search."""
        after = self.rounds + max(self._last_check, self.proof + self._watched)
        return 0.0 if self._seconds is None else min(after, AFTER * self._seconds)


def _seconds_of_round(medians_ms: Sequence[float]) -> float:
    return _CALLS_OF_A_ROUND * sum(medians_ms) / 1e3


def _typical(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) if seconds else 0.0
