"""The reference is asked first: what it does not repeat, raise or survive is nobody's refusal, and is said."""

from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import CPU, stages_of
from torch import nn

from tunebench.tuner.errors import InternalError, KernelFolderError
from tunebench.tuner.gate.answers import Answers
from tunebench.tuner.gate.comparison import scale_of
from tunebench.tuner.gate.examine import refusals_kept
from tunebench.tuner.gate.faults import require_models_own
from tunebench.tuner.gate.gradients import Backward
from tunebench.tuner.gate.memory import has_elements_of
from tunebench.tuner.gate.model import Model
from tunebench.tuner.gate.options import values_for
from tunebench.tuner.gate.sources import Source
from tunebench.tuner.gate.stage_log import StageLog
from tunebench.tuner.kernel import Mode
from tunebench.tuner.reference import Reference, load_reference
from tunebench.tuner.result import UNSHOWN, Stage
from tunebench.tuner.users_code import described


class _Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


class _Drifting(nn.Module):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _Drifting.calls += 1
        return x * _Drifting.calls


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 5, batch_first=True)

    def forward(self, x: torch.Tensor, h0: torch.Tensor | None = None, axis: int = 0) -> torch.Tensor:
        output: torch.Tensor = self.gru(x, h0)[0]
        return output.flip(axis)


def _answers(model: type[nn.Module]) -> Answers:
    reference = Reference(Path("reference.py"), "", model, lambda: [torch.rand(3, 8)], list, {})
    return Answers.consult(Source(reference, CPU), Mode.TRAIN)


def test_a_reference_that_keeps_a_state_is_known_and_one_that_does_not_repeat_itself_ends_the_check() -> None:
    assert _answers(_Counting).oracle.keeps_state
    assert not _answers(nn.Identity).oracle.keeps_state
    with pytest.raises(KernelFolderError, match="does not repeat itself"):
        _answers(_Drifting)


def test_weights_that_a_module_holds_twice_have_gradients_in_float64() -> None:
    model, inputs = Model(_Recurrent()), [torch.rand(2, 3, 4)]
    own, exact = (model.gradients(inputs, Backward(), exact=exact).found for exact in (False, True))
    assert set(own) == set(exact) and "gru.weight_hh_l0" in own


def test_an_error_of_the_gate_is_no_refusal_and_one_of_the_model_is() -> None:
    log = StageLog()
    with refusals_kept(log, described):
        nn.Linear(3, 4)(torch.rand(2, 2))
    assert not log.verdict(0.0).passed
    with pytest.raises(InternalError, match=r"comparison\.py"), refusals_kept(log, described):
        scale_of(torch.rand(2, 40, dtype=torch.cfloat))
    require_models_own(ValueError("raised nowhere"))


def test_an_optional_input_gets_a_value_of_the_kind_that_the_module_takes() -> None:
    module, inputs = _Recurrent().requires_grad_(False), [torch.rand(2, 3, 4)]
    (state,) = values_for(module, inputs, "h0", 1.5)
    assert state.shape == (1, 2, 5)
    assert values_for(module, inputs, "axis", 1.5) == [1]


@pytest.mark.parametrize(
    ("one", "other", "shares"),
    [
        (slice(0, 4), slice(4, 8), False),
        (slice(0, None, 2), slice(1, None, 2), False),
        (slice(0, None, 2), slice(4, None, 3), True),
        (slice(0, 5), slice(4, 8), True),
    ],
)
def test_parts_of_one_memory_share_elements_or_do_not(one: slice, other: slice, shares: bool) -> None:
    memory = torch.zeros(3, 8)
    assert has_elements_of(memory[:, one], memory[:, other]) is shares
    assert not has_elements_of(memory[:, one], torch.zeros(3, 8))


SAVED = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x)

class ModelNew(Model):
    {}

def get_inputs():
    return [torch.rand(5, 4)]

def get_init_inputs():
    return []
"""


def test_a_file_whose_classes_nothing_imports_is_pickled_like_its_reference() -> None:
    source = Source(load_reference(Path("file.py"), text=SAVED.format("pass")), CPU)
    copied = source.model(Mode.TRAIN).copied(pickled=True)
    assert copied.module is not None and list(copied.state()) == ["linear.weight", "linear.bias"]
    assert stages_of(SAVED.format("pass"), "copies")[-1].passed
    refused = stages_of(SAVED.format("def __reduce_ex__(self, _): raise TypeError('no')"), "copies")[-1]
    assert not refused.passed and "TypeError: no" in refused.detail


def test_a_stage_says_what_it_did_not_ask_and_why() -> None:
    def stage(detail: str) -> tuple[Any, ...]:
        one = Stage("sizes", True, 0.0, detail)
        return one.asked, one.is_unshown, one.why_not_asked, one.passed_over

    assert stage("3 cases; 2 passed over: too large") == (True, False, "", ("2 passed over: too large",))
    assert stage("not asked: on CUDA only") == (False, False, "on CUDA only", ())
    assert stage(f"{UNSHOWN}it raises; 1 cases") == (False, True, "it raises", ())


def test_of_a_build_that_fails_the_compilers_own_words_are_told() -> None:
    said = "Error building extension 'own': [1/2] c++ -c main.cpp\nFAILED: main.o\nmain.cpp:5:3: error: expected ';'\n"
    assert described(RuntimeError(said)) == (
        "RuntimeError: Error building extension 'own': main.cpp:5:3: error: expected ';'"
    )
    assert described(RuntimeError("one\ntwo")) == "RuntimeError: one"
