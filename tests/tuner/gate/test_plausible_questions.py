"""What the gate asks a model: nothing that no program does, and nothing that the reference itself cannot answer."""

import time
from pathlib import Path

import pytest
import torch
from broken_modules import BROKEN_MODULES, ROOT
from in_process import CPU, refusals, stages_of
from torch import nn

from tunebench.tuner.gate.case import expect
from tunebench.tuner.gate.effort import Limit, elements_made
from tunebench.tuner.gate.questions import could_hold, settings_of
from tunebench.tuner.gate.sources import Source
from tunebench.tuner.gate.stages import sizes
from tunebench.tuner.kernel import Mode
from tunebench.tuner.reference import load_reference

HEAD = """
import math
import torch
from torch import nn
from torch.nn import functional as F

"""

GELU = (
    HEAD
    + """
class Model(nn.Module):
    def __init__(self, columns, features):
        super().__init__()
        self.linear = nn.Linear(columns, features)

    def forward(self, x):
        return F.gelu(self.linear(x))

class ModelNew(Model):
    def forward(self, x):
        y = self.linear(x)
        return y * 0.5 * (1 + torch.erf(y * math.sqrt(0.5)))

def get_inputs():
    return [torch.rand(12, 40)]

def get_init_inputs():
    return [40, 20]
"""
)

UPSAMPLED = (
    HEAD
    + """
batch, low, high, height, width, out = 2, 16, 8, 8, 8, 8

class Model(nn.Module):
    def __init__(self, low, high, out):
        super().__init__()
        self.conv = nn.Conv2d(low + high, out, 3, padding=1)
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)

    def forward(self, x, skip):
        return torch.relu(self.conv(torch.cat([self.up(x), skip], 1)))

class ModelNew(Model):
    def forward(self, x, skip):
        up = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        return F.relu(self.conv(torch.cat([up, skip], 1)))

def get_inputs():
    return [torch.rand(batch, low, height, width), torch.rand(batch, high, height * 2, width * 2)]

def get_init_inputs():
    return [low, high, out]
"""
)

LOOPING = (
    HEAD
    + """
rows = 6
step = 3

class Model(nn.Module):
    def __init__(self, step):
        super().__init__()
        self.step = step

    def forward(self, x):
        place = 0
        while place < x.shape[0]:
            place += self.step
        return x * place

class ModelNew(Model):
    def forward(self, x):
        return x * (-(-x.shape[0] // self.step) * self.step)

def get_inputs():
    return [torch.rand(rows, 8)]

def get_init_inputs():
    return [step]
"""
)
"""Its reference has no end where the step is 0."""

STRIDED = (
    HEAD
    + """
class Windows(nn.Module):
    def __init__(self, size, stride):
        super().__init__()
        self.size, self.stride = size, stride
        self.padding_height = (size - stride) // 2

    def forward(self, x):
        return F.avg_pool2d(F.pad(x, (0, 0, self.padding_height, self.padding_height)), self.size, self.stride)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.windows = Windows(3, 1)

    def forward(self, x):
        return self.windows(x)

class ModelNew(Model):
    def forward(self, x):
        windows = self.windows
        assert windows.stride > 0 and windows.padding_height == (windows.size - windows.stride) // 2
        y = F.unfold(x.flatten(0, 1)[:, None], windows.size, padding=(windows.padding_height, 0), stride=windows.stride)
        width = (x.shape[-1] - windows.size) // windows.stride + 1
        return y.mean(1).reshape(*x.shape[:2], -1, width)

rows = 3

def get_inputs():
    return [torch.rand(rows, 2, 9, 10)]

def get_init_inputs():
    return []
"""
)
"""Serves every stride and padding that its part can be made with."""


def last(text: str, stage: str) -> str:
    """The detail of a stage that passed."""
    found = stages_of(text, stage)[-1]
    assert found.name == stage and found.passed, found
    return found.detail


def test_an_infinity_that_only_the_reference_makes_a_nan_of_passes_as_either() -> None:
    """PyTorch's GELU on vectors is NaN there, and infinite in float64."""
    assert last(GELU, "not finite") == "5 cases"
    broken = GELU.replace("return y * 0.5", "y = y.nan_to_num(posinf=1.0)\n        return y * 0.5")
    assert not stages_of(broken, "not finite")[-1].passed


@pytest.mark.parametrize(
    ("own", "exact", "passes"),
    [
        ("nan", "inf", ["nan", "inf"]),
        ("inf", "nan", ["nan", "inf"]),
        ("inf", "-inf", ["inf", "-inf"]),
        ("inf", "2.0", ["inf", "2.0"]),
        ("2.0", "nan", ["nan", "2.0"]),
        ("inf", "1e300", ["inf"]),
        ("nan", "nan", ["nan"]),
    ],
)
def test_where_float64_is_finite_otherwise_than_the_reference_both_pass(
    own: str, exact: str, passes: list[str]
) -> None:
    wanted = expect(torch.tensor([1.0, float(own)]), torch.tensor([1.0, float(exact)], dtype=torch.float64))
    for got in ("nan", "inf", "-inf", "2.0", "3.0"):
        error = wanted.errors_of(torch.tensor([1.0, float(got)])).max_relative
        assert (error <= wanted.bound) is (got in passes), got
    assert wanted.errors_of(torch.tensor([1.1, float(own)])).max_relative > 1e-2


