"""Training steps of a linear layer and a pointwise function behind it, by every way to run them, on a GPU.

`python -m tests.benchmarks.steps [--settings strict tf32 bf16] [--shapes 1024x8192x8192 4096x4096x14336]
[--compile MODE …] [--json FILE]`: forward and backward of gemm_sigmoid_residual, inputs' gradient included: eager,
torch.compile in each of its modes, and the tuned model once it trains, under one setting of PyTorch's. Behind that
stand the products of a step alone, by torch and by the tuned model's kernels. Medians of events around single calls in
turns, caches cold, the device held back until the host has queued the call; and of loops of twenty calls, in which the
host may be what takes longest. The errors are those of the gradients against float64, largest and RMS, relative to the
gradient's RMS, of the tuned step and of eager's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks.rows import require_gpu
from torch import nn

from tunebench.kernels.blocks.linear_training import BY_WEIGHT, BY_X, TrainedLayer
from tunebench.kernels.gemm_sigmoid_residual.model import ModelNew
from tunebench.kernels.gemm_sigmoid_residual.reference import Model
from tunebench.kernels.runtime.policy import set_policy
from tunebench.tuner.timing.torch_compile import without_reports

SETTINGS: Mapping[str, tuple[torch.dtype, bool]] = {
    "strict": (torch.float32, False),
    "tf32": (torch.float32, True),
    "bf16": (torch.bfloat16, False),
}
_ROUNDS = 15
_LEAD_CYCLES = 4_000_000
_CALLS_OF_A_LOOP = 20
_FLUSHED_BYTES = 1 << 28


@contextmanager
def under(permits_tf32: bool) -> Iterator[None]:
    """Permit TF32 in matrix products."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = permits_tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def medians(calls: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """The median time of each call in milliseconds, taken in turns."""
    flushed = torch.empty(_FLUSHED_BYTES, dtype=torch.int8, device="cuda")
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(_ROUNDS + 1):
        for name, call in calls.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            flushed.fill_(number)
            torch.cuda._sleep(_LEAD_CYCLES)
            begin.record()
            call()
            end.record()
            end.synchronize()
            if number:
                taken[name].append(float(begin.elapsed_time(end)))
    return {name: statistics.median(times) for name, times in taken.items()}


def in_a_loop(calls: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Return what a call takes in a loop, in milliseconds of host and device together: the median of loops in turns."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(_CALLS_OF_A_LOOP):
                call()
            torch.cuda.synchronize()
            taken[name].append((time.perf_counter() - began) / _CALLS_OF_A_LOOP * 1e3)
    return {name: statistics.median(times) for name, times in taken.items()}


def step_of(
    model: Callable[..., torch.Tensor], parameters: list[nn.Parameter], x: torch.Tensor, by: torch.Tensor
) -> Any:
    """A step: the output, and the gradients of the input and of all parameters."""

    def step() -> tuple[torch.Tensor, ...]:
        output = model(x)
        return output, *torch.autograd.grad(output, [x, *parameters], by)

    return step


def _wrong(found: tuple[torch.Tensor, ...], exact: tuple[torch.Tensor, ...]) -> list[str]:
    told = []
    for one, other in zip(found, exact, strict=True):
        off, size = one.double() - other, other.square().mean().sqrt()
        told.append(f"{float(off.abs().max() / size):.1e}/{float(off.square().mean().sqrt() / size):.1e}")
    return told


def measure(setting: str, shape: tuple[int, int, int], modes: list[str]) -> dict[str, Any]:
    """A row of the table."""
    dtype, permits_tf32 = SETTINGS[setting]
    rows, depth, features = shape
    torch.manual_seed(0)
    model = Model(depth, features, 2.0).cuda().to(dtype)
    tuned = ModelNew(depth, features, 2.0).cuda().to(dtype)
    tuned.load_state_dict(model.state_dict())
    x = torch.rand(rows, depth, device="cuda").to(dtype).requires_grad_()
    by = torch.randn(rows, features, device="cuda").to(dtype)
    with under(permits_tf32):
        own = [*model.parameters()]
        steps = {"eager": step_of(model, own, x, by)}
        for mode in modes:
            began = time.perf_counter()
            torch._dynamo.reset()
            steps[mode] = step_of(torch.compile(model, mode=mode), own, x, by)
            with without_reports():
                steps[mode]()
            print(f"{mode} compiled in {time.perf_counter() - began:.0f} s", flush=True)
        steps["tuned"] = step_of(tuned, [*tuned.parameters()], x, by)
        began = time.perf_counter()
        for _ in range(3):
            steps["tuned"]()
        print(f"tuned ready in {time.perf_counter() - began:.0f} s", flush=True)
        for (problem, _), choice in tuned.choices.items():
            print(f"{problem}: {choice.tier}, {choice.reason}"[:300], flush=True)
        torch.cuda.synchronize()
        row: dict[str, Any] = {"setting": setting, "shape": shape, "ms": medians(steps), "loop_ms": in_a_loop(steps)}
        if rows <= 1024 and dtype == torch.float32:
            double = Model(depth, features, 2.0).cuda().double()
            double.load_state_dict(model.state_dict())
            exact = step_of(double, [*double.parameters()], x.detach().double().requires_grad_(), by.double())()
            row["wrong"] = {name: _wrong(steps[name](), exact) for name in ("eager", "tuned")}
            del exact, double
        weight, bias, given = tuned.gemm.weight.detach(), tuned.gemm.bias.detach(), x.detach()
        calls: dict[str, Callable[[], Any]] = {
            "x·Wᵀ": lambda: nn.functional.linear(given, weight, bias),
            "G·W": lambda: by @ weight,
            "Gᵀ·x": lambda: by.mT @ given,
        }
        ways: list[Any] = [way for _, plan in tuned._plans.values() if plan for way in tuned.trained_forwards(plan)]
        for number, way in enumerate(ways):
            row["ms"][f"way {number}"] = medians({"": step_of(way, [*tuned.parameters()], x, by)})[""]
        products = ways[0].args[0] if ways else None
        if products is not None and products.layer is not None:
            layer = TrainedLayer(products, tuned, tuned.gemm, tuned._exponents, [])
            calls["tuned x·Wᵀ"] = lambda: layer.product(products.layer, given, weight, bias)
            calls["tuned G·W"] = lambda: layer.product(products.by_x, by, weight.mT, None, BY_X)
            calls["tuned Gᵀ·x"] = lambda: layer.product(products.by_weight, by.mT, given.mT, None, BY_WEIGHT)
        with torch.no_grad():
            row["products"] = medians(calls)
    return row


def _line(row: Mapping[str, Any]) -> str:
    times = row["ms"]
    best = min(value for name, value in times.items() if name != "tuned" and not name.startswith("way"))
    told = " ".join(f"{name} {value:.3f}" for name, value in times.items())
    loop = " ".join(f"{name} {value:.3f}" for name, value in row["loop_ms"].items())
    products = " ".join(f"{name} {value:.3f}" for name, value in row["products"].items())
    wrong = "".join(f"\n    wrong {name}: {' '.join(each)}" for name, each in row.get("wrong", {}).items())
    shape = "x".join(map(str, row["shape"]))
    lines = f"{row['setting']:7}{shape:18}{best / times['tuned']:.3f}x  {told}\n    in a loop: {loop}\n    {products}"
    return lines + wrong


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=[*SETTINGS])
    parser.add_argument("--shapes", nargs="+", default=["1024x8192x8192", "4096x4096x14336"])
    parser.add_argument("--compile", nargs="*", default=["default", "max-autotune-no-cudagraphs"])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    require_gpu()
    set_policy(wait=True)
    warnings.simplefilter("ignore")
    rows = []
    for setting in given.settings:
        for shape in given.shapes:
            rows.append(measure(setting, tuple(map(int, shape.split("x"))), given.compile))
            print(_line(rows[-1]), flush=True)
            if given.json is not None:
                given.json.write_text(json.dumps(rows, indent=1))
            torch.cuda.empty_cache()
    print(torch.cuda.get_device_name(), torch.__version__)
    print(*map(_line, rows), sep="\n")


if __name__ == "__main__":
    main()
