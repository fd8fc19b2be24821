"""Two sides of a comparison: what each selects, and how they are paired."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from sample_results import A100, ENVIRONMENT, H200, STUDY, comparison, configuration, correct

from tunebench.db.connection.database import Database
from tunebench.db.entries.study_log import open_study
from tunebench.db.queries.differences import compared_apart, differences
from tunebench.db.queries.rows import BestRow
from tunebench.db.queries.selectors import parse_selector, select_best
from tunebench.tuner.errors import UserError

NEWER = replace(ENVIRONMENT, torch="2.11.0+cu130", driver="590.44")


@pytest.fixture
def filled(database: Database) -> Iterator[Database]:
    """The same problem on two devices, then under a newer torch with one trial more, then another source."""
    for device, factor in ((H200, 1.0), (A100, 3.0)):
        log = open_study(database, replace(STUDY, device=device), ENVIRONMENT)
        log.record(correct(0, 1.0 * factor))
        log.record(correct(1, 2.0 * factor))
        open_study(database, replace(STUDY, device=device), NEWER).record(correct(2, 1.2 * factor))
    open_study(database, replace(STUDY, source_digest="other-2"), ENVIRONMENT).record(correct(1, 0.5))
    yield database


def compared(database: Database, before: str, after: str) -> list[tuple[str, float, bool]]:
    sides = [parse_selector(text) for text in (before, after)]
    rows: list[list[BestRow]] = [select_best(database, side) for side in sides]
    found = differences(*rows, compared_apart(*sides))
    return [(pair.after.device_name, round(pair.ratio, 6), pair.flipped) for pair in found.pairs]


def test_two_devices(filled: Database) -> None:
    assert compared(filled, "device=NVIDIA H200", "device=NVIDIA A100") == [("NVIDIA A100", 3.0, False)]
    assert compared(filled, "architecture=sm_80", "architecture=sm_90") == [("NVIDIA H200", round(1 / 3, 6), False)]


def test_of_several_devices_the_fastest_stands_for_a_side_and_a_confirmed_one_before_it(filled: Database) -> None:
    log = open_study(filled, replace(STUDY, device=replace(H200, name="NVIDIA H100")), ENVIRONMENT)
    log.record(correct(0, 1.7))
    assert compared(filled, "architecture=sm_80", "architecture=sm_90") == [("NVIDIA H200", round(1 / 3, 6), False)]
    log.conclude(comparison(0))
    ((device, *_),) = compared(filled, "architecture=sm_80", "architecture=sm_90")
    assert device == "NVIDIA H100"


def test_two_versions_are_compared_on_the_same_device_and_source(filled: Database) -> None:
    expected = [("NVIDIA A100", 1.2, True), ("NVIDIA H200", 1.2, True)]
    assert sorted(compared(filled, "torch=2.9", "torch=2.11")) == expected
    assert sorted(compared(filled, "driver=580.1", "driver=590")) == expected
    assert compared(filled, "torch=2.9,device=NVIDIA H200", "torch=2.11,device=NVIDIA H200") == [expected[1]]


def test_two_commits_are_named_by_their_beginnings(database: Database) -> None:
    for number, commit in enumerate(("3f2a" * 10, "3f2b" * 10 + "+dirty")):
        log = open_study(database, STUDY, replace(ENVIRONMENT, kernel_commit=commit))
        log.record(correct(number, 1.0 + number))
    assert compared(database, "kernel_commit=3f2a", "kernel_commit=3f2b") == [("NVIDIA H200", 2.0, True)]
    with pytest.raises(UserError, match="kernel_commit"):
        select_best(database, parse_selector("kernel_commit=4"))


def test_two_sources(filled: Database) -> None:
    assert compared(filled, "source=source-1", "source=other") == [("NVIDIA H200", 0.5, True)]


def test_a_comparison_made_elsewhere_confirms_nothing(filled: Database) -> None:
    open_study(filled, STUDY, ENVIRONMENT).conclude(comparison(1))
    (row,) = select_best(filled, parse_selector("torch=2.9.0,device=NVIDIA H200,source=source"))
    assert row.configuration == configuration(1)
    open_study(filled, STUDY, NEWER).conclude(comparison(0))
    (row,) = select_best(filled, parse_selector("torch=2.9.0,device=NVIDIA H200,source=source"))
    assert row.configuration == configuration(1)


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ("torch=2.1", "unknown torch '2.1'"),
        ("driver=58", "unknown driver '58'"),
        ("device=NVIDIA H20", "unknown device 'NVIDIA H20'; did you mean NVIDIA H200"),
        ("source=zzz", "unknown source 'zzz'"),
        ("compiler=nvcc", "unknown compiler 'nvcc'; did you mean nvrtc"),
        ("colour=red", "unknown condition 'colour'"),
        ("torch=", "says nothing"),
        ("torch=2.9,torch=2.11", "the same twice"),
        ("", "is empty"),
    ],
)
def test_what_is_not_there(filled: Database, selector: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        select_best(filled, parse_selector(selector))


def test_text_in_a_selector_is_a_value(filled: Database) -> None:
    with pytest.raises(UserError, match="unknown device"):
        select_best(filled, parse_selector("device=x' OR '1'='1"))
    assert parse_selector("other.db").database == "other.db"
    assert parse_selector("postgresql://host/name?a=b").database == "postgresql://host/name?a=b"
