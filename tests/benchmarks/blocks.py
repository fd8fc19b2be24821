"""Pointwise functions and row reductions made from blocks: `python -m tests.benchmarks.blocks [--sample N] [KERNEL…]`.

On a GPU, caches cold, in microseconds: eager, torch.compile, the default configuration, and the best of it and a random
sample of configurations, each of which is first compared with the reference in float64. `ceiling` is a copy of as many
bytes as the kernel has to move.
"""

# ruff: noqa: RUF012 - models are written as their users write them

from __future__ import annotations

import argparse
import copy
import json
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks.rows import eager
from torch import nn
from torch.nn import functional

from tunebench import blocks
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.device import Device, find_device
from tunebench.tuner.space import ValidSpace

_ROUNDS = 15
_LEAD_CYCLES = 2_000_000
_FLUSHED_BYTES = 384 * 2**20


class Softmax(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1)


class TunedSoftmax(blocks.Rows, Softmax):
    reductions = {"top": blocks.Max("x"), "sum": blocks.Sum("exp(x - top)")}
    function = "exp(x - top) * (1 / sum)"


class LogSoftmax(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(x, -1)


class TunedLogSoftmax(blocks.Rows, LogSoftmax):
    reductions = {"top": blocks.Max("x"), "sum": blocks.Sum("exp(x - top)")}
    function = "x - top - log(sum)"


class RMSNorm(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(features) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)


class TunedRMSNorm(blocks.Rows, RMSNorm):
    reductions = {"squares": blocks.Sum("x * x")}
    function = "x * rsqrt(squares / features + 1e-5) * weight"
    per_feature = ("weight",)


class LayerNorm(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normalised: torch.Tensor = self.norm(x)
        return normalised


class TunedLayerNorm(blocks.Rows, LayerNorm):
    reductions = {"sum": blocks.Sum("x"), "squares": blocks.Sum("square(x - sum / features)")}
    function = "(x - sum / features) * rsqrt(squares / features + eps) * weight + bias"
    scalars = {"eps": "norm.eps"}
    per_feature = {"weight": "norm.weight", "bias": "norm.bias"}


class LogSumExp(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(x, -1)


class TunedLogSumExp(blocks.Rows, LogSumExp):
    reductions = {"top": blocks.Max("x"), "sum": blocks.Sum("exp(x - zero_if_infinite(top))")}
    function = "log(sum) + zero_if_infinite(top)"


class Scale(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3.14


class TunedScale(blocks.Pointwise, Scale):
    function = "x * 3.14"


class Gated(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(x) + y


class TunedGated(blocks.Pointwise, Gated):
    function = "x * sigmoid(x) + y"


class BiasGelu(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(x + self.bias)


class TunedBiasGelu(blocks.Pointwise, BiasGelu):
    function = "gelu(x + bias)"
    per_feature = ("bias",)


PAIRS: dict[str, tuple[type[nn.Module], type[TunedModule]]] = {
    "softmax": (Softmax, TunedSoftmax),
    "log_softmax": (LogSoftmax, TunedLogSoftmax),
    "rms_norm": (RMSNorm, TunedRMSNorm),
    "layer_norm": (LayerNorm, TunedLayerNorm),
    "logsumexp": (LogSumExp, TunedLogSumExp),
    "scale": (Scale, TunedScale),
    "gated": (Gated, TunedGated),
    "bias_gelu": (BiasGelu, TunedBiasGelu),
}
SHAPES = ((4096, 4096), (128, 32768), (65536, 256))


def microseconds(call: Callable[[], Any], device: torch.device) -> float:
    """The median time of a call on the device, with caches that hold nothing of it."""
    flushed = torch.empty(_FLUSHED_BYTES, dtype=torch.uint8, device=device)
    call()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(_ROUNDS)]
    torch.cuda.synchronize()
    torch.cuda._sleep(_LEAD_CYCLES)  # the host is ahead when the calls begin
    for began, ended in events:
        flushed.zero_()
        began.record()
        call()
        ended.record()
    torch.cuda.synchronize()
    return statistics.median(began.elapsed_time(ended) * 1e3 for began, ended in events)


def picked(space: ValidSpace, count: int) -> Iterator[int]:
    """The default, and a sample in which every way to keep a row has its share."""
    yield space.default
    numbers = list(range(len(space)))
    random.Random(7).shuffle(numbers)
    yield from numbers[:count]
    for keep in ("registers", "shared", "memory", "split"):
        yield from [number for number in numbers if space[number].get("keep") == keep][: count // 4]


def measured(
    name: str, shape: Sequence[int], dtype: torch.dtype, sample: int, device: Device, *, compiles: bool
) -> dict[str, Any]:
    """All figures of one kernel at one size."""
    where = device.torch_device
    reference, factory = PAIRS[name]
    torch.manual_seed(1)
    arguments = shape[-1:] if "__init__" in vars(reference) else ()
    model: Any = factory(*arguments).to(where, dtype)
    inputs = [torch.randn(*shape, device=where).to(dtype) for _ in range(2 if name == "gated" else 1)]
    problem = model.problem(*inputs)
    space = model.kernel.space.enumerate(problem, device)
    numbers = list(dict.fromkeys(picked(space, sample)))
    compiler = compiler_for(device)
    with ThreadPoolExecutor(8) as pool:
        plans = list(pool.map(lambda n: build_plan(model.kernel, space[n], problem, device, compiler), numbers))
    exact = copy.deepcopy(model).double().reference_forward(*[one.double() for one in inputs])
    bound = (2e-2 if dtype.itemsize == 2 else 2e-5) * float(exact.abs().max())
    figures, wrong = [], 0
    for plan in plans:
        error = float((model.tuned_forward(plan, *inputs).double() - exact).abs().max())
        wrong += not error < bound
        figures.append(microseconds(lambda plan=plan: model.tuned_forward(plan, *inputs), where))  # type: ignore[misc]
    best = min(range(len(plans)), key=figures.__getitem__)
    moved = torch.empty(model.kernel.work(problem).bytes // 2, dtype=torch.uint8, device=where)
    result = {
        "kernel": name,
        "shape": "x".join(map(str, shape)),
        "dtype": str(dtype).removeprefix("torch."),
        "eager": microseconds(lambda: model.reference_forward(*inputs), where),
        "compiled": None,
        "default": figures[0],
        "best": figures[best],
        "ceiling": microseconds(moved.clone, where),
        "tried": len(plans),
        "wrong": wrong,
        "configuration": dict(plans[best].configuration),
    }
    if compiles:
        torch._dynamo.reset()
        fast = torch.compile(reference(*arguments).to(where, dtype))
        result["compiled"] = microseconds(lambda: fast(*inputs), where)
    return result


def main() -> None:
    """Print a line for each kernel, size and dtype; JSON lines into a file where one is named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kernels", nargs="*", default=list(PAIRS), metavar="KERNEL")
    parser.add_argument("--sample", type=int, default=48)
    parser.add_argument("--shape", action="append", help="such as 1000x50257")
    parser.add_argument("--dtype", action="append")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    shapes = [tuple(map(int, one.split("x"))) for one in options.shape] if options.shape else SHAPES
    device = find_device("cuda")
    columns = ("eager", "compiled", "default", "best", "ceiling", "tried", "wrong")
    print(f"eager: {eager()}")
    print(f"{'kernel':13}{'shape':14}{'dtype':10}" + "".join(f"{name:>10}" for name in columns))
    for name in options.kernels:
        for shape in shapes:
            for dtype in options.dtype or ["float32"]:
                with torch.no_grad():
                    compiles = not options.no_compile
                    row = measured(name, shape, getattr(torch, dtype), options.sample, device, compiles=compiles)
                told = "".join(f"{'' if row[one] is None else round(row[one], 1):>10}" for one in columns)
                print(f"{name:13}{row['shape']:14}{dtype:10}{told}", flush=True)
                if options.output:
                    with options.output.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
