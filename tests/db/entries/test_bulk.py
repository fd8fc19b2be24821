"""Entries are added once, however often they come, under numbers that are free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sample_database import content, contents_of, fill
from sample_results import ENVIRONMENT, STUDY, correct
from sqlalchemy import select

from tunebench.db.connection.database import Database, open_database
from tunebench.db.entries.bulk import Added, add_entries, derived
from tunebench.db.entries.entry import Entry, RecordedTrial
from tunebench.db.entries.reader import StudyFilter, matching_studies, scan
from tunebench.db.entries.strict_json import EntryError
from tunebench.db.entries.study_log import open_study
from tunebench.db.entries.writer import Writer
from tunebench.db.queries.trials import trials
from tunebench.db.schema import tables
from tunebench.db.upkeep.check import statistics
from tunebench.tuner.configuration import Configuration, Value
from tunebench.tuner.errors import UserError


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "source.db") as database:
        fill(database)
        yield database


def counts(database: Database) -> Mapping[str, int]:
    return statistics(database).rows


def test_everything_arrives_once(database: Database, source: Database) -> None:
    # Numbers have gaps where trials were pruned.
    entries = [
        replace(one, trial=replace(one.trial, number=5))
        if one.trial and one.study.kernel == "gemm_scale_bn" and one.trial.number == 2
        else one
        for one in scan(source)
    ]
    assert add_entries(database, entries) == Added(studies=3, trials=10, comparisons=3, late_refusals=1)
    assert content(database) == contents_of(entries)
    before = counts(database)
    assert add_entries(database, entries) == Added(present=10)
    assert counts(database) == before
    # All that differs is the origin of the database itself.
    assert {name: n for name, n in before.items() if n != counts(source)[name]} == {"tunebench_origins": 2}
    assert {row.number for row in trials(database, kernel="gemm_scale_bn")} == {0, 1, 5}


def test_the_same_entry_twice_in_one_piece_is_one_trial(database: Database, source: Database) -> None:
    entries = list(scan(source))
    assert add_entries(database, [*entries, *entries]) == Added(3, 10, 3, present=10, late_refusals=1)


def test_shared_parts_are_those_that_a_study_writes(database: Database, source: Database) -> None:
    add_entries(database, scan(source))
    before = counts(database)
    with database.writing() as connection:
        Writer(connection).environment(ENVIRONMENT)
    open_study(database, STUDY, ENVIRONMENT).record(correct(0))
    after = counts(database)
    changed = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    # The study is another one, since it began in this database; device, problem, configuration, build are shared.
    assert changed.keys() == {"tunebench_studies", "tunebench_trials"}


def test_a_database_that_gets_its_own_results_back_has_them_already(source: Database) -> None:
    assert add_entries(source, list(scan(source))) == Added(present=10)


@pytest.mark.slow
def test_what_was_added_before_an_error_stays_and_adding_again_adds_the_rest(
    database: Database, source: Database
) -> None:
    first = first_trial(source)
    assert first.trial is not None
    many = [replace(first, trial=with_configuration(first.trial, number, {"block": number})) for number in range(1500)]

    def broken() -> Iterator[Entry]:
        yield from many[:1200]
        raise EntryError("line 7 is no good")

    with pytest.raises(EntryError, match="line 7"):
        add_entries(database, broken())
    there = len(list(scan(database)))
    assert 0 < there < len(many)
    assert add_entries(database, many) == Added(trials=len(many) - there, present=there)
    assert content(database) == contents_of(many)


def with_configuration(trial: RecordedTrial, number: int | None, values: dict[str, Value]) -> RecordedTrial:
    result = replace(trial.result, configuration=Configuration(values))
    return replace(trial, number=number, result=result, comparisons=())


def first_trial(source: Database) -> Entry:
    return next(iter(scan(source)))


def test_a_second_result_of_a_configuration_is_kept_beside_the_first(database: Database, source: Database) -> None:
    first = first_trial(source)
    assert first.trial is not None and first.trial.result.measurement is not None
    later = replace(first, trial=replace(first.trial, recorded_at=first.trial.recorded_at + timedelta(seconds=1)))
    slower = replace(first.trial.result.measurement, median_ms=1.05)
    other = replace(first, trial=replace(first.trial, result=replace(first.trial.result, measurement=slower)))
    together = [first, later, other]
    assert add_entries(database, together) == Added(studies=3, trials=3, comparisons=3, conflicts=2)
    assert add_entries(database, together) == Added(present=3)
    assert add_entries(database, [other, first, later]) == Added(present=3)
    found = list(scan(database))
    origins = [first.study.origin, derived(first.study.origin), derived(derived(first.study.origin))]
    assert {entry.study.origin.uid for entry in found} == {origin.uid for origin in origins}
    assert len({repr(replace(entry.study, origin=first.study.origin)) for entry in found}) == 1


def test_a_number_that_is_taken_is_replaced_by_the_next(database: Database, source: Database) -> None:
    first = first_trial(source)
    assert first.trial is not None
    another = [
        replace(first, trial=with_configuration(first.trial, number, {"block": block}))
        for number, block in ((0, 7), (1, 8), (None, 9), (0, 10))
    ]
    add_entries(database, [first])
    assert add_entries(database, another).trials == 4
    numbers = {row.configuration["block"]: row.number for row in trials(database)}
    assert sorted(numbers.values()) == [0, 1, 2, 3, 4]
    assert numbers[32] == 0 and numbers[8] == 1
    assert add_entries(database, another) == Added(present=4)


def test_a_comparison_that_came_later_is_added_to_its_trial(database: Database, source: Database) -> None:
    first = first_trial(source)
    assert first.trial is not None
    add_entries(database, [replace(first, trial=replace(first.trial, comparisons=()))])
    assert add_entries(database, [first]) == Added(present=1, comparisons=1)
    assert content(database) == contents_of([first])


def test_values_that_only_look_alike_are_different_configurations(database: Database, source: Database) -> None:
    first = first_trial(source)
    assert first.trial is not None
    entries = [
        replace(first, trial=with_configuration(first.trial, number, {"a": value}))
        for number, value in enumerate((1, 1.0, True, "1"))
    ]
    assert add_entries(database, entries) == Added(studies=1, trials=4)
    assert contents_of(entries) == content(database)


@pytest.mark.slow
def test_a_page_boundary_loses_nothing(database: Database, source: Database) -> None:
    first = first_trial(source)
    assert first.trial is not None
    many = [
        replace(
            first,
            study=replace(first.study, seed=number % 3),
            trial=with_configuration(first.trial, number, {"block": number}),
        )
        for number in range(1201)
    ]
    seen: list[int] = []
    assert add_entries(database, many, seen.append) == Added(studies=3, trials=1201)
    assert seen == [1000, 1201]
    assert content(database) == contents_of(many)
    for study in matching_studies(database, StudyFilter(kernel="scalar_mul")):
        with database.reading() as connection:
            seed = connection.scalar(select(tables.Study.seed).where(tables.Study.id == study))
        assert contents_of(scan(database, [study])) == contents_of(e for e in many if e.study.seed == seed)


def test_a_study_that_is_not_there_is_one_clear_line(source: Database) -> None:
    with pytest.raises(UserError, match="no study of kernel 'nothing' and number 99"):
        matching_studies(source, StudyFilter("nothing", 99))
