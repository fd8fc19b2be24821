"""Every strategy over small spaces: no repeats, determinism, resuming, conditional tunables, exhaustion, failures."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import optuna
import pytest
from optuna import Study
from optuna.samplers import BaseSampler, NSGAIISampler
from optuna.trial import TrialState
from sampling import slow_but

from tunebench.tuner.configuration import Value
from tunebench.tuner.errors import UnknownNameError, UserError
from tunebench.tuner.search.filtered import FilteredSampler
from tunebench.tuner.search.gaussian_process import KernelPrior, PoolFeatures, Posterior, fit, prior_parameters
from tunebench.tuner.search.pool_model import PoolModel, PoolSettings, balanced_design, log_expected_improvement
from tunebench.tuner.search.sampler import ROUNDS_TOO_FAR, PoolSampler, SpaceExhausted
from tunebench.tuner.search.strategies import SAMPLERS, make_sampler
from tunebench.tuner.search.targets import targets_of
from tunebench.tuner.space import Constraint, SearchSpace, Tunable, ValidSpace

optuna.logging.set_verbosity(optuna.logging.WARNING)

BLOCKS = (32, 64, 128, 256, 512, 1024)


def small_space() -> ValidSpace:
    """Blocks and items under a constraint, and a number of waves that only matters for a grid-stride grid."""
    return SearchSpace(
        tunables=(
            Tunable("block", BLOCKS, default=256),
            Tunable("items", (1, 2, 4, 8)),
            Tunable("grid", ("one_shot", "stride")),
            Tunable("waves", (1, 2, 4), when=lambda grid: grid == "stride"),
            Tunable("hint", (False, True)),
        ),
        constraints=(Constraint("tile fits", lambda block, items: block * items <= 2048),),
    ).enumerate()


def wide_space() -> ValidSpace:
    """2700 configurations of five tunables."""
    sizes = (9, 6, 5, 5, 2)
    tunables = tuple(Tunable(f"t{i}", tuple(range(size))) for i, size in enumerate(sizes))
    return SearchSpace(tunables).enumerate()


def time_ms(space: ValidSpace, number: int) -> float:
    """A smooth valley with an interaction and a cliff, different for every configuration."""
    row = space.indices[number].astype(float)
    valley = (row[0] - 6) ** 2 / 9 + (row[1] - 2) ** 2 / 4 + abs(row[2] - row[3] / 2)
    return float(1.0 + valley + 2.0 * (row[4] == 0) + 1e-3 * math.sin(number))


def study_with(sampler: BaseSampler) -> Study:
    return optuna.create_study(sampler=sampler)


def run(sampler: PoolSampler, study: Study, trials: int, batch: int = 1) -> list[int]:
    """Ask in batches, tell the synthetic time; the numbers asked."""
    asked = []
    for _ in range(trials // batch):
        pending = [sampler.ask(study) for _ in range(batch)]
        for trial, number in pending:
            asked.append(number)
            study.tell(trial, time_ms(sampler.space, number))
    return asked


@pytest.mark.parametrize(("strategy", "batch"), [("gp", 1), *((name, 4) for name in SAMPLERS)])
def test_asks_every_configuration_once_and_then_says_so(strategy: str, batch: int) -> None:
    space = small_space()
    sampler = make_sampler(strategy, space)
    study = study_with(sampler)
    asked = run(sampler, study, len(space), batch)
    assert sorted(asked) == list(range(len(space)))
    assert sampler.remaining(study) == 0
    with pytest.raises(SpaceExhausted, match=f"all {len(space)} valid configurations"):
        sampler.ask(study)
    assert len(study.trials) == len(space), "an exhausted study must be left as it was"


@pytest.mark.parametrize("strategy", SAMPLERS)
def test_carries_configurations_as_parameters(strategy: str) -> None:
    space = small_space()
    sampler = make_sampler(strategy, space)
    study = study_with(sampler)
    for _ in range(40):
        trial = study.ask()
        configuration = sampler.configuration(trial)
        assert trial.params == dict(configuration)
        assert ("waves" in trial.params) == (trial.params["grid"] == "stride")
        assert space.find(trial.params) == sampler.number(trial)
        study.tell(trial, time_ms(space, sampler.number(trial)))
    assert set(optuna.importance.get_param_importances(study, params=["block", "items"])) == {"block", "items"}


@pytest.mark.parametrize("strategy", SAMPLERS)
def test_is_deterministic_by_seed(strategy: str) -> None:
    space = wide_space()

    def proposals(seed: int) -> list[int]:
        sampler = make_sampler(strategy, space, seed)
        return run(sampler, study_with(sampler), 40, batch=2)

    first = proposals(5)
    assert first == proposals(5)
    if strategy != "exhaustive":
        assert first != proposals(6)


@pytest.mark.parametrize("strategy", SAMPLERS)
def test_resumes_as_if_never_interrupted(strategy: str) -> None:
    space = wide_space()
    sampler = make_sampler(strategy, space, seed=2)
    study = study_with(sampler)
    sampler.first(study, [space.default])
    whole = run(sampler, study, 60)

    resumed = make_sampler(strategy, space, seed=2)
    rebuilt = study_with(resumed)
    for trial in study.trials[:35]:
        rebuilt.add_trial(trial)
    # The trial in flight when the first run ended left nothing, and the same first trials are asked for again.
    resumed.first(rebuilt, [space.default])
    assert run(resumed, rebuilt, 25) == whole[35:]


@pytest.mark.parametrize("strategy", SAMPLERS)
def test_what_rounds_as_a_refused_one_does_is_left_out(strategy: str) -> None:
    space = replace(small_space().space, rounding=("grid", "hint")).enumerate()
    sampler = make_sampler(strategy, space, seed=1)
    study = study_with(sampler)

    def ask(by: PoolSampler, of: Study) -> list[int]:
        """Where the grid has a stride, every hint is too far off, as every configuration that is tried says."""
        asked = []
        while by.remaining(of):
            trial, number = by.ask(of)
            asked.append(number)
            if trial.params["grid"] == "stride":
                trial.set_user_attr(ROUNDS_TOO_FAR, value=True)
                of.tell(trial, state=TrialState.PRUNED)
            else:
                of.tell(trial, time_ms(wide_space(), number))
        return asked

    asked = ask(sampler, study)
    strided = [space[number]["hint"] for number in asked if space[number]["grid"] == "stride"]
    one_shot = sum(one["grid"] == "one_shot" for one in space)
    if sampler.learns:
        assert sorted(strided) == [False, True]
        assert len(asked) - len(strided) == one_shot and sampler.left_out == len(space) - one_shot - 2
        again = make_sampler(strategy, space, seed=1)
        rebuilt = study_with(again)
        for trial in study.trials[:9]:
            rebuilt.add_trial(trial)
        assert ask(again, rebuilt) == asked[9:]
    else:
        assert len(asked) == len(space) and sampler.left_out == 0


def test_survives_pickling() -> None:
    space = wide_space()
    sampler = make_sampler("gp", space, seed=1)
    study = study_with(sampler)
    run(sampler, study, 15)
    copied: Study = pickle.loads(pickle.dumps(study))
    copy = copied.sampler
    assert isinstance(copy, PoolSampler)
    assert run(copy, copied, 10) == run(sampler, study, 10)


def test_first_trials_come_first_once_and_in_order() -> None:
    space = small_space()
    sampler = make_sampler("gp", space, seed=0)
    study = study_with(sampler)
    sampler.first(study, [space.default, 7, space.default, 3])
    assert run(sampler, study, 3) == [space.default, 7, 3]
    sampler.first(study, [7, 9])
    assert run(sampler, study, 1) == [9]
    assert sampler.remaining(study) == len(space) - 4


def test_optunas_own_queue_and_loop_work() -> None:
    space = small_space()
    sampler = make_sampler("random", space, seed=0)
    study = study_with(sampler)
    study.enqueue_trial(dict(space[11]))
    study.optimize(lambda trial: time_ms(space, sampler.number(trial)), n_trials=5)
    assert space.find(study.trials[0].params) == 11
    study.enqueue_trial({"block": 1024, "items": 8, "grid": "one_shot", "hint": True})
    with pytest.raises(UserError, match="not a valid configuration: block=1024 items=8"):
        sampler.number(study.ask())


def test_a_lost_trial_is_neither_repeated_nor_learnt_from() -> None:
    space = small_space()
    sampler = make_sampler("gp", space, seed=0)
    study = study_with(sampler)
    lost, number = sampler.ask(study)
    study.tell(lost, state=TrialState.FAIL)
    assert number not in run(sampler, study, len(space) - 1)


def test_refuses_what_it_cannot_serve() -> None:
    space = small_space()
    with pytest.raises(UnknownNameError, match=r"unknown sampler 'gpp'; did you mean gp\?"):
        make_sampler("gpp", space)
    sampler = make_sampler("random", space, seed=0)
    with pytest.raises(UserError, match="minimises"):
        sampler.ask(optuna.create_study(direction="maximize", sampler=sampler))
    trial = study_with(sampler).ask()
    with pytest.raises(UnknownNameError, match="unknown tunable 'blok'; did you mean block"):
        trial.suggest_int("blok", 1, 4)


FAILING: dict[str, Callable[[npt.NDArray[np.int16]], bool]] = {
    "gp": lambda row: bool((row[0] > 4) == (row[4] == 1)),
    # The fastest region fails too. (An interaction of two tunables is beyond a product of densities.)
    "tpe": lambda row: bool(row[0] > 4),
}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", FAILING)
def test_avoids_the_half_that_fails(strategy: str) -> None:
    space = wide_space()

    def failing_share(name: str, seed: int) -> float:
        sampler = make_sampler(name, space, seed)
        study = study_with(sampler)
        failed = []
        for _ in range(80):
            trial, number = sampler.ask(study)
            failed.append(FAILING[strategy](space.indices[number]))
            if failed[-1]:
                trial.set_constraint("compile", 1.0)
                study.tell(trial, state=TrialState.PRUNED)
            else:
                study.tell(trial, time_ms(space, number))
        return float(np.mean(failed[40:]))

    seeds = range(8)
    at_random = np.mean([failing_share("random", seed) for seed in seeds])
    assert at_random > 0.4
    assert np.mean([failing_share(strategy, seed) for seed in seeds]) < 0.6 * at_random


def test_pruned_trials_with_a_time_are_slow_and_without_one_failed() -> None:
    space = wide_space()
    sampler = make_sampler("gp", space, seed=0)
    study = study_with(sampler)
    seen = []
    sampler._observe = seen.append  # type: ignore[method-assign]
    slow, _ = sampler.ask(study)
    slow.report(40.0, step=0)
    study.tell(slow, state=TrialState.PRUNED)
    wrong, _ = sampler.ask(study)
    wrong.report(1.0, step=0)
    wrong.set_constraint("correctness", 1.0)
    study.tell(wrong, state=TrialState.PRUNED)
    assert sampler.remaining(study) == len(space) - 2
    assert [observation.time_ms for observation in seen] == [40.0, None]


@pytest.mark.parametrize("batch", [1, 4])
def test_gp_finds_what_random_does_not(batch: int) -> None:
    space = wide_space()
    times = np.array([time_ms(space, number) for number in range(len(space))])

    def excess(name: str, seed: int) -> float:
        sampler = make_sampler(name, space, seed)
        asked = run(sampler, study_with(sampler), 60, batch)
        return float(times[asked].min() / times.min() - 1)

    gp = np.array([excess("gp", seed) for seed in range(5)])
    assert np.median(gp) < 0.02
    assert np.median([excess("random", seed) for seed in range(5)]) > 10 * max(np.median(gp), 0.01)


def test_noise_does_not_derail_the_gp() -> None:
    space = wide_space()
    times = np.array([time_ms(space, number) for number in range(len(space))])
    rng = np.random.default_rng(0)
    sampler = make_sampler("gp", space, seed=0)
    study = study_with(sampler)
    asked = []
    for _ in range(80):
        trial, number = sampler.ask(study)
        asked.append(number)
        study.tell(trial, float(times[number] * (1 + 0.05 * rng.standard_normal())))
    assert times[asked].min() < 1.1 * times.min()


def test_adapts_other_samplers_of_optuna() -> None:
    space = wide_space()
    sampler = FilteredSampler(lambda seed: NSGAIISampler(population_size=10, seed=seed), space, seed=0)
    asked = run(sampler, study_with(sampler), 60)
    assert len(set(asked)) == 60
    times = [time_ms(space, number) for number in asked]
    assert np.mean(times[40:]) < np.mean(times[:20])


@pytest.mark.parametrize("strategy", slow_but(["gp"], SAMPLERS))
def test_a_million_configurations(strategy: str) -> None:
    sizes = (10, 10, 10, 10, 10, 10)
    tunables = tuple(Tunable(f"t{i}", tuple(range(size))) for i, size in enumerate(sizes))
    declared = SearchSpace(tunables)
    grid = np.indices(sizes).reshape(len(sizes), -1).T.astype(np.int16)
    space = ValidSpace(declared, grid)
    sampler = make_sampler(strategy, space)
    study = study_with(sampler)
    asked = []
    for _ in range(30):
        trial, number = sampler.ask(study)
        asked.append(number)
        study.tell(trial, float(1 + (np.abs(grid[number] - 4)).sum()))
    assert len(set(asked)) == 30
    if strategy in ("gp", "tpe"):
        values = [float(np.abs(grid[number] - 4).sum()) for number in asked]
        assert np.mean(values[15:]) < np.mean(values[:10])


def values_of(space: ValidSpace) -> list[tuple[Value, ...]]:
    return [tunable.values for tunable in space.space.tunables]


def test_posterior_is_that_of_the_textbook_however_it_was_reached() -> None:
    space = small_space()
    features = PoolFeatures(space.indices, values_of(space), KernelPrior())
    parameters = prior_parameters(features)
    pool = np.arange(len(space))
    observed = np.random.default_rng(0).permutation(len(space))[:60]
    targets = np.random.default_rng(1).standard_normal(60)

    distances = np.tensordot(parameters.weights, features.distances(pool), axes=1)
    codes = features.codes(pool)
    effects = features.effects()[codes].sum(axis=1)[:, codes].sum(axis=2)
    kernel = (1 - features.prior.effects) * np.exp(-distances) + effects
    np.testing.assert_allclose(np.diag(kernel), 1.0, atol=1e-5)
    assert np.linalg.eigvalsh(kernel).min() > -1e-5, "inactive tunables must leave it a kernel"
    across = kernel[observed]
    inverse = np.linalg.inv(kernel[np.ix_(observed, observed)] + parameters.noise * np.eye(60))
    mean = across.T @ inverse @ targets
    variance = 1 - np.einsum("ij,ik,kj->j", across, inverse, across) + parameters.noise

    at_once = Posterior(features, parameters, pool, observed)
    one_by_one = Posterior(features, parameters, pool, observed[:10])
    for number in observed[10:].tolist():
        one_by_one.add(number)
    for posterior in (at_once, one_by_one):
        np.testing.assert_allclose(posterior.mean(targets), mean, atol=1e-2)
        np.testing.assert_allclose(posterior.deviation(), np.sqrt(variance), atol=1e-2)
    before = one_by_one.deviation()
    pending = one_by_one.deviation([5, 6])
    assert (pending <= before + 1e-6).all()
    assert pending[5] < before[5] or 5 in observed
    np.testing.assert_array_equal(one_by_one.deviation(), before)


def test_hyper_parameters_find_the_tunable_that_matters() -> None:
    space = wide_space()
    features = PoolFeatures(space.indices, values_of(space), KernelPrior())
    numbers = np.random.default_rng(0).permutation(len(space))[:80]
    targets = space.indices[numbers, 1].astype(float)
    targets = (targets - targets.mean()) / targets.std()
    weights = fit(features, numbers, targets, prior_parameters(features), steps=40).weights
    # Two weights a tunable with an order: the distance of its indices and whether they differ.
    assert weights[2] > 3 * max(weights[0], weights[4], weights[6])


def test_expected_improvement_keeps_ranking_where_it_underflows() -> None:
    mean = np.array([0.0, 0.3, 2.0, 50.0, 60.0], dtype=np.float32)
    deviation = np.full(5, 0.5, dtype=np.float32)
    score = log_expected_improvement(mean, deviation, threshold=0.1)
    draws = np.random.default_rng(0).standard_normal(1_000_000)
    for position in (0, 1):
        sampled = np.maximum(0.1 - (mean[position] + 0.5 * draws), 0).mean()
        assert math.exp(score[position]) == pytest.approx(sampled, rel=0.01)
    assert (np.diff(score) < 0).all()
    assert np.isfinite(score).all()


def test_targets_level_the_slow_and_the_failed() -> None:
    targets = targets_of(np.array([1.0, 2.0, 4.0, 8.0, 1e6, math.inf]), slowest=1.0).values
    assert targets.mean() == pytest.approx(0)
    assert targets.std() == pytest.approx(1)
    assert targets[4] == targets[5] == targets.max()
    assert (np.diff(targets[:4]) > 0).all()
    assert not targets_of(np.array([math.inf, math.inf]), slowest=1.0).values.any()
    assert not targets_of(np.array([3.0, 3.0]), slowest=1.0).values.any()


def test_initial_design_uses_every_value_evenly() -> None:
    space = wide_space()
    chosen = space.indices[balanced_design(space.indices, 18, np.random.default_rng(0))]
    for column, count in enumerate((9, 6, 5, 5, 2)):
        used = np.bincount(chosen[:, column], minlength=count)
        assert used.min() >= 18 // count - 1
        assert used.max() <= 18 // count + 2


def test_a_long_search_forgets_what_it_can_spare() -> None:
    space = wide_space()
    settings = PoolSettings(kept=40)
    model = PoolModel(space.indices, values_of(space), seed=0, settings=settings)
    seen = np.zeros(len(space), dtype=np.bool_)
    for _ in range(150):
        number = model.propose(seen, [])
        assert not seen[number]
        seen[number] = True
        model.observe(number, time_ms(space, number))
    assert min(time_ms(space, number) for number in np.flatnonzero(seen)) < 1.02


@pytest.mark.parametrize("watching", [False, True])
def test_a_long_history_is_taken_in_by_its_last_posterior_alone(
    monkeypatch: pytest.MonkeyPatch, watching: bool
) -> None:
    space, settings = wide_space(), PoolSettings(kept=64, quiet=20)
    models = [
        PoolModel(space.indices, values_of(space), seed=0, settings=settings, watching=watching) for _ in range(2)
    ]
    added: list[int] = []
    add = Posterior.add

    def counted(posterior: Posterior, number: int) -> None:
        added.append(number)
        add(posterior, number)

    monkeypatch.setattr(Posterior, "add", counted)
    numbers = np.random.default_rng(0).permutation(len(space))[:800].tolist()
    for number in numbers[:-1]:
        models[1].observe(number, time_ms(space, number))
    for number in numbers:
        models[0].observe(number, time_ms(space, number))
        assert not models[0].settled
    step_by_step = len(added)
    models[1].observe(numbers[-1], time_ms(space, numbers[-1]))
    seen = np.isin(np.arange(len(space)), numbers)
    assert not models[1].settled
    assert step_by_step > 500
    assert len(added) - step_by_step <= settings.kept // 4 + settings.quiet
    for _ in range(40):
        asked = [model.propose(seen, []) for model in models]
        assert asked[0] == asked[1]
        assert models[0].settled == models[1].settled
        seen[asked[0]] = True
        for model in models:
            model.observe(asked[0], time_ms(space, asked[0]))


@pytest.mark.parametrize("time", [lambda _: 2.0, lambda _: None])
def test_a_space_without_differences_is_searched_to_its_end(time: Callable[[int], float | None]) -> None:
    space = small_space()
    model = PoolModel(space.indices, values_of(space), seed=0, settings=PoolSettings())
    seen = np.zeros(len(space), dtype=np.bool_)
    for _ in range(len(space)):
        number = model.propose(seen, [])
        assert not seen[number]
        seen[number] = True
        model.observe(number, time(number))
    assert seen.all()


def test_a_search_settles_when_there_is_nothing_left_to_gain_and_not_before() -> None:
    space = wide_space()
    best = min(time_ms(space, number) for number in range(len(space)))
    sampler = make_sampler("gp", space, seed=0)
    study = study_with(sampler)
    asked: list[int] = []
    while not sampler.settled(study):
        asked += run(sampler, study, 1)
        assert len(asked) < 400, "it never settles"
    assert len(asked) > 60
    assert min(time_ms(space, number) for number in asked) == best
    # It is the finished trials that say so: asked later, or in another process, the answer is the same.
    resumed = make_sampler("gp", space, seed=0)
    rebuilt = study_with(resumed)
    for trial in study.trials[:-1]:
        rebuilt.add_trial(trial)
    assert not resumed.settled(rebuilt)
    rebuilt.add_trial(study.trials[-1])
    assert resumed.settled(rebuilt)


def test_watching_does_not_change_what_is_proposed() -> None:
    space = wide_space()
    sampler = make_sampler("gp", space, seed=4)
    whole = run(sampler, study_with(sampler), 50)
    watched = make_sampler("gp", space, seed=4)
    study, asked = study_with(watched), []
    for _ in range(50):
        asked += run(watched, study, 1)
        watched.settled(study)
    assert asked == whole


@pytest.mark.parametrize("strategy", ["tpe", "random", "exhaustive"])
def test_a_strategy_without_a_model_never_settles(strategy: str) -> None:
    space = small_space()
    sampler = make_sampler(strategy, space)
    study = study_with(sampler)
    run(sampler, study, len(space) // 4)
    assert not sampler.settled(study)
