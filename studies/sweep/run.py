"""A sweep: studies as one queue over all devices. What is done is left alone, what fails is told and passed over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, as_completed, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tunebench.db.connection.database import Database
from tunebench.db.queries.trials import best_of_studies
from tunebench.kernels.runtime.shipped import require_shipping
from tunebench.studies.sweep.display import SweepDisplay
from tunebench.studies.sweep.ranges import find_ranges
from tunebench.studies.sweep.tasks import (
    Course,
    State,
    Swept,
    Task,
    is_done,
    next_of,
    requests_of,
    study_of,
    tasks_of,
)
from tunebench.studies.tuning.on_this_machine import Lane, lanes_of
from tunebench.studies.tuning.study_file import ExecutorName
from tunebench.studies.tuning.tune import Announcement, StudyReport, tune
from tunebench.studies.writing.ship import RangeTest, Shipment, ship
from tunebench.tuner.device import Device
from tunebench.tuner.errors import DatabaseError, DiskFullError, TunebenchError, UserError, WorkerError
from tunebench.tuner.kernel import Kernel
from tunebench.tuner.study.study import Ending, Outcome, Progress

_MOST_LOSSES = 3
"""Number of studies in a row that a lane's workers do not survive before its devices count as lost."""


_END_SECONDS = 0.2
"""How often lanes that are to end are told so again: a worker may have been between two processes."""


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
        return all(one.state in (State.TUNED, State.KEPT) for one in self.results)


def run_sweep(
    files: Sequence[Path],
    options: Mapping[str, Any],
    database: Database,
    display: SweepDisplay,
) -> SweepReport:
    """Run the studies of study files, or go on with them, as one queue over all devices.

    Args:
        options: those of `SweepCommandRequest` that were given, which override the files' own keys. Winners are tested
            and shipped at the end of a sweep that was not interrupted.
        display: shows it.

    Raises:
        UserError: something is unknown, not legal or not on this machine; nothing has run then.
        DatabaseError: the database cannot be read or written.
    """
    ships = options.get("ship", False)
    requests = requests_of(files, {name: value for name, value in options.items() if name != "ship"})
    on_ray = requests[0].executor is ExecutorName.RAY
    if on_ray and ships:
        raise UserError("winners are tested on the machine that ships them: sweep on Ray first, then here to ship")
    tasks = tasks_of(requests)
    kernels: list[Kernel] = list({task.kernel: task.resolved.kernel for task in tasks}.values())
    for kernel in kernels if ships else ():
        require_shipping(kernel)
    queue = _Queue(tasks, database, display, on_ray=on_ray)
    report = queue.run()
    if not ships or report.interrupted:
        return report
    tests = find_ranges(database, kernels, tasks, queue.devices, display.says)
    return replace(report, tests=tests, shipments=tuple(ship(database, kernels, report.device.name, tests)))


@dataclass
class _Study:
    """A study of the queue.

    Attributes:
        runs: whether a lane is at it.
        share: of its trials that are done.
        trials: of this sweep.
        was_lost: whether it ended once because its workers were lost.
        ended: what became of it.
    """

    task: Task
    runs: bool = False
    share: float = 0.0
    trials: int = 0
    was_lost: bool = False
    ended: Swept | None = None


