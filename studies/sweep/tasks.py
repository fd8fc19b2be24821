"""The studies of a sweep: which there are, which are done already, which comes next, and what became of each."""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tunebench.db.connection.database import Database
from tunebench.db.queries.rows import BestRow
from tunebench.db.queries.studies import conclusion
from tunebench.db.queries.warm_start import begun_study
from tunebench.kernels.runtime.registry import place_of
from tunebench.studies.tuning.for_problem import problem_of
from tunebench.studies.tuning.resolved import Resolved, resolve
from tunebench.studies.tuning.study_file import PlaceRequest, StudyRequest, make_request, read_study_files
from tunebench.studies.tuning.tune import describe_study
from tunebench.tuner.device import Device
from tunebench.tuner.environment import versions_here
from tunebench.tuner.errors import UserError
from tunebench.tuner.problem import Problem
from tunebench.tuner.search.warm_start import distance
from tunebench.tuner.users_code import UsersCodeError
from tunebench.tuner.watched import watched


class State(enum.StrEnum):
    """The outcome of a study of a sweep."""

    TUNED = "tuned"
    KEPT = "done already"
    FAILED = "failed"
    LEFT = "not done"
    """The sweep ended before it; the same command goes on."""


@dataclass(eq=False)
class Swept:
    """One study of a sweep, and what becomes of it.

    Attributes:
        resolved: of one mode.
        problem: None where nobody came to know it.
        study: its number in the database; None where it never began.
        trials, seconds: of this sweep.
        message: why it failed.
        best: its winner; None where there is none.
        runs: whether a device is at it.
        share: of its trials that are done, while it runs.
        was_lost: whether it ended once because its workers were lost.
    """

    resolved: Resolved = field(repr=False)
    problem: Problem | None
    state: State = State.LEFT
    study: int | None = None
    trials: int = 0
    seconds: float = 0.0
    message: str = ""
    best: BestRow | None = None
    runs: bool = False
    share: float = 0.0
    was_lost: bool = False

    @property
    def kernel(self) -> str:
        """The kernel's name."""
        return self.resolved.kernel.name

    @property
    def about(self) -> str:
        """The problem, else the sizes, dtype and mode that are asked for, as text for people."""
        request = self.resolved.request
        sizes = (f"{name}={size}" for name, size in request.sizes.items())
        asked = " ".join(filter(None, (*sizes, request.dtype, self.resolved.modes[0])))
        return str(self.problem or asked)

    @property
    def has_winner(self) -> bool:
        """Whether it was concluded, in this sweep or before it."""
        return self.state in (State.TUNED, State.KEPT)

    def look_up(self, database: Database, device: Device) -> None:
        """Take its number from the database, and whether it is done there.

        It is where it has its final comparison, with the versions of here, and spent its budget before that. A study
        that had a limit of time too, or could stop early, has spent its budget however many trials it has.
        """
        begun = self.problem and begun_study(database, describe_study(self.resolved, self.problem, device))
        self.study = begun.study if begun else None
        found = conclusion(database, self.study) if self.study is not None else None
        if self.problem is None or found is None or found.versions.changes(versions_here(device)):
            return
        request = self.resolved.request
        enough = found.trials >= request.trials or request.seconds is not None or request.stop_early
        if enough or found.trials >= len(self.resolved.space.enumerate(self.problem, device)):
            self.state = State.KEPT


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
    for key in PlaceRequest.model_fields:
        if len(values := {getattr(one, key) for one in found}) > 1:
            said = " and ".join(sorted(map(str, values)))
            raise UserError(f"a sweep is one queue, and '{key}' is {said} in its studies: say one for all, by --{key}")
    return found


def studies_of(requests: Sequence[StudyRequest]) -> list[Swept]:
    """One for each mode of each request, every name found before anything runs; none twice.

    Raises:
        UserError: something is unknown or not on this machine.
    """
    every = [resolve(request) for request in requests]
    problems: dict[str, Iterator[Problem | None]] = {}
    for target in dict.fromkeys(request.kernel for request in requests):
        problems[target] = iter(_problems(target, [one for one in every if one.request.kernel == target]))
    found: dict[object, Swept] = {}
    for resolved in every:
        for mode in resolved.modes:
            one = Swept(replace(resolved, modes=(mode,)), next(problems[resolved.request.kernel]))
            found.setdefault(_identity(one), one)
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
        found += [problem and problem.at(one.accuracy, one.request.objective) for problem in named]
    return found


def _identity(one: Swept) -> object:
    """Equal for two that are one study."""
    if one.problem is None:
        return one.resolved.modes, one.resolved.request.model_dump_json()
    return describe_study(one.resolved, one.problem, one.resolved.device)


def next_of(waiting: Sequence[Swept], finished: Collection[Swept], running: Collection[Swept]) -> Swept:
    """Which one begins now: of a kernel that nothing else runs of, and the nearest to what is finished of that.

    A study begins with what won at its neighbours, so that the first of a kernel is the one in the middle of all.
    """
    busy = {one.kernel for one in running}
    kernels = list(dict.fromkeys(one.kernel for one in waiting))

    def rank(one: Swept) -> tuple[object, ...]:
        known = list(_distances(one, finished))
        away = min(known) if known else sum(_distances(one, waiting))
        return one.kernel in busy, kernels.index(one.kernel), away

    return min(waiting, key=rank)


def _distances(one: Swept, others: Collection[Swept]) -> Iterator[float]:
    """How far others of the same kernel are."""
    for other in others:
        if other.kernel != one.kernel:
            continue
        if one.problem is None or other.problem is None:
            yield math.inf
        else:
            yield distance(one.problem, other.problem, same_device=True, same_architecture=True, same_source=True)
