"""How a running sweep shows: bars on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import TaskID

from tunebench.studies.display.tables import over_reference
from tunebench.studies.sweep.tasks import Course, Swept
from tunebench.studies.tuning.progress import Failures, StudyDisplay, announce, say
from tunebench.studies.tuning.tune import Announcement
from tunebench.tuner.problem import Problem
from tunebench.tuner.study.study import Progress

_SECONDS_BETWEEN_LINES = 10.0
_MINUTE = 60.0


class SweepDisplay(StudyDisplay):
    """Shows a sweep, called from several threads; use it as a context manager."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._whole = self._bar.add_task("sweep", total=None, status="")
        self._studies: dict[tuple[str, Problem | None], TaskID] = {}
        self._last = time.monotonic()

    def __call__(self, announcement: Announcement) -> Callable[[Progress], None]:
        """Begin to show a study; what is returned is called with its progress."""
        announce(self._console, announcement)
        failures = Failures(self._console, f"  {announcement.kernel} ({announcement.problem}): ")
        task = self._bar.add_task(announcement.kernel, total=None, status="")
        self._studies[announcement.kernel, announcement.problem] = task

        def show(progress: Progress) -> None:
            failures.show(progress)
            self._update(task, progress)

        return show

    def stands(self, course: Course) -> None:
        """Show where the sweep stands, after each trial."""
        self._bar.update(self._whole, completed=course.done, total=course.total, status=_rate(course))
        if not self._console.is_terminal and time.monotonic() - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            self.says(f"sweep: {course.done}/{course.total} studies, {_rate(course)}")

    def ends(self, swept: Swept, course: Course) -> None:
        """Show that a study has ended, or failed."""
        self._bar.update(self._whole, completed=course.done, total=course.total, status=_rate(course))
        if (task := self._studies.pop((swept.kernel, swept.problem), None)) is not None:
            self._bar.remove_task(task)
        self._last = time.monotonic()
        found = swept.message or (over_reference(swept.best) if swept.best else "")
        outcome = f"{swept.state}, {found}" if found else str(swept.state)
        self.says(f"{course.done}/{course.total} {swept.kernel} ({swept.about}): {outcome}; {_rate(course)}")

    def says(self, text: str) -> None:
        """Show a line on something else."""
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