class _Queue:
    """The studies of a sweep; each lane takes the next one when it is free.

    Attributes:
        devices: what it runs on; of Ray the first.

    Args:
        on_ray: each study has all devices of the cluster.
    """

    def __init__(self, tasks: Sequence[Task], database: Database, display: SweepDisplay, *, on_ray: bool) -> None:
        self._studies = [_Study(task) for task in tasks]
        self._database = database
        self._display = display
        self._on_ray = on_ray
        self._kept = 0
        self._lanes_left = 0
        self._lock = threading.RLock()
        self._stops = threading.Event()
        self._started = time.monotonic()
        places = [place.device for lane in self._lanes(1) if lane is not None for place in lane.places]
        self.devices: Sequence[Device] = places or [tasks[0].resolved.device]

    def _lanes(self, most: int) -> Sequence[Lane | None]:
        """Return at most `most` lanes that share the devices; on Ray None alone, which stands for all of them."""
        resolved = self._studies[0].task.resolved
        return [None] if self._on_ray else lanes_of(resolved.request, resolved.devices, most)

    def run(self) -> SweepReport:
        """Run what is not done.

        Raises:
            DatabaseError: the database cannot be read or written; what was done is recorded.
        """
        for one in self._studies:
            self._keep_if_done(one)
        lanes = self._lanes(max(1, len(self._studies) - self._kept))
        self._started, self._lanes_left = time.monotonic(), len(lanes)
        if len(lanes) == 1:
            self._work(lanes[0])
        else:
            self._work_on(lanes)
        seconds = time.monotonic() - self._started
        results = tuple(one.ended or _swept(one.task, State.LEFT) for one in self._studies)
        return SweepReport(results, self.devices[0], self._stops.is_set(), seconds)

    def _keep_if_done(self, one: _Study) -> None:
        task, device = one.task, self.devices[0]
        study = study_of(task, self._database, device)
        if study is not None and is_done(task, study, self._database, device):
            self._kept += 1
            one.ended = self._with_best(_swept(task, State.KEPT, study=study))
            self._display.ends(one.ended, self._course())

    def _work_on(self, lanes: Sequence[Lane | None]) -> None:
        working = [_in_thread(self._work, lane) for lane in lanes]
        try:
            for lane in as_completed(working):
                lane.result()
        except BaseException as error:
            self._stops.set()
            # What they wait for may take long: a reference in float64, or a device that others work on.
            while wait(working, _END_SECONDS).not_done:
                for one in filter(None, lanes):
                    one.workers.end()
            if not isinstance(error, KeyboardInterrupt):
                raise

    def _work(self, lane: Lane | None) -> None:
        losses: set[int] = set()
        while (one := self._take()) is not None:
            started = time.monotonic()
            swept, lost = self._outcome_of(one, lane)
            losses = losses | {id(one)} if lost else set()
            with self._lock:
                one.runs = False
                if lost and self._lanes_left > 1 and not one.was_lost:
                    one.was_lost, one.trials = True, 0  # the device may be what failed: another lane may try it
                    self._display.says(f"{swept.kernel} ({swept.about}) is tried once more: {swept.message}")
                else:
                    one.ended = replace(swept, trials=one.trials, seconds=time.monotonic() - started)
                    self._display.ends(one.ended, self._course())
                if len(losses) >= _MOST_LOSSES and self._lanes_left > 1:
                    self._lanes_left -= 1
                    names = ", ".join(_names(lane))
                    self._display.says(f"goes on without {names}: the workers of {len(losses)} studies in a row died")
                    return

    def _take(self) -> _Study | None:
        with self._lock:
            waiting = [one for one in self._studies if one.ended is None and not one.runs]
            if self._stops.is_set() or not waiting:
                return None
            tuned = [one for one in self._studies if one.ended and one.ended.state in (State.TUNED, State.KEPT)]
            running = [one.task for one in self._studies if one.runs]
            task = next_of([one.task for one in waiting], [one.task for one in tuned], running)
            chosen = next(one for one in waiting if one.task is task)
            chosen.runs, chosen.share, chosen.trials = True, 0.0, 0
            return chosen

    def _outcome_of(self, one: _Study, lane: Lane | None) -> tuple[Swept, bool]:
        """Run a study; return its outcome, and whether it ended because its workers were lost."""
        task, resolved = one.task, one.task.resolved
        if lane is not None:
            resolved = replace(resolved, lane=lane, devices=[place.device for place in lane.places])
        try:
            (report,) = tune(resolved, self._database, lambda announcement: self._announced(one, announcement))
        except KeyboardInterrupt:
            self._stops.set()
            return _swept(task, State.LEFT), False
        except (DatabaseError, DiskFullError):
            raise
        except TunebenchError as error:
            if self._stops.is_set():
                return _swept(task, State.LEFT), False
            study = study_of(task, self._database, resolved.device)
            failed = _swept(task, State.FAILED, study=study, message=str(error))
            return failed, isinstance(error, WorkerError)
        if report.outcome.ending is Ending.INTERRUPTED:
            self._stops.set()
        return self._with_best(_judged(report)), False

    def _with_best(self, swept: Swept) -> Swept:
        assert swept.study is not None
        return replace(swept, best=best_of_studies(self._database, [swept.study]).get(swept.study))

    def _announced(self, one: _Study, announcement: Announcement) -> Callable[[Progress], None]:
        show = self._display(announcement)

        def show_both(progress: Progress) -> None:
            if self._stops.is_set():
                raise KeyboardInterrupt
            with self._lock:
                one.share, one.trials = progress.done / max(progress.planned, 1), progress.here
                show(progress)
                self._display.stands(self._course())

        return show_both

    def _course(self) -> Course:
        ended = [one.ended for one in self._studies if one.ended and one.ended.state is not State.LEFT]
        seconds, total = time.monotonic() - self._started, len(self._studies)
        here = len(ended) - self._kept + sum(one.share for one in self._studies if one.runs)
        left = total - self._kept - here
        trials = sum(one.trials for one in self._studies)
        return Course(len(ended), total, trials, seconds, left * seconds / here if here > 0 else None)


def _in_thread(work: Callable[[Lane | None], None], lane: Lane | None) -> Future[None]:
    """Work on a lane in a thread that does not keep the process from ending."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            work(lane)
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            future.set_exception(error)
        else:
            future.set_result(None)

    threading.Thread(target=run, name="lane", daemon=True).start()
    return future


def _names(lane: Lane | None) -> list[str]:
    return ["the cluster"] if lane is None else [str(place.device.torch_device) for place in lane.places]


def _swept(task: Task, state: State, *, study: int | None = None, message: str = "") -> Swept:
    return Swept(task.kernel, task.problem, task.about, state, study, message=message)


def _judged(report: StudyReport) -> Swept:
    state, message = State.TUNED, ""
    if report.outcome.ending is Ending.INTERRUPTED:
        state = State.LEFT
    elif report.outcome.comparison is None:
        state, message = State.FAILED, _why_nothing(report.outcome)
    return Swept(report.kernel, report.problem, str(report.problem), state, report.study, message=message)


def _why_nothing(outcome: Outcome) -> str:
    """Why a study has no winner, by its most frequent refusal."""
    refusals = sorted(outcome.refusals.items(), key=lambda pair: -pair[1])
    first = f", {refusals[0][1]} of them: {refusals[0][0]}" if refusals else ""
    return f"none of {outcome.trials} trials stands{first}"
