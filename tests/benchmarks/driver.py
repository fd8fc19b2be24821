"""What a trial costs the driver of a study: `python -m tests.benchmarks.driver`.

A real study on a real database, whose evaluations come back at once: what is left is what the one process does that
asks, claims, records and tells. CPU milliseconds of that process for a trial, by what they are for, after a first tenth
of the trials; how many trials a second one core gets through; and the load with so many devices where a trial takes
`--trial-seconds` on one. Beside it, the CPU milliseconds of a result on its way from a worker process and from a Ray
actor (where Ray is installed), and the CPU seconds of NVRTC for a variant.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from tests.benchmarks.writing import _ENVIRONMENT, _result, _study
from tests.table_evaluator import AtOnce

from tunebench.db.connection.database import open_database
from tunebench.db.entries.study_log import open_study
from tunebench.kernels.runtime.registry import load_model
from tunebench.tuner.build import Build, CompilerName
from tunebench.tuner.compile.building import BuildQueue
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.compile.nvrtc import NvrtcCompiler
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import any_gpu
from tunebench.tuner.isolation import IsolatedProcess
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import Comparison, TrialResult
from tunebench.tuner.search.strategies import find_sampler
from tunebench.tuner.space import SearchSpace, Tunable
from tunebench.tuner.study.evaluate import NOBODY, Leaders
from tunebench.tuner.study.executor import LocalExecutor
from tunebench.tuner.study.outcome import Budget, Progress
from tunebench.tuner.study.study import StudyRun

VALUES = tuple(range(1, 17))
GPU = any_gpu("sm_90")
CODE = 200_000
"""Bytes of a binary."""


class Answers:
    """An evaluator that has the answer already."""

    problem = Problem({})
    device = GPU
    prepared: ClassVar[Mapping[str, float]] = {}

    def evaluate(self, configuration: Configuration, build: Build, leaders: Leaders = NOBODY) -> TrialResult:
        """A result like a real one, whose time is some function of the configuration."""
        del leaders
        result = _result(0, sum(int(value) ** 2 for value in configuration.values()))
        return replace(result, configuration=configuration, build=build)

    def compare(self, *_: Any) -> Comparison:
        """End the run: the search is over."""
        raise KeyboardInterrupt

    def kill(self) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """Nothing to let go of."""


class Account:
    """CPU seconds of the calling thread, by what they were for."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    def of(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, whose seconds go to a name."""

        def counted(*arguments: Any, **named: Any) -> Any:
            begun = time.thread_time()
            try:
                return function(*arguments, **named)
            finally:
                self.seconds[name] += time.thread_time() - begun

        return counted


def drive(url: str | None, slots: int, sampler: str, trials: int, folder: Path) -> dict[str, object]:
    """The driver's CPU milliseconds for a trial, with so many devices."""
    space = SearchSpace(tuple(Tunable(name, VALUES) for name in ("a", "b", "c", "d")))
    valid, account = space.enumerate(Problem({}), GPU), Account()
    kernel = replace(load_model("scalar_mul").kernel, space=space)
    strategy = find_sampler(sampler)(valid, slots)
    with open_database(url or str(folder / f"{sampler}{slots}.db")) as database:
        log = open_study(database, replace(_study(slots), sampler=sampler), _ENVIRONMENT)
        executor = LocalExecutor(
            kernel, [Answers() for _ in range(slots)], BuildQueue(AtOnce(), BuildCache(folder / "builds"))
        )
        targets: list[tuple[str, object, str]] = [
            ("ask", strategy, "ask"),
            ("claim", log, "claim"),
            ("record", log, "record"),
            ("look what others did", log, "past"),
            ("begin builds and evaluations", executor, "build"),
            ("begin builds and evaluations", executor, "begin"),
        ]
        for name, owner, method in targets:
            setattr(owner, method, account.of(name, getattr(owner, method)))
        first: dict[str, float] = {}

        def show(progress: Progress) -> None:
            if not first and progress.done >= trials // 10:
                account.seconds.clear()
                first.update(done=progress.done, cpu=time.process_time(), main=time.thread_time())

        outcome = StudyRun(executor, valid, strategy, log).run(Budget(trials), show)
        cpu, main = time.process_time() - first["cpu"], time.thread_time() - first["main"]
    counted = outcome.trials - first["done"]
    parts = {name: seconds / counted * 1e3 for name, seconds in account.seconds.items()}
    parts["tell, rank, the rest of the loop"] = main / counted * 1e3 - sum(parts.values())
    parts["threads beside it"] = (cpu - main) / counted * 1e3
    return {
        "slots": slots,
        "sampler": sampler,
        "trials": outcome.trials,
        "cpu_ms_of_a_trial": round(cpu / counted * 1e3, 2),
        "parts_ms": {name: round(value, 2) for name, value in sorted(parts.items(), key=lambda one: -one[1])},
        "trials_a_second_of_one_core": round(counted / cpu),
    }


