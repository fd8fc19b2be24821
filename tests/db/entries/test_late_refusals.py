"""A trial that is refused after it was recorded as correct is a refusal wherever trials are read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import optuna
import pytest
from sample_database import place_of
from sample_kernel import SLOW_REFERENCE, WriteKernel
from sample_results import ENVIRONMENT, H200, PROBLEM, STUDY, comparison, configuration, correct, failed
from sqlalchemy import text

from tunebench.db.connection.database import Database, open_database
from tunebench.db.entries.bulk import Added
from tunebench.db.entries.reader import StudyFilter, scan
from tunebench.db.entries.study_log import StudyLog, open_study
from tunebench.db.exchange.files import export_file, import_file
from tunebench.db.exchange.formats import FORMATS, FormatName
from tunebench.db.exchange.merge import merge_databases
from tunebench.db.queries.one_trial import trial_details
from tunebench.db.queries.selectors import parse_selector, select_best
from tunebench.db.queries.studies import newest_comparison
from tunebench.db.queries.trials import Order, best, trials
from tunebench.db.queries.warm_start import earlier_studies
from tunebench.db.upkeep.check import TrialCount, inspect_database, statistics
from tunebench.db.upkeep.optuna_mirror import TRIAL_ATTRIBUTE, publish
from tunebench.db.upkeep.prune import Pruning, prune
from tunebench.kernels.runtime.selection import recorded_offers
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.display.report.gather import gather
from tunebench.studies.tuning.recordings import load_spaces
from tunebench.tuner.build import CompilerName
from tunebench.tuner.compile.building import BuildQueue
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import find_device
from tunebench.tuner.errors import DatabaseError
from tunebench.tuner.kernel import Mode
from tunebench.tuner.result import Stage, TrialStatus
from tunebench.tuner.search.strategies import make_sampler
from tunebench.tuner.study.evaluate import Finalist, LocalEvaluator
from tunebench.tuner.study.executor import LocalExecutor
from tunebench.tuner.study.history import StudyDescription
from tunebench.tuner.study.outcome import Budget, Outcome
from tunebench.tuner.study.study import StudyRun
from tunebench.tuner.study.subject import Subject

CPU = find_device("cpu")
FOUND = Stage("sanitizer", False, 2.5, "memcheck: Invalid __global__ read of size 16 bytes")
MESSAGE = f"refused late by sanitizer: {FOUND.detail}"


@pytest.fixture
def log(database: Database) -> StudyLog:
    """Trials of 1, 2 and 3 ms and a failure."""
    log = open_study(database, STUDY, ENVIRONMENT)
    for number in range(3):
        log.record(correct(number, 1.0 + number))
    log.record(failed(3, TrialStatus.COMPILE, "error: no"))
    return log


def best_numbers(database: Database) -> list[int]:
    return [row.number for row in best(database)]


def test_the_next_best_wins_and_in_the_end_nothing(database: Database, log: StudyLog) -> None:
    for refused, left in (([], [0]), ([0], [1]), ([1, 2], [])):
        for number in refused:
            log.refuse(number, FOUND)
        assert best_numbers(database) == left
        offers = recorded_offers(STUDY.kernel, STUDY.source_digest, PROBLEM, H200, place_of(database))
        assert [offer.configuration for offer in offers] == [configuration(number) for number in left]
        with database.reading() as connection:
            assert list(connection.scalars(text("SELECT number FROM best"))) == left
            board = connection.scalars(text("SELECT number FROM leaderboard ORDER BY place"))
            assert list(board) == [row.number for row in trials(database, order=Order.FASTEST)]
        earlier = earlier_studies(database, replace(STUDY, seed=9))
        assert [one.configuration for study in earlier for one in study.trials][:1] == [configuration(n) for n in left]
        of_environment = select_best(database, parse_selector(f"torch={ENVIRONMENT.torch}"))
        assert [row.number for row in of_environment] == left


def test_a_comparison_that_it_won_before_counts_no_more(database: Database, log: StudyLog) -> None:
    log.conclude(comparison(2))
    log.conclude(comparison(0))
    assert [(row.number, row.confirmed) for row in best(database)] == [(0, True)]
    log.refuse(0, FOUND)
    assert [(row.number, row.confirmed) for row in best(database)] == [(2, True)]
    newest = newest_comparison(database, log.study_id)
    assert newest is not None and newest.best == configuration(2)
    log.refuse(2, FOUND)
    assert [(row.number, row.confirmed) for row in best(database)] == [(1, False)]
    assert newest_comparison(database, log.study_id) is None
    (section,) = gather(database).studies
    assert section.best is not None and section.best.number == 1
    assert [(trial.number, trial.message) for trial in section.trials if trial.status is TrialStatus.CORRECTNESS] == [
        (0, MESSAGE),
        (2, MESSAGE),
    ]
    assert [trial.number for trial in section.timed] == [1]


def test_its_row_says_what_refused_it(database: Database, log: StudyLog) -> None:
    log.conclude(comparison(0))
    log.refuse(0, FOUND)
    (row,) = trials(database, status=TrialStatus.CORRECTNESS)
    assert (row.number, row.message) == (0, MESSAGE)
    assert (row.median_ms, row.regime, row.confirmed_at, row.over_reference) == (None, None, None, None)
    assert [one.number for one in trials(database, status=TrialStatus.CORRECT)] == [2, 1]
    both = (TrialStatus.CORRECT, TrialStatus.CORRECTNESS)
    assert [one.number for one in trials(database, status=both)] == [2, 1, 0]
    assert [one.number for one in trials(database, status=(TrialStatus.COMPILE, TrialStatus.CORRECTNESS))] == [3, 0]
    with database.reading() as connection:
        query = "SELECT status, message, median_ms, regime, confirmed_at, over_copy FROM trials_flat WHERE number = 0"
        assert tuple(connection.execute(text(query)).one()) == ("correctness", MESSAGE, None, None, None, None)
    assert statistics(database).trials == (
        TrialCount(STUDY.kernel, H200.name, "compile", 1),
        TrialCount(STUDY.kernel, H200.name, "correct", 2),
        TrialCount(STUDY.kernel, H200.name, "correctness", 1),
    )


def test_everything_about_it_keeps_what_was_measured(database: Database, log: StudyLog) -> None:
    log.conclude(comparison(0))
    log.refuse(0, FOUND)
    found = trial_details(database, 1)
    assert found.verdict is not None and not found.verdict.passed
    assert (found.verdict.stages[-1], found.verdict.reason) == (FOUND, FOUND.detail)
    assert found.trial.result.measurement == correct(0).measurement
    assert len(found.comparisons) == 1


def test_its_study_takes_it_for_a_refusal(database: Database, log: StudyLog) -> None:
    before = log.result(0)
    log.refuse(0, FOUND)
    again = open_study(database, STUDY, ENVIRONMENT)
    assert [(past.status, past.median_ms, past.clock) for past in again.past()[:2]] == [
        (TrialStatus.CORRECTNESS, None, None),
        (TrialStatus.CORRECT, 2.0, "cuda-event"),
    ]
    assert again.result(0) == before.refused_late(FOUND)


def test_a_second_refusal_changes_nothing(database: Database, log: StudyLog) -> None:
    log.refuse(0, FOUND)
    for number in (0, 1):
        log.refuse(number, replace(FOUND, detail="racecheck: another"))
    messages = {row.number: row.message for row in trials(database, status=TrialStatus.CORRECTNESS)}
    assert messages == {0: MESSAGE, 1: "refused late by sanitizer: racecheck: another"}


def test_a_database_with_one_is_sound_and_a_failure_is_not_refused(database: Database, log: StudyLog) -> None:
    log.refuse(0, FOUND)
    assert [one.problems for one in inspect_database(database) if not one.sound] == []
    with pytest.raises(DatabaseError, match="only ever added"):
        log.refuse(3, FOUND)
    assert [row.status for row in trials(database)].count(TrialStatus.COMPILE) == 1


def test_it_is_pruned_with_its_trial_whatever_that_had_won(database: Database, log: StudyLog) -> None:
    log.conclude(comparison(0))
    log.refuse(0, FOUND)
    pruned = prune(database, Pruning(before=datetime.now(UTC) + timedelta(days=1)), dry_run=False, backup=False)
    assert (pruned.trials, pruned.winners_kept) == (3, 1)
    assert [row.number for row in trials(database)] == [1]
    assert [one.problems for one in inspect_database(database) if not one.sound] == []


def test_optuna_s_copy_is_made_anew(database: Database, log: StudyLog) -> None:
    name = publish(database, log.study_id)
    log.refuse(0, FOUND)
    assert publish(database, log.study_id) == name
    copy = optuna.load_study(study_name=name, storage=database.url.render_as_string(hide_password=False))
    assert copy.best_trial.user_attrs[TRIAL_ATTRIBUTE] == 2
    assert copy.trials[0].state is optuna.trial.TrialState.FAIL
    assert copy.trials[0].user_attrs["message"] == MESSAGE


def test_a_merge_brings_it_to_a_trial_that_is_there_already(tmp_path: Path, log: StudyLog, database: Database) -> None:
    other = tmp_path / "other.db"
    with open_database(other) as copy:
        assert export_and_import(database, copy, tmp_path / "first.jsonl").late_refusals == 0
    log.refuse(0, FOUND)
    source = database.url.render_as_string(hide_password=False)
    ((_, added),) = merge_databases(other, [source])
    assert added == Added(present=4, late_refusals=1)
    ((_, added),) = merge_databases(other, [source])
    assert added == Added(present=4)
    with open_database(other, read_only=True) as copy:
        assert best_numbers(copy) == [1]
        assert [repr(entry) for entry in scan(copy)] == [repr(entry) for entry in scan(database)]


def export_and_import(database: Database, into: Database, file: Path) -> Added:
    export_file(database, file, FORMATS[FormatName.JSON_LINES])
    return import_file(into, file, FORMATS[FormatName.JSON_LINES])


@pytest.mark.usefixtures("log")
def test_a_file_from_before_there_were_any_is_read(database: Database, tmp_path: Path) -> None:
    file = tmp_path / "older.jsonl"
    export_file(database, file, FORMATS[FormatName.JSON_LINES])
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        assert line["trial"].pop("late_refusal") is None
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    with open_database(tmp_path / "new.db") as new:
        assert import_file(new, file, FORMATS[FormatName.JSON_LINES]) == Added(studies=1, trials=4)
        assert best_numbers(new) == [0]


@pytest.mark.parametrize("form", [FormatName.T4, FormatName.KERNEL_TUNER])
def test_other_tuners_are_told_of_a_failure(
    database: Database, log: StudyLog, tmp_path: Path, form: FormatName
) -> None:
    log.refuse(0, FOUND)
    file = tmp_path / "study.json"
    export_file(database, file, FORMATS[form], which=StudyFilter(study_id=log.study_id))
    with open_database(tmp_path / "other.db") as other:
        import_file(other, file, FORMATS[form])
        rows = {row.configuration["block"]: row for row in trials(other)}
        assert rows[32].status is TrialStatus.CORRECTNESS
        assert FOUND.detail in rows[32].message or form is FormatName.T4
        assert rows[64].status is TrialStatus.CORRECT
    (space,) = load_spaces(str(file))
    assert (len(space.times_ms), space.optimum_ms > 1.9) == (4, True)


def test_in_a_replay_it_has_no_time(log: StudyLog, database: Database) -> None:
    log.refuse(0, FOUND)
    (space,) = load_spaces(database.url.render_as_string(hide_password=False))
    assert (len(space.times_ms), space.optimum_ms) == (4, 2.0)


def refusing(
    factory: type[TunedModule], refuses: Callable[[Configuration], bool]
) -> tuple[LocalEvaluator, list[Configuration]]:
    """An evaluator whose sanitizer finds something in these, and what it was asked about."""
    asked = []

    class Refusing(LocalEvaluator):
        def sanitize(self, finalist: Finalist, seconds: float = math.inf) -> Stage:
            del seconds
            asked.append(finalist.configuration)
            return replace(FOUND, passed=not refuses(finalist.configuration))

    kernel = factory.kernel
    subject = Subject.prepare(kernel, factory, kernel.reference(), Mode.EVAL, CPU)
    return Refusing(subject, compiler_for(CPU)), asked


def tune(
    database: Database, factory: type[TunedModule], trials: int, refuses: Callable[[Configuration], bool]
) -> tuple[StudyLog, Outcome, list[Configuration]]:
    """Run or resume a study of the sample kernel's whole space, in its order."""
    evaluator, asked = refusing(factory, refuses)
    kernel, problem = factory.kernel, evaluator.problem
    space = kernel.space.enumerate(problem, CPU)
    description = StudyDescription(kernel.name, kernel.digest, "space", problem, CPU, CompilerName.CPU, "exhaustive", 3)
    log = open_study(database, description, ENVIRONMENT)
    sampler = make_sampler("exhaustive", space, 3)
    executor = LocalExecutor(kernel, [evaluator], BuildQueue(compiler_for(CPU)))
    return log, StudyRun(executor, space, sampler, log).run(Budget(trials)), asked


