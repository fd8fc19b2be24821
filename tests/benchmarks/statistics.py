"""What the timing protocol decides where the truth is known: `python -m tests.benchmarks.statistics`.

The protocol's own code (`tuner/timing/confirm.py`: rounds, stop, control, decision) runs on a simulated clock. A
call's time is its true time × noise × drift; the noise is independent from sample to sample, the drift is shared by all
calls and moves slowly, as clocks and temperature do. A simulated run is right where it says `faster` or `slower` of
kernels that differ by more than 1 %, `tie` of others, and `inconclusive` where rounds cannot tell; it never says the
opposite.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import typer

from tunebench.tuner.device import find_device
from tunebench.tuner.problem import Work
from tunebench.tuner.result import CacheRegime, Decision
from tunebench.tuner.timing.confirm import confirm, tells
from tunebench.tuner.timing.measure import Call, Clock, Control, clocks_for
from tunebench.tuner.timing.statistics import control_ratio, speedup


@dataclass(frozen=True)
class Scenario:
    """Two kernels on a simulated device.

    Attributes:
        faster_by: how much less time the first takes than the second, as a share of the second's.
        noise: relative standard deviation of a sample.
        drift: how far the shared speed wanders: the amplitude of a slow wave.
        outliers: share of samples that something else delays, by 5 to 50 %.
        slow_share: share of the first kernel's samples that take `SLOW` times as long: it has two states.
        cannot_tell: no such rounds tell the two apart.
    """

    name: str
    faster_by: float
    noise: float = 0.01
    drift: float = 0.0
    outliers: float = 0.0
    slow_share: float = 0.0
    cannot_tell: bool = False


SLOW = 1.85

SCENARIOS = (
    Scenario("equal", 0.0),
    Scenario("equal, slow drift", 0.0, drift=0.03),
    Scenario("equal, outliers", 0.0, drift=0.03, outliers=0.05),
    Scenario("equal, quiet", 0.0, noise=0.0015),
    Scenario("equal, as noisy as a shared CPU", 0.0, noise=0.06, drift=0.05, outliers=0.1),
    Scenario("2 % faster", 0.02),
    Scenario("2 % faster, slow drift", 0.02, drift=0.03),
    Scenario("2 % faster, outliers", 0.02, drift=0.03, outliers=0.05),
    Scenario("2 % slower, slow drift", -0.02, drift=0.03),
    Scenario("2 % faster, quiet", 0.02, noise=0.0015),
    Scenario("0.5 % faster, slow drift", 0.005, drift=0.03),
    Scenario("equal, noise 40 %", 0.0, noise=0.4, cannot_tell=True),
    Scenario("equal, and one has two states", 0.0, noise=0.0015, slow_share=0.5, cannot_tell=True),
    Scenario("half the time, noise 20 %", 0.5, noise=0.2),
)


class SimulatedClock(Clock):
    """Samples drawn from a scenario; a call returns its true time in milliseconds."""

    name = "simulated"
    regime = CacheRegime.COLD
    settle_seconds = 0.0
    drift = 0.015

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self._scenario = scenario
        self._random = np.random.default_rng(seed)
        self._phase = self._random.uniform(0, 2 * math.pi)
        self._period = self._random.uniform(2_000, 20_000)  # samples
        self._taken = 0

    def sample(self, calls: Sequence[Call]) -> list[float]:
        """Each call's true time with noise, the drift of that moment, and now and then a delay."""
        scenario = self._scenario
        true = np.array([call() for call in calls], dtype=np.float64)
        moments = self._taken + np.arange(len(calls))
        self._taken += len(calls)
        times = true * (1 + scenario.noise * self._random.standard_normal(len(calls)))
        times *= 1 + scenario.drift * np.sin(2 * math.pi * moments / self._period + self._phase)
        delayed = self._random.random(len(calls)) < scenario.outliers
        times[delayed] *= self._random.uniform(1.05, 1.5, int(delayed.sum()))
        if scenario.slow_share:
            has_states = np.array([getattr(call, "has_states", False) for call in calls])
            times[has_states & (self._random.random(len(calls)) < scenario.slow_share)] *= SLOW
        return [float(time) for time in times]


