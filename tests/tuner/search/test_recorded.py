"""Recorded spaces from configurations and times, whatever the names and values in them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tunebench.tuner.search.recorded import Record, RecordedSpaceError, recorded_space


def test_a_space_has_the_values_that_occur_in_order() -> None:
    space = recorded_space("one", [({"a": 4, "b": "x"}, 2.0), ({"a": 2, "b": "y"}, math.nan), ({"a": 2}, 1.0)])
    tunables = space.space.space.tunables
    assert [(tunable.name, tunable.values) for tunable in tunables] == [("a", (2, 4)), ("b", ("x", "y"))]
    assert [dict(space.space[number]) for number in range(3)] == [{"a": 4, "b": "x"}, {"a": 2, "b": "y"}, {"a": 2}]
    np.testing.assert_array_equal(space.times_ms, [2.0, math.nan, 1.0])
    assert (space.optimum_ms, space.worst_ms) == (1.0, 2.0)


def test_of_several_records_of_a_configuration_the_last_counts() -> None:
    space = recorded_space("one", [({"a": 1}, 3.0), ({"a": 2}, 2.0), ({"a": 1}, 1.0)])
    assert space.times_ms.tolist() == [1.0, 2.0]


def test_any_name_becomes_that_of_a_tunable_and_no_two_become_one() -> None:
    names = ["a b", "a_b", "", "²", "1", "problem", "\x1b[2J", "class"]
    space = recorded_space("one", [({name: number for number, name in enumerate(names)}, 1.0)])
    found = [tunable.name for tunable in space.space.space.tunables]
    assert found == ["a_b", "a_b_", "_", "__", "_1", "_problem", "__2J", "_class"]


def test_values_of_several_types_are_told_apart() -> None:
    records: list[Record] = [({"a": True}, 1.0), ({"a": 1}, 2.0), ({"a": 2}, 3.0), ({"a": "x"}, 4.0)]
    space = recorded_space("one", records)
    assert space.space.space.tunables[0].values == ("True", "1", "2", "x")
    assert space.times_ms.tolist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "no configuration with a time"),
        ([({"a": 1}, math.nan)], "no configuration with a time"),
        ([({}, 1.0)], "has 0 tunables"),
        ([({f"t{number}": 1 for number in range(300)}, 1.0)], "has 300 tunables"),
        ([({"a": number}, 1.0) for number in range(40_000)], "has 40000 values"),
    ],
)
def test_what_is_no_space_is_one_line(records: list[Record], message: str) -> None:
    with pytest.raises(RecordedSpaceError, match=message):
        recorded_space("one", records)
