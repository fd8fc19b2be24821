"""What a warm start gains, on devices made up from a recorded one.

`python -m tests.benchmarks.warm_start FILE... [--devices 10] [--budget 100]`

The other device is a random function away: the logarithm of a configuration's time there is that of its time here plus
`strength` standard deviations of a function of main effects, interactions of pairs of tunables, and roughness (a fifth
of the variance). It is searched first, as in `tunebench replay --from`; one number makes a device and seeds its search.
It is no measurement of any device: it shows what a warm start is worth where two differ so much.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tunebench.studies.tuning.recordings import load_spaces
from tunebench.tuner.search.recorded import RecordedSpace
from tunebench.tuner.search.replay import ReplayReport, replay

STRENGTHS = (0.4, 1.0, 3.0)
_ROUGHNESS = 0.2
"""Of the variance of the difference."""


def other_device(here: RecordedSpace, strength: float, seed: int) -> RecordedSpace:
    """A device that differs from the recorded one by a random function of the configuration; failures are the same.

    Args:
        strength: standard deviation of the difference, in those of the logarithms of the times.
    """
    rng = np.random.default_rng(seed)
    levels = here.space.indices.astype(np.intp) + 1
    count, tunables = levels.shape
    smooth = np.zeros(count)
    for column in levels.T:
        walk = np.cumsum(rng.standard_normal(column.max() + 1))
        smooth += rng.uniform() * walk[column]
    for _ in range(tunables):
        one, other = levels.T[rng.choice(tunables, 2, replace=False)]
        smooth += rng.standard_normal((one.max() + 1, other.max() + 1))[one, other]
    smooth = (smooth - smooth.mean()) / smooth.std()
    difference = np.sqrt(1 - _ROUGHNESS) * smooth + np.sqrt(_ROUGHNESS) * rng.standard_normal(count)
    logs = np.log(here.times_ms)
    return RecordedSpace("another device", here.space, np.exp(logs + strength * np.nanstd(logs) * difference))


def main() -> None:
    """Print a table for each file."""
    parser = argparse.ArgumentParser(description="What a warm start gains, on made-up devices.")
    parser.add_argument("files", nargs="+", type=Path, help="recorded spaces")
    parser.add_argument("--devices", type=int, default=10, help="made-up devices of each strength")
    parser.add_argument("--budget", type=int, default=100, help="evaluations of each search")
    options = parser.parse_args()
    for file in options.files:
        (here,) = load_spaces(file)
        seeds = range(options.devices)
        fresh = [replay(here, "gp", options.budget, [seed]) for seed in seeds]
        print(_line(f"{here.name}, fresh", fresh), flush=True)
        for strength in STRENGTHS:
            there = [other_device(here, strength, seed) for seed in seeds]
            warm_starts = [replay(here, "gp", options.budget, [seed], earlier=[there[seed]]) for seed in seeds]
            print(_line(f"{here.name}, strength {strength}", warm_starts), flush=True)
            print(f"    {_likeness(here, there)}", flush=True)


def _line(name: str, reports: Sequence[ReplayReport]) -> str:
    scores = np.array([report.score for report in reports])
    error = scores.std(ddof=1) / np.sqrt(len(scores)) if len(scores) > 1 else 0.0
    after = [n for n in (9, 25, 50, 100) if n <= reports[0].budget]
    ratios = "  ".join(f"{n}: {np.mean([report.ratio_after(n) for report in reports]):.3f}" for n in after)
    return f"{name}: score {scores.mean():.3f} ± {error:.3f}, best/optimum after evaluations, mean: {ratios}"


def _likeness(here: RecordedSpace, devices: Sequence[RecordedSpace]) -> str:
    works = np.isfinite(here.times_ms)
    times = here.times_ms[works]
    ranks = times.argsort().argsort()
    alike = [np.corrcoef(ranks, there.times_ms[works].argsort().argsort())[0, 1] for there in devices]
    best = [times[np.argmin(there.times_ms[works])] / here.optimum_ms for there in devices]
    return (
        f"rank correlation {np.mean(alike):.2f}; the other device's very best takes {np.median(best):.2f} times the "
        f"optimum here in the median, {max(best):.2f} at most"
    )


if __name__ == "__main__":
    main()
