"""Nsight Compute's counters of a call's launches: what keeps a kernel from being faster."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence

from tunebench.tuner.command import find_cuda_program, run_command
from tunebench.tuner.errors import TunebenchError
from tunebench.tuner.result import LaunchCounters
from tunebench.tuner.scratch import scratch

TIME = "gpu__time_duration.sum"

PEAKS = {
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "memory",
    "lts__t_sectors.avg.pct_of_peak_sustained_elapsed": "L2 cache",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": "tensor cores",
    "sm__inst_issued.avg.pct_of_peak_sustained_active": "issue slots",
}
"""Percentages of what a part of the device does at most."""

OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"

LIMITS = {
    "launch__occupancy_limit_registers": "registers",
    "launch__occupancy_limit_shared_mem": "shared memory",
    "launch__occupancy_limit_warps": "threads",
    "launch__occupancy_limit_blocks": "the device itself",
}
"""Blocks that a multiprocessor holds at most, by what bounds them."""

_STALLS = {
    "long_scoreboard": "global memory",
    "short_scoreboard": "shared memory",
    "barrier": "a barrier",
    "math_pipe_throttle": "an arithmetic pipe",
    "mio_throttle": "the queue to shared memory",
    "lg_throttle": "the queue to global memory",
    "wait": "a fixed latency",
}
STALLS = {f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio": words for name, words in _STALLS.items()}
"""Warps that wait for each instruction that is issued, by what they wait for."""

METRICS = {
    TIME: "time, ns",
    **{name: f"{words}, % of peak" for name, words in PEAKS.items()},
    "lts__t_sector_hit_rate.pct": "L2 hits, %",
    OCCUPANCY: "occupancy achieved, %",
    **{name: f"blocks allowed by {words}" for name, words in LIMITS.items()},
    **{name: f"warps waiting for {words}" for name, words in STALLS.items()},
}
"""The counters that are read, by Nsight Compute's names, in words."""

_SECONDS = 600.0
_BUSY = 60.0
"""Percentage of its peak from which a part of the device is what a launch waits for."""


class CountersError(TunebenchError):
    """Counters cannot be read here; the message is one line that says why."""


def find_ncu() -> str | None:
    """Return Nsight Compute's program on the path or beside the CUDA toolkit; None where there is none."""
    return find_cuda_program("ncu")


def read_counters(command: Sequence[str]) -> tuple[LaunchCounters, ...]:
    """Return the counters of the launches that a program makes between the profiler's start and stop.

    Raises:
        CountersError: Nsight Compute is not installed, may not read counters, or the program failed.
    """
    if (program := find_ncu()) is None:
        raise CountersError("Nsight Compute (ncu) is not installed")
    with scratch() as folder:
        log = folder / "counters.csv"
        options = ["--profile-from-start", "off", "--target-processes", "all", "--csv", "--page", "raw"]
        options += ["--print-units", "base", "--log-file", str(log), "--metrics", ",".join(METRICS)]
        ended = run_command([program, *options, *command], _SECONDS)
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if found := tuple(counters_in(text)):
        return found
    lines = [line.strip("= ") for line in (*text.splitlines(), *ended.log.splitlines()) if line.strip()]
    told = next((line for line in lines if "ERR_" in line), None) or next(
        (line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "it printed nothing"
    )
    if ended.code is None:
        told = f"no answer within {_SECONDS:g} s"
    raise CountersError(f"Nsight Compute read no counters: {told[:300]}")


def counters_in(text: str) -> Iterator[LaunchCounters]:
    """Yield the launches of Nsight Compute's raw page as CSV, whose second line has the units."""
    rows = csv.reader(line for line in text.splitlines() if line.startswith('"'))
    head = next(rows, [])
    next(rows, None)
    for row in rows:
        values = dict(zip(head, row, strict=False))
        numbers = {name: number for name in METRICS if (number := _number(values.get(name, ""))) is not None}
        if numbers:
            yield LaunchCounters(values.get("Kernel Name", ""), numbers)


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def longest(launches: Sequence[LaunchCounters]) -> LaunchCounters:
    """Return the launch that takes the most time."""
    return max(launches, key=lambda one: one.values.get(TIME, 0.0))


def reason_of(launch: LaunchCounters) -> str:
    """Return what a launch waits for, in one sentence."""
    values = launch.values
    peaks = {words: values[name] for name, words in PEAKS.items() if name in values}
    stalls = {words: values[name] for name, words in STALLS.items() if name in values}
    text = f"{launch.kernel}: "
    if peaks and max(peaks.values()) >= _BUSY:
        name = max(peaks, key=peaks.__getitem__)
        text += f"bound by {name}, at {peaks[name]:.0f} % of the peak"
    else:
        text += f"nothing is at {_BUSY:g} % of its peak, so that it waits"
    if stalls:
        name = max(stalls, key=stalls.__getitem__)
        text += f"; warps wait most for {name} ({stalls[name]:.2g} for each instruction issued)"
    limits = {words: values[name] for name, words in LIMITS.items() if values.get(name)}
    if OCCUPANCY in values:
        text += f"; occupancy {values[OCCUPANCY]:.0f} %"
        text += f", at most {min(limits.values()):g} blocks by {min(limits, key=limits.__getitem__)}" if limits else ""
    return f"{text}."
