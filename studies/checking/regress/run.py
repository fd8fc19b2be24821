"""Did a commit make a kernel slower? Which kernels two revisions have, what of them changed, and how each compares."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Unpack

from tunebench.kernels.runtime.registry import place_of
from tunebench.studies.checking.regress.comparison import (
    Case,
    Comparison,
    KernelSummary,
    OtherProblemError,
    Side,
    SideError,
    compare_revisions,
    summarise,
)
from tunebench.studies.checking.regress.repository import Revision, kernels_in, repository_of, revisions
from tunebench.studies.request.options import given, taking
from tunebench.studies.tuning.study_file import StudyRequest, make_request, read_study_file
from tunebench.tuner.device import find_device
from tunebench.tuner.errors import TunebenchError, UnknownNameError, UserError, first_line
from tunebench.tuner.isolation import DeathError, IsolatedProcess, start_forkserver
from tunebench.tuner.kernel import Mode
from tunebench.tuner.reference import require_dtype
from tunebench.tuner.result import MEANINGFUL, Ratio
from tunebench.tuner.timing.statistics import medians_of
from tunebench.tuner.users_code import MODEL_FILE

if TYPE_CHECKING:
    from tunebench.studies.request.keywords import RegressOptions

THRESHOLD = 0.02
"""The share that HEAD may be slower before it is a regression."""

_SUMMARY_SECONDS = 120.0
_FILE_KEYS = {"sizes", "dtype", "device", "compiler", "tunables", "modes"}
"""Keys of a study file that matter here, in addition to its kernel."""


class Outcome(enum.StrEnum):
    """The outcome of a kernel that differs between two revisions."""

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
        comparison: the times and what they were taken under; None where they were not.
        said: why there are no times, or what has to be known of them; one line, or empty.
    """

    kernel: str
    place: str
    mode: Mode | None
    outcome: Outcome
    comparison: Comparison | None = None
    said: str = ""

    @property
    def ratio(self) -> Ratio | None:
        """How many times faster HEAD is than BASE."""
        return self.comparison.ratio if self.comparison else None

    @property
    def medians_ms(self) -> Mapping[str, float]:
        """Median milliseconds of `BASE` and `HEAD`; empty where they were not compared."""
        return medians_of(self.comparison.samples_ms) if self.comparison else {}


@dataclass(frozen=True)
class RegressReport:
    """The outcomes of all kernels that differ between two revisions.

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


@taking(StudyRequest, "sizes", "dtype", "modes", "device", "compiler")
def regress(
    base: str,
    head: str | None = None,
    *,
    kernels: Sequence[str | Path] = (),
    repository: str | Path = ".",
    threshold: float = THRESHOLD,
    db: str | Path | None = None,
    show: Show = lambda _: None,
    **options: Unpack[RegressOptions],
) -> RegressReport:
    """Time every kernel that differs between two git revisions: both checked, then interleaved in one run.

    Args:
        base, head: a commit, a branch or a tag; None is the working tree as it is.
        kernels: folders, files, study files (whose keys the options override), or names of kernels that the
            repository ships; none for all it has.
        repository: any folder of it.
        threshold: the share that HEAD may be slower: 0.02 are two percent.
        db: where recorded results are, which say what configurations are timed; see `connect`.
        show: is told what is being done.

    Raises:
        UserError: this is no git repository, there is no such revision, or something else in the question was wrong.
        TunebenchError: this machine cannot go on, such as for a full disk.
    """
    if not 0 <= threshold < 1:
        raise UserError(f"threshold {threshold}: give a share from 0 to 1, such as 0.02 for two percent")
    asked = given(StudyRequest, options)
    make_request({"kernel": "any", **asked}, "regress")  # before anything is checked out
    require_dtype(asked.get("dtype"))
    find_device(asked.get("device"))
    root = repository_of(Path(repository))
    start_forkserver([__name__])
    with revisions(root, base, head) as (first, second):
        show(f"{first} against {second}")
        changes: list[KernelChange] = []
        unchanged: list[str] = []
        wanted = list(_requests(root, (first, second), kernels, asked))
        if not wanted:
            raise UserError(f"{root} has no kernels in either revision: a kernel's folder has {MODEL_FILE} and its .cu")
        with closing(IsolatedProcess()) as process:
            for one in wanted:
                pair = _summary(process, root, first, one.kernel), _summary(process, root, second, one.kernel)
                if _is_same(pair):
                    unchanged.append(_name(pair, one.kernel))
                    continue
                for change in _changes(root, {Side.BASE: first, Side.HEAD: second}, one, pair, threshold, db):
                    changes.append(change)
                    show(f"{change.kernel} {change.mode or ''}: {change.outcome} {change.said}".rstrip())
    return RegressReport(first, second, threshold, tuple(changes), tuple(dict.fromkeys(unchanged)))


def _requests(
    root: Path, pair: tuple[Revision, Revision], targets: Sequence[str | Path], options: Mapping[str, object]
) -> Iterator[StudyRequest]:
    """Yield a request for each kernel to compare where it differs; the kernels are places below the root."""
    if not targets:
        for place in sorted(kernels_in(pair[0]) | kernels_in(pair[1])):
            yield make_request({"kernel": str(place), **options}, str(place))
    for target in map(str, targets):
        named, own = target, {}
        if Path(target).suffix == ".toml":
            request = read_study_file(Path(target))
            named, own = request.kernel, request.model_dump(include=_FILE_KEYS, exclude_unset=True)
        kernel = str(_place(root, pair, named))
        yield make_request({**own, **options, "kernel": kernel}, kernel)


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


def _summary(process: IsolatedProcess, repository: Path, revision: Revision, place: str) -> KernelSummary | str | None:
    """Load a revision's kernel in a process that its files may end; None where it has none, or why it does not load."""
    found = revision.root / place
    if not (found / MODEL_FILE if found.suffix != ".py" else found).is_file():
        return None
    if not process.alive:
        process.start()
    try:
        return process.ask(_SUMMARY_SECONDS, summarise, repository, revision, place)
    except DeathError as death:
        return f"loading it ended the process: {death}"
    except TunebenchError as error:
        return first_line(error)


