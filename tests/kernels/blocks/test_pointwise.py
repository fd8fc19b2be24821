"""Pointwise blocks on the CPU: every size, layout and way of broadcasting, against the reference."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from one_file import CPU, load, run

from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.compile.nvrtc import NvrtcCompiler
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.problem import Problem

GATED = """
def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x) + y
"""
BROADCAST = """
def __init__(self, features=33, channels=4):
    super().__init__()
    self.weight = nn.Parameter(torch.randn(features))
    self.gain = nn.Parameter(torch.randn(1))

def forward(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return (x * self.weight + rows) * self.gain
"""
BROADCAST_BLOCK = """
function = "(x * weight + rows) * gain"
per_feature = {"weight": "weight"}
per_row = {"rows": "rows"}
per_tensor = {"gain": "gain"}
"""
CHANNELS = """
def __init__(self, channels=4):
    super().__init__()
    self.bias = nn.Parameter(torch.randn(channels, 1, 1))

def forward(self, x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + self.bias)
"""


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> type[TunedModule]:
    path = tmp_path_factory.mktemp("gated") / "gated.py"
    return load(path, "blocks.Pointwise", GATED, 'function = "x * sigmoid(x) + y"')


@pytest.fixture(scope="module")
def broadcast(tmp_path_factory: pytest.TempPathFactory) -> type[TunedModule]:
    return load(tmp_path_factory.mktemp("b") / "rows.py", "blocks.Pointwise", BROADCAST, BROADCAST_BLOCK)


@pytest.fixture(scope="module")
def channels(tmp_path_factory: pytest.TempPathFactory) -> type[TunedModule]:
    block = 'function = "relu(x + bias)"\nper_channel = ("bias",)'
    return load(tmp_path_factory.mktemp("c") / "channels.py", "blocks.Pointwise", CHANNELS, block)


def sample(factory: type[TunedModule], count: int, dtype: str = "float32", seed: int = 3) -> list[Configuration]:
    axes = {"elements": 1, "features": 1, "rows": 1, "channels": 1, "ones": 1}
    space = factory.kernel.space.enumerate(Problem(axes, dtype), CPU)
    return [space[number] for number in random.Random(seed).sample(range(len(space)), count)]


def close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.allclose(found, wanted, rtol=1e-5, atol=1e-5) and found.stride() == wanted.stride()


@pytest.mark.slow
def test_every_size_and_offset(gated: type[TunedModule]) -> None:
    model = gated()
    for configuration in sample(gated, 6):
        for size in (1, 3, 4, 63, 1023, 4097):
            memory = torch.randn(2, size + 3)
            for offset in (0, 1, 3):
                x, y = memory[0, offset : offset + size], memory[1, :size]
                assert close(run(model, configuration, x, y), model.reference_forward(x, y)), (size, offset)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_types(gated: type[TunedModule], dtype: torch.dtype) -> None:
    model = gated()
    name = str(dtype).removeprefix("torch.")
    for shape, configuration in (
        ((9, 37), sample(gated, 1, name)[0]),
        ((64, 96), gated.kernel.space.default_for(Problem({"elements": 6144}, name), CPU)),
    ):
        x, y = torch.randn(2, *shape).to(dtype)
        wanted = model.reference_forward(x.double(), y.double()).to(dtype)
        assert torch.allclose(run(model, configuration, x, y), wanted, rtol=1e-2, atol=1e-2), configuration


def test_any_dense_layout_that_all_tensors_share(gated: type[TunedModule]) -> None:
    model = gated()
    configuration = gated.kernel.space.default_for(Problem({"elements": 1}), CPU)
    x, y = torch.randn(2, 3, 4, 5, 6)
    for layout in (
        lambda t: t,
        lambda t: t.contiguous(memory_format=torch.channels_last),
        lambda t: t.permute(3, 0, 2, 1),
    ):
        assert close(run(model, configuration, layout(x), layout(y)), model.reference_forward(layout(x), layout(y)))
    assert model.problem(x.permute(3, 0, 2, 1), y.permute(3, 0, 2, 1).contiguous()) is None
    assert model.reason == "'y' does not lie in memory as 'x' does"
    assert model.problem(x, y[0]) is None and "'elements' is" in model.reason
    assert model.problem(x[::2], y[::2]) is None


@pytest.mark.parametrize("shape", [(5, 33), (2, 3, 32), (4, 1), (1, 7), (33,), (6, 4)])
def test_vectors_along_rows_and_columns(broadcast: type[TunedModule], shape: tuple[int, ...]) -> None:
    model = broadcast(shape[-1])
    x, rows = torch.randn(shape), torch.randn(*shape[:-1], 1)
    for configuration in sample(broadcast, 4):
        assert close(run(model, configuration, x, rows), model.reference_forward(x, rows))
    off = torch.randn(x.numel() + 1)[1:].view(shape)
    assert close(run(model, configuration, off, rows), model.reference_forward(off, rows))


def test_what_cannot_be_broadcast_is_the_references(broadcast: type[TunedModule]) -> None:
    model = broadcast(6)
    x = torch.randn(5, 6)
    assert model.problem(x, torch.randn(1, 1)) is None and model.reason == "'rows' has 1 elements, not 5"
    assert model.problem(x.t().contiguous().t(), torch.randn(5, 1)) is None
    assert model.reason == "'rows' is for the rows of a tensor that is not contiguous"
    assert broadcast(5).problem(x, torch.randn(5, 1)) is None


@pytest.mark.parametrize("shape", [(2, 4, 3, 8), (3, 4, 5, 5), (2, 4, 6), (3, 4, 1, 1)])
def test_vectors_along_channels_in_both_layouts(channels: type[TunedModule], shape: tuple[int, ...]) -> None:
    model = channels(4)
    if len(shape) == 3:
        model.bias = torch.nn.Parameter(model.bias.detach().view(4, 1))
    x = torch.randn(shape)
    for configuration in sample(channels, 3):
        assert close(run(model, configuration, x), model.reference_forward(x))
        if len(shape) == 4:
            last = x.contiguous(memory_format=torch.channels_last)
            assert close(run(model, configuration, last), model.reference_forward(last))


def test_nothing_is_a_problem_of_its_own(gated: type[TunedModule]) -> None:
    model = gated()
    for shape in ((0,), (0, 4), (3, 0)):
        x = torch.randn(shape)
        assert model.problem(x, x) is None
        assert model(x, x).shape == x.shape


@pytest.mark.slow
def test_nvrtc_builds_every_family_in_time(
    nvrtc: NvrtcCompiler, broadcast: type[TunedModule], gated: type[TunedModule]
) -> None:
    axes = {"elements": 64, "features": 8, "rows": 8, "ones": 1}
    for factory in (gated, broadcast):
        for dtype in ("float32", "bfloat16", "float64"):
            for configuration in sample(factory, 2, dtype):
                built = nvrtc.compile(factory.kernel.variant(configuration, Problem(axes, dtype), "sm_90"))
                assert built.code.startswith(b"\x7fELF") and built.figures["pointwise"].registers, configuration


def test_a_result_that_autocast_widens_is_the_references(tmp_path: Path) -> None:
    forward = '\ndef forward(self, x, y):\n    return torch.nn.functional.mse_loss(x, y, reduction="none")\n'
    tuned = load(tmp_path / "squares.py", "blocks.Pointwise", forward, 'function = "(x - y) * (x - y)"')()
    x, y = torch.randn(2, 3, 5).bfloat16()
    with torch.no_grad():
        tuned(x, y)
        assert next(iter(tuned.choices.values())).configuration is not None
        with torch.autocast("cpu", torch.float16):
            assert torch.equal(tuned(x, y), (x.float() - y.float()).square())
    assert tuned.choices[None, None].reason.endswith("autocast is on, and has the result in float32")
