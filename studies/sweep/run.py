"""A sweep: studies that `tune` takes, one after another on each device; what fails is told and passed over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tunebench.db.connection.database import Database
from tunebench.db.queries.trials import best_of_studies
from tunebench.kernels.runtime.shipped import require_shipping
from tunebench.studies.display.tables import over_reference
from tunebench.studies.sweep.ranges import find_ranges
from tunebench.studies.sweep.tasks import State, Swept, next_of, requests_of, studies_of
from tunebench.studies.tuning.on_this_machine import Lane, lanes_of
from tunebench.studies.tuning.progress import SweepDisplay
from tunebench.studies.tuning.study_file import ExecutorName
from tunebench.studies.tuning.tune import Announcement, tune
from tunebench.studies.writing.ship import RangeTest, Shipment, ship
from tunebench.tuner.device import Device
from tunebench.tuner.errors import DatabaseError, DiskFullError, TunebenchError, UserError, WorkerError
from tunebench.tuner.kernel import Kernel
from tunebench.tuner.study.outcome import Ending, Outcome, Progress

_MOST_LOSSES = 3
"""Number of studies in a row that a lane's workers do not survive before its devices count as lost."""

_END_SECONDS = 0.2
"""How often lanes that are to end are told so again: a worker may have been between two processes."""

_LONG_SECONDS = 120.0
"""From here on the time left is told in minutes."""


@dataclass(frozen=True)
class SweepReport:
    """The outcome of a sweep.

    Attributes:
        results: one for each study, in the order of the files.
        interrupted: by Ctrl-C; the same command goes on.
        seconds: that its studies took.
        tests: of winners at neighbouring problems, where it was to ship.
        shipments: files that were written.
    """

    results: tuple[Swept, ...]
    device: Device
    interrupted: bool
    seconds: float
    tests: tuple[RangeTest, ...] = ()
    shipments: tuple[Shipment, ...] = ()

    @property
    def trials(self) -> int:
        """The number of this sweep's trials."""
        return sum(one.trials for one in self.results)

    @property
    def complete(self) -> bool:
        """Whether every study has a winner."""
        return all(one.has_winner for one in self.results)


def run_sweep(
    files: Sequence[Path], options: Mapping[str, Any], database: Database, display: SweepDisplay
) -> SweepReport:
    """Run the studies of study files, or go on with them, over all devices.

    Args:
        options: those of `SweepCommandRequest` that were given, which override the files' own keys. Winners are tested
            and shipped at the end of a sweep that was not interrupted.

    Raises:
        UserError: something is unknown, not legal or not on this machine; nothing has run then.
        DatabaseError: the database cannot be read or written.
    """
    ships = options.get("ship", False)
    requests = requests_of(files, {name: value for name, value in options.items() if name != "ship"})
    if requests[0].executor is ExecutorName.RAY and ships:
        raise UserError("winners are tested on the machine that ships them: sweep on Ray first, then here to ship")
    studies = studies_of(requests)
    kernels: list[Kernel] = list({one.kernel: one.resolved.kernel for one in studies}.values())
    for kernel in kernels if ships else ():
        require_shipping(kernel)
    sweep = _Sweep(studies, database, display)
    report = sweep.run()
    if not ships or report.interrupted:
        return report
    known = {(one.kernel, one.problem): one.resolved.request for one in studies}
    tests = find_ranges(database, kernels, known, sweep.devices, display.says)
    return replace(report, tests=tests, shipments=tuple(ship(database, kernels, report.device.name, tests)))


