"""Never slower than what a model replaces: recorded losses, duels where nothing was measured, and policies."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from five_models import KERNELS, pair, ran_a_kernel
from sample_kernel import WriteKernel

from tunebench.kernels.runtime import decision, tuned_module
from tunebench.kernels.runtime.duel import DuelResult, duel
from tunebench.kernels.runtime.policy import Policy, set_policy, use_policy
from tunebench.kernels.runtime.selection import Offer, Tier, choose_recorded, choose_shipped
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import find_device
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import Ratio
from tunebench.tuner.space import SearchSpace, Tunable

CPU = find_device("cpu")
HERE = torch.device("cpu")
SPACE = SearchSpace((Tunable("block", (32, 64)),))
PROBLEM = Problem({"rows": 100})
OFFER = Offer(Configuration({"block": 64}), PROBLEM, CPU.name, CPU.architecture, "trial 12")


@pytest.mark.parametrize(
    ("figures", "kernel_serves"),
    [((2.0, 1.9, 2.1), True), ((0.995, 0.98, 1.01), True), ((0.78, 0.77, 0.79), False), (None, True)],
)
def test_a_configuration_that_lost_to_the_reference_is_not_served(
    figures: tuple[float, float, float] | None, kernel_serves: bool
) -> None:
    ratio = None if figures is None else Ratio(*figures, rounds=12, confidence=0.99)
    offer = replace(OFFER, over_reference=ratio)
    for choose in (choose_recorded, choose_shipped):
        for rows in (100, 170):
            choice = choose([offer], SPACE, Problem({"rows": rows}), CPU)
            assert choice is not None
            assert (choice.configuration is not None) == kernel_serves
            assert choice.measured == (rows == 100)
            if not kernel_serves:
                assert "the reference is faster: 0.780× [0.770, 0.790]" in choice.reason
                assert "trial 12" in choice.reason


def answer(seconds: float, value: float = 1.0) -> object:
    """An answer that takes so long, give or take what a busy machine adds to it."""

    def give() -> torch.Tensor:
        time.sleep(seconds)
        return torch.full((3, 4), value)

    return give


def test_the_faster_of_two_wins_a_duel() -> None:
    slow, fast = answer(0.05), answer(0.0005)
    assert duel(fast, slow, HERE).won  # type: ignore[arg-type]
    assert not duel(slow, fast, HERE).won  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [1.5, float("nan"), float("inf"), 0.0])
def test_a_wrong_answer_loses_however_fast_it_is(value: float) -> None:
    result = duel(answer(0.0, value), answer(0.01), HERE)  # type: ignore[arg-type]
    assert not result.won
    assert "off the reference's" in str(result)


def test_an_equal_one_is_no_reason_to_leave_the_reference() -> None:
    assert not DuelResult(1.0, 0.0).won
    assert not DuelResult(1.01, 0.0).won
    assert DuelResult(1.05, 0.0).won


def decided(monkeypatch: pytest.MonkeyPatch, ratio: float) -> list[int]:
    """Duels end like this from now on; the list grows with each."""
    held: list[int] = []

    def settled(*_: object) -> DuelResult:
        held.append(1)
        return DuelResult(ratio, 0.0)

    monkeypatch.setattr(tuned_module, "duel", settled)
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
        assert len(held) == 1


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
    assert "first call's inputs" in choice.reason


def test_policies_of_a_program_a_module_and_a_block(write_kernel: WriteKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    held = decided(monkeypatch, 1.4)
    factory, x = write_kernel(), torch.rand(8)

    def kernel_serves(model: TunedModule) -> bool:
        with torch.no_grad():
            model(x)
        ran = ran_a_kernel(model)
        model._choices.clear()
        model._plans.clear()
        return ran

    model = factory()
    assert kernel_serves(model)  # the tests' own: recorded
    assert not held
    set_policy("reference")
    assert not kernel_serves(model)
    model.policy = Policy.BEST
    assert kernel_serves(model)
    assert len(held) == 1
    with use_policy("exact"):
        assert not kernel_serves(model)
        with use_policy("recorded"):
            assert kernel_serves(model)
    assert kernel_serves(model)
    with pytest.raises(ValueError, match="fastest"):
        set_policy("fastest")


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
        assert len(held) == 3
        model.policy = Policy.RECORDED
        model(torch.rand(8))
    assert ran_a_kernel(model)
