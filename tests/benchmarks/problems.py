"""Problems that nobody measured: a tuned model against its reference after the first call.

`python -m tests.benchmarks.problems [--json FILE]` prints a line a problem: the ratios, who serves it and what decided
that (a `duel`, or `neighbours` on both sides), the time of the first call, builds included, and the sizes; the worst
ratios come last. The file has all that, with the configuration that won and the scores of the duel. Ratios are
medians over rounds of the reference's time over the tuned model's, gradients enabled, the two in turns: `device` by
events, the device held back until the host has queued the call, and `caller` by the clock, calls one after the other,
which is what somebody waits for who does nothing else.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tunebench.kernels.runtime.policy import set_policy
from tunebench.kernels.runtime.registry import load_model
from tunebench.tuner.gate.harness import synchronise
from tunebench.tuner.kernel import Mode

_DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
_ROUNDS = 15
_ROUND_SECONDS = 2e-3
_LEAD_CYCLES = 3_000_000
_NOT_SLOWER = 0.98

Sizes = dict[str, int | float]
Call = Callable[[], Any]

GEMM: list[tuple[int, int, int]] = [
    *((rows, 8192, 8192) for rows in (1, 2, 3, 7, 16, 33, 64, 200, 333, 512, 2000, 16384)),
    *((512, 1024, 1024), (512, 4096, 1024), (512, 1000, 777), (128, 256, 256), (1, 256, 16384), (37, 16384, 256)),
    *((64, 777, 1001), (4096, 2048, 512), (8, 4096, 4096), (1024, 512, 512), (100, 3000, 5000), (2, 1024, 4096)),
]
"""Rows, input and output features."""
CONV: list[tuple[int, int, int, int]] = [
    *((32, 64, 56, 64), (16, 3, 224, 64), (8, 128, 28, 128), (1, 64, 56, 64), (4, 256, 14, 256), (2, 512, 7, 512)),
    *((64, 32, 32, 32), (1, 3, 32, 16), (7, 17, 19, 23), (128, 3, 32, 64)),
]
"""Batch, input channels, height and width, output channels."""


def problems() -> Iterator[tuple[str, Mode, Sizes]]:
    """Every problem with its kernel and mode."""
    for number, (rows, inputs, outputs) in enumerate(GEMM):
        scale_bn: Sizes = {"batch_size": rows, "in_features": inputs, "out_features": outputs}
        sigmoid: Sizes = {"batch_size": rows, "input_size": inputs, "hidden_size": outputs}
        yield "gemm_scale_bn", (Mode.EVAL, Mode.FROZEN)[number % 2], scale_bn
        yield "gemm_sigmoid_residual", (Mode.FROZEN, Mode.EVAL)[number % 2], sigmoid
        if number % 4 == 0:
            yield "gemm_div_sum_scale", Mode.EVAL, sigmoid
    for batch, channels, size, filters in CONV:
        sizes: Sizes = {"batch_size": batch, "in_channels": channels, "out_channels": filters}
        yield "conv_min_add_mul", Mode.EVAL, {**sizes, "height": size, "width": size}
    for rows, columns in ((1, 1), (333, 1000), (2048, 2048), (7, 100_003)):
        yield "scalar_mul", Mode.EVAL, {"M": rows, "N": columns}


def caller_ratio(reference: Call, tuned: Call) -> float:
    """The median of per-round ratios, as a caller waits."""
    calls = max(1, min(50, int(_ROUND_SECONDS / max(_seconds(reference, 3) / 3, 1e-6))))
    return _ratio(reference, tuned, lambda call: _seconds(call, calls))


def device_ratio(reference: Call, tuned: Call) -> float:
    """The median of per-round ratios, on the device alone; on the CPU there is no difference."""
    return _ratio(reference, tuned, _device_ms) if torch.cuda.is_available() else caller_ratio(reference, tuned)


def _ratio(reference: Call, tuned: Call, time_of: Callable[[Call], float]) -> float:
    ratios = []
    for number in range(_ROUNDS):
        order = (reference, tuned) if number % 2 else (tuned, reference)
        taken = {call: time_of(call) for call in order}
        ratios.append(taken[reference] / taken[tuned])
    return statistics.median(ratios)


def _device_ms(call: Call) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(_LEAD_CYCLES)
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def _seconds(call: Call, calls: int) -> float:
    synchronise(_DEVICE)
    began = time.perf_counter()
    for _ in range(calls):
        call()
    synchronise(_DEVICE)
    return time.perf_counter() - began


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    file = parser.parse_args().json
    set_policy(wait=True)
    started = time.perf_counter()
    rows: list[dict[str, Any]] = []
    for name, mode, sizes in problems():
        factory = load_model(name)
        source = factory.kernel.reference(sizes)
        reference = mode.put(source.make_model(0, _DEVICE))
        tuned = mode.put(source.make_model(0, _DEVICE, factory))
        inputs = source.make_inputs(1, _DEVICE)
        synchronise(_DEVICE)
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tuned(*inputs)
        synchronise(_DEVICE)
        first_s = time.perf_counter() - began
        calls = partial(reference, *inputs), partial(tuned, *inputs)
        ratios = {"device": device_ratio(*calls), "caller": caller_ratio(*calls)}
        (choice,) = tuned.choices.values()  # type: ignore[operator, union-attr]
        served = "reference" if choice.configuration is None else choice.tier.value
        decided_by = "measured" if choice.measured else "neighbours" if choice.trusted else "duel"
        told = {"kernel": name, "mode": mode.value, "sizes": sizes, "first_s": first_s, "served": served}
        configuration = None if choice.configuration is None else dict(choice.configuration)
        rows.append({**told, **ratios, "by": decided_by, "configuration": configuration, "reason": choice.reason})
        text = " ".join(f"{key}={value}" for key, value in sizes.items())
        figures = f"device {ratios['device']:6.2f}x  caller {ratios['caller']:6.2f}x"
        print(f"{figures}  {name:22}{mode.value:7}{served:10}{decided_by:11}first {first_s:5.2f} s  {text}", flush=True)
    winners = Counter((row["kernel"], row["served"], row["by"]) for row in rows)
    for (name, served, decided_by), number in sorted(winners.items()):
        print(f"{name:22}{served:10}{decided_by:11}{number:3}")
    print(f"{time.perf_counter() - started:.0f} s")
    for kind in ("device", "caller"):
        worst = min(rows, key=lambda row: row[kind])
        below = sum(row[kind] < _NOT_SLOWER for row in rows)
        print(f"{kind}: {len(rows)} problems, {below} below {_NOT_SLOWER}, worst {worst[kind]:.3f}: {worst['kernel']}")
    if file is not None:
        file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
