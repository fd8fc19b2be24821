"""Benchmarks that have minutes: each line says when it was, and the whole ends in time."""

from __future__ import annotations

import faulthandler
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

_TO_LET_GO_SECONDS = 30.0
"""For workers to end, and for what there is to be written."""


class Stopwatch:
    """Says what a benchmark is at, with the seconds since its beginning."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._started

    def say(self, text: str) -> None:
        """A line that is there at once, wherever the output goes."""
        print(f"[{self.seconds:6.1f} s] {text}", flush=True)


@contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """Interrupt what runs after so many seconds, as Ctrl-C does; soon after that say where each thread is, and exit.

    The second is for what hangs where no interrupt reaches it. Workers end with the process that started them.
    """
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    faulthandler.dump_traceback_later(seconds + _TO_LET_GO_SECONDS, exit=True)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)
