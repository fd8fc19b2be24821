"""Did a commit make a kernel slower? Which kernels two revisions have, what of them changed, and how each compares."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Unpack

from tunebench.db.connection.database import open_database
from tunebench.kernels.runtime.registry import load_model, place_of
from tunebench.studies.checking.regress.comparison import (
    Comparison,
    IncomparableError,
    Outcome,
    compare_revisions,
)
from tunebench.studies.checking.regress.modules import modules_of
from tunebench.studies.checking.regress.repository import Revision, Side, kernels_in, repository_of, revisions
from tunebench.studies.request.options import given, make, taking
from tunebench.studies.tuning.study_file import RegressRequest, StudyRequest, make_request, read_study_file
from tunebench.tuner.device import find_device
from tunebench.tuner.errors import DatabaseMissingError, TunebenchError, UnknownNameError, UserError, first_line
from tunebench.tuner.fork_server import start_forkserver
from tunebench.tuner.isolation import run_isolated
from tunebench.tuner.kernel import Mode
from tunebench.tuner.reference import require_dtype
from tunebench.tuner.result import MEANINGFUL, Ratio
from tunebench.tuner.running_text import running_text
from tunebench.tuner.timing.statistics import medians_of
from tunebench.tuner.users_code import MODEL_FILE

if TYPE_CHECKING:
    from tunebench.studies.request.keywords import RegressOptions

_SUMMARY_SECONDS = 120.0
_FILE_KEYS = {"sizes", "dtype", "device", "compiler", "tunables", "modes"}
"""Keys of a study file that matter here, in addition to its kernel."""


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


@taking(RegressRequest)
def regress(
    base: str,
    head: str | None = None,
    *,
    db: str | Path | None = None,
    show: Show = lambda _: None,
    **options: Unpack[RegressOptions],
) -> RegressReport:
    """Time every kernel that differs between two git revisions: both checked, then in interleaved rounds.

    Args:
        base, head: a commit, a branch or a tag; None is the working tree as it is.
        db: where recorded results are, which say what configurations are timed; see `connect`.
        show: is told what is being done.

    Raises:
        UserError: this is no git repository, there is no such revision, or something else in the question was wrong.
        DatabaseError: the database cannot be read.
        TunebenchError: this machine cannot go on, such as for a full disk.
    """
    asked = given(RegressRequest, options)
    request = make(RegressRequest, asked, "regress")  # before anything is checked out
    require_dtype(request.dtype)
    find_device(request.device)
    with suppress(DatabaseMissingError):
        open_database(db, read_only=True).close()
    root = repository_of(Path(request.repository))
    start_forkserver([compare_revisions.__module__])
    own = {name: value for name, value in asked.items() if name in StudyRequest.model_fields}
    with revisions(root, base, head) as both:
        show(" against ".join(map(str, both.values())))
        changes: list[KernelChange] = []
        unchanged: list[str] = []
        wanted = list(_requests(root, both, request.kernels, own))
        if not wanted:
            raise UserError(f"{root} has no kernels in either revision: a kernel's folder has {MODEL_FILE} and its .cu")
        for one in wanted:
            name = Path(one.kernel).stem or root.name
            for change in _changes(name, one, both, request.threshold, db):
                if change is None:
                    unchanged.append(name)
                    continue
                changes.append(change)
                show(f"{change.kernel} {change.mode or ''}: {change.outcome} {change.said}".rstrip())
    same = tuple(dict.fromkeys(unchanged))
    return RegressReport(both[Side.BASE], both[Side.HEAD], request.threshold, tuple(changes), same)


def _requests(
    root: Path, both: Mapping[Side, Revision], targets: Sequence[str | Path], options: Mapping[str, object]
) -> Iterator[StudyRequest]:
    """Yield a request for each kernel to compare where it differs; the kernels are places below the root."""
    if not targets:
        for place in sorted(set().union(*map(kernels_in, both.values()))):
            yield make_request({"kernel": str(place), **options}, str(place))
    for target in map(str, targets):
        named, own = target, {}
        if Path(target).suffix == ".toml":
            request = read_study_file(Path(target))
            named, own = request.kernel, request.model_dump(include=_FILE_KEYS, exclude_unset=True)
        kernel = str(_place(root, both.values(), named))
        yield make_request({**own, **options, "kernel": kernel}, kernel)


def _place(root: Path, both: Iterable[Revision], target: str) -> PurePosixPath:
    """Where a target is below the root, in whichever revision.

    Raises:
        UserError: it is nowhere, or not in the repository.
    """
    named = Path(os.path.normpath(Path.cwd() / target))
    if not named.is_relative_to(root):
        named = named.resolve()
    if not (named.is_relative_to(root) and any((one.root / named.relative_to(root)).exists() for one in both)):
        named = place_of(target).resolve()
        if not named.is_relative_to(root):
            raise UserError(f"'{target}' is {named}, which is not in the repository {root}")
    place = PurePosixPath(named.relative_to(root).as_posix())
    return place.parent if place.name == MODEL_FILE else place


def _changes(
    name: str, request: StudyRequest, both: Mapping[Side, Revision], threshold: float, database: str | Path | None
) -> Iterator[KernelChange | None]:
    """A kernel, once for each mode; once where one revision does not have it; None where it is the same."""
    change = partial(KernelChange, name, request.kernel)
    try:
        base, head = (found := _summaries(both, request.kernel)).values()
    except IncomparableError as error:
        yield change(None, error.outcome, said=error.message)
        return
    if base.digest == head.digest:
        yield None
        return
    note = "the reference changed too: each is checked against its own" if base.reference != head.reference else ""
    for mode in request.modes or map(Mode, dict.fromkeys((*head.modes, *base.modes))):
        asked = request.model_copy(update={"modes": (mode,)})
        try:
            _require_in_both(name, found, asked)
            compared = compare_revisions(both, asked, threshold, database)
            yield change(mode, outcome_of(compared.ratio, threshold), compared, note)
        except IncomparableError as error:
            yield change(mode, error.outcome, said=error.message)


@dataclass(frozen=True)
class _Summary:
    """A revision's kernel, as far as it is known without running it.

    Attributes:
        sizes: names of its reference's constants.
        reference: what runs in its `reference.py`; empty of a kernel in one file.
    """

    digest: str
    modes: tuple[str, ...]
    dtypes: tuple[str, ...]
    sizes: tuple[str, ...]
    reference: str


def _summaries(both: Mapping[Side, Revision], place: str) -> Mapping[Side, _Summary]:
    """Load a kernel in both revisions, each in a process that its files may end.

    Raises:
        IncomparableError: one of them does not have it, or it does not load.
        UserError: neither has it.
    """
    found: dict[Side, _Summary] = {}
    for side in reversed(Side):  # what is wrong with HEAD matters more
        file = both[side].root / place
        if (file / MODEL_FILE if file.suffix != ".py" else file).is_file():
            try:
                found[side] = run_isolated(_SUMMARY_SECONDS, _summarise, both[side], place)
            except TunebenchError as error:
                raise IncomparableError.of(side, f"{side} does not load: {first_line(error)}") from error
    if not found:
        raise UserError(f"{place} is a kernel in neither revision: it has no {MODEL_FILE}")
    if len(found) == 1:
        said = "new: BASE has no such kernel" if Side.HEAD in found else "removed: HEAD has no such kernel"
        raise IncomparableError(Outcome.NOT_COMPARED, said)
    return {side: found[side] for side in Side}


def _summarise(revision: Revision, place: str) -> _Summary:
    with modules_of(revision):
        kernel = load_model(str(revision.root / place)).kernel
        sizes = tuple(kernel.reference().sizes)
    reference = running_text(kernel.texts.get("reference.py", ""))
    return _Summary(kernel.digest, kernel.modes, kernel.dtypes, sizes, reference)


def _require_in_both(name: str, summaries: Mapping[Side, _Summary], request: StudyRequest) -> None:
    """Refuse what one of the revisions lacks of what is asked for.

    Raises:
        IncomparableError: one does.
        UnknownNameError: both do.
    """
    dtypes = () if request.dtype is None else (request.dtype,)
    for kind, values in (("mode", request.modes or ()), ("size", request.sizes), ("dtype", dtypes)):
        having = {side: getattr(one, f"{kind}s") for side, one in summaries.items()}
        for value in values:
            lacking = [side for side, legal in having.items() if value not in legal]
            if len(lacking) > 1:
                raise UnknownNameError(f"{kind} of kernel '{name}'", value, having[Side.HEAD])
            if lacking:
                message = f"{lacking[0]} does not have the {kind} '{value}'"
                raise IncomparableError(Outcome.NOT_COMPARED, message)


def outcome_of(ratio: Ratio, threshold: float) -> Outcome:
    """Return the outcome that a ratio means for HEAD."""
    if ratio.high < min(1 / (1 + threshold), 1 / (1 + MEANINGFUL)):
        return Outcome.REGRESSION
    return Outcome(ratio.decision)
