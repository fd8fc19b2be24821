"""What rules of stopping early save and lose on recorded spaces: `python -m tests.benchmarks.stopping FILE...`

Every search goes on to its budget, and notes after each evaluation what the model expects of the next one; each rule
is then asked of those notes where it would have stopped. The first rule is the one that `--stop-early` goes by.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from tunebench.studies.tuning.recordings import load_spaces
from tunebench.tuner.search.pool_model import PoolSettings
from tunebench.tuner.search.recorded import RecordedSpace
from tunebench.tuner.search.replay import ReplayRun
from tunebench.tuner.search.replay import replay as search
from tunebench.tuner.search.sampler import PoolGpSampler
from tunebench.tuner.space import ValidSpace

RULES = (
    PoolSettings(),
    PoolSettings(quiet=40, least_gain=1e-4),
    PoolSettings(quiet=60, least_gain=1e-3),
    PoolSettings(quiet=80, least_gain=1e-6),
)


def main() -> None:
    """Print a line for each file and rule."""
    parser = argparse.ArgumentParser(description="What rules of stopping early save and lose.")
    parser.add_argument("files", nargs="+", type=Path, help="recorded spaces")
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--budget", type=int, default=200, help="evaluations of each search")
    options = parser.parse_args()
    for file in options.files:
        (recorded,) = load_spaces(file)
        searches = [_search(recorded, seed, options.budget) for seed in range(options.seeds)]
        print(f"{recorded.name}: score {np.mean([run.score for run, _ in searches]):.3f}", flush=True)
        for rule in RULES:
            print(f"  {rule.quiet} trials, {rule.least_gain:g}: {_outcome(rule, searches)}", flush=True)


class _Noting(PoolGpSampler):
    """The strategy `gp`, which tells what it expected."""

    def expected_gains(self) -> list[float]:
        """After each evaluation, what another one was expected to take off the best time, as a share of it."""
        assert isinstance(self._model.settled, bool)  # it takes in what was told last
        return list(self._model._gains or ())


def _search(recorded: RecordedSpace, seed: int, budget: int) -> tuple[ReplayRun, list[float]]:
    """A search, and what was expected after each of its evaluations."""
    samplers: list[_Noting] = []

    def gp(space: ValidSpace, seed: int) -> PoolGpSampler:
        samplers.append(_Noting(space, seed))
        return samplers[-1]

    (run,) = search(recorded, gp, budget, [seed], stop_early=True).runs
    return run, samplers[-1].expected_gains()


def _outcome(rule: PoolSettings, searches: list[tuple[ReplayRun, list[float]]]) -> str:
    used = [_stopped_at(rule, run, gains) for run, gains in searches]
    lost = [run.best_ms[at - 1] / run.best_ms[-1] - 1 for (run, _), at in zip(searches, used, strict=True)]
    return (
        f"{np.mean(used):.0f} evaluations; slower by {np.mean(lost):.2%} on average, {max(lost):.1%} at most, "
        f"by more than 1 % in {sum(one > 0.01 for one in lost)} of {len(lost)}"
    )


def _stopped_at(rule: PoolSettings, run: ReplayRun, gains: list[float]) -> int:
    for done in range(rule.quiet + 1, len(gains) + 1):
        improved = next(number for number, best_ms in enumerate(run.best_ms) if best_ms == run.best_ms[done - 1])
        if done - 1 - improved >= rule.quiet and max(gains[done - rule.quiet : done]) < rule.least_gain:
            return done
    return len(run.best_ms)


if __name__ == "__main__":
    main()
