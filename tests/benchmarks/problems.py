"""Problems that nobody measured: a tuned model against its reference after the first call.

`python -m tests.benchmarks.problems [--json FILE]` prints a line a problem: the ratios with their 99 % intervals, who
serves it and what decided that (a `duel`, or `neighbours` on both sides), the time of the first call, builds included,
and the sizes. The file has all that, with the configuration that won and the scores of the duel. Ratios are medians
over rounds of the reference's time over the tuned model's, gradients enabled, in turns: `device` by events, the device
held back until the host has queued a few calls, and `caller` by the clock, calls one after the other, which is what
somebody waits for who does nothing else. A second copy of the reference takes part in the same rounds: its ratio, which
is 1, shows what the rounds themselves can tell. Counted are the problems whose whole interval is below 0.98, of the
tuned models and of those copies. The file is written row by row: the same command goes on after a cut-off.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks.rows import Row, Rows

from tunebench.kernels.runtime.policy import set_policy
from tunebench.kernels.runtime.registry import load_model
from tunebench.tuner.gate.memory import synchronise
from tunebench.tuner.kernel import Mode
from tunebench.tuner.result import Ratio
from tunebench.tuner.timing.statistics import speedup

_DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
_ROUNDS = 31
_ROUND_SECONDS = 2e-3
_LEAD_CYCLES = 3_000_000
_EVENT_SECONDS = 2e-4
_MOST_QUEUED = 8
"""So many calls the host queues within the lead."""
_NOT_SLOWER = 0.98
_KINDS = ("device", "caller")

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


def caller_ratios(calls: dict[str, Call]) -> dict[str, Ratio]:
    """How many times faster than the reference each other is, as a caller waits."""
    number = max(1, min(50, int(_ROUND_SECONDS / max(_seconds(calls["reference"], 3) / 3, 1e-6))))
    return _ratios(calls, lambda call: _seconds(call, number))


def device_ratios(calls: dict[str, Call]) -> dict[str, Ratio]:
    """Likewise on the device alone; on the CPU there is no difference."""
    if not torch.cuda.is_available():
        return caller_ratios(calls)
    once = _device_seconds(calls["reference"], 1)
    number = max(1, min(_MOST_QUEUED, int(_EVENT_SECONDS / once)))
    return _ratios(calls, lambda call: _device_seconds(call, number))


def _ratios(calls: dict[str, Call], time_of: Callable[[Call], float]) -> dict[str, Ratio]:
    taken: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for _ in range(_ROUNDS):
        order.append(order.pop(0))
        for name in order:
            taken[name].append(time_of(calls[name]))
    return {name: speedup(times, taken["reference"]) for name, times in taken.items() if name != "reference"}


def _device_seconds(call: Call, number: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(_LEAD_CYCLES)
    begin.record()
    for _ in range(number):
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


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
    with Rows(file, ("kernel", "mode", "sizes"), _line) as rows:
        for name, mode, sizes in problems():
            if not rows.has(name, mode.value, sizes):
                rows.add(_measured(name, mode, sizes))
    _print_counts(rows)


def _measured(name: str, mode: Mode, sizes: Sizes) -> Row:
    factory = load_model(name)
    source = factory.kernel.reference(sizes)
    reference, copy = (mode.put(source.make_model(0, _DEVICE)) for _ in range(2))
    tuned = mode.put(source.make_model(0, _DEVICE, factory))
    inputs = source.make_inputs(1, _DEVICE)
    synchronise(_DEVICE)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tuned(*inputs)
    synchronise(_DEVICE)
    first_s = time.perf_counter() - began
    models = {"reference": reference, "tuned": tuned, "copy": copy}
    calls = {key: partial(model, *inputs) for key, model in models.items()}
    ratios = {"device": device_ratios(calls), "caller": caller_ratios(calls)}
    (choice,) = tuned.choices.values()  # type: ignore[operator, union-attr]
    served = "reference" if choice.configuration is None else choice.tier.value
    decided_by = "measured" if choice.measured else "neighbours" if choice.trusted else "duel"
    told = {"kernel": name, "mode": mode.value, "sizes": sizes, "first_s": first_s, "served": served}
    configuration = None if choice.configuration is None else dict(choice.configuration)
    figures = {
        (key if who == "tuned" else f"{key}_of_copy"): [one.value, one.low, one.high]
        for key, both in ratios.items()
        for who, one in both.items()
    }
    return {**told, **figures, "by": decided_by, "configuration": configuration, "reason": choice.reason}


def _line(row: Row) -> str:
    text = " ".join(f"{key}={value}" for key, value in row["sizes"].items())
    shown = "  ".join(f"{key} {f'{row[key][0]:.3f}× [{row[key][1]:.3f}, {row[key][2]:.3f}]':24}" for key in _KINDS)
    told = f"{row['kernel']:22}{row['mode']:7}{row['served']:10}{row['by']:11}first {row['first_s']:5.2f} s"
    return f"{shown}  {told}  {text}"


def _print_counts(rows: Rows) -> None:
    winners = Counter((row["kernel"], row["served"], row["by"]) for row in rows)
    for (name, served, decided_by), number in sorted(winners.items()):
        print(f"{name:22}{served:10}{decided_by:11}{number:3}")
    for kind in _KINDS:
        for who, key in (("tuned", kind), ("a copy of the reference", f"{kind}_of_copy")):
            worst = min(rows, key=lambda row: row[key][0])
            below = sum(row[key][0] < _NOT_SLOWER for row in rows)
            surely = [row for row in rows if row[key][2] < _NOT_SLOWER]
            by_kernel = sum(row["served"] != "reference" for row in surely)
            print(
                f"{kind}, {who}: of {len(rows)} problems the whole interval is below {_NOT_SLOWER} in {len(surely)}"
                f" ({by_kernel} of them served by a kernel), the median in {below};"
                f" worst {worst[key][0]:.3f}: {worst['kernel']}"
            )


if __name__ == "__main__":
    main()
