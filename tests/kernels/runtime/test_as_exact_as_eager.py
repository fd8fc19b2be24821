"""What serves where no more errors than eager's are allowed: what was measured so, and what proves itself in a duel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from sample_kernel import WriteKernel
from torch import nn

import tunebench
from tunebench.kernels.runtime import decision, policy
from tunebench.kernels.runtime import duel as duels
from tunebench.kernels.runtime.duel import duel
from tunebench.kernels.runtime.policy import Policy
from tunebench.kernels.runtime.selection import Choice, Tier
from tunebench.kernels.runtime.shipped import ShippedResult, file_for, write_file
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.device import find_device
from tunebench.tuner.problem import Accuracy, Problem

CPU = find_device("cpu")
HERE = torch.device("cpu")
INEXACT = {"weight[0];": "weight[0] * (variety == 1 ? 1.000001f : 1.0f);"}


def ship(factory: type[TunedModule], results: dict[Problem, tuple[int, int]], **conditions: str) -> None:
    """Results of this CPU, three times faster than the reference: a block size and a variety for each problem."""
    shipped = [
        ShippedResult(
            axes=dict(problem.axes),
            dtype="float32",
            options=dict(problem.options),
            configuration={"block_size": block_size, "blocks": 1, "variety": variety},
            speedups={"reference": [3.0, 2.97, 3.03]},
            median_ms=0.5,
            error_multiple=None,
            conditions=conditions,
        )
        for problem, (block_size, variety) in results.items()
    ]
    file_for(factory.kernel, CPU.name).unlink(missing_ok=True)
    write_file(factory.kernel, CPU.name, CPU.architecture, shipped)


def of(factory: type[TunedModule], n: int, accuracy: Accuracy = Accuracy.EAGER) -> Problem:
    problem = factory().identify(torch.rand(n))
    assert problem is not None
    return problem.at(accuracy)


def choice_for(
    factory: type[TunedModule], n: int, rule: Policy = Policy.BEST, accuracy: Accuracy = Accuracy.EAGER
) -> Choice:
    decision.forget_plans()
    model = factory()
    model.policy, model.accuracy = rule, accuracy
    with torch.no_grad():
        x = torch.rand(n)
        torch.testing.assert_close(model(x), x * model.weight, rtol=1e-5, atol=0)
    (((problem, _), choice),) = model.choices.items()
    assert problem == of(factory, n, accuracy)
    return choice


def block_size(choice: Choice) -> object:
    return None if choice.configuration is None else choice.configuration["block_size"]


@pytest.fixture
def kernels_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """In duels each contender takes half of the time of whoever comes before it; the reference comes first."""
    known: dict[int, float] = {}

    def seconds(answer: duels.Answer, calls: int, _: torch.device) -> float:
        answer()
        return known.setdefault(id(answer), 0.01 / 2 ** len(known)) * calls

    monkeypatch.setattr(duels, "_seconds", seconds)


def test_results_of_the_two_accuracies_are_never_mixed(write_kernel: WriteKernel) -> None:
    factory = write_kernel()
    ship(
        factory, {of(factory, 1000): (32, 0), of(factory, 1000, Accuracy.TOLERANCE): (256, 1)}, torch=torch.__version__
    )
    for rule in (Policy.BEST, Policy.RECORDED, Policy.EXACT):
        for accuracy, expected in ((Accuracy.EAGER, 32), (Accuracy.TOLERANCE, 256)):
            choice = choice_for(factory, 1000, rule, accuracy)
            assert (block_size(choice), choice.measured, choice.tier) == (expected, True, Tier.SHIPPED)


@pytest.mark.parametrize("rule", [Policy.BEST, Policy.RECORDED, Policy.EXACT])
def test_where_nothing_is_known_the_reference_serves(write_kernel: WriteKernel, rule: Policy) -> None:
    factory = write_kernel()
    ship(factory, {of(factory, 1000, Accuracy.TOLERANCE): (256, 1)}, torch=torch.__version__)
    choice = choice_for(factory, 1000, rule)
    assert block_size(choice) is None
    said = (
        "nothing was measured and confirmed for this problem"
        if rule is Policy.EXACT
        else "nothing is known to be as exact as eager"
    )
    assert choice.reason.startswith(said)


@pytest.mark.usefixtures("kernels_are_faster")
def test_another_problems_result_proves_itself_on_the_calls_own_inputs(write_kernel: WriteKernel) -> None:
    factory = write_kernel(source=INEXACT)
    torch.manual_seed(2)
    ship(factory, {of(factory, 1000): (32, 0), of(factory, 4000): (32, 0)}, torch=torch.__version__)
    choice = choice_for(factory, 2000)
    assert (block_size(choice), choice.measured) == (32, False)
    assert "in a duel on a call's own inputs" in choice.reason
    assert block_size(choice_for(factory, 2000, Policy.RECORDED)) is None
    ship(factory, {of(factory, 1000): (32, 1), of(factory, 4000): (32, 1)}, torch=torch.__version__)
    choice = choice_for(factory, 2000)
    assert block_size(choice) is None
    assert re.search(r"less exact than eager: error 1\.\d+e-06 .*, eager's own \d\.\d+e-08", choice.reason), (
        choice.reason
    )
    assert block_size(choice_for(factory, 2000, accuracy=Accuracy.TOLERANCE)) in (32, 64)


@pytest.mark.usefixtures("kernels_are_faster")
def test_what_was_measured_with_other_versions_proves_itself_again(write_kernel: WriteKernel) -> None:
    factory = write_kernel(source=INEXACT)
    for variety, expected in ((0, 32), (1, None)):
        ship(factory, {of(factory, 1000): (32, variety)}, torch="1.13.0")
        assert block_size(choice_for(factory, 1000)) == expected


@pytest.mark.usefixtures("kernels_are_faster")
def test_what_is_as_exact_as_eager_takes_part_under_the_tolerance(write_kernel: WriteKernel) -> None:
    factory = write_kernel()
    ship(factory, {of(factory, 1000): (32, 0)}, torch=torch.__version__)
    choice = choice_for(factory, 1000, accuracy=Accuracy.TOLERANCE)
    assert not choice.measured and "in a duel" in choice.reason
    assert block_size(choice) in (32, 64)  # that one, or the default
    assert choice_for(factory, 1000, Policy.RECORDED, Accuracy.TOLERANCE).tier is Tier.DEFAULT


def test_a_block_goes_before_a_module_and_that_before_the_program(write_kernel: WriteKernel) -> None:
    factory = write_kernel()
    ship(factory, {of(factory, 8): (32, 0)}, torch=torch.__version__)
    model, x = factory(), torch.rand(8)

    def serves_eager() -> bool:
        with torch.no_grad():
            for _ in range(3):  # the later calls are recognised
                model(x)
        return policy.accuracy_for(model.accuracy) is Accuracy.EAGER

    def met() -> set[Accuracy]:
        return {problem.accuracy for problem, _ in model.choices if problem is not None}

    assert not serves_eager() and met() == {Accuracy.TOLERANCE}
    tunebench.set_accuracy("eager")
    assert serves_eager() and met() == {Accuracy.TOLERANCE, Accuracy.EAGER}
    model.accuracy = tunebench.Accuracy.TOLERANCE
    assert not serves_eager()
    with tunebench.use_accuracy("eager"):
        assert serves_eager()
        with tunebench.use_policy("reference"):
            assert serves_eager()
        with tunebench.use_accuracy("tolerance"):
            assert not serves_eager()
    assert not serves_eager()
    for wrong in (tunebench.set_accuracy, tunebench.use_accuracy("perfect").__enter__):
        with pytest.raises(ValueError, match="perfect"):
            wrong(*(["perfect"] if wrong is tunebench.set_accuracy else []))


def test_calls_are_recognised_by_rules_that_are_one_object(write_kernel: WriteKernel) -> None:
    model, x = write_kernel()(), torch.rand(8)
    with torch.no_grad():
        model(x)
        (known,) = model._known.latest
        assert known.stands(model)
        with tunebench.use_accuracy("eager"):
            assert not known.stands(model)
        for _ in range(2):  # entered anew, it is the same rules
            with tunebench.use_accuracy("tolerance"):
                model(x)
                assert model._known.latest[0] is known and known.stands(model)
        model(x)
        assert known.stands(model)


def test_saved_choices_keep_the_accuracy(write_kernel: WriteKernel, tmp_path: Path) -> None:
    factory = write_kernel()
    ship(factory, {of(factory, 8): (32, 0), of(factory, 8, Accuracy.TOLERANCE): (128, 0)}, torch=torch.__version__)
    models = [factory(), factory()]
    models[0].accuracy = Accuracy.EAGER
    with torch.no_grad():
        for model in models:
            model(torch.rand(8))
    file_for(factory.kernel, CPU.name).unlink()
    assert tunebench.save_choices(tmp_path / "choices.json", nn.ModuleList(models)) == 2
    tunebench.load_choices(tmp_path / "choices.json")
    assert block_size(choice_for(factory, 8)) == 32
    assert block_size(choice_for(factory, 8, accuracy=Accuracy.TOLERANCE)) == 128


def test_a_compiled_program_follows_the_accuracy(write_kernel: WriteKernel) -> None:
    counting = {"        self.calls += 1\n": ""}
    factory = write_kernel(model=counting, reference=counting)
    ship(factory, {of(factory, 8): (32, 0)}, torch=torch.__version__)
    model, x = factory(), torch.rand(8)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        compiled(x)
        model.accuracy = Accuracy.EAGER
        compiled(x)
    assert {problem.accuracy for problem, _ in model.choices if problem is not None} == {
        Accuracy.TOLERANCE,
        Accuracy.EAGER,
    }


def test_a_duel_without_an_answer_in_float64_is_the_references() -> None:
    def refuses() -> torch.Tensor:
        raise RuntimeError("expected scalar type Double but found Float")

    (score,) = duel([lambda: torch.ones(3)], lambda: torch.ones(3), HERE, refuses)
    assert not score.serves
    assert score.obstacle.startswith("there is no answer in float64 to compare with: expected scalar type")
