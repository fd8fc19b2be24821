"""Never slower than what a model replaces: recorded losses, duels where nothing was measured, and policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from five_models import KERNELS, pair, ran_a_kernel
from sample_kernel import WriteKernel

from tunebench.kernels.runtime import decision, dispatch, tuned_module
from tunebench.kernels.runtime.duel import Score
from tunebench.kernels.runtime.policy import Policy, set_accuracy, set_policy, use_policy
from tunebench.kernels.runtime.selection import Choice, Known, Offer, Tier, agreed, choose_recorded, choose_shipped
from tunebench.kernels.runtime.shipped import NeighbourTest, ShippedResult, file_for, read_file, write_file
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import find_device
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import Ratio
from tunebench.tuner.space import SearchSpace, Tunable

CPU = find_device("cpu")
SPACE = SearchSpace((Tunable("block", (32, 64)),))
PROBLEM = Problem({"rows": 100})
OFFER = Offer(Configuration({"block": 64}), PROBLEM, CPU.name, CPU.architecture, "trial 12")


def test_what_a_study_did_not_compare_is_no_reason_against_what_shipped() -> None:
    """A study that had no time for its final rounds took the place of a result that was known to be faster."""
    shipped = replace(OFFER, source="shipped", shipped=True, over_reference=Ratio(1.9, 1.8, 2.0, 40, 0.99))
    of_search = replace(OFFER, configuration=Configuration({"block": 32}))
    for recorded in ([of_search], []):
        found = Known(SPACE, PROBLEM, CPU, recorded, [shipped]).evidence()
        assert found is not None and (found.tier, found.configuration) == (Tier.SHIPPED, OFFER.configuration)
    assert Known(SPACE, PROBLEM, CPU, [of_search], []).evidence() is None
    faster = replace(of_search, over_reference=Ratio(1.5, 1.4, 1.6, 40, 0.99))
    found = Known(SPACE, PROBLEM, CPU, [faster], [shipped]).evidence()
    assert found is not None and (found.tier, found.configuration) == (Tier.EXACT, of_search.configuration)


@pytest.mark.parametrize(
    ("figures", "kernel_serves"),
    [
        ((2.0, 1.9, 2.1), True),
        ((0.995, 0.98, 1.01), True),
        ((0.78, 0.77, 0.79), False),
        ((0.017, 0.006, 3.826), None),
        ((1.846, 0.827, 1.873), None),
        ((1.05, 1.0, 1.1), None),
        (None, None),
    ],
)
def test_a_configuration_that_lost_to_the_reference_is_not_served(
    figures: tuple[float, float, float] | None, kernel_serves: bool | None
) -> None:
    """What is not known is no evidence, for or against: it is a contender in a duel, and no more."""
    ratio = None if figures is None else Ratio(*figures, rounds=12, confidence=0.99)
    offer = replace(OFFER, over_reference=ratio)
    for choose in (choose_recorded, choose_shipped):
        for rows in (100, 170):
            choice = choose([offer], SPACE, Problem({"rows": rows}), CPU)
            assert choice is not None
            assert (choice.configuration is not None) == (kernel_serves is not False)
            assert choice.measured == choice.trusted == (rows == 100 and kernel_serves is not None)
            if kernel_serves is None:
                assert choice.reason.endswith("not confirmed against the reference")
            if kernel_serves is False:
                assert "the reference is faster: 0.780× [0.770, 0.790]" in choice.reason
                assert "trial 12" in choice.reason


def decided(monkeypatch: pytest.MonkeyPatch, *ratios: float) -> list[int]:
    """Duels end like this from now on, the default last; the list gets the number of contenders of each."""
    held: list[int] = []

    def settled(contenders: Sequence[object], *_: object) -> list[Score]:
        held.append(len(contenders))
        return [Score(ratio) for ratio in ratios[: len(contenders)]]

    monkeypatch.setattr(dispatch, "duel", settled)
    return held


def test_what_nobody_measured_is_settled_once_by_a_duel(
    write_kernel: WriteKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory = write_kernel()
    for ratio in (1.4, 0.6):
        decision.forget_plans()
        held = decided(monkeypatch, ratio)
        for model in (factory(), factory()):
            model.policy = Policy.BEST
            for _ in range(2):
                with torch.no_grad():
                    model(torch.rand(8))
            ((_, choice),) = model.choices.items()
            assert (choice.configuration is not None) == (ratio > 1)
            assert f"{ratio:.2f}×" in choice.reason
            assert choice.tier is (Tier.DEFAULT if ratio > 1 else Tier.REFERENCE)
        assert held == [1]


def run_once(factory: type[TunedModule], n: int, policy: Policy = Policy.BEST) -> Choice:
    """What serves a call of so many elements."""
    model = factory()
    model.policy = policy
    decision.forget_plans()
    with torch.no_grad():
        model(torch.rand(n))
    (choice,) = model.choices.values()
    return choice


def identified(factory: type[TunedModule], n: int) -> Problem:
    problem = factory().identify(torch.rand(n))
    assert problem is not None
    return problem


def ship(
    factory: type[TunedModule],
    results: dict[int, tuple[int, float]],
    conditions: dict[str, str] | None = None,
    variety: int = 0,
) -> None:
    """Results for sizes of this CPU: a block size, and its speed-up over the reference, sure to 1 %."""
    shipped = [
        ShippedResult(
            axes={"n": n},
            dtype="float32",
            options=dict(identified(factory, n).options),
            configuration={"block_size": block_size, "blocks": 1, "variety": variety},
            speedups={"reference": [ratio, ratio * 0.99, ratio * 1.01]},
            median_ms=0.5,
            error_multiple=None,
            conditions=conditions or {},
        )
        for n, (block_size, ratio) in results.items()
    ]
    path = file_for(factory.kernel, CPU.name)
    path.unlink(missing_ok=True)
    write_file(factory.kernel, CPU.name, CPU.architecture, shipped)


def test_a_result_of_other_versions_has_to_win_a_duel(
    write_kernel: WriteKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As every result of this problem, also that the reference won: both may be otherwise now."""
    factory = write_kernel()
    for conditions, ratio, duels in (
        ({"torch": torch.__version__}, 3.0, 0),
        ({"torch": torch.__version__, "driver": "570.1"}, 3.0, 0),  # a CPU has no driver
        ({}, 3.0, 0),
        ({"torch": "1.13.0"}, 3.0, 1),
        ({"torch": "1.13.0"}, 0.7, 1),
    ):
        ship(factory, {1000: (32, ratio)}, conditions)
        held = decided(monkeypatch, 1.5, 1.1)
        choice = run_once(factory, 1000)
        assert held == [2] * duels
        assert block_size(choice) == 32
        assert choice.measured
        assert (f"with torch 1.13.0, now {torch.__version__}" in choice.reason) == bool(duels)
    decided(monkeypatch, 0.9, 0.9)
    assert block_size(run_once(factory, 1000)) is None
    for policy in (Policy.RECORDED, Policy.EXACT):
        ship(factory, {1000: (32, 3.0)}, {"torch": "1.13.0"})
        assert block_size(run_once(factory, 1000, policy)) == 32


