"""The search space: enumeration, conditions, constraints and what bad input gets."""

import random
from dataclasses import replace
from itertools import product

import pytest

from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import find_device
from tunebench.tuner.errors import EmptySpaceError, UnknownNameError, UserError
from tunebench.tuner.problem import Problem
from tunebench.tuner.space import INACTIVE, Constraint, SearchSpace, Tunable, ValidSpace

BLOCK = Tunable("block", (64, 128, 256), default=128)
WIDTH = Tunable("width", (1, 2, 4))
GRID = Tunable("grid", ("one", "stride"))
WAVES = Tunable("waves", (1, 2, 4), when=lambda grid: grid == "stride")


def make(*constraints: Constraint) -> SearchSpace:
    return SearchSpace((BLOCK, WIDTH, GRID, WAVES), constraints)


def test_enumeration_equals_filtering_the_whole_product() -> None:
    space = make(Constraint("small", lambda block, width: block * width <= 256))
    expected = set()
    for block, width, grid, waves in product(BLOCK.values, WIDTH.values, GRID.values, WAVES.values):
        if int(block) * int(width) <= 256:
            values = {"block": block, "width": width, "grid": grid}
            expected.add(Configuration(values if grid == "one" else {**values, "waves": waves}).key)
    found = [configuration.key for configuration in space.enumerate()]
    assert len(found) == len(set(found))
    assert set(found) == expected


