"""Did a commit make a kernel slower? Which kernels two revisions have, what of them changed, and how each compares."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tunebench.kernels.runtime.registry import place_of
from tunebench.studies.regress.contest import (
    Contest,
    Look,
    Matter,
    OtherProblemError,
    Side,
    SideError,
    contest,
    look,
)
from tunebench.studies.regress.repository import Revision, kernels_in, repository_of, revisions
from tunebench.studies.study_file import make_request, read_study_file
from tunebench.tuner.device import find_device
from tunebench.tuner.empty import refusing_empty
from tunebench.tuner.errors import TunebenchError, UnknownNameError, UserError, first_line
from tunebench.tuner.isolation import DeathError, IsolatedProcess, start_forkserver
from tunebench.tuner.kernel import Mode
from tunebench.tuner.reference import require_dtype
from tunebench.tuner.result import MEANINGFUL, Ratio
from tunebench.tuner.timing.statistics import medians_of
from tunebench.tuner.users_code import MODEL_FILE

THRESHOLD = 0.02
"""The share that HEAD may be slower before it is a regression."""

_LOOK_SECONDS = 120.0
_FILE_KEYS = {"sizes", "dtype", "device", "compiler", "tunables"}
"""What of a study file matters here, beside its kernel and modes."""


class Outcome(enum.StrEnum):
    """What became of a kernel that differs between two revisions."""

    FASTER = "faster"
    SLOWER = "slower"
    TIE = "tie"
    INCONCLUSIVE = "inconclusive"
    """The interval is too wide to say anything."""
    REGRESSION = "regression"
    """Slower, and the whole interval lies beyond the threshold."""
    WRONG = "wrong"
    """HEAD does not load, build or run, or the gate refused it."""
    NOT_COMPARED = "not compared"
    """BASE is such, only one of the two has it, or the problem is another one now."""


@dataclass(frozen=True)
class KernelChange:
    """One kernel in one mode that differs between two revisions.

    Attributes:
        kernel: its name.
        place: its folder or file, below the root of the repository.
        mode: None where neither revision got so far.
        outcome: how HEAD stands beside BASE.
        contest: the times and what they were taken under; None where they were not.
        said: why there are no times, or what has to be known of them; one line, or empty.
    """

    kernel: str
    place: str
    mode: Mode | None
    outcome: Outcome
    contest: Contest | None = None
    said: str = ""

    @property
    def ratio(self) -> Ratio | None:
        """How many times faster HEAD is than BASE."""
        return self.contest.rounds.ratio if self.contest else None

    @property
    def medians_ms(self) -> Mapping[str, float]:
        """Of `BASE` and `HEAD`."""
        return medians_of(self.contest.rounds.samples_ms) if self.contest else {}


@dataclass(frozen=True)
class RegressReport:
    """What became of every kernel that differs between two revisions.

    Attributes:
        threshold: the share that HEAD may be slower.
        unchanged: kernels that run the same in both.
    """

    base: Revision
    head: Revision
    threshold: float
    changes: tuple[KernelChange, ...]
    unchanged: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing is a regression, and nothing of HEAD wrong."""
        return not any(change.outcome in (Outcome.REGRESSION, Outcome.WRONG) for change in self.changes)


Show = Callable[[str], None]
"""Called with one line for people whenever something begins or ends."""


