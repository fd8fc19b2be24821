"""Stages that are run in a lane: what they find is what they find in line, in the same order."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest
import torch
from in_process import CPU, ModuleContender
from tests.gate_files.references import SCALE
from torch import nn

import tunebench
from tunebench.tuner.gate.answers import Answers
from tunebench.tuner.gate.battery import STEPS, Depth, Lane, run_battery
from tunebench.tuner.gate.contender import Contender
from tunebench.tuner.gate.exemptions import Exemptions
from tunebench.tuner.gate.sources import Source
from tunebench.tuner.gate.stage_log import StageLog
from tunebench.tuner.isolation import IsolationError
from tunebench.tuner.kernel import Mode
from tunebench.tuner.reference import Reference

NEW = """
class ModelNew(Model):
    def forward(self, x):
        {first}
        return super().forward(x){more}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "more"),
    [
        ("", ""),
        ("", ".detach()"),  # refused by stages in the lane and outside of it
        ("", " + (x.dtype is torch.float64)"),  # in the lane, at reduced sizes
        ("torch.set_default_dtype(torch.float64 if torch.is_grad_enabled() else torch.float32)", ""),
        ("x.dtype is torch.float16 and os._exit(3)", ""),  # in the lane
    ],
)
def test_a_check_says_the_same_with_a_lane_and_in_line(tmp_path: Path, first: str, more: str) -> None:
    reference, file = tmp_path / "reference.py", tmp_path / "new.py"
    reference.write_text(SCALE, encoding="utf-8")
    file.write_text(SCALE + NEW.format(first=first, more=more), encoding="utf-8")
    (with_lane,) = tunebench.check(file, reference, device="cpu", seed=7)
    (in_line,) = tunebench.check([file], reference, device="cpu", seed=7)
    assert with_lane.holds("problem") == in_line.holds("problem")
    assert with_lane.holds("drop-in") == in_line.holds("drop-in") == (not first and not more)
    told = [[(stage.name, stage.passed) for stage in report.stages] for report in (with_lane, in_line)]
    if "exit" not in first:  # what the other lane has asked by then may be more, or less
        assert told[0] == told[1]
        shown = [[str(one.reproduction) for one in report.refusals] for report in (with_lane, in_line)]
        assert shown[0] == shown[1]


class _WrongInFloat64(nn.Tanh):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + (x.dtype is torch.float64)


def _nothing() -> None:
    """Kill no process: there is none."""


def _answers() -> Answers:
    source = Source(Reference(Path("reference.py"), "", nn.Tanh, lambda: [torch.rand(3, 8)], list, {}), CPU)
    return Answers.consult(source, Mode.TRAIN)


def _contender(model: type[nn.Module] = nn.Tanh) -> ModuleContender:
    return ModuleContender(model, Exemptions())


def test_stages_that_ask_at_the_sizes_which_another_has_met_are_not_apart_from_it() -> None:
    assert {"sizes", "training", "manners"} <= {step.name for step in STEPS if not step.is_aside}


def test_what_a_lane_cannot_run_is_run_in_line() -> None:
    def make() -> tuple[Answers, Contender]:
        raise IsolationError("there is no process")

    log = StageLog()
    with closing(Lane(make, _nothing)) as lane:
        run_battery(_answers(), _contender(_WrongInFloat64), log, Depth.FINALIST, keep_going=True, lane=lane)
    stages = log.verdict(0.0).stages
    assert [stage.name for stage in stages] == [step.name for step in STEPS if step.depth is Depth.FINALIST]
    assert [stage.name for stage in stages if not stage.passed] == ["dtypes"]


def test_what_a_lane_has_not_begun_is_run_by_who_is_free() -> None:
    waiting = threading.Event()

    def make() -> tuple[Answers, Contender]:
        assert waiting.wait(60)
        raise IsolationError("it is over")  # a consultation here would go on beside the next test

    log = StageLog()
    with closing(Lane(make, _nothing)) as lane:
        try:
            run_battery(_answers(), _contender(_WrongInFloat64), log, Depth.FINALIST, keep_going=True, lane=lane)
        finally:
            waiting.set()
    stages = log.verdict(0.0).stages
    assert [stage.name for stage in stages] == [step.name for step in STEPS if step.depth is Depth.FINALIST]
    assert [stage.name for stage in stages if not stage.passed] == ["dtypes"]