def _echo(result: TrialResult, build: Build) -> TrialResult:
    del build
    return result


def from_a_worker(times: int) -> float:
    """CPU milliseconds here of asking a worker process for one result."""
    result = _result(0, 1)
    build = Build("variant", CompilerName.NVRTC, "13", os.urandom(CODE), "log", {}, 0.1)
    from tests.benchmarks.driver import _echo as echo  # the process knows it by this module's name

    process = IsolatedProcess()
    process.start()
    process.ask(60.0, echo, result, build)
    begun = time.process_time()
    for _ in range(times):
        process.ask(60.0, echo, result, build)
    taken = time.process_time() - begun
    process.close()
    return round(taken / times * 1e3, 2)


def from_an_actor(times: int) -> float | None:
    """The same of asking a Ray actor; None where Ray is not installed."""
    try:
        import ray
    except ImportError:
        return None
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20)
    result = _result(0, 1)
    build = Build("variant", CompilerName.NVRTC, "13", os.urandom(CODE), "log", {}, 0.1)

    class Echo:
        def echo(self, result: Any, build: Any) -> Any:
            return result if build else None

    actor = ray.remote(Echo).remote()
    ray.get(actor.echo.remote(result, build))
    begun = time.process_time()
    for _ in range(times):
        ray.get(actor.echo.remote(result, build))
    taken = time.process_time() - begun
    ray.shutdown()
    return round(taken / times * 1e3, 2)


def of_a_build(name: str, problem: Problem, variants: int = 6) -> float:
    """CPU seconds of NVRTC for a variant of a kernel, in this process."""
    kernel = load_model(name).kernel
    space = kernel.space.enumerate(problem, GPU)
    begun = time.process_time()
    for number in range(0, len(space), len(space) // variants)[:variants]:
        NvrtcCompiler().compile(kernel.variant(space[number], problem, GPU.architecture))
    return round((time.process_time() - begun) / variants, 2)


def main(
    slots: Annotated[str, typer.Option(help="Numbers of devices.")] = "1,8,64,1024",
    sampler: Annotated[str, typer.Option(help="Strategies.")] = "gp,random",
    trials: Annotated[int, typer.Option(help="Of each study, beside two for each device.")] = 300,
    url: Annotated[str | None, typer.Option(help="An empty database; default: a SQLite file for each.")] = None,
    trial_seconds: Annotated[float, typer.Option(help="What a trial takes on a device.")] = 0.15,
) -> None:
    """Print the figures as JSON."""
    found: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as name:
        for strategy in sampler.split(","):
            for count in map(int, slots.split(",")):
                row = drive(url, count, strategy, trials + 2 * count, Path(name))
                row["load_of_the_driver"] = round(count / trial_seconds * float(str(row["cpu_ms_of_a_trial"])) / 1e3, 2)
                print(json.dumps(row))
                found.append(row)
    linear = Problem({"rows": 1024, "in_features": 8192, "out_features": 8192}, "float32", {"mode": "train"})
    builds = {
        "scalar_mul": of_a_build("scalar_mul", Problem({"elements": 1 << 28})),
        "gemm_scale_bn": of_a_build("gemm_scale_bn", linear),
    }
    print(json.dumps({"nvrtc_cpu_seconds_of_a_variant": builds}))
    print(json.dumps({"from_a_worker_ms": from_a_worker(200), "from_an_actor_ms": from_an_actor(200)}))


if __name__ == "__main__":
    typer.run(main)
