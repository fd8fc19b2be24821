"""Optuna's samplers by their names: each of them over spaces that none of them was made for."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from tunebench.tuner.configuration import Value
from tunebench.tuner.errors import UnknownNameError
from tunebench.tuner.search import filtered
from tunebench.tuner.search.filtered import optuna_sampler_names
from tunebench.tuner.search.strategies import find_sampler, make_sampler
from tunebench.tuner.space import Constraint, SearchSpace, Tunable, ValidSpace

NAMES = [f"optuna:{name}" for name in optuna_sampler_names()]


def mixed_space() -> ValidSpace:
    """Numbers, an unordered tunable, a truth, a condition, a constraint and a tunable of one value."""
    return SearchSpace(
        tunables=(
            Tunable("block", (32, 64, 128, 256, 512), default=128),
            Tunable("factor", (0.5, 1.0, 2.0), default=1.0),
            Tunable("order", ("rows", "columns", "tiles")),
            Tunable("depth", (1, 2, 4), when=lambda order: order == "tiles"),
            Tunable("hint", (False, True)),
            Tunable("fixed", (7,)),
        ),
        constraints=(Constraint("small", lambda block, factor: block * factor <= 512),),
    ).enumerate()


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What Optuna logs."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    optuna.logging.enable_propagation()
    yield caplog
    optuna.logging.disable_propagation()
    optuna.logging.set_verbosity(verbosity)


def test_the_list_has_those_that_a_seed_is_enough_for() -> None:
    assert {"GPSampler", "CmaEsSampler", "NSGAIISampler", "TPESampler", "RandomSampler"} <= set(optuna_sampler_names())
    assert not {"GridSampler", "PartialFixedSampler", "BaseSampler"} & set(optuna_sampler_names())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_each_searches_without_a_warning(name: str, said: pytest.LogCaptureFixture) -> None:
    space = mixed_space()
    sampler = make_sampler(name, space, seed=1)
    study = optuna.create_study(sampler=sampler)
    sampler.first(study, [space.default])
    asked = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(10):
            pending = [sampler.ask(study) for _ in range(2)]
            for trial, number in pending:
                asked.append(number)
                if space.indices[number][0] == 4:
                    trial.set_constraint("valid", 1.0)
                    study.tell(trial, state=TrialState.PRUNED)
                else:
                    study.tell(trial, float(1 + space.indices[number].sum()))
    assert asked[0] == space.default
    assert len(set(asked)) == 20
    assert not [record.getMessage() for record in said.records]


@pytest.mark.parametrize("name", NAMES)
def test_each_searches_a_space_of_one_tunable_to_its_end(name: str) -> None:
    space = SearchSpace((Tunable("block", tuple(range(1, 14))),)).enumerate()
    sampler = make_sampler(name, space, seed=0)
    study = optuna.create_study(sampler=sampler)
    for _ in range(len(space)):
        trial, number = sampler.ask(study)
        study.tell(trial, float(number + 1))
    assert sampler.remaining(study) == 0


@pytest.mark.parametrize("name", NAMES)
def test_each_goes_on_with_records_that_it_did_not_make(name: str) -> None:
    space = mixed_space()
    recorded = optuna.create_study(sampler=make_sampler("random", space, seed=3))
    for _ in range(12):
        trial = recorded.ask()
        recorded.tell(trial, float(1 + space.indices[space.require(trial.params or trial.relative_params)].sum()))
    sampler = make_sampler(name, space, seed=3)
    study = optuna.create_study(sampler=sampler)
    for old in recorded.trials:
        study.add_trial(old)
    numbers = {space.find(old.params) for old in recorded.trials}
    assert not numbers & {sampler.ask(study)[1] for _ in range(8)}


def test_what_it_learns_from_is_what_was_evaluated_failures_among_it() -> None:
    space = mixed_space()
    sampler = make_sampler("tpe", space, seed=0)
    assert isinstance(sampler, filtered.FilteredSampler)
    study = optuna.create_study(sampler=sampler)
    expected = []
    for _ in range(30):
        trial, number = sampler.ask(study)
        failed = number % 3 == 0
        expected.append((np.maximum(space.indices[number], 0).tolist(), None if failed else 1.0 + number, failed))
        if failed:
            study.tell(trial, state=TrialState.PRUNED)
        else:
            study.tell(trial, 1.0 + number)
    sampler.remaining(study)
    told = [one for one in sampler._inner.trials if one.state is not TrialState.FAIL]
    assert [(list(one.params.values()), one.value, one.constraints == {"valid": 1.0}) for one in told] == expected
    assert {one.state for one in told} == {TrialState.COMPLETE, TrialState.PRUNED}


def test_an_unknown_name_gets_the_nearest_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"'optuna:GPsampler'; did you mean optuna:GPSampler"):
        find_sampler("optuna:GPsampler")
    with pytest.raises(UnknownNameError, match=r"unknown sampler 'tpee'; did you mean tpe\?.*optuna:CmaEsSampler"):
        find_sampler("tpee")
    for name in ("optuna:GridSampler", "optuna:BaseSampler", "optuna:", "optuna:nsgaii", "TPESampler"):
        with pytest.raises(UnknownNameError):
            find_sampler(name)


def test_nearest_among_some_is_the_nearest_of_them() -> None:
    space = mixed_space()
    rng = np.random.default_rng(0)
    for _ in range(50):
        values = {tunable.name: tunable.values[rng.integers(len(tunable.values))] for tunable in space.space.tunables}
        among = rng.random(len(space)) < 0.2

        def away(number: int, values: dict[str, Value] = values) -> tuple[int, int, int]:
            legal = {tunable.name: tunable.values for tunable in space.space.tunables}
            steps = [abs(legal[n].index(value) - legal[n].index(values[n])) for n, value in space[number].items()]
            return sum(step > 0 for step in steps), sum(steps), number

        assert space.nearest(values, among) == min(np.flatnonzero(among).tolist(), key=away)
        assert space.nearest(values) == min(range(len(space)), key=away)
