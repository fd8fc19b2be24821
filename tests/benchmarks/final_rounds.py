"""Why final rounds with torch.compile are inconclusive on a GPU: `python -m tests.benchmarks.final_rounds`.

The final comparison of three small problems is repeated in three ways: `without` torch.compile, `before` (compiled, and
timed beside what compiling leaves behind, as it once was) and `now`. It prints a JSON line for each comparison: the
ratios of the default over its baselines, and of the second copy over the first, with their intervals, and what they
say; and of each contender how its samples lie. A contender with two states has many samples beyond 1.25 times its
median or below 0.8 times; where these stand behind one certain contender, that one disturbs it. Rounds in which the
device did not wait for the host (`not_in_time`), and CUDA graphs that torch.compile recorded during the rounds
(`recorded`), are counted. It begins nothing after `--limit` seconds; `--tiny --device cpu` tries it anywhere.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Annotated, Any

import torch
import typer

from tunebench.studies.tuning.resolved import make_evaluator, resolve
from tunebench.studies.tuning.study_file import make_request
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.device import find_device
from tunebench.tuner.kernel import Mode
from tunebench.tuner.result import CONTROL, Baseline
from tunebench.tuner.study.evaluate import Finalist, LocalEvaluator
from tunebench.tuner.timing.confirm import confirm
from tunebench.tuner.timing.measure import Call, Clock, CudaClock, pick_clock
from tunebench.tuner.timing.statistics import control_ratio, speedup
from tunebench.tuner.timing.torch_compile import compile_reference, end_compilers

PROBLEMS: tuple[tuple[str, Mapping[str, int], Mapping[str, int]], ...] = (
    ("scalar_mul", {"M": 4096}, {"M": 64, "N": 64}),
    ("conv_min_add_mul", {"batch_size": 8}, {"batch_size": 1, "height": 8, "width": 8}),
    ("gemm_sigmoid_residual", {"batch_size": 16}, {"batch_size": 4, "input_size": 32, "hidden_size": 32}),
)
"""A kernel, its sizes on a GPU, and tiny ones."""

WAYS = ("without", "before", "now")
FINALISTS = 4
"""Configurations beside the default, as far as the space has neighbours of it."""

_FAR = 1.25


class Watched(Clock):
    """A clock that keeps what it was asked and what it said."""

    def __init__(self, clock: Clock, names: Mapping[Call, str]) -> None:
        self._clock, self._names = clock, names
        self.name, self.regime = clock.name, clock.regime
        self.settle_seconds, self.drift = clock.settle_seconds, clock.drift
        self.rounds: list[tuple[float, list[tuple[str, float]]]] = []
        self.not_in_time = 0
        if isinstance(clock, CudaClock):
            self._watch(clock)

    def _watch(self, clock: CudaClock) -> None:
        queued = clock._queued

        def counted(calls: Sequence[Call]) -> tuple[list[float], bool]:
            samples, in_time = queued(calls)
            self.not_in_time += not in_time
            return samples, in_time

        clock._queued = counted  # type: ignore[method-assign]

    def sample(self, calls: Sequence[Call]) -> list[float]:
        """See `Clock.sample`."""
        started = time.perf_counter()
        samples = self._clock.sample(calls)
        seconds = time.perf_counter() - started
        names = [self._names.get(call, "") for call in calls]
        if all(names) and len(set(names)) == len(names) > 1:
            self.rounds.append((seconds, list(zip(names, samples, strict=True))))
        return samples

    def states(self) -> dict[str, dict[str, Any]]:
        """Of each contender its median, and its samples far from it: how many, where and behind whom."""
        found: dict[str, list[tuple[int, int, str, float]]] = {}
        for number, (_, one) in enumerate(self.rounds):
            for place, (name, sample) in enumerate(one):
                before = one[place - 1][0] if place else "(first)"
                found.setdefault(name, []).append((number, place, before, sample))
        return {name: self._state(samples) for name, samples in found.items()}

    def _state(self, samples: Sequence[tuple[int, int, str, float]]) -> dict[str, Any]:
        middle = median(sample for *_, sample in samples)
        high = [one for one in samples if one[3] > _FAR * middle]
        low = [one for one in samples if one[3] < middle / _FAR]
        far = [*high, *low]
        return {
            "median_ms": round(middle, 5),
            "high": len(high),
            "low": len(low),
            "high_is": round(median(one[3] for one in high) / middle, 3) if high else None,
            "low_is": round(median(one[3] for one in low) / middle, 3) if low else None,
            "in_rounds": sorted(number for number, *_ in far)[:12],
            "behind": dict(Counter(before for _, _, before, _ in far).most_common(4)),
            "at_place": dict(Counter(place for _, place, *_ in far).most_common(4)),
        }


def finalists(evaluator: LocalEvaluator, request: Any) -> list[Finalist]:
    """The default, and the configurations nearest to it, built."""
    resolved = resolve(request)
    space = resolved.space.enumerate(evaluator.problem, evaluator.device)
    some = [space[number] for number in range(0, len(space), max(1, len(space) // 40))]
    default = space[space.default]
    chosen = [default, *(one for one in space.simplest_first(some) if one != default)][: 1 + FINALISTS]
    architecture, problem = evaluator.device.architecture, evaluator.problem
    variants = (resolved.kernel.variant(one, problem, architecture) for one in chosen)
    cache = BuildCache()
    return [Finalist(one, cache.build(resolved.compiler, v)) for one, v in zip(chosen, variants, strict=True)]


def compare(evaluator: LocalEvaluator, built: Sequence[Finalist], way: str, seconds: float) -> dict[str, Any]:
    """One final comparison in one way, told."""
    plans = [evaluator._plan(*one) for one in built]
    calls: dict[str, Call] = {"reference": evaluator._reference_call()}
    if way != "without":
        calls["compiled"] = compiled_call(evaluator, way)
    calls |= {baseline.value: call for baseline, call in evaluator._copy_call().items()}
    calls["default"] = evaluator._pinned_call(plans[0])
    calls |= {f"finalist {number}": evaluator._pinned_call(plan) for number, plan in enumerate(plans[1:])}
    twin = evaluator._pinned_call(plans[0])
    with torch.no_grad():
        clock = pick_clock(evaluator._clocks, list(calls.values()))
        watched = Watched(clock, {call: name for name, call in {**calls, CONTROL: twin}.items()})
        recorded = recordings()
        samples = confirm(calls, "default", twin, watched, evaluator._control, seconds)
    evaluator._subject.model.pin(None)
    if isinstance(clock, CudaClock):
        del clock._queued  # type: ignore[attr-defined]
    baselines = [one.value for one in Baseline if one in samples and one is not Baseline.DEFAULT]
    ratios = {name: speedup(samples["default"], samples[name]) for name in baselines}
    ratios["control"] = control_ratio(samples, "default")
    ratios |= {name: speedup(samples[name], samples["default"]) for name in samples if name.startswith("finalist")}
    return {
        "clock": clock.name,
        "rounds": len(samples["default"]),
        "ratios": {name: f"{ratio} {ratio.decision}" for name, ratio in ratios.items()},
        "inconclusive": [name for name, ratio in ratios.items() if ratio.decision == "inconclusive"],
        "round_ms": round(1e3 * median(taken for taken, _ in watched.rounds), 3) if watched.rounds else None,
        "not_in_time": watched.not_in_time,
        "recorded": None if recorded is None else (recordings() or 0) - recorded,
        "states": watched.states(),
    }


def compiled_call(evaluator: LocalEvaluator, way: str) -> Call:
    """The reference under torch.compile, with what compiling leaves behind or without."""
    compiled = compile_reference(evaluator._subject.reference, evaluator._inputs)
    if way != "before":
        end_compilers()
    inputs = evaluator._inputs
    return lambda: compiled(*inputs)


def recordings() -> int | None:
    """How many CUDA graphs torch.compile has recorded so far; None where it does not say."""
    if not torch.cuda.is_available():
        return None
    try:
        from torch._inductor.cudagraph_trees import get_manager

        manager = get_manager(torch.cuda.current_device(), create_if_none_exists=False)
        return 0 if manager is None else int(manager.debug_fail_counter)
    except (ImportError, AttributeError, TypeError):
        return None


def main(
    device: Annotated[str | None, typer.Option(help="cuda or cpu. Default: a GPU if there is one.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Comparisons of each problem in each way.")] = 3,
    seconds: Annotated[float, typer.Option(help="Limit of one series of rounds.")] = 2.0,
    limit: Annotated[float, typer.Option(help="Seconds after which nothing is repeated any more.")] = 150.0,
    only: Annotated[str | None, typer.Option(help="The kernel of this name alone.")] = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="At tiny sizes, to try the script itself.")] = False,
) -> None:
    """Repeat the final comparison, and print how each went."""
    where = find_device(device)
    began = time.perf_counter()
    print(json.dumps({"device": where.name, "torch": torch.__version__, "python": sys.version.split()[0]}), flush=True)
    said: Counter[tuple[str, str]] = Counter()
    for number, (kernel, sizes, small) in enumerate(PROBLEMS, 1):
        if only not in (None, kernel):
            continue
        request = make_request({"kernel": kernel, "sizes": dict(small if tiny else sizes), "device": device}, kernel)
        try:
            evaluator = make_evaluator(request, Mode.EVAL)
            built = finalists(evaluator, request)
            for repeat, way in ((repeat, way) for repeat in range(repeats) for way in WAYS):
                if repeat and time.perf_counter() - began > limit * number / len(PROBLEMS):
                    break
                told = compare(evaluator, built, way, seconds)
                said[way, "comparisons"] += 1
                said[way, "inconclusive"] += bool(told["inconclusive"])
                head = {"kernel": kernel, "way": way, "repeat": repeat, "after_s": round(time.perf_counter() - began)}
                print(json.dumps(head | told, ensure_ascii=False), flush=True)
        except Exception:  # noqa: BLE001 - the next problem may still tell something
            print(json.dumps({"kernel": kernel, "failed": traceback.format_exc()}), flush=True)
    for way in WAYS:
        print(f"{way}: {said[way, 'inconclusive']} of {said[way, 'comparisons']} comparisons inconclusive")


if __name__ == "__main__":
    typer.run(main)
