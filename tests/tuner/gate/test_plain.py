"""Values that cross the boundary come back as their declared types, and nothing else is taken for one."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from tunebench.tuner.gate.boundary.plain import MalformedError, put_together, taken_apart
from tunebench.tuner.gate.gradients import Backward, Trained
from tunebench.tuner.gate.model import Answer, CallOptions
from tunebench.tuner.gate.questions import Settings
from tunebench.tuner.gate.values import Values
from tunebench.tuner.kernel import Mode

ANSWER: Mapping[str, Any] = {
    "output": {"kinds": {"output": "a tensor"}, "leaves": {"output": torch.ones(2)}},
    "buffers": {"mean": torch.zeros(2)},
    "intact": True,
    "aliases": [],
    "shared": [],
    "repeats": False,
    "input_sums": (),
}


@pytest.mark.parametrize(
    "value",
    [
        CallOptions(autocast=torch.bfloat16, keywords=("x",)),
        Backward(parameters=Trained.SOME),
        Mode.EVAL,
        Values.of((1, "a")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_is_put_together_as_it_was(value: object) -> None:
    assert put_together(type(value), taken_apart(value)) == value


def test_an_answer_is_put_together() -> None:
    answer = put_together(Answer, ANSWER)
    assert isinstance(answer, Answer) and isinstance(answer.output, Values) and answer.inputs == {}


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (Answer, {**ANSWER, "intact": 1}),
        (Answer, {**ANSWER, "buffers": {"mean": [0.0]}}),
        (Answer, {**ANSWER, "aliases": "output"}),
        (Answer, {**ANSWER, "more": None}),
        (Answer, {name: ANSWER[name] for name in ("output", "intact")}),
        (Answer, {**ANSWER, "output": {"kinds": {"output": "a tensor"}, "leaves": {"output": (1,)}}}),
        (Answer, [ANSWER]),
        (bool, "yes"),
        (int, True),
        (tuple[int, int], (1, 2, 3)),
        (Sequence[str], {"a": "b"}),
        (Mapping[str, torch.Tensor], {"a": None}),
        (Settings, {"eps": "1e-5"}),
        (Mode, "neither"),
        (type(None), 0),
    ],
)
def test_what_is_not_of_the_declared_type_is_malformed(kind: Any, given: object) -> None:
    with pytest.raises(MalformedError):
        put_together(kind, given)
