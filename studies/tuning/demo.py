"""A recorded study, shown as it ran: the display and the report without a GPU, at any speed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tunebench.db.entries.entry import Entry, RecordedTrial
from tunebench.db.exchange.formats import format_named
from tunebench.db.exchange.reading import read_entries
from tunebench.studies.tuning.tune import Announcement, Reporter
from tunebench.tuner.study.outcome import Progress

RECORDED = Path(__file__).parents[1] / "files" / "demo.jsonl.gz"
"""Every configuration of gemm_scale_bn, frozen, as an H200 measured them."""


def recorded_study(file: Path = RECORDED) -> list[Entry]:
    """Return the trials of a recorded study, in their order."""
    return [entry for entry in read_entries(file, format_named("jsonl")) if entry.trial is not None]


def play(entries: Sequence[Entry], seconds: float, show: Reporter, sleep: Callable[[float], None] = time.sleep) -> None:
    """Show a recorded study trial by trial, as the study's own display does while it runs.

    Args:
        seconds: that it takes.
        show: such as a `StudyDisplay`.
    """
    study, began = entries[0].study, time.monotonic()
    update = show(Announcement(study.kernel, study.problem, study.device, len(entries)))
    best_ms = default_ms = None
    for count, trial in enumerate((entry.trial for entry in entries), 1):
        assert trial is not None
        if (median_ms := _median_ms(trial)) is not None:
            best_ms = median_ms if best_ms is None else min(best_ms, median_ms)
            default_ms = median_ms if trial.number == 0 else default_ms
        taken = time.monotonic() - began
        update(Progress(count, len(entries), count, taken, best_ms, default_ms, trial.result))
        sleep(max(0.0, count / len(entries) * seconds - taken))


def _median_ms(trial: RecordedTrial) -> float | None:
    measured = trial.standing.measurement
    return None if measured is None else measured.median_ms