@refusing_empty
def regress(
    base: str,
    head: str | None = None,
    *,
    kernels: Sequence[str | Path] = (),
    repository: str | Path = ".",
    threshold: float = THRESHOLD,
    sizes: Mapping[str, int | float] | None = None,
    dtype: str | None = None,
    modes: Sequence[str] | None = None,
    device: str | None = None,
    compiler: str | None = None,
    db: str | Path | None = None,
    show: Show = lambda _: None,
) -> RegressReport:
    """Time every kernel that differs between two git revisions: both checked, then interleaved in one run.

    Args:
        base, head: a commit, a branch or a tag; None is the working tree as it is.
        kernels: folders, files, study files, or names of kernels that the repository ships; none for all it has.
        repository: any folder of it.
        threshold: the share that HEAD may be slower: 0.02 are two percent.
        sizes, dtype, modes, device, compiler: as in `tune`; they override a study file's.
        db: where recorded results are, which say what configurations are timed; see `connect`.
        show: is told what is being done.

    Raises:
        UserError: this is no git repository, there is no such revision, or something else in the question was wrong.
        TunebenchError: this machine cannot go on, such as for a full disk.
    """
    if not 0 <= threshold < 1:
        raise UserError(f"threshold {threshold}: give a share from 0 to 1, such as 0.02 for two percent")
    asked = {"sizes": sizes, "dtype": dtype, "modes": modes, "device": device, "compiler": compiler}
    options = {name: value for name, value in asked.items() if value is not None}
    make_request({"kernel": "any", **options}, "regress")  # before anything is checked out
    require_dtype(dtype)
    find_device(device)
    root = repository_of(Path(repository))
    start_forkserver([__name__])
    with revisions(root, base, head) as (first, second):
        show(f"{first} against {second}")
        changes: list[KernelChange] = []
        unchanged: list[str] = []
        wanted = list(_wanted(root, (first, second), kernels, options))
        if not wanted:
            raise UserError(f"{root} has no kernels in either revision: a kernel's folder has {MODEL_FILE} and its .cu")
        with closing(_Looks(root)) as looks:
            for one in wanted:
                pair = looks.at(first, one.place), looks.at(second, one.place)
                if _is_same(pair):
                    unchanged.append(_name(pair, one.place))
                    continue
                for change in _changes(root, (first, second), one, pair, threshold, db):
                    changes.append(change)
                    show(f"{change.kernel} {change.mode or ''}: {change.outcome} {change.said}".rstrip())
    return RegressReport(first, second, threshold, tuple(changes), tuple(dict.fromkeys(unchanged)))


@dataclass(frozen=True)
class _Wanted:
    """A kernel's place below the root, and the options that it is to be timed with."""

    place: PurePosixPath
    options: Mapping[str, object]
    modes: Sequence[Mode] | None


def _wanted(
    root: Path, pair: tuple[Revision, Revision], targets: Sequence[str | Path], options: Mapping[str, object]
) -> Iterator[_Wanted]:
    """What is to be compared where it differs."""
    if not targets:
        for place in sorted(kernels_in(pair[0]) | kernels_in(pair[1])):
            yield _want(place, options)
    for target in map(str, targets):
        if Path(target).suffix == ".toml":
            request = read_study_file(Path(target))
            given = request.model_dump(include={*_FILE_KEYS, "modes"}, exclude_unset=True)
            yield _want(_place(root, pair, request.kernel), {**given, **options})
        else:
            yield _want(_place(root, pair, target), options)


def _want(place: PurePosixPath, options: Mapping[str, object]) -> _Wanted:
    request = make_request({"kernel": str(place), **options}, str(place))
    return _Wanted(place, {name: value for name, value in options.items() if name != "modes"}, request.modes)


def _place(root: Path, pair: tuple[Revision, Revision], target: str) -> PurePosixPath:
    """Where a target is below the root, in whichever revision.

    Raises:
        UserError: it is nowhere, or not in the repository.
    """
    named = Path(os.path.normpath(Path.cwd() / target))
    if not named.is_relative_to(root):
        named = named.resolve()
    if not (named.is_relative_to(root) and any((one.root / named.relative_to(root)).exists() for one in pair)):
        named = place_of(target).resolve()
        if not named.is_relative_to(root):
            raise UserError(f"'{target}' is {named}, which is not in the repository {root}")
    place = PurePosixPath(named.relative_to(root).as_posix())
    return place.parent if place.name == MODEL_FILE else place


class _Looks:
    """Loads kernels in a process of its own, which their files may end."""

    def __init__(self, repository: Path) -> None:
        self._repository = repository
        self._process = IsolatedProcess()

    def at(self, revision: Revision, place: PurePosixPath) -> Look | str | None:
        """What a revision's kernel is; None where it has none, a text where it does not load."""
        found = revision.root / place
        if not (found / MODEL_FILE if found.suffix != ".py" else found).is_file():
            return None
        if not self._process.alive:
            self._process.start()
        try:
            return self._process.ask(_LOOK_SECONDS, look, self._repository, revision, place)
        except DeathError as death:
            return f"loading it ended the process: {death}"
        except TunebenchError as error:
            return first_line(error)

    def close(self) -> None:
        """End the process."""
        self._process.close()


