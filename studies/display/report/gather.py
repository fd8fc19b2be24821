"""Data of a report, taken from the database as typed values; nothing here knows how it will look."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from tunebench.db.connection.database import Database
from tunebench.db.entries.entry import RecordedTrial
from tunebench.db.entries.reader import reading
from tunebench.db.queries.rows import StudyRow, TrialRow
from tunebench.db.queries.studies import EnvironmentRow, environments, newest_comparison, studies
from tunebench.db.queries.trials import Order, kernels_with_results, trials
from tunebench.kernels.runtime.registry import kernel_names, load_model
from tunebench.studies.display.report.rates import Ceilings, ceilings
from tunebench.tuner.errors import DatabaseError, UnknownNameError, UserError
from tunebench.tuner.files import path_named
from tunebench.tuner.kernel import Kernel
from tunebench.tuner.problem import Work
from tunebench.tuner.result import Comparison, TrialStatus

_SMALLEST, _LARGEST = 1e-9, 1e12
"""The range of times in milliseconds and of speed-ups: a femtosecond, and thirty years."""

_LARGEST_WORK = 10**24


_MOST_ROWS = 500
"""A table of more studies than this is no overview."""

_MOST_SECTIONS = 40
"""A page with more sections than this takes a browser seconds to open."""

MOST_IN_TABLE = 200
"""Number of the fastest trials that a section lists, with all that was recorded of them."""

_MOST_TRIALS = 50_000
"""Upper limit of the trials read for all sections together; they take some 250 MB of memory while the page is made."""


@dataclass(frozen=True)
class StudySummary:
    """The overview's entry of a study.

    Attributes:
        comparison: the newest; None where the study was never concluded.
        best_ms: the winner's median in the comparison; the fastest as screened where there was none, and None where no
            variant was correct.
    """

    row: StudyRow
    comparison: Comparison | None
    best_ms: float | None


@dataclass(frozen=True)
class StudyData:
    """One study with everything that its section shows.

    Attributes:
        trials: by number; the newest ones where there are too many to read.
        recorded: everything about the fastest trials, by their numbers in the database.
        work: what the problem must move and compute; None where that is not known.
        work_note: where that is from, or why it is not known.
        kernel: the kernel as it is now, where its source is the study's; None otherwise.
    """

    summary: StudySummary
    trials: tuple[TrialRow, ...]
    environments: tuple[EnvironmentRow, ...]
    recorded: Mapping[int, RecordedTrial]
    work: Work | None
    work_note: str
    kernel: Kernel | None

    @property
    def row(self) -> StudyRow:
        """The study's own facts."""
        return self.summary.row

    @property
    def comparison(self) -> Comparison | None:
        """The newest; None where the study was never concluded."""
        return self.summary.comparison

    @property
    def ceilings(self) -> Ceilings | None:
        """The device's, as the comparison found them; None without one, or where the work is not known."""
        if self.comparison is None or self.work is None:
            return None
        clocks = [self.comparison.conditions.sm_clock_mhz, *(one.environment.sm_clock_mhz for one in self.environments)]
        clock_mhz = next((clock for clock in clocks if clock), None)
        return ceilings(self.row.device, self.comparison, self.work, clock_mhz)

    @property
    def timed(self) -> list[TrialRow]:
        """Trials that have a measurement, by number."""
        return [trial for trial in self.trials if trial.median_ms is not None]

    @property
    def correct(self) -> list[TrialRow]:
        """Correct trials, fastest first."""
        found = [trial for trial in self.trials if trial.status is TrialStatus.CORRECT]
        return sorted(found, key=lambda trial: (trial.median_ms or 0.0, trial.number))

    @property
    def best(self) -> TrialRow | None:
        """The trial that won the newest comparison; the fastest one where there was none."""
        if self.comparison is not None:
            winner = self.comparison.best
            return next((trial for trial in self.trials if trial.configuration == winner), None)
        return self.correct[0] if self.correct else None

    @property
    def energies_mj(self) -> dict[int, float]:
        """The energy of one call of the trials of which it was measured, by their numbers in the database."""
        measured = {number: one.result.measurement for number, one in self.recorded.items()}
        return {number: one.energy_mj for number, one in measured.items() if one and one.energy_mj is not None}

    def count(self, status: TrialStatus) -> int:
        """Return how many trials ended with that status."""
        return sum(trial.status is status for trial in self.trials)


@dataclass(frozen=True)
class ReportData:
    """A whole report.

    Attributes:
        database: as messages call it.
        overview: every study of the report; the most recent ones where there are too many for a table.
        studies: those of them that have a section.
        unlisted: how many studies would be in the overview too, were there room.
        older: studies of the same kernel, problem, device and compiler with less recent trials, which are left out.
    """

    database: str
    overview: tuple[StudySummary, ...]
    studies: tuple[StudyData, ...]
    unlisted: int
    older: tuple[StudyRow, ...]


def gather(database: Database, targets: Sequence[str] = (), study_ids: Sequence[int] = ()) -> ReportData:
    """Return everything a report shows.

    The most recent studies have a section each, as many as a page and the memory have room for.

    Args:
        targets: names or folders of kernels; none for every kernel with results.
        study_ids: these studies, whatever their age; none for the newest study of each kernel, problem, device and
            compiler.

    Raises:
        UnknownNameError: a kernel that neither ships nor has results here.
        UserError: a study that is not here.
        DatabaseError: the database cannot be read, or holds what tunebench does not write.
    """
    kernels = _kernels(database, targets)
    found = studies(database, kernels=list(kernels) if targets else None, study_ids=study_ids or None)
    _require_found(found, study_ids)
    newest = found if study_ids else _newest(found)
    chosen = {row.study_id for row in newest}
    older = [row for row in found if row.study_id not in chosen]
    recent = sorted(newest, key=lambda row: row.last_at, reverse=True)[:_MOST_ROWS]
    listed = {row.study_id for row in recent}
    in_full = _with_room(recent)
    overview = tuple(_summary(database, row) for row in newest if row.study_id in listed)
    sections = tuple(
        _study_data(database, summary, kernels.get(summary.row.kernel))
        for summary in overview
        if summary.row.study_id in in_full
    )
    return ReportData(database.name, overview, sections, len(newest) - len(overview), tuple(older))