Pair = tuple[KernelSummary | str | None, KernelSummary | str | None]


def _is_same(pair: Pair) -> bool:
    first, second = pair
    return isinstance(first, KernelSummary) and isinstance(second, KernelSummary) and first.digest == second.digest


def _name(pair: Pair, place: str) -> str:
    return next((one.name for one in reversed(pair) if isinstance(one, KernelSummary)), Path(place).stem)


def _changes(
    root: Path,
    revisions: Mapping[Side, Revision],
    request: StudyRequest,
    pair: Pair,
    threshold: float,
    database: str | Path | None,
) -> Iterator[KernelChange]:
    """A kernel that differs, one for each mode; one in all where the revisions do not both have it."""
    (base, head), place = pair, request.kernel
    name = _name(pair, place)
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
        for mode in request.modes or map(Mode, dict.fromkeys((*head.modes, *base.modes))):
            if said := _lacking(name, {Side.BASE: base, Side.HEAD: head}, mode, request):
                yield KernelChange(name, place, mode, Outcome.NOT_COMPARED, said=said)
            else:
                yield _change(name, Case(root, revisions, request, mode, threshold, database), note)


def _lacking(name: str, summaries: Mapping[Side, KernelSummary], mode: Mode, request: StudyRequest) -> str:
    """Return what one of the revisions lacks of what is asked for; empty where both have everything.

    Raises:
        UnknownNameError: both lack it.
    """
    asked = [("mode", str(mode)), *(("size", size) for size in request.sizes)]
    for kind, value in [*asked, ("dtype", request.dtype)] if request.dtype is not None else asked:
        having = {side: getattr(one, f"{kind}s") for side, one in summaries.items()}
        lacking = [side for side, legal in having.items() if value not in legal]
        if len(lacking) > 1:
            raise UnknownNameError(f"{kind} of kernel '{name}'", value, having[Side.HEAD])
        if lacking:
            return f"{lacking[0]} does not have the {kind} '{value}'"
    return ""


def _change(name: str, case: Case, note: str) -> KernelChange:
    """How one kernel in one mode compares."""
    outcome, found, said = Outcome.NOT_COMPARED, None, note
    try:
        found = compare_revisions(case)
        outcome = outcome_of(found.ratio, case.threshold)
    except SideError as error:
        outcome = Outcome.NOT_COMPARED if error.side is Side.BASE else Outcome.WRONG
        said = f"{error.side}: {error.message}"
    except OtherProblemError as error:
        said = str(error)
    return KernelChange(name, case.request.kernel, case.mode, outcome, found, said)


def outcome_of(ratio: Ratio, threshold: float) -> Outcome:
    """Return the outcome that a ratio means for HEAD."""
    if ratio.high < min(1 / (1 + threshold), 1 / (1 + MEANINGFUL)):
        return Outcome.REGRESSION
    return Outcome(ratio.decision)