@pytest.mark.slow
@pytest.mark.usefixtures("short_studies")
def test_a_study_whose_finalists_are_all_refused_has_no_winner(database: Database, write_kernel: WriteKernel) -> None:
    factory = write_kernel()
    _, outcome, asked = tune(database, factory, 8, lambda _: True)
    assert (outcome.best, outcome.comparison, best(database)) == (None, None, [])
    # Other trials than the first winner, which never won: nothing that was not asked about is left to lead.
    assert TrialStatus.CORRECT not in outcome.counts
    assert trials(database, order=Order.FASTEST) == []
    assert len(set(asked)) == len(asked) == len(trials(database, status=TrialStatus.CORRECTNESS, limit=None))
    # Going on asks nothing again, and tells the same.
    _, again, asked = tune(database, factory, 8, lambda _: True)
    assert (again.best, again.comparison, again.counts, asked) == (None, None, outcome.counts, [])


@pytest.mark.slow
@pytest.mark.usefixtures("short_studies")
def test_a_study_goes_on_without_what_was_refused(database: Database, write_kernel: WriteKernel) -> None:
    factory, is_wrong = write_kernel(reference=SLOW_REFERENCE), dict[Configuration, bool]()

    def refuses(configuration: Configuration) -> bool:
        return is_wrong.setdefault(configuration, len(is_wrong) < 2)  # the first two winners are

    log, outcome, _ = tune(database, factory, 12, refuses)
    assert outcome.comparison is not None and list(is_wrong.values()) == [True, True, False]
    (winner,) = best(database)
    assert winner.configuration == outcome.comparison.best
    assert winner.confirmed == outcome.comparison.conclusive  # a busy machine may leave it open
    refused = {row.configuration: row.message for row in trials(database, status=TrialStatus.CORRECTNESS)}
    assert set(refused) == {one for one, wrong in is_wrong.items() if wrong}
    assert set(refused.values()) == {MESSAGE}
    assert {past.configuration for past in log.past() if past.status is TrialStatus.CORRECTNESS} == set(refused)

    # What was refused is not asked about again.
    log, outcome, asked = tune(database, factory, 500, refuses)
    assert outcome.best is not None and outcome.best.configuration not in refused
    rows = trials(database, status=TrialStatus.CORRECTNESS, limit=None)
    assert {row.message for row in rows} == {MESSAGE}
    assert not refused.keys() & set(asked)
