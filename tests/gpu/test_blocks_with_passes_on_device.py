"""Blocks with passes and views around them, on CUDA. Skips without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tunebench.kernels.blocks import loops
from tunebench.kernels.runtime.registry import load_model
from tunebench.studies.writing.new.write_new import write_new
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.configuration import Value
from tunebench.tuner.device import Device

pytestmark = pytest.mark.gpu

ALLOWED = {"float32": 1e-3, "bfloat16": 2e-2}
FORWARDS = {
    "a view in front": "torch.tanh(self.linear(x.flatten(1)))",
    "passes on both sides": "torch.relu(self.conv(x.sin().transpose(2, 3))).cumsum(1)",
    "channels-last images": "torch.relu(self.conv(x.sin().to(memory_format=torch.channels_last)))",
    "images that passes make channels-last": "torch.relu(self.conv(torch.cat([x[:, :8].exp(), x[:, 8:]], 1)))",
    "maxima and quotients": "torch.softmax(self.conv(x), 1).sigmoid()",
    "a scan backwards": "self.conv(x).flatten(1).flip(1).cumsum(1).flip(1)",
    "an exclusive scan": "nn.functional.pad(self.linear(x.flatten(1)).cumsum(1)[:, :-1], (1, 0))",
    "statistics": "nn.functional.instance_norm(self.conv(x)) * 2",
}
PROBLEM = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv, self.linear = nn.Conv2d(channels, 32, 3), nn.Linear(channels * 144, 64)

    def forward(self, x):
        return {forward}


batch_size = 4
channels = 16


def get_inputs():
    return [torch.randn(batch_size, channels, 12, 12)]


def get_init_inputs():
    return [channels]
"""


@pytest.mark.parametrize("dtype", ALLOWED)
@pytest.mark.parametrize("forward", FORWARDS.values(), ids=FORWARDS)
def test_what_stands_around_a_block_is_right(cuda: Device, forward: str, dtype: str, tmp_path: Path) -> None:
    problem = tmp_path / "problem.py"
    problem.write_text(PROBLEM.format(forward=forward), encoding="utf-8")
    made = write_new(tmp_path / "around", problem)
    assert made.block.endswith(" and passes"), made
    model = load_model(str(tmp_path / "around"))
    reference = model.kernel.reference({"batch_size": 24}, dtype)
    original, tuned = (reference.make_model(0, cuda.torch_device, *one) for one in ((), (model,)))
    (x,) = reference.make_inputs(0, cuda.torch_device)
    asked = tuned.problem(x)
    assert asked is not None, tuned.reason
    space = tuned.kernel.space
    choices: list[dict[str, Value]] = [{loops.EARLY: False}, {loops.EARLY: True}]
    choices += [{"fast_math": False}, {"fast_math": True}] if "fast_math" in space.names else []
    for chosen in choices if loops.EARLY in space.names else [{}]:
        plan = build_plan(tuned.kernel, space.choose(chosen, asked, cuda), asked, cuda, compiler_for(cuda))
        model.make_ready(plan)
        tuned.pin(plan)
        with torch.no_grad():
            wanted = original.double()(x.double())
            difference = torch.linalg.vector_norm(tuned(x).double() - wanted) / torch.linalg.vector_norm(wanted)
            assert difference < ALLOWED[dtype]
            some = x.clone()
            some[1, 2, 3, 4] = torch.nan
            assert torch.equal(tuned(some).isnan(), original(some.double()).isnan())


NORMS = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv, self.one, self.other = nn.Conv2d(channels, 24, 3), nn.BatchNorm2d(24), nn.BatchNorm2d(24)

    def forward(self, x):
        return self.other(torch.relu(self.one(self.conv(x))))


batch_size = 6
channels = 16


def get_inputs():
    return [torch.randn(batch_size, channels, 36, 36)]


def get_init_inputs():
    return [channels]
"""


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("dtype", ALLOWED)
def test_statistics_move_as_the_reference_moves_them(cuda: Device, dtype: str, early: bool, tmp_path: Path) -> None:
    """By passes that write them where they are, in calls that follow one another closely."""
    problem = tmp_path / "problem.py"
    problem.write_text(NORMS, encoding="utf-8")
    write_new(tmp_path / "norms", problem)
    model = load_model(str(tmp_path / "norms"))
    reference = model.kernel.reference({}, dtype)
    original, tuned = (reference.make_model(0, cuda.torch_device, *one).train() for one in ((), (model,)))
    inputs = [reference.make_inputs(seed, cuda.torch_device)[0] for seed in range(4)]
    asked = tuned.problem(inputs[0])
    assert asked is not None, tuned.reason
    plan = build_plan(
        tuned.kernel, tuned.kernel.space.choose({loops.EARLY: early}, asked, cuda), asked, cuda, compiler_for(cuda)
    )
    tuned.pin(plan)
    with torch.no_grad():
        found = [tuned(x) for x in inputs]
        for x, one in zip(inputs, found, strict=True):
            torch.testing.assert_close(one, original(x), rtol=ALLOWED[dtype], atol=10 * ALLOWED[dtype])
    kept, wanted = tuned.state_dict(), original.state_dict()
    for name in (name for name in wanted if "num_batches" in name or "running" in name):
        torch.testing.assert_close(kept[name], wanted[name], rtol=ALLOWED[dtype], atol=ALLOWED[dtype])
    assert int(kept["one.num_batches_tracked"]) == len(inputs)
