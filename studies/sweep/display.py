"""How a running sweep shows: bars on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import TaskID

from tunebench.studies.progress import Failures, announce, bars_on, describe, say
from tunebench.studies.tables import over_reference
from tunebench.tuner.problem import Problem

if TYPE_CHECKING:  # The first line is on the screen before torch is imported.
    from tunebench.studies.sweep.run import Course, Swept
    from tunebench.studies.tune import Announcement
    from tunebench.tuner.study.study import Progress

_SECONDS_BETWEEN_LINES = 10.0
_MINUTE = 60.0


class SweepDisplay:
    """Shows a sweep; use it as a context manager and as `sweep`'s watcher."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = bars_on(console)
        self._whole = self._bars.add_task("sweep", total=None, status="")
        self._studies: dict[tuple[str, Problem | None], TaskID] = {}
        self._last = time.monotonic()

    def __enter__(self) -> SweepDisplay:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bars.stop()

    def begins(self, announcement: Announcement) -> Callable[[Progress], None]:
        """See `Watcher`."""
        announce(self._console, announcement)
        failures = Failures(self._console, f"  {announcement.kernel} ({announcement.problem}): ")
        bar = self._bars.add_task(announcement.kernel, total=None, status="")
        self._studies[announcement.kernel, announcement.problem] = bar

        def show(progress: Progress) -> None:
            failures.show(progress)
            status = describe(progress)
            self._bars.update(bar, completed=progress.done, total=progress.planned, status=status)

        return show

    def stands(self, course: Course) -> None:
        """See `Watcher`."""
        self._bars.update(self._whole, completed=course.done, total=course.total, status=_rate(course))
        if not self._console.is_terminal and time.monotonic() - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            self.says(f"sweep: {course.done}/{course.total} studies, {_rate(course)}")

    def ends(self, swept: Swept, course: Course) -> None:
        """See `Watcher`."""
        self._bars.update(self._whole, completed=course.done, total=course.total, status=_rate(course))
        if (bar := self._studies.pop((swept.kernel, swept.problem), None)) is not None:
            self._bars.remove_task(bar)
        self._last = time.monotonic()
        found = swept.message or (over_reference(swept.best) if swept.best else "")
        outcome = f"{swept.state}, {found}" if found else str(swept.state)
        self.says(f"{course.done}/{course.total} {swept.kernel} ({swept.about}): {outcome}; {_rate(course)}")

    def says(self, text: str) -> None:
        """See `Watcher`."""
        say(self._console, text)


def _rate(course: Course) -> str:
    """Trials, how many a second, and the time left for the whole."""
    parts = [f"{course.trials} trials"]
    if course.trials:
        parts.append(f"{course.per_second:.1f} a second")
    left = course.seconds_left
    if left is not None and course.done < course.total:
        parts.append("in the final comparison" if left < 1 else _left(left))
    return ", ".join(parts)


def _left(seconds: float) -> str:
    return f"about {seconds:.0f} s left" if seconds < 2 * _MINUTE else f"about {seconds / _MINUTE:.0f} min left"