class _Sweep:
    """The studies of a sweep; each lane takes the next one when it is free.

    Attributes:
        devices: what it runs on; of Ray, where each study has all of the cluster's, the first.
    """

    def __init__(self, studies: Sequence[Swept], database: Database, display: SweepDisplay) -> None:
        self._studies = studies
        self._database = database
        self._display = display
        self._lanes_left = 0
        self._lock = threading.RLock()
        self._stops = threading.Event()
        self._started = time.monotonic()
        places = [place.device for lane in self._lanes(1) if lane is not None for place in lane.places]
        self.devices: Sequence[Device] = places or [studies[0].resolved.device]

    def _lanes(self, most: int) -> Sequence[Lane | None]:
        """Return at most `most` lanes that share the devices; on Ray None alone, which stands for all of them."""
        resolved = self._studies[0].resolved
        on_ray = resolved.request.executor is ExecutorName.RAY
        return [None] if on_ray else lanes_of(resolved.request, resolved.devices, most)

    def run(self) -> SweepReport:
        """Run what is not done.

        Raises:
            DatabaseError: the database cannot be read or written; what was done is recorded.
        """
        for one in self._studies:
            one.look_up(self._database, self.devices[0])
            if one.state is State.KEPT:
                self._end(one)
        lanes = self._lanes(max(1, sum(not one.has_winner for one in self._studies)))
        self._started, self._lanes_left = time.monotonic(), len(lanes)
        if len(lanes) == 1:
            self._work(lanes[0])
        else:
            self._work_side_by_side(lanes)
        seconds = time.monotonic() - self._started
        return SweepReport(tuple(self._studies), self.devices[0], self._stops.is_set(), seconds)

    def _work_side_by_side(self, lanes: Sequence[Lane | None]) -> None:
        with ThreadPoolExecutor(len(lanes)) as threads:
            working = [threads.submit(self._work, lane) for lane in lanes]
            try:
                for lane in as_completed(working):
                    lane.result()
            except BaseException as error:
                self._stops.set()
                # Each may be waiting for long: for a reference in float64, or for a device that others work on.
                while wait(working, _END_SECONDS).not_done:
                    for one in filter(None, lanes):
                        one.workers.end()
                if not isinstance(error, KeyboardInterrupt):
                    raise

    def _work(self, lane: Lane | None) -> None:
        lost: set[Swept] = set()
        while (one := self._next()) is not None:
            started = time.monotonic()
            is_lost = self._tune(one, lane)
            lost = lost | {one} if is_lost else set()
            with self._lock:
                one.runs, one.seconds = False, time.monotonic() - started
                if is_lost and self._lanes_left > 1 and not one.was_lost:
                    one.was_lost, one.state = True, State.LEFT  # the device may be what failed: another may try it
                    self._display.says(f"{one.kernel} ({one.about}) is tried once more: {one.message}")
                else:
                    self._end(one)
                if lane is not None and len(lost) >= _MOST_LOSSES and self._lanes_left > 1:
                    self._lanes_left -= 1
                    names = ", ".join(str(place.device.torch_device) for place in lane.places)
                    self._display.says(f"goes on without {names}: the workers of {len(lost)} studies in a row died")
                    return

    def _next(self) -> Swept | None:
        """Take the study that begins now; None where nothing is left, or the sweep ends."""
        with self._lock:
            left = [one for one in self._studies if one.state is State.LEFT]
            waiting, running = [one for one in left if not one.runs], [one for one in left if one.runs]
            if self._stops.is_set() or not waiting:
                return None
            one = next_of(waiting, [one for one in self._studies if one.has_winner], running)
            one.runs, one.share, one.trials, one.message = True, 0.0, 0, ""
            return one

    def _tune(self, one: Swept, lane: Lane | None) -> bool:
        """Run a study; return whether it ended because its workers were lost."""
        resolved, device = one.resolved, self.devices[0]
        if lane is not None:
            resolved = replace(resolved, lane=lane, devices=[place.device for place in lane.places])
        try:
            (report,) = tune(resolved, self._database, partial(self._announced, one))
        except KeyboardInterrupt:
            self._stops.set()
            return False
        except (DatabaseError, DiskFullError):
            raise
        except TunebenchError as error:
            if self._stops.is_set():
                return False
            one.look_up(self._database, device)
            one.state, one.message = State.FAILED, str(error)
            return isinstance(error, WorkerError)
        one.problem, one.study = report.problem, report.study
        if report.outcome.ending is Ending.INTERRUPTED:
            self._stops.set()
        elif report.outcome.comparison is None:
            one.state, one.message = State.FAILED, _why_nothing(report.outcome)
        else:
            one.state = State.TUNED
        return False

    def _announced(self, one: Swept, announcement: Announcement) -> Callable[[Progress], None]:
        show = self._display(announcement)

        def show_both(progress: Progress) -> None:
            if self._stops.is_set():
                raise KeyboardInterrupt
            with self._lock:
                one.share, one.trials = progress.done / max(progress.planned, 1), progress.here
                show(progress)
                self._tell()

        return show_both

    def _end(self, one: Swept) -> None:
        """Tell what became of a study."""
        if one.study is not None and not one.message:
            one.best = best_of_studies(self._database, [one.study]).get(one.study)
        self._display.ends(one.kernel, one.problem)
        found = one.message or (over_reference(one.best) if one.best else "")
        self._tell(f"{one.kernel} ({one.about}): {one.state}{', ' if found else ''}{found}; ")

    def _tell(self, what: str = "") -> None:
        """Tell where the sweep stands: trials, how many a second, and the time left for the whole at the rate so far.

        Args:
            what: has just ended.
        """
        done, total = sum(one.state is not State.LEFT for one in self._studies), len(self._studies)
        kept = sum(one.state is State.KEPT for one in self._studies)
        here = done - kept + sum(one.share for one in self._studies if one.runs)
        trials, seconds = sum(one.trials for one in self._studies), time.monotonic() - self._started
        parts = [f"{trials} trials", *([f"{trials / seconds:.1f} a second"] if trials else [])]
        if here and done < total:
            parts.append(_left((total - kept - here) * seconds / here))
        self._display.stands(done, total, ", ".join(parts), what)


def _left(seconds: float) -> str:
    if seconds < 1:
        return "in the final comparison"
    return f"about {seconds:.0f} s left" if seconds < _LONG_SECONDS else f"about {seconds / 60:.0f} min left"


def _why_nothing(outcome: Outcome) -> str:
    """Why a study has no winner, by its most frequent refusal."""
    refusals = sorted(outcome.refusals.items(), key=lambda pair: -pair[1])
    first = f", {refusals[0][1]} of them: {refusals[0][0]}" if refusals else ""
    return f"none of {outcome.trials} trials stands{first}"
