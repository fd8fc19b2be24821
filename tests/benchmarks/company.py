"""The same variant's time alone and on a full machine: `python -m tests.benchmarks.company --device cuda:0`.

Two variants that ship (scalar_mul, which memory bounds, and gemm_sigmoid_residual, which arithmetic does) are timed by
the project's clock as a study times them, in turns: while nothing else runs, and while NVRTC and float64 products load
all other cores, and float64 products the other GPU where there is one. Printed: times in company over times alone, the
median of the rounds' ratios with its 99 % interval. It exits with 1 where one of these medians is more than 1 % from 1.

It says what it is at as it goes. `--seconds` is for all of it: cut off, it exits with 2 after what it has found.

With `--device cpu` the variants are small, half of the cores are loaded, and what is printed means little.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Mapping
from contextlib import closing
from typing import Annotated

import torch
import typer
from tests.benchmarks.company_parts import Load, prepare, take
from tests.benchmarks.in_time import Stopwatch, ended_after

from tunebench.tuner.cores import driving_cores
from tunebench.tuner.device import Device, DeviceKind, find_device
from tunebench.tuner.device_lock import alone_on
from tunebench.tuner.fork_server import start_forkserver
from tunebench.tuner.isolation import IsolatedProcess
from tunebench.tuner.timing.statistics import speedup

WITHIN = 0.01
PREPARE_SECONDS = 300.0
TAKE_SECONDS = 60.0
FULL_SECONDS = 0.5
"""Until what was let go loads the machine."""

SHIPPED: Mapping[str, Mapping[str, int]] = {"scalar_mul": {}, "gemm_sigmoid_residual": {}}
"""At the sizes of their references, which are those that shipped results are of."""
SMALL: Mapping[str, Mapping[str, int]] = {
    "scalar_mul": {"M": 256, "N": 1024},
    "gemm_sigmoid_residual": {"batch_size": 16, "input_size": 64, "hidden_size": 64},
}


def main(
    device: Annotated[str, typer.Option(help="cuda:INDEX, or cpu to try the script.")] = "cuda:0",
    rounds: Annotated[int, typer.Option(min=8, help="Of each variant.")] = 10,
    seconds: Annotated[float, typer.Option(help="For all of it.")] = 600.0,
) -> None:
    """Print the ratios, and exit with 1 where one is not within 1 %."""
    watch = Stopwatch()
    try:
        with ended_after(seconds):
            far = _any_far(device, rounds, watch)
    except KeyboardInterrupt:
        watch.say("interrupted, or out of time")
        sys.exit(2)
    sys.exit(1 if far else 0)


def _any_far(device: str, rounds: int, watch: Stopwatch) -> bool:
    """Time all variants; whether company changes the time of one."""
    start_forkserver(["tests.benchmarks.company_parts"])
    where = find_device(device)
    cores = sorted(os.sched_getaffinity(0))
    driving = next(iter(driving_cores(cores, 1)), ()) if where.kind is DeviceKind.CUDA else ()
    loaded = [core for core in cores if core not in driving] if driving else cores[len(cores) // 2 :]
    own = cores if driving else cores[: len(cores) // 2] or cores
    other = _other(where)
    watch.say(
        f"{where.name}: {len(loaded)} of {len(cores)} cores loaded, {f'and {other}' if other else 'no other GPU'}"
    )
    with closing(Load(loaded, other)) as load, alone_on(where, "company"):
        watch.say("what loads them is there")
        far = [
            name
            for name, sizes in _variants(where).items()
            if _far(name, sizes, device, own, driving, load, rounds, watch)
        ]
        if not load.alive:
            sys.exit("what was to load the machine has died")
    return bool(far)


def _variants(device: Device) -> Mapping[str, Mapping[str, int]]:
    return SHIPPED if device.kind is DeviceKind.CUDA else SMALL


def _other(device: Device) -> str | None:
    if device.kind is not DeviceKind.CUDA:
        return None
    return next((f"cuda:{index}" for index in range(torch.cuda.device_count()) if index != device.index), None)


def _far(
    name: str,
    sizes: Mapping[str, int],
    device: str,
    cores: list[int],
    driving: Collection[int],
    load: Load,
    rounds: int,
    watch: Stopwatch,
) -> bool:
    """Time a variant in turns; whether company changes its time by more than 1 %."""
    worker = IsolatedProcess()
    with closing(worker):
        worker.start()
        about = worker.ask(PREPARE_SECONDS, prepare, name, sizes, device, cores, driving)
        watch.say(about)
        times: dict[bool, list[float]] = {False: [], True: []}
        for number in range(rounds):
            for in_company in (bool(number % 2), not number % 2):
                if in_company:
                    load.go()
                    time.sleep(FULL_SECONDS)
                times[in_company].append(worker.ask(TAKE_SECONDS, take))
                load.rest()
            watch.say(f"  round {number + 1}: alone {times[False][-1]:.4g} ms, in company {times[True][-1]:.4g} ms")
    ratio = speedup(times[False], times[True])  # how many times faster it is alone: its time in company over that alone
    far = abs(ratio.value - 1) > WITHIN
    watch.say(f"{name}: in company over alone {ratio} in {rounds} rounds{', NOT within 1 %' if far else ''}")
    return far


if __name__ == "__main__":
    typer.run(main)