def test_sizes_that_grow_together_beyond_what_the_reference_takes_are_passed_over() -> None:
    """All at 31, upsampled by 31 each way, are 900 million elements in one input: minutes, and gigabytes."""
    told = last(UPSAMPLED, "sizes")
    assert told.startswith("6 cases; ") and "1 passed over: the reference would make too much there" in told


def test_a_size_at_which_the_reference_has_no_end_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "_SECONDS", 0.2)
    told = last(LOOPING, "sizes")
    assert "1 passed over: the reference would make too much there, or take too long" in told


def test_what_a_call_makes_is_counted_without_memory_for_it() -> None:
    source = Source(load_reference(Path("file.py"), text=ROOT), CPU)
    few, many = Limit(1 << 20, 10.0), Limit(1 << 60, 10.0)
    made = source.effort({}, few)
    assert made is not None and made >= 5 * 20 * 24  # the input, and what four operations make of it
    started = time.process_time()
    assert source.effort({"rows": 20 << 30}, few) is None
    assert source.effort({"rows": 20 << 30}, many) == made << 30
    assert time.process_time() - started < 5.0


def test_what_needs_values_is_counted_as_it_runs_and_stopped_before_it_takes_memory() -> None:
    def call(place: torch.device) -> None:
        with torch.device(place):
            assert float(torch.ones(3).sum()) == 3.0
            torch.empty(1 << 50)

    assert elements_made(call, (torch.device("meta"), CPU), Limit(1 << 20, 10.0)) is None


def test_a_call_that_ends_in_time_is_not_interrupted_afterwards() -> None:
    for _ in range(20):
        assert elements_made(lambda _: time.sleep(0.0009), [CPU], Limit(10, 0.001)) in (0, None)
    time.sleep(0.01)


def test_numbers_that_no_program_can_have_are_not_asked() -> None:
    assert last(STRIDED, "settings") == "3 cases"  # another size, and no stride without the padding that goes with it
    refused = stages_of(STRIDED.replace("mean(1)", "sum(1).div(3 * 3)"), "settings")[-1]
    assert not refused.passed and "with windows.size = 4" in refused.detail


def test_a_part_could_hold_what_its_constructor_makes_of_it() -> None:
    model = torch.nn.ModuleDict(
        {
            "conv": torch.nn.Conv2d(4, 8, 3, bias=False),
            "attention": torch.nn.MultiheadAttention(8, 2),
            "norm": torch.nn.GroupNorm(2, 8),
        }
    )
    values = {"conv.stride": (2, 2), "norm.num_groups": 4, "norm.eps": 0.5}
    assert all(could_hold(model, name, value) for name, value in values.items())
    impossible = {"norm.num_groups": 3, "conv.groups": 3, "attention.num_heads": 4, "attention.head_dim": 2}
    assert not any(could_hold(model, name, value) for name, value in impossible.items())
    assert {*values, *impossible} <= {*settings_of(model)}


def test_the_gradients_of_train_mode_are_asked_whatever_the_mode() -> None:
    broken = BROKEN_MODULES["draws anew in its backward"]
    ((old, new),) = broken.changes.items()
    text = broken.sound.replace(old, new)
    assert stages_of(text, "gradients", Mode.EVAL)[-1].passed
    refused = stages_of(text, "training", Mode.EVAL)[-1]
    assert refused.detail.startswith("gradients of two steps in train mode: it draws other random numbers"), refused
    assert stages_of(broken.sound, "training", Mode.EVAL)[-1].passed


def test_a_loss_that_vanishes_is_asked_for_the_size_that_it_has_elsewhere() -> None:
    """1 less the cosine of a vector with itself is a rounding error, and each way to compute it has its own."""

    class Model(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (1 - nn.functional.cosine_similarity(x, y, dim=1)).mean()

    class ModelNew(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (1 - (x * y).sum(1) / (x.norm(dim=1) * y.norm(dim=1)).clamp_min(1e-8)).mean()

    assert not refusals(Model, ModelNew, lambda: [torch.rand(12, 37), torch.rand(12, 37)])


class _Volumes(nn.Module):
    """A convolution of volumes, and a parameter with as many axes as images have."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(2, 4, 3)
        self.offset = nn.Parameter(torch.rand(4, 1, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x) + self.offset


def test_volumes_and_their_weights_have_their_channels_last_as_volumes_do() -> None:
    seen = []

    class New(_Volumes):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            last = torch.channels_last_3d
            seen.append((x.is_contiguous(memory_format=last), self.conv.weight.is_contiguous(memory_format=last)))
            return super().forward(x)

    assert not refusals(_Volumes, New, lambda: [torch.rand(2, 2, 4, 5, 6)], Mode.EVAL)
    assert (True, False) in seen
    assert (False, True) in seen