def _with_room(recent: Sequence[StudyRow]) -> set[int]:
    """Return the studies that have a section: the most recent ones, until the page or the memory is full."""
    chosen: set[int] = set()
    trials_read = 0
    for row in recent[:_MOST_SECTIONS]:
        trials_read += row.trials
        if chosen and trials_read > _MOST_TRIALS:
            break
        chosen.add(row.study_id)
    return chosen


def _kernels(database: Database, targets: Sequence[str]) -> dict[str, Kernel | None]:
    """Return the kernels requested by name, or all known ones; None for one that has results here and no source.

    A database may come from anyone: its kernels' names are looked up among the shipped ones and never taken for
    folders. A folder is loaded where the user names it.
    """
    shipped = kernel_names()
    known = {*shipped, *kernels_with_results(database)}
    asked: dict[str, Kernel | None] = {}
    for target in targets or sorted(known):
        if target in shipped:
            asked[target] = load_model(target).kernel
        elif target in known:
            asked[target] = None
        elif (place := path_named(target)) and place.is_dir():
            kernel = load_model(target).kernel
            asked[kernel.name] = kernel
        else:
            raise UnknownNameError("kernel", target, known)
    return asked


def _require_found(found: Collection[StudyRow], study_ids: Sequence[int]) -> None:
    here = {row.study_id for row in found}
    if missing := [str(number) for number in study_ids if number not in here]:
        raise UserError(f"no study {', '.join(missing)} with trials of the kernels asked for in this database")


def _newest(found: Sequence[StudyRow]) -> list[StudyRow]:
    """Return the first of each kernel, problem, device and compiler; the database lists the newest first."""
    kept: dict[tuple[str, ...], StudyRow] = {}
    for row in found:
        device = row.device
        kept.setdefault((row.kernel, row.problem.key, device.name, device.architecture, row.compiler), row)
    return list(kept.values())


def _summary(database: Database, row: StudyRow) -> StudySummary:
    comparison = newest_comparison(database, row.study_id)
    if comparison is not None:
        times = [*comparison.medians_ms.values(), *chain.from_iterable(comparison.samples_ms.values())]
        ratios = comparison.speedups.values()
        _require_plausible([*times, *(part for ratio in ratios for part in (ratio.value, ratio.low, ratio.high))], row)
        if "best" in comparison.medians_ms:
            return StudySummary(row, comparison, comparison.medians_ms["best"])
    fastest = trials(database, study_id=row.study_id, order=Order.FASTEST, limit=1)
    return StudySummary(row, comparison, fastest[0].median_ms if fastest else None)


def _study_data(database: Database, summary: StudySummary, kernel: Kernel | None) -> StudyData:
    row = summary.row
    same = kernel is not None and kernel.digest == row.source_digest
    work, note = _work(summary, kernel, same=same)
    newest_first = trials(database, study_id=row.study_id, order=Order.NEWEST, limit=_MOST_TRIALS)
    _require_plausible([trial.median_ms for trial in newest_first if trial.median_ms is not None], row)
    fastest = trials(database, study_id=row.study_id, order=Order.FASTEST, limit=MOST_IN_TABLE)
    with reading(database) as reader:
        recorded = {number: one for number, (_, one) in reader.trials([trial.trial_id for trial in fastest]).items()}
    return StudyData(
        summary=summary,
        trials=tuple(reversed(newest_first)),
        environments=tuple(environments(database, row.study_id)),
        recorded=recorded,
        work=work,
        work_note=note,
        kernel=kernel if same else None,
    )


def _require_plausible(figures: Sequence[float], row: StudyRow) -> None:
    """Refuse a figure that a plot could not be scaled to.

    Raises:
        DatabaseError: one is.
    """
    for figure in figures:
        if not _SMALLEST <= figure <= _LARGEST:
            raise DatabaseError(
                f"study {row.study_id} holds {figure!r} as a time or a ratio: tunebench did not write it"
            )


def _work(summary: StudySummary, kernel: Kernel | None, *, same: bool) -> tuple[Work | None, str]:
    """Return the problem's work as its comparison recorded it, else by the kernel's own account, and which; or why not.

    Args:
        same: the kernel's source is the study's.
    """
    row = summary.row
    if summary.comparison is not None and (recorded := summary.comparison.work) is not None:
        return (recorded, "") if recorded.bytes and recorded.operations else (None, "the kernel declares no work")
    if kernel is None:
        return None, (
            f"the kernel '{row.kernel}' does not ship with tunebench, so its work is not known here; "
            "naming its folder on the command line adds it"
        )
    try:
        work = kernel.work(row.problem)
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        return None, f"the kernel does not know this problem ({type(error).__name__}: {error})"
    if not (0 < work.bytes <= _LARGEST_WORK and 0 < work.operations <= _LARGEST_WORK):
        return None, f"the kernel declares {work.bytes} bytes and {work.operations} operations for this problem"
    return work, "" if same else ", by the kernel as it is today: its source was edited since this study"
