"""How a running study shows: a bar on a terminal, plain lines anywhere else."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as RichProgress

from tunebench.studies.display.terminal import printable

if TYPE_CHECKING:  # The first line is on the screen before torch is imported.
    from tunebench.studies.tuning.tune import Announcement
    from tunebench.tuner.problem import Problem
    from tunebench.tuner.study.outcome import Progress

_SECONDS_BETWEEN_LINES = 5.0
_MOST_KINDS = 8
"""Limit of the kinds of failures that are shown while a study runs."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]\d+)?")


class StudyDisplay:
    """Shows studies one after another; use it as a context manager and as `tune`'s reporter."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = bars_on(console)

    def starting(self, targets: Sequence[str]) -> None:
        """Say on a terminal what is about to happen: importing torch and asking the reference take seconds.

        Elsewhere nobody waits, and an error is to be the one line that there is.
        """
        if self._console.is_terminal:
            say(self._console, f"{', '.join(targets)}: loading torch, the device and the reference's answers")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, announcement: Announcement) -> Callable[[Progress], None]:
        """Begin to show a study; what is returned is called with its progress."""
        announce(self._console, announcement)
        failures = Failures(self._console)
        if self._console.is_terminal:
            task = self._bar.add_task(announcement.kernel, total=None, status="")
            show: Callable[[Progress], None] = partial(self._update, task)
        else:
            show = _PlainLines(self._console).show

        def show_both(progress: Progress) -> None:
            failures.show(progress)
            show(progress)

        return show_both

    def _update(self, task: TaskID, progress: Progress) -> None:
        self._bar.update(task, completed=progress.done, total=progress.planned, status=describe(progress))


class SweepDisplay(StudyDisplay):
    """Shows studies side by side, and how far they are together; called from several threads."""

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

    def ends(self, kernel: str, problem: Problem | None) -> None:
        """Show a study no longer."""
        if (task := self._studies.pop((kernel, problem), None)) is not None:
            self._bar.remove_task(task)

    def stands(self, done: int, total: int, rate: str, what: str = "") -> None:
        """Show where the whole stands.

        Args:
            what: has just ended; without it there is a line every few seconds, where the console is no terminal.
        """
        self._bar.update(self._whole, completed=done, total=total, status=rate)
        waits = self._console.is_terminal or time.monotonic() - self._last < 2 * _SECONDS_BETWEEN_LINES
        if what or not waits:
            self._last = time.monotonic()
            self.says(f"{done}/{total} {what}{rate}" if what else f"sweep: {done}/{total} studies, {rate}")

    def says(self, text: str) -> None:
        """Show a line on something else."""
        say(self._console, text)


def bars_on(console: Console) -> RichProgress:
    """Bars with their state behind them; where the console is no terminal nothing shows them."""
    return RichProgress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}"),
        console=console,
        disable=not console.is_terminal,
    )


def say(console: Console, text: str) -> None:
    """Print text as it is, above the bars that there may be."""
    console.print(printable(text), highlight=False, soft_wrap=True, markup=False)


def announce(console: Console, announcement: Announcement) -> None:
    """Say which study begins, and with what."""
    title = f"{announcement.kernel} ({announcement.problem})"
    at_once = f", {announcement.slots} at once" if announcement.slots > 1 else ""
    where = f"{announcement.device.name}{at_once}"
    say(console, f"tuning {title} on {where}: {announcement.space_size} valid configurations")
    for values in announcement.invalid:
        say(console, f"  no valid configuration has {values}: the study begins without (--start)")
    if announcement.warm_starts and not announcement.done:
        origins = dict.fromkeys(one.origin.partition(", ")[2] or one.origin for one in announcement.warm_starts)
        count = len(announcement.warm_starts)
        say(console, f"  warm start: {count} first trials: {'; '.join(origins)} (--fresh leaves out earlier studies)")


class Failures:
    """The first failure of each kind, when it happens; failures that differ in numbers alone are of one kind.

    And each device that the study goes on without.

    Args:
        before: what each line begins with.
    """

    def __init__(self, console: Console, before: str = "  ") -> None:
        self._console = console
        self._before = before
        self._kinds: set[str] = set()
        self._lost = 0

    def show(self, progress: Progress) -> None:
        """Say what is new in it."""
        for text in progress.lost[self._lost :]:
            say(self._console, f"{self._before}goes on without {text}")
        self._lost = len(progress.lost)
        kind = _NUMBER.sub("", progress.failure)
        if not kind or kind in self._kinds or len(self._kinds) > _MOST_KINDS:
            return
        self._kinds.add(kind)
        text = f"{progress.done}/{progress.planned} {progress.failure}"
        if len(self._kinds) > _MOST_KINDS:
            text = "further kinds of failures are told at the end"
        say(self._console, f"{self._before}{text}")


class _PlainLines:
    """A line every few seconds, one for the last trial, and one for whatever else begins."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = time.monotonic()
        self._phase: str | None = None

    def show(self, progress: Progress) -> None:
        finished = progress.done >= progress.planned and progress.here > 0
        if progress.phase is not None and progress.phase != self._phase:
            self._phase = progress.phase
            say(self._console, f"  {_phase(progress)}")
        elif finished or time.monotonic() - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            say(self._console, f"  {progress.done}/{progress.planned} {describe(progress)}")


def describe(progress: Progress) -> str:
    """The best so far, and variants a second with the time left or what else the study does, in one line."""
    parts = []
    if progress.best_ms is not None:
        parts.append(f"best {progress.best_ms:.4g} ms")
        if progress.default_ms:
            parts.append(f"{progress.default_ms / progress.best_ms:.2f}× default")
    if progress.phase is not None:
        return ", ".join([*parts, _phase(progress)])
    if progress.here:
        parts.append(f"{progress.per_second:.1f} variants/s")
    if progress.seconds_left is not None:
        parts.append(f"{progress.seconds_left:.0f} s left")
    return ", ".join(parts)


def _phase(progress: Progress) -> str:
    bound = progress.phase_seconds
    return f"{progress.phase}" + ("" if bound is None else f" (at most {bound:.0f} s)")