@pytest.mark.parametrize("rows_at_once", [1, 2, 7, 100])
def test_configurations_are_in_the_order_of_nested_loops(rows_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunebench.tuner.space._ROWS_AT_ONCE", rows_at_once)
    space = make(Constraint("small", lambda block, waves: block * waves <= 256)).enumerate()
    expected = [
        {"block": block, "width": width, "grid": grid, **({} if waves is None else {"waves": waves})}
        for block, width, grid in product(BLOCK.values, WIDTH.values, GRID.values)
        for waves in ((None,) if grid == "one" else WAVES.values)
        if waves is None or int(block) * int(waves) <= 256
    ]
    assert [dict(one) for one in space] == expected


def test_a_constraint_is_asked_once_for_each_combination_that_it_looks_at() -> None:
    asked: list[tuple[int, str]] = []

    def seen(block: int, grid: str) -> bool:
        asked.append((block, grid))
        return grid == "stride" or block > 64

    assert len(make(Constraint("seen", seen)).enumerate()) == 3 * (2 * 1 + 3 * 3)
    assert sorted(asked) == sorted(product(BLOCK.values, GRID.values))


def test_a_constraint_is_not_asked_of_what_an_earlier_one_has_refused() -> None:
    space = make(
        Constraint("wide", lambda width: width > 1),
        Constraint("share", lambda width, grid: grid == "one" or 1 / (width - 1) > 0.5),
    )
    assert {one["width"] for one in space.enumerate()} == {2, 4}
    assert not space.admits({"block": 64, "width": 1, "grid": "stride", "waves": 1}, None, None)


def test_a_conditional_tunable_does_not_multiply_the_space() -> None:
    assert len(make().enumerate()) == 3 * 3 * (1 + 3)


def test_a_condition_on_an_inactive_tunable_is_not_met() -> None:
    deeper = Tunable("deeper", (1, 2), when=lambda waves: waves > 1)
    space = SearchSpace((GRID, WAVES, deeper)).enumerate()
    assert len(space) == 1 + (1 + 2 + 2)


def test_a_constraint_over_an_inactive_tunable_does_not_apply() -> None:
    space = make(Constraint("few_waves", lambda waves: waves == 1)).enumerate()
    assert len(space) == 3 * 3 * 2
    assert all(configuration.get("waves", 1) == 1 for configuration in space)


def test_constraints_see_the_problem_and_the_device() -> None:
    space = make(
        Constraint("divides", lambda width, problem: problem.axes["n"] % width == 0),
        Constraint("fits", lambda block, device: block <= device.max_threads_per_block // 8),
    )
    found = space.enumerate(Problem({"n": 6}), find_device("cpu"))
    assert {configuration["width"] for configuration in found} == {1, 2}
    assert {configuration["block"] for configuration in found} == {64, 128}


def test_find_is_the_inverse_of_indexing() -> None:
    space = make().enumerate()
    assert [space.find(space[number]) for number in range(len(space))] == list(range(len(space)))
    assert space.find({"block": 64, "width": 1, "grid": "one", "waves": 1}) is None
    assert space.find({"block": 65, "width": 1, "grid": "one"}) is None
    assert (space.indices == INACTIVE).sum() == 9


def test_the_default_is_valid_or_the_nearest_valid_one(monkeypatch: pytest.MonkeyPatch) -> None:
    space = make().enumerate()
    assert dict(space[space.default]) == {"block": 128, "width": 1, "grid": "one"}
    wide = make(Constraint("wide", lambda width: width == 4)).enumerate()
    assert dict(wide[wide.default]) == {"block": 128, "width": 4, "grid": "one"}
    monkeypatch.delattr(ValidSpace, "nearest")
    assert dict(wide[wide.default])["width"] == 4, "studies ask at every trial: looking through the space again is dear"


def test_a_configuration_is_chosen_by_some_of_its_values() -> None:
    assert dict(make().choose({"block": 256}, None, None)) == {"block": 256, "width": 1, "grid": "one"}
    assert dict(make().choose({"waves": 4}, None, None)) == {"block": 128, "width": 1, "grid": "stride", "waves": 4}
    narrow = make(Constraint("narrow", lambda block, width: block * width <= 256))
    assert dict(narrow.choose({"width": 4}, None, None)) == {"block": 64, "width": 4, "grid": "one"}
    with pytest.raises(UserError, match=r"(block|width) cannot be so; the nearest that is"):
        narrow.choose({"width": 4, "block": 256}, None, None)
    with pytest.raises(UserError, match="waves cannot be so"):
        make().choose({"grid": "one", "waves": 4}, None, None)


def random_space(rng: random.Random) -> SearchSpace:
    """Up to four tunables, some conditional, some constrained, sometimes by the problem too."""
    pools = [(1, 2, 4), (0, 1), (1.0, 2.0), (True, False), ("a", "b")]
    tunables: list[Tunable] = []
    constraints: list[Constraint] = []
    for name in "abcd"[: rng.randint(1, 4)]:
        values = tuple(rng.sample(pool := rng.choice(pools), rng.randint(1, len(pool))))
        when = None
        if tunables and rng.random() < 0.5:
            earlier = rng.choice(tunables)
            when = eval(f"lambda {earlier.name}: {earlier.name} == {rng.choice(earlier.values)!r}")
        tunables.append(Tunable(name, values, when))
    for number in range(rng.randint(0, 2)):
        seen = rng.sample(tunables, min(len(tunables), rng.randint(1, 2)))
        names = ", ".join(one.name for one in seen)
        pair = tuple(rng.choice(one.values) for one in seen)
        holds = eval(f"lambda {names}, problem: ({names},) != {pair!r} or problem.axes['n'] > 5")
        constraints.append(Constraint(f"not {number}", holds))
    return SearchSpace(tuple(tunables), tuple(constraints))


@pytest.mark.parametrize("seed", range(60))
def test_what_is_admitted_is_what_is_enumerated_types_included(seed: int) -> None:
    rng = random.Random(seed)
    space, problem = random_space(rng), Problem({"n": rng.randint(1, 9)})
    try:
        keys = {configuration.key for configuration in space.enumerate(problem)}
    except EmptySpaceError:
        keys = set()
    absent = object()
    either = (absent, 0, 1, 2, 4, 0.0, 1.0, 2.0, True, False, "a", "b", "c", "1", None)
    offers = [(absent, *one.values, *rng.sample(either, 5)) for one in space.tunables]
    admitted = set()
    for combination in product(*offers):
        values = {n: v for n, v in zip(space.names, combination, strict=True) if v is not absent}
        assert space.admits(values, problem, None) == (Configuration(values).key in keys), values  # type: ignore[arg-type]
        assert not space.admits({**values, "other": 1}, problem, None)  # type: ignore[dict-item]
        admitted |= {Configuration(values).key} & keys  # type: ignore[arg-type]
    assert admitted == keys
    if keys:
        assert space.default_for(problem, None) == (valid := space.enumerate(problem))[valid.default]


def test_restrict_keeps_the_rest_and_moves_the_default() -> None:
    space = make().restrict({"block": [64, 256], "grid": ["stride"]})
    assert len(space.enumerate()) == 2 * 3 * 3
    assert space.default["block"] == 64


def test_configurations_are_equal_by_content_and_not_by_order() -> None:
    one = Configuration({"a": 1, "b": True})
    other = Configuration({"b": True, "a": 1})
    assert one == other
    assert hash(one) == hash(other)
    assert Configuration({"a": 1}) != Configuration({"a": True})


def test_what_rounds_alike_has_the_same_values_of_what_decides_it() -> None:
    space = SearchSpace((Tunable("product", ("exact", "parts")), Tunable("block", (64, 128)), Tunable("sums", (1, 2))))
    valid = replace(space, rounding=("product", "sums")).enumerate()
    number = valid.require({"product": "parts", "block": 64, "sums": 2})
    alike = [dict(valid[one]) for one in valid.rounding_alike(number)]
    assert alike == [{"product": "parts", "block": block, "sums": 2} for block in (64, 128)]
    assert list(space.enumerate().rounding_alike(number)) == [number]
    with pytest.raises(UnknownNameError, match=r"unknown tunable 'sum'; did you mean sums"):
        replace(space, rounding=("sum",))


def test_an_unknown_tunable_gets_the_nearest_names() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown tunable 'blok'; did you mean block\?"):
        make().restrict({"blok": [64]})


def test_a_value_that_is_not_legal_is_named_with_the_legal_ones() -> None:
    with pytest.raises(UserError, match=r"'block' has no value 100; its values are \[64, 128, 256\]"):
        make().restrict({"block": [100]})
    with pytest.raises(UserError, match="has no value True"):
        make().restrict({"width": [True]})


def test_an_empty_space_names_the_constraint_that_emptied_it() -> None:
    harmless = Constraint("harmless", lambda block: block > 0)
    impossible = Constraint("impossible", lambda width: width > 8)
    with pytest.raises(EmptySpaceError, match=r"constraint 'impossible' refuses all of the 36 left.*\(width\)"):
        make(harmless, impossible).enumerate()


def test_every_constraint_that_empties_the_space_by_itself_is_named() -> None:
    one = Constraint("one", lambda width: width > 8)
    two = Constraint("two", lambda block: block > 999)
    with pytest.raises(EmptySpaceError, match=r"constraints 'one', 'two' each refuse all of the 36 .*\(width, block\)"):
        make(one, Constraint("harmless", lambda block: block > 64), two).enumerate()


def test_constraints_that_only_empty_the_space_together_are_named_and_no_others() -> None:
    wide, narrow = Constraint("wide", lambda width: width > 2), Constraint("narrow", lambda width: width < 4)
    with pytest.raises(EmptySpaceError, match=r"'wide', 'narrow' together refuse all of the 36 .*\(width\)"):
        make(wide, Constraint("harmless", lambda block: block > 64), narrow).enumerate()


def test_declarations_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UserError, match="mixes types"):
        Tunable("mixed", (1, 2.0))
    with pytest.raises(UserError, match="repeats a value"):
        Tunable("twice", (1, 1))
    with pytest.raises(UserError, match="no values"):
        Tunable("none", ())
    with pytest.raises(UserError, match="cannot name a tunable"):
        Tunable("problem", (1,))
    with pytest.raises(UnknownNameError, match="constraint 'typo'"):
        make(Constraint("typo", lambda blok: blok > 0))
    for default in (96, 64.0, True):
        with pytest.raises(UserError, match=f"tunable 'block' has no value {default!r}; its values are"):
            Tunable("block", (64, 128, 1), default=default)


def test_the_default_is_the_first_value_unless_another_is_given() -> None:
    space = make()
    assert space.default == {"block": 128, "width": 1, "grid": "one", "waves": 1}
    assert space.restrict({"block": [256, 64], "width": [4]}).default["block"] == 256
    assert space.restrict({"block": [256, 128]}).default["block"] == 128
