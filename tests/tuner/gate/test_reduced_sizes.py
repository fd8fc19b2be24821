"""At which sizes the full battery asks its questions."""

from pathlib import Path

import pytest
import torch

from tunebench.tuner.gate.answers import Answers
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