def test_neighbours_of_other_versions_say_nothing(write_kernel: WriteKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    factory = write_kernel()
    ship(factory, {1000: (32, 3.0), 4000: (32, 3.0)}, {"torch": "1.13.0"})
    held = decided(monkeypatch, 0.5, 0.5)
    run_once(factory, 1500)
    assert held == [2]


def block_size(choice: Choice) -> object:
    return None if choice.configuration is None else choice.configuration["block_size"]


def test_the_nearest_results_and_the_default_meet_the_reference(
    write_kernel: WriteKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory = write_kernel()
    ship(factory, {1000: (32, 3.0), 2000: (128, 3.0), 9000: (256, 3.0)})
    for ratios, winner in (((0.5, 1.3, 1.1), 128), ((0.5, 1.3, 1.4), 64), ((0.5, 1.0, 1.01), None)):
        held = decided(monkeypatch, *ratios)
        choice = run_once(factory, 40)
        assert held == [3]
        assert block_size(choice) == winner
    assert "shipped 0.50×, shipped 1.00×, default 1.01×" in choice.reason


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ({1000: (32, 3.0), 4000: (128, 2.0)}, 32),  # clearly faster on both sides: the nearer one's
        ({1000: (32, 1.005), 4000: (32, 1.05)}, 32),  # the same configuration, slower on no side
        ({1000: (32, 0.8), 4000: (128, 0.7)}, None),  # the reference is faster on both sides
        ({1000: (32, 0.8), 4000: (32, 3.0)}, "duel"),
        ({1000: (32, 1.1), 4000: (128, 3.0)}, "duel"),
        ({1000: (32, 3.0), 9000: (32, 3.0)}, "duel"),  # too far apart
        ({2000: (32, 3.0), 4000: (32, 3.0)}, "duel"),  # both larger
        ({1000: (32, 3.0)}, "duel"),
    ],
)
def test_neighbours_on_both_sides_that_agree_need_no_duel(
    write_kernel: WriteKernel,
    monkeypatch: pytest.MonkeyPatch,
    results: dict[int, tuple[int, float]],
    expected: int | str | None,
) -> None:
    factory = write_kernel()
    ship(factory, results)
    held = decided(monkeypatch, *[0.5] * 3)
    choice = run_once(factory, 1500)
    assert bool(held) == (expected == "duel")
    if expected != "duel":
        assert block_size(choice) == expected
        assert "both sides of this problem" in choice.reason
        assert not choice.measured


