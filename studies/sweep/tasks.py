"""The studies of a sweep: which there are, which are done already, which comes next, and what became of each."""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tunebench.db.connection.database import Database
from tunebench.db.queries.rows import BestRow
from tunebench.db.queries.studies import conclusion
from tunebench.db.queries.warm_start import begun_study
from tunebench.kernels.runtime.registry import place_of
from tunebench.studies.tuning.for_problem import problem_of
from tunebench.studies.tuning.study_file import StudyRequest, make_request, read_study_files
from tunebench.studies.tuning.tune import Resolved, describe_study, resolve
from tunebench.tuner.device import Device
from tunebench.tuner.environment import versions_here
from tunebench.tuner.errors import UserError
from tunebench.tuner.kernel import Mode
from tunebench.tuner.problem import Problem
from tunebench.tuner.search.warm_start import distance
from tunebench.tuner.users_code import UsersCodeError
from tunebench.tuner.watched import watched

_PLACE = ("device", "devices", "workers", "executor", "address")
"""Keys that say where a sweep runs: one queue has one answer."""


@dataclass(frozen=True)
class Task:
    """One study of a sweep.

    Attributes:
        resolved: of one mode.
        problem: None where only the process that evaluates can tell.
    """

    resolved: Resolved
    problem: Problem | None

    @property
    def kernel(self) -> str:
        """The kernel's name."""
        return self.resolved.kernel.name

    @property
    def mode(self) -> Mode:
        """The mode that is tuned."""
        return self.resolved.modes[0]

    @property
    def about(self) -> str:
        """The problem that is tuned, else the sizes, dtype and mode that are asked for, as text for people."""
        if self.problem is not None:
            return str(self.problem)
        sizes = "".join(f"{name}={size} " for name, size in self.resolved.request.sizes.items())
        return f"{sizes}{self.resolved.request.dtype or ''} {self.mode}".strip()


class State(enum.StrEnum):
    """The outcome of a study of a sweep."""

    TUNED = "tuned"
    KEPT = "done already"
    FAILED = "failed"
    LEFT = "not done"
    """The sweep ended before it; the same command goes on."""


@dataclass(frozen=True)
class Swept:
    """One study of a sweep, and what became of it.

    Attributes:
        problem: None where nobody came to know it.
        about: what was tuned, for people.
        study: its number in the database; None where it never began.
        trials, seconds: of this sweep.
        message: why it failed.
        best: its winner; None where there is none.
    """

    kernel: str
    problem: Problem | None
    about: str
    state: State
    study: int | None = None
    trials: int = 0
    seconds: float = 0.0
    message: str = ""
    best: BestRow | None = None


@dataclass(frozen=True)
class Course:
    """Where a sweep stands.

    Attributes:
        done: studies that ended, those that were done already included.
        trials: of this sweep.
        seconds: since it began.
        seconds_left: for the whole, at the rate so far; None before there is one.
    """

    done: int
    total: int
    trials: int
    seconds: float
    seconds_left: float | None

    @property
    def per_second(self) -> float:
        """Trials a second."""
        return self.trials / self.seconds if self.seconds > 0 else 0.0


def requests_of(files: Sequence[Path], options: Mapping[str, object]) -> list[StudyRequest]:
    """The studies of study files, in order.

    Args:
        options: keys of a study file that override the files' own.

    Raises:
        UserError: a file cannot be read, has what is not legal, or another place to run on than the others.
    """
    found = [
        make_request({**request.model_dump(exclude_unset=True), **options}, str(file))
        for file in files
        for request in read_study_files(file)
    ]
    for key in _PLACE:
        if len(values := {getattr(one, key) for one in found}) > 1:
            said = " and ".join(sorted(map(str, values)))
            raise UserError(f"a sweep is one queue, and '{key}' is {said} in its studies: say one for all, by --{key}")
    return found


def tasks_of(requests: Sequence[StudyRequest]) -> list[Task]:
    """A task for each mode of each request, every name found before anything runs; none twice.

    Raises:
        UserError: something is unknown or not on this machine.
    """
    every = [resolve(request) for request in requests]
    problems: dict[str, Iterator[Problem | None]] = {}
    for target in dict.fromkeys(request.kernel for request in requests):
        asked = [one for one in every if one.request.kernel == target]
        problems[target] = iter(_problems(target, asked))
    found: dict[object, Task] = {}
    for resolved in every:
        for mode in resolved.modes:
            problem = next(problems[resolved.request.kernel])
            task = Task(replace(resolved, modes=(mode,)), problem)
            found.setdefault(_identity(task), task)
    return list(found.values())


def _problems(target: str, studies: Sequence[Resolved]) -> Sequence[Problem | None]:
    """Return the problem of each mode of each study of one kernel, found in another process; None where nothing is."""
    requests = [one.request for one in studies]
    try:
        return watched(place_of(target), "naming its problems", _name_problems, requests)
    except UsersCodeError:  # of one of its sizes; each study tells its own
        return [None] * sum(len(one.modes) for one in studies)


def _name_problems(requests: Sequence[StudyRequest]) -> list[Problem | None]:
    found: list[Problem | None] = []
    for one in map(resolve, requests):
        kind = one.device.torch_device.type
        named = (problem_of(one.model, one.reference, mode, kind, one.settings) for mode in one.modes)
        found += [problem and problem.at(one.request.accuracy, one.request.objective) for problem in named]
    return found


def _identity(task: Task) -> object:
    """Equal for two tasks that would be one study."""
    if task.problem is None:
        return task.mode, task.resolved.request.model_dump_json()
    return describe_study(task.resolved, task.problem, task.resolved.device)


def study_of(task: Task, database: Database, device: Device) -> int | None:
    """The number of a task's study, where it has begun."""
    if task.problem is None:
        return None
    begun = begun_study(database, describe_study(task.resolved, task.problem, device))
    return None if begun is None else begun.study


def is_done(task: Task, study: int, database: Database, device: Device) -> bool:
    """Whether a study has its final comparison, with the versions of here, and spent its budget before that.

    A study that had a limit of time too, or could stop early, has spent its budget however many trials it has.
    """
    found = conclusion(database, study)
    if found is None or found.versions.changes(versions_here(device)) or task.problem is None:
        return False
    request = task.resolved.request
    if found.trials >= request.trials or request.seconds is not None or request.stop_early:
        return True
    return found.trials >= len(task.resolved.space.enumerate(task.problem, device))


def next_of(waiting: Sequence[Task], finished: Collection[Task], running: Collection[Task]) -> Task:
    """Which task begins now: of a kernel that nothing else runs of, and the nearest to what is finished of that.

    A study begins with what won at its neighbours, so that the first of a kernel is the one in the middle of all.
    """
    busy = {task.kernel for task in running}
    kernels = list(dict.fromkeys(task.kernel for task in waiting))

    def rank(task: Task) -> tuple[object, ...]:
        known = list(_distances(task, finished))
        away = min(known) if known else sum(_distances(task, waiting))
        return task.kernel in busy, kernels.index(task.kernel), away

    return min(waiting, key=rank)


def _distances(task: Task, others: Collection[Task]) -> Iterator[float]:
    """How far others of the same kernel are."""
    for other in others:
        if other.kernel != task.kernel:
            continue
        if task.problem is None or other.problem is None:
            yield math.inf
        else:
            yield distance(task.problem, other.problem, same_device=True, same_architecture=True, same_source=True)
