"""At which sizes the full battery asks its questions."""

from pathlib import Path

import pytest
import torch
from in_process import ModuleContender

from tunebench.tuner.gate.answers import Answers
from tunebench.tuner.gate.exemptions import Exemptions
from tunebench.tuner.gate.harness import Harness
from tunebench.tuner.gate.sources import Source
from tunebench.tuner.kernel import Mode
from tunebench.tuner.reference import load_reference

GROUPED = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_features, out_features, num_groups):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.norm = nn.GroupNorm(num_groups, out_features)

    def forward(self, x):
        return self.norm(self.linear(x))


batch_size = 256
in_features = 512
out_features = 1024
num_groups = 256


def get_inputs():
    return [torch.rand(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features, num_groups]
"""
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (8, {"batch_size": 128, "in_features": 128, "out_features": 128, "num_groups": 8}),
        # Cut to 128 each group would have one feature: a normalisation makes zeros of these.
        (256, {"batch_size": 32, "in_features": 64, "out_features": 128, "num_groups": 32}),
    ],
)
def test_answers_at_reduced_sizes_depend_on_the_inputs(groups: int, expected: dict[str, int]) -> None:
    text = GROUPED.replace("num_groups = 256", f"num_groups = {groups}")
    source = Source(load_reference(Path("grouped.py"), text=text), CPU)
    answers = Answers.consult(source, Mode.EVAL)
    assert dict(answers.reduced.sizes) == expected
    assert next(answers.reductions()) is answers.reduced


BOUND = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels, width):
        super().__init__()
        self.layer = nn.Conv2d(channels, 2 * channels, 1)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(self.layer(x)[..., 3:])


batch_size = 12
channels = 40
height = 32
width = 48


def get_inputs():
    return [torch.rand(batch_size, channels, height, 51)]


def get_init_inputs():
    return [channels, width]
"""


def test_sizes_that_are_bound_to_others_stay_and_the_rest_is_reduced() -> None:
    answers = Answers.consult(Source(load_reference(Path("bound.py"), text=BOUND), CPU), Mode.EVAL)
    sizes = dict(answers.reduced.sizes)
    assert (sizes["batch_size"], sizes["channels"], sizes["height"], sizes["width"]) == (8, 8, 8, 48)


SQUARE = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        if x.shape[1] != x.shape[2]:
            raise ValueError("not square")
        return (x if x.dtype == torch.float64 else x.bfloat16().float()) + 1


class ModelNew(Model):
    def forward(self, x):
        if x.shape[1] != 256:
            raise ValueError("for these sizes alone")
        return super().forward(x)


height = 256
width = 256


def get_inputs():
    return [torch.rand(2, height, width)]


def get_init_inputs():
    return []
"""


def test_sizes_that_an_imprecise_reference_does_not_take_are_passed_over() -> None:
    reference = load_reference(Path("square.py"), text=SQUARE)
    answers = Answers.consult(Source(reference, CPU), Mode.EVAL)
    assert any(one.sizes["height"] != one.sizes["width"] for one in answers.reductions())
    assert reference.candidate is not None
    base = Harness(answers, ModuleContender(reference.candidate, Exemptions())).base
    assert (base.sizes["height"], base.sizes["width"]) == (256, 256)
