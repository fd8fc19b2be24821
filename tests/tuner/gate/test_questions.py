"""Questions that take many calls."""

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tunebench.tuner.gate import questions
from tunebench.tuner.gate.stages import call_sequences


@pytest.mark.parametrize("ask", [questions.outputs_in_turns, questions.outputs_at_once])
def test_equal_results_are_not_held_where_they_are_large(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "_MOST_HELD_BYTES", 4 * 100)
    made: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def call(inputs: Sequence[Any]) -> torch.Tensor:
        nonlocal most
        most = max(most, sum(one() is not None for one in made))
        output: torch.Tensor = inputs[0] * 2
        made.append(weakref.ref(output))
        return output

    turns = [(torch.full((50,), float(number)),) for number in (1, 2)]
    answers = ask(call, turns, 40)
    assert [len(of_inputs) for of_inputs in answers] == [1, 1]
    assert torch.equal(answers[1][0], turns[1][0] * 2)
    assert len(made) >= 40 and most <= 12


def test_the_answer_that_is_another_one_after_some_calls_is_kept() -> None:
    count = 0

    def call(inputs: Sequence[Any]) -> torch.Tensor:
        nonlocal count
        count += 1
        output: torch.Tensor = inputs[0] + (count > 30)
        return output

    (answers,) = questions.outputs_in_turns(call, [(torch.zeros(3),)], 64)
    assert [float(one[0]) for one in answers] == [0.0, 1.0]


def test_what_others_left_for_the_collector_hides_no_memory_that_is_kept() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.itself = self
            self.held = torch.ones(1 << 20)

    kept: list[torch.Tensor] = []

    def call(_inputs: Sequence[Any]) -> None:
        kept.append(torch.ones(1 << 12))
        if len(kept) % 10 == 0:
            gc.collect()  # as Python does by itself, whenever it likes

    Cycle()
    left = questions.bytes_left_behind(call, [(torch.ones(1),)], 64, torch.device("cpu"))
    assert left is None or left >= 4 << 12


def test_edits_leave_inputs_as_they_lie() -> None:
    """On a GPU `roll` gives images in NCHW: a kernel that was begun for these would be asked about others."""
    images, row = torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last), torch.rand(3, 1).expand(3, 4)
    edited = call_sequences._each((images, row), lambda one: one.roll(1, 0).contiguous() + 1.0)
    assert [one.stride() for one in edited] == [images.stride(), row.stride()]
    assert torch.equal(edited[0], images.roll(1, 0) + 1.0) and torch.equal(edited[1], row.roll(1, 0) + 1.0)