def test_a_range_that_was_tested_needs_no_duel(write_kernel: WriteKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between 1000 and 4000, whose winners differ and are not clearly faster than the reference."""
    factory = write_kernel()
    path = file_for(factory.kernel, CPU.name)
    for winner, low, serves in (
        (32, 0.995, 32),  # that of 1000, which does not lose at 4000
        (128, 1.3, 128),
        (32, 0.985, None),  # within the timing's error, it may lose
        (32, None, None),  # it was refused there
    ):
        ship(factory, {1000: (32, 1.05), 4000: (128, 1.05)})
        file = read_file(path)
        own, other = (1000, 4000) if winner == 32 else (4000, 1000)
        test = NeighbourTest({"n": other}, None if low is None else [1.35, low, 1.4])
        tested = [replace(one, range=[test]) if one.axes["n"] == own else one for one in file.results]
        write_file(factory.kernel, CPU.name, CPU.architecture, tested)
        held = decided(monkeypatch, 1.5, 1.4, 1.3)
        choice = run_once(factory, 2000)
        assert bool(held) == (serves is None)
        if serves:
            assert block_size(choice) == serves
            assert f"its range reaches to n={other} float32, where it has 1.350×" in choice.reason
        held = decided(monkeypatch, 1.5, 1.4, 1.3)
        run_once(factory, 500)  # beyond it
        assert held


def test_a_winner_that_was_found_to_lose_at_the_neighbour_does_not_serve_up_to_it(
    write_kernel: WriteKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory = write_kernel()
    ship(factory, {1000: (32, 3.0), 4000: (128, 3.0)})
    held = decided(monkeypatch, 1.5, 1.4, 1.3)
    assert block_size(run_once(factory, 2000)) == 32 and not held
    file = read_file(file_for(factory.kernel, CPU.name))
    beyond = [NeighbourTest({"n": 4000}, [0.9, 0.89, 0.91])]
    tested = [replace(one, beyond=beyond) if one.axes["n"] == 1000 else one for one in file.results]
    write_file(factory.kernel, CPU.name, CPU.architecture, tested)
    run_once(factory, 2000)
    assert held


@pytest.mark.parametrize(
    ("smaller", "larger", "agree"),
    [
        ({"rows": 64, "features": 512}, {"rows": 256, "features": 512}, True),
        ({"rows": 64, "features": 256}, {"rows": 256, "features": 1024}, True),
        ({"rows": 64, "features": 512}, {"rows": 128, "features": 1024}, False),  # along different axes
        ({"rows": 64, "features": 1024}, {"rows": 256, "features": 256}, False),  # neither is the smaller one
        ({"rows": 128, "features": 512}, {"rows": 128, "features": 512}, False),
    ],
)
def test_neighbours_differ_in_the_same_axes(smaller: dict[str, int], larger: dict[str, int], agree: bool) -> None:
    ratio = Ratio(3.0, 2.9, 3.1, rounds=12, confidence=0.99)
    offers = [replace(OFFER, problem=Problem(axes), over_reference=ratio) for axes in (smaller, larger)]
    for given in (offers, offers[::-1]):
        assert (agreed(given, SPACE, Problem({"rows": 128, "features": 512}), CPU) is not None) == agree
    elsewhere = [offers[0], replace(offers[1], device="another")]
    assert agreed(elsewhere, SPACE, Problem({"rows": 128, "features": 512}), CPU) is None


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("training", [False, True])
def test_a_real_duel_moves_nothing_in_the_module(name: str, training: bool) -> None:
    model, tuned, inputs = pair(name, training=training)
    with torch.no_grad(), use_policy(Policy.BEST):
        found, wanted = tuned(*inputs), model(*inputs)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    for one, other in zip(tuned.buffers(), model.buffers(), strict=True):
        torch.testing.assert_close(one, other)
    ((_, choice),) = tuned.choices.items()
    assert "call's own inputs" in choice.reason


def test_a_contender_s_calls_are_warm_ones(write_kernel: WriteKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a duel would time what no later call takes."""
    looks: list[object] = []
    look_at = tuned_module.look_at

    def counted(module: torch.nn.Module, inputs: Sequence[object]) -> object:
        looks.append(module)
        return look_at(module, inputs)

    monkeypatch.setattr(tuned_module, "look_at", counted)
    model = write_kernel()()
    model.policy = Policy.BEST
    with torch.no_grad():
        model(torch.rand(8))
    assert len(looks) == 2  # the call itself, and the first one of the only contender
    assert looks[0] is model and looks[1] is not model


def test_policies_of_a_program_a_module_and_a_block(write_kernel: WriteKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    held = decided(monkeypatch, 1.4)
    factory, x = write_kernel(), torch.rand(8)

    def kernel_serves(model: TunedModule) -> bool:
        with torch.no_grad():
            model(x)
        ran = ran_a_kernel(model)
        model._choices.clear()
        model._plans.clear()
        model._known.forget()
        return ran

    model = factory()
    assert kernel_serves(model)  # the tests' own: recorded
    assert not held
    set_policy("reference")
    assert not kernel_serves(model)
    model.policy = Policy.BEST
    assert kernel_serves(model)
    assert len(held) == 1
    model.policy = "reference"
    assert not kernel_serves(model)
    model.policy = "best"
    with use_policy("exact"):
        assert not kernel_serves(model)
        with use_policy("recorded"):
            assert kernel_serves(model)
    assert kernel_serves(model)
    legal = "use one of best, recorded, exact, reference, tune"
    with pytest.raises(ValueError, match=f"'fastest' is no policy: {legal}"):
        set_policy("fastest")
    model.policy = "REFERENCE"
    with pytest.raises(ValueError, match=f"'REFERENCE' is no policy: {legal}"):
        kernel_serves(model)
    with pytest.raises(ValueError, match="'exact' is no accuracy: use one of tolerance, eager"):
        set_accuracy("exact")


def test_changing_the_policy_changes_the_next_call(write_kernel: WriteKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    decided(monkeypatch, 1.4)
    model, x = write_kernel()(), torch.rand(8)
    for policy, serves in ((Policy.RECORDED, True), (Policy.REFERENCE, False), (Policy.BEST, True)):
        model.policy = policy
        with torch.no_grad():
            model(x)
        (choice,) = model.choices.values()
        assert (choice.configuration is not None) == serves, choice


def test_where_the_reference_has_won_other_calls_are_still_looked_at(
    write_kernel: WriteKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = decided(monkeypatch, 0.5)
    model = write_kernel()()
    model.policy = Policy.BEST
    with torch.no_grad():
        for x in (torch.rand(8), torch.rand(8), torch.rand(9), torch.rand(8, dtype=torch.float64)):
            torch.testing.assert_close(model(x), x * model.weight.to(x.dtype), check_dtype=False)
        assert len(held) == 2  # of two sizes; of the other type no kernel can serve a call
        model.policy = Policy.RECORDED
        model(torch.rand(8))
    assert ran_a_kernel(model)
