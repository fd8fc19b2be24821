"""Choices in a file are served again exactly, before all else; stale ones are warned of once and passed over."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from sample_kernel import WriteKernel
from torch import nn

import tunebench
from tunebench.kernels.runtime import decision, dispatch
from tunebench.kernels.runtime.choices_file import ChoicesFileError, load_choices, read_choices
from tunebench.kernels.runtime.duel import Score
from tunebench.kernels.runtime.policy import Policy
from tunebench.kernels.runtime.saving import save_choices
from tunebench.kernels.runtime.selection import Choice, Tier
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.device import find_device
from tunebench.tuner.errors import UserError

CPU = find_device("cpu")


@pytest.fixture
def ratio(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Duels end with the ratio at its end; each takes one off."""
    ratios: list[float] = []

    def settled(contenders: Sequence[object], *_: object) -> list[Score]:
        assert len(contenders) == 1
        return [Score(ratios.pop())]

    monkeypatch.setattr(dispatch, "duel", settled)
    return ratios


def served(factory: type[TunedModule], n: int = 8, policy: Policy = Policy.BEST) -> tuple[TunedModule, Choice]:
    decision.forget_plans()
    model = factory()
    model.policy = policy
    with torch.no_grad():
        model(torch.rand(n))
    ((_, choice),) = model.choices.items()
    return model, choice


def edit(path: Path, **changes: Any) -> None:
    """Change the only choice of a file."""
    content = json.loads(path.read_text(encoding="utf-8"))
    content["choices"][0] |= changes
    path.write_text(json.dumps(content), encoding="utf-8")


def test_what_was_saved_is_served_again_without_a_duel(
    write_kernel: WriteKernel, tmp_path: Path, ratio: list[float]
) -> None:
    factory, path = write_kernel(), tmp_path / "choices.json"
    ratio += [0.6, 1.4]
    kernel_wins, first = served(factory, 8)
    reference_wins, second = served(factory, 9)
    assert (first.tier, second.tier) == (Tier.DEFAULT, Tier.REFERENCE)
    assert tunebench.save_choices(path, nn.Sequential(nn.ReLU(), kernel_wins), reference_wins) == 2
    assert tunebench.load_choices(path) == 2
    for policy in (Policy.BEST, Policy.RECORDED, Policy.EXACT):
        for n, before in ((8, first), (9, second)):
            again = served(factory, n, policy)[1]
            assert (again.configuration, again.tier) == (before.configuration, before.tier)
            assert again.reason == f"loaded from {path}: {before.reason}"
    assert served(factory, 8, Policy.REFERENCE)[1].configuration is None
    ratio.append(1.4)
    assert served(factory, 10)[1].configuration is not None
    assert not ratio


def test_a_file_says_which_kernel_problem_and_device_and_saving_it_again_changes_nothing(
    write_kernel: WriteKernel, tmp_path: Path, ratio: list[float]
) -> None:
    factory, path = write_kernel(), tmp_path / "choices.json"
    ratio.append(1.4)
    model, choice = served(factory)
    save_choices(path, model)
    (saved,) = json.loads(path.read_text(encoding="utf-8"))["choices"]
    problem = model.identify(torch.rand(8))
    assert problem is not None and problem.names_all
    assert saved == {
        "kernel": "weigh",
        "digest": factory.kernel.digest,
        "axes": {"n": 8},
        "dtype": "float32",
        "options": problem.options,
        "device": CPU.name,
        "architecture": CPU.architecture,
        "configuration": {"block_size": 64, "blocks": 2, "variety": 0},
        "tier": "default",
        "reason": choice.reason,
    }
    load_choices(path)
    again = tmp_path / "again.json"
    save_choices(again, served(factory)[0])
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"digest": "edited"}, "for another version of weigh"),
        ({"device": "NVIDIA H200"}, "were made on NVIDIA H200, and this is"),
        ({"configuration": {"block_size": 100, "blocks": 1, "variety": 0}}, "weigh does not admit the configuration"),
    ],
)
def test_a_stale_choice_is_warned_of_once_and_passed_over(
    write_kernel: WriteKernel, tmp_path: Path, ratio: list[float], changes: dict[str, Any], said: str
) -> None:
    factory, path = write_kernel(), tmp_path / "choices.json"
    ratio += [0.5, 0.5, 1.4]
    save_choices(path, served(factory)[0])
    edit(path, **changes)
    load_choices(path)
    with pytest.warns(RuntimeWarning, match=said) as warned:
        for _ in range(2):
            assert served(factory)[1].tier is Tier.REFERENCE
    assert len(warned) == 1
    assert not ratio


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "Expecting property name"),
        ("[" * 100_000, "recursion"),
        ('{"choices": [{"kernel": "weigh"}]}', "choices.0.architecture: is missing"),
        ('{"choices": 3}', "choices: int instead of list"),
    ],
)
def test_what_is_no_file_of_choices_is_refused_and_changes_nothing(
    write_kernel: WriteKernel, tmp_path: Path, ratio: list[float], text: str, said: str
) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    factory = write_kernel()
    ratio.append(1.4)
    save_choices(good, served(factory)[0])
    load_choices(good)
    bad.write_text(text, encoding="utf-8")
    with pytest.raises(ChoicesFileError, match=said):
        load_choices(good, bad)
    assert "loaded from" in served(factory)[1].reason
    edit(good, tier="best")
    with pytest.raises(ChoicesFileError, match="'best' is not a valid Tier"):
        read_choices(good)
    with pytest.raises(ChoicesFileError, match="cannot be read: No such file"):
        load_choices(tmp_path / "none.json")
    with pytest.raises(UserError, match="nothing to save"):
        save_choices(good, factory())


def test_a_choice_that_cannot_run_here_leaves_the_reference(
    write_kernel: WriteKernel, tmp_path: Path, ratio: list[float]
) -> None:
    refusing = {'extern "C"': 'static_assert(block_size != 32, "not here");\nextern "C"'}
    factory, path = write_kernel(source=refusing), tmp_path / "choices.json"
    ratio.append(1.4)
    save_choices(path, served(factory)[0])
    edit(path, configuration={"block_size": 32, "blocks": 2, "variety": 0})
    load_choices(path)
    with pytest.warns(RuntimeWarning) as warned:
        assert served(factory)[1].configuration is None
    said = ["passes over its default configuration", "runs the reference's operations"]
    assert all(part in str(one.message) for part, one in zip(said, warned, strict=True))