Pair = tuple[Look | str | None, Look | str | None]


def _is_same(pair: Pair) -> bool:
    first, second = pair
    return isinstance(first, Look) and isinstance(second, Look) and first.digest == second.digest


def _name(pair: Pair, place: PurePosixPath) -> str:
    return next((one.name for one in reversed(pair) if isinstance(one, Look)), place.stem)


def _changes(
    root: Path,
    sides: tuple[Revision, Revision],
    wanted: _Wanted,
    pair: Pair,
    threshold: float,
    database: str | Path | None,
) -> Iterator[KernelChange]:
    """A kernel that differs, one for each mode; one in all where the revisions do not both have it."""
    base, head = pair
    name, place = _name(pair, wanted.place), str(wanted.place)
    if isinstance(head, str):
        yield KernelChange(name, place, None, Outcome.WRONG, said=f"{Side.HEAD} does not load: {head}")
    elif isinstance(base, str):
        yield KernelChange(name, place, None, Outcome.NOT_COMPARED, said=f"{Side.BASE} does not load: {base}")
    elif base is None or head is None:
        if base is head:
            raise UserError(f"{place} is a kernel in neither revision: it has no {MODEL_FILE}")
        said = "new: BASE has no such kernel" if base is None else "removed: HEAD has no such kernel"
        yield KernelChange(name, place, None, Outcome.NOT_COMPARED, said=said)
    else:
        note = "the reference changed too: each is checked against its own" if base.reference != head.reference else ""
        for mode in wanted.modes or map(Mode, dict.fromkeys((*head.modes, *base.modes))):
            if said := _lacking(name, {Side.BASE: base, Side.HEAD: head}, mode, wanted.options):
                yield KernelChange(name, place, mode, Outcome.NOT_COMPARED, said=said)
                continue
            matter = Matter(root, *sides, wanted.place, mode, wanted.options, threshold, database)
            yield _change(name, matter, note)


def _lacking(name: str, looks: Mapping[Side, Look], mode: Mode, options: Mapping[str, object]) -> str:
    """What one of the revisions has not of what is asked for; empty where both have everything.

    Raises:
        UnknownNameError: both lack it.
    """
    sizes, dtype = options.get("sizes"), options.get("dtype")
    asked = [("mode", str(mode)), *(("size", str(one)) for one in (sizes if isinstance(sizes, Mapping) else ()))]
    asked += [("dtype", str(dtype))] if dtype is not None else []
    for kind, value in asked:
        having = {side: getattr(one, f"{kind}s") for side, one in looks.items()}
        lacking = [side for side, legal in having.items() if value not in legal]
        if len(lacking) > 1:
            raise UnknownNameError(f"{kind} of kernel '{name}'", value, having[Side.HEAD])
        if lacking:
            return f"{lacking[0]} does not have the {kind} '{value}'"
    return ""


def _change(name: str, matter: Matter, note: str) -> KernelChange:
    """How one kernel in one mode compares."""
    place, mode = str(matter.place), matter.mode
    try:
        found = contest(matter)
    except SideError as error:
        outcome = Outcome.NOT_COMPARED if error.side is Side.BASE else Outcome.WRONG
        return KernelChange(name, place, mode, outcome, said=f"{error.side}: {error.message}")
    except OtherProblemError as error:
        return KernelChange(name, place, mode, Outcome.NOT_COMPARED, said=str(error))
    return KernelChange(name, place, mode, outcome_of(found.rounds.ratio, matter.threshold), found, note)


def outcome_of(ratio: Ratio, threshold: float) -> Outcome:
    """What a ratio says of HEAD."""
    if ratio.high < min(1 / (1 + threshold), 1 / (1 + MEANINGFUL)):
        return Outcome.REGRESSION
    return Outcome(ratio.decision)
