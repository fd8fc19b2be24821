"""One snapshot tells whether what was decided or kept still holds."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from sample_kernel import WriteKernel
from torch import nn

from tunebench.kernels.runtime import dispatch, tuned_module
from tunebench.kernels.runtime.snapshot import Snapshot, Structure, has_parts, parts


def model() -> Any:
    made = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    made.scale = 2.0
    made[0]._steps, made[0].names = [1.5, (2, [3, {4}])], {"first": [5]}
    return made


OF_STRUCTURE: dict[str, Callable[[Any], Any]] = {
    "text": lambda one: setattr(one, "kind", "same"),
    "a kind of submodule": lambda one: one.__setitem__(0, nn.Identity()),
    "a parameter less": lambda one: setattr(one[0], "bias", None) or one[0]._parameters.pop("bias"),
    "a submodule more": lambda one: one.append(nn.Identity()),
}
OF_IDENTITY: dict[str, Callable[[Any], Any]] = {
    "a number": lambda one: setattr(one, "scale", 3.0),
    "an element of a list": lambda one: one[0]._steps.__setitem__(0, 2.5),
    "one more": lambda one: one[0]._steps.append(1),
    "a set inside": lambda one: one[0]._steps[1][1][1].add(6),
    "a word of a dictionary": lambda one: one[0].names.update(first=[6]),
    "a list of a dictionary": lambda one: one[0].names["first"].append(6),
    "a parameter": lambda one: setattr(one[0], "weight", nn.Parameter(torch.rand(2, 2))),
    "training": lambda one: one.eval(),
    "a hook inside": lambda one: one[0].register_forward_hook(lambda *_: None),
}


@pytest.mark.parametrize("name", [*OF_STRUCTURE, *OF_IDENTITY])
def test_a_snapshot_of_a_module_notices_a_change_and_its_structure_one_of_kind(name: str) -> None:
    changed = model()
    snapshot, structure = Snapshot(changed), Structure.of(changed)
    assert snapshot.is_of(changed) and not snapshot.is_of(copy.deepcopy(changed))
    assert structure == Structure.of(copy.deepcopy(changed))
    {**OF_STRUCTURE, **OF_IDENTITY}[name](changed)
    assert not snapshot.is_of(changed)
    assert (structure == Structure.of(changed)) is (name in OF_IDENTITY)


def test_parts_that_are_missing_replaced_or_hooked_are_others() -> None:
    made = parts(model())
    assert has_parts(model(), made)
    for change in [*OF_STRUCTURE, "a hook inside"]:
        other = model()
        {**OF_STRUCTURE, **OF_IDENTITY}[change](other)
        assert has_parts(other, made) is (change == "text")


def in_place(one: torch.Tensor) -> object:
    return one.add_(1)


def other_memory(one: torch.Tensor) -> object:
    one.data = one.data.clone()
    return None


def other_strides(one: torch.Tensor) -> object:
    one.data = one.data.t()
    return None


@pytest.mark.parametrize("change", [in_place, other_memory, other_strides])
def test_a_snapshot_of_values_notices_a_change(change: Callable[[torch.Tensor], object]) -> None:
    first, second = torch.rand(2, 2), torch.rand(2, 2)
    snapshot = Snapshot(values=(first, second))
    assert snapshot.has((first, second))
    with torch.autocast("cpu"):
        assert snapshot.has((first, second))
    assert not snapshot.has((first,)) and not snapshot.has((first, second.clone()))
    change(second)
    assert not snapshot.has((first, second))


def test_a_snapshot_of_no_values_holds() -> None:
    assert Snapshot(values=()).has(())


def test_a_first_call_is_looked_at_once(write_kernel: WriteKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []
    look_at = tuned_module.look_at
    monkeypatch.setattr(tuned_module, "look_at", lambda *given: looks.append(given) or look_at(*given))  # type: ignore[func-returns-value]
    monkeypatch.setattr(dispatch, "is_quick_to_trace", lambda: False)
    made = write_kernel()()
    with torch.no_grad():
        made(torch.rand(8))
    assert len(looks) == 1
