"""What a warm forward costs the host, where the device is never waited for: `python -m tests.benchmarks.host`.

Small problems, so that the device is always done before the host: a tuned model's forward against its reference's, as
a ratio of medians that were taken in turns, and what it takes more (or less), with the interval of the rounds'
differences; and the same of a second eager model, which costs what the first does. It runs on the CPU too, but there
a launch is the kernel's whole run, so that only a GPU tells. With `--policy reference` it is what a tuned model adds
where the reference serves. `--json FILE` writes what is printed, in microseconds, row by row: the same command goes
on after a cut-off.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks.known_kernels import bench_problems
from tests.benchmarks.rows import Row, Rows

from tunebench.kernels.runtime.policy import Policy, set_policy
from tunebench.kernels.runtime.registry import kernel_names, load_model
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.gate.memory import synchronise
from tunebench.tuner.scratch import scratch
from tunebench.tuner.timing.statistics import CONFIDENCE, median_interval

_DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZES: dict[str, dict[str, int | float]] = {
    "scalar_mul": {"M": 64, "N": 64},
    "conv_min_add_mul": {"batch_size": 2, "height": 16, "width": 16},
    "gemm_div_sum_scale": {"batch_size": 64, "input_size": 256, "hidden_size": 256},
    "gemm_scale_bn": {"batch_size": 128, "in_features": 256, "out_features": 256},
    "gemm_sigmoid_residual": {"batch_size": 128, "input_size": 256, "hidden_size": 256},
}
EXAM = {
    "level2_76_add_relu": {"batch_size": 128, "in_features": 256, "out_features": 256},
    "level2_57_relu_hardswish": {"batch_size": 2, "height": 16, "width": 16},
}
"""Two kernels of `known_kernels.toml`."""
_ROUNDS = 40
_CALLS = 25
_WIDTH = 72
"""Characters of a column of figures."""


def host_us(calls: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """The median microseconds that the host spends in each call, by round; the calls take turns to be the first."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for _ in range(_ROUNDS):
        order.reverse()
        for name in order:
            call, times = calls[name], []
            call()
            synchronise(_DEVICE)
            for _ in range(_CALLS):
                began = time.perf_counter_ns()
                call()
                times.append((time.perf_counter_ns() - began) / 1e3)
            taken[name].append(statistics.median(times))
    return taken


def _figures(taken: dict[str, list[float]]) -> dict[str, Any]:
    eager, tuned = taken["eager"], taken["tuned"]
    more, again = (
        median_interval([mine - theirs for mine, theirs in zip(taken[name], eager, strict=True)], CONFIDENCE)
        for name in ("tuned", "again")
    )
    return {"eager": statistics.median(eager), "tuned": statistics.median(tuned), "more": more, "again": again}


def _columns(taken: dict[str, Any]) -> str:
    eager, tuned, (more, low, high) = taken["eager"], taken["tuned"], taken["more"]
    shown = f"{eager:9.1f}{tuned:9.1f}{tuned / eager:7.2f}{more:+7.2f} [{low:+.2f}, {high:+.2f}]"
    more, low, high = taken["again"]
    return f"{shown}{more:+7.2f} [{low:+.2f}, {high:+.2f}]".ljust(_WIDTH)


def _line(row: Row) -> str:
    return f"{row['kernel']:26}{row['mode']:8}{_columns(row['no_gradients'])}{_columns(row['gradients'])}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--policy", choices=list(Policy), default=Policy.BEST)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    set_policy(asked.policy, wait=True)
    head = f"{'eager µs':>9}{'tuned':>9}{'ratio':>7}{'more':>7}{'eager again':>28}".ljust(_WIDTH)
    print(f"{'':34}{'no gradients':{_WIDTH}}gradients enabled\n{'kernel':26}{'mode':8}{head}{head}", flush=True)
    with Rows(asked.json, ("kernel", "mode"), _line, policy=asked.policy) as rows:
        for name in kernel_names():
            _measure(name, load_model(name), SIZES[name], rows)
        with scratch() as folder:
            for name, sizes in EXAM.items():
                _measure(name, load_model(str(bench_problems()[name].write(folder).folder)), sizes, rows)


def _measure(name: str, factory: type[TunedModule], sizes: Mapping[str, int | float], rows: Rows) -> None:
    reference = factory.kernel.reference(sizes)
    for mode in factory.kernel.modes:
        if not rows.has(name, mode.value):
            model = mode.put(reference.make_model(0, _DEVICE))
            tuned = mode.put(reference.make_model(0, _DEVICE, factory))
            inputs = reference.make_inputs(1, _DEVICE)
            again = mode.put(reference.make_model(0, _DEVICE))
            models = {"eager": model, "tuned": tuned, "again": again}
            calls: dict[str, Callable[[], Any]] = {one: partial(each, *inputs) for one, each in models.items()}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with torch.no_grad():
                    without = _figures(host_us(calls))
                gradients = _figures(host_us(calls))
            rows.add({"kernel": name, "mode": mode.value, "no_gradients": without, "gradients": gradients})


if __name__ == "__main__":
    main()
