"""Where a study's time goes: what its own thread did or waited for, moment by moment, so that it adds up to the whole.

What ran beside it on other threads, as compilers do, is not part of the sum; it is told apart.
"""

from __future__ import annotations

import enum
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from tunebench.tuner.gate.battery import of_full_battery
from tunebench.tuner.result import TrialResult

Thing = TypeVar("Thing")


class Activity(enum.StrEnum):
    """The activities that a study spends time on, in the order in which it first does."""

    START = "process start"
    """The command, until its first study begins: the interpreter, imports, options, opening the database."""
    WORKER = "worker start"
    """The process that evaluates begins, and loads the kernel."""
    CONTEXT = "device context"
    REFERENCE = "reference in float64"
    """Models, inputs, and the reference's answers to them at its own precision and in float64."""
    SPACE = "search space"
    DATABASE = "database"
    STRATEGY = "search strategy"
    COMPILER = "waiting for compilers"
    QUICK = "gate, quick"
    FULL = "gate, full"
    TIMING = "timing"
    AGAIN = "workers begun again"
    HANDOVER = "between processes"
    """Time that an evaluation takes beyond what the worker tells of it."""
    SANITIZER = "sanitizer"
    COMPILING = "torch.compile"
    ROUNDS = "final rounds"
    BOUNDARY = "winner's last check"
    OTHER = "other"


_OF_TRIAL = {"wait": Activity.COMPILER, "check": Activity.QUICK, "measure": Activity.TIMING, "restart": Activity.AGAIN}
"""The phases by the names that a trial's seconds have; `compile` is beside them."""


@dataclass(frozen=True)
class Spent:
    """The time that a study has spent.

    Attributes:
        seconds: by phase; they add up to the whole.
        slots: so many evaluations at once: a phase of these is the share of its time that each had.
        compiling: seconds in which compilers ran beside all that, of all of them together.
        builds: so many builds these were, those from the cache included.
    """

    seconds: Mapping[Activity, float] = field(default_factory=dict)
    slots: int = 1
    compiling: float = 0.0
    builds: int = 0

    @property
    def whole(self) -> float:
        """Seconds in all."""
        return sum(self.seconds.values())


class Account:
    """Charges every moment to one phase, the innermost that is open.

    Args:
        before: seconds that the process took before its first study.
        clock: seconds since whenever.
    """

    def __init__(self, before: float = 0.0, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: defaultdict[Activity, float] = defaultdict(float, {Activity.START: before})
        self._open = [Activity.OTHER]
        self._since = clock()

    @contextmanager
    def phase(self, phase: Activity) -> Iterator[None]:
        """The time of a block, without what inner blocks are charged with."""
        self._charge()
        self._open.append(phase)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def move(self, phase: Activity, parts: Mapping[Activity, float], slots: int = 1) -> None:
        """Move seconds that a phase is charged with to other ones.

        Args:
            slots: so many such things went on at once.
        """
        for other, seconds in parts.items():
            self._seconds[other] += seconds / slots
            self._seconds[phase] -= seconds / slots

    def evaluated(self, result: TrialResult, slots: int) -> None:
        """Charge a trial's evaluation, which the account has as the handing over, to what it was spent on."""
        parts = {phase: result.seconds.get(name, 0.0) for name, phase in _OF_TRIAL.items()}
        stages = result.verdict.stages if result.verdict else ()
        parts[Activity.FULL] = sum(stage.seconds for stage in stages if of_full_battery(stage.name))
        parts[Activity.QUICK] = max(0.0, parts[Activity.QUICK] - parts[Activity.FULL])
        self.move(Activity.HANDOVER, parts, slots)

    def charged(self, thing: Thing, activity: Activity) -> Thing:
        """The same thing, every call of whose methods is charged with an activity."""
        return cast(Thing, _Charged(thing, partial(self.phase, activity)))

    @property
    def seconds(self) -> Mapping[Activity, float]:
        """By phase, until now; phases that took no time are left out."""
        self._charge()
        return {phase: self._seconds[phase] for phase in Activity if self._seconds[phase]}

    def _charge(self) -> None:
        now = self._clock()
        self._seconds[self._open[-1]] += now - self._since
        self._since = now


def seconds_of_process() -> float:
    """How long this process has been there: since before Python began, where Linux tells."""
    try:
        ticks = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


class _Charged:
    def __init__(self, thing: object, charging: Callable[[], AbstractContextManager[None]]) -> None:
        self._thing = thing
        self._charging = charging

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._thing, name)
        if not callable(found):
            return found

        def charged(*arguments: Any, **named: Any) -> Any:
            with self._charging():
                return found(*arguments, **named)

        return charged