@dataclass(frozen=True)
class Run:
    """What one simulated comparison of the two kernels decided, and after how many rounds."""

    decision: Decision
    rounds: int


def simulate(scenario: Scenario, seed: int) -> Run:
    """Compare the scenario's two kernels once."""
    clock = SimulatedClock(scenario, seed)
    control = Control(find_device("cpu"), clock, lambda: 0.1)

    def first() -> float:
        return 1.0 - scenario.faster_by

    first.has_states = True  # type: ignore[attr-defined]
    calls: dict[str, Call] = {"first": first, "second": lambda: 1.0}
    is_decided = tells("first", "second")
    # Simulated time has no deadline.
    samples = confirm(calls, "second", lambda: 1.0, clock, control, math.inf, is_decided=is_decided)
    ratio = speedup(samples["first"], samples["second"])
    wrong = control_ratio(samples, "second").differs
    return Run(Decision.INCONCLUSIVE if wrong else ratio.decision, ratio.rounds)


def truth(scenario: Scenario) -> Decision:
    """What a perfect clock would decide, or that these rounds cannot."""
    if scenario.cannot_tell:
        return Decision.INCONCLUSIVE
    if scenario.faster_by > 0.01:
        return Decision.FASTER
    return Decision.SLOWER if scenario.faster_by < -0.01 else Decision.TIE


def wrong_signs(scenario: Scenario, counts: Counter[Decision]) -> int:
    """Runs that said the opposite of the truth, or saw a difference between equals."""
    if scenario.faster_by == 0:
        return counts[Decision.FASTER] + counts[Decision.SLOWER]
    return counts[Decision.SLOWER if scenario.faster_by > 0 else Decision.FASTER]


def record(device_name: str | None) -> dict[str, dict[str, object]]:
    """Real rounds on a device: two calls that do the same, and two of which one has a fifth more to do."""
    import torch

    device = find_device(device_name)
    elements = 1 << 20
    values = torch.ones(elements * 6 // 5, device=device.torch_device)
    into = torch.empty_like(values)

    def doubling(count: int) -> Call:
        return lambda: torch.mul(values[:count], 2.0, out=into[:count])

    pairs = {
        "equal": (elements, elements, Decision.TIE),
        "a fifth less": (elements, elements * 6 // 5, Decision.FASTER),
        "a fifth more": (elements * 6 // 5, elements, Decision.SLOWER),
    }
    recorded: dict[str, dict[str, object]] = {}
    for name, (first, second, right) in pairs.items():
        clock = clocks_for(device, Work(8 * elements, elements))[-1]
        calls = {"first": doubling(first), "second": doubling(second)}
        samples = confirm(calls, "second", doubling(second), clock, Control(device, clock))
        series = {f"{call}_ms": [float(f"{time:.6g}") for time in samples[call]] for call in calls}
        recorded[f"{name}, {device.kind}"] = {"truth": right.value, **series}
    return recorded


def main(
    runs: Annotated[int, typer.Option(min=1, help="Simulated runs of each scenario.")] = 10_000,
    only: Annotated[str | None, typer.Option(help="The scenario of this name alone.")] = None,
    real: Annotated[bool, typer.Option("--record", help="Print rounds recorded here instead, for the tests.")] = False,
    device: Annotated[str | None, typer.Option(help="cuda or cpu, for --record.")] = None,
) -> None:
    """Simulate and print the counts as JSON, a scenario at a time."""
    if real:
        print(json.dumps(record(device)))
        return
    for scenario in SCENARIOS:
        if only not in (None, scenario.name):
            continue
        done = [simulate(scenario, seed) for seed in range(runs)]
        counts = Counter(run.decision for run in done)
        values = {
            "scenario": scenario.name,
            "runs": runs,
            **{decision.value: counts[decision] for decision in Decision},
            "right": f"{counts[truth(scenario)] / runs:.2%}",
            "wrong_sign": wrong_signs(scenario, counts),
            "median_rounds": float(np.median([run.rounds for run in done])),
        }
        print(json.dumps(values), flush=True)


if __name__ == "__main__":
    typer.run(main)
