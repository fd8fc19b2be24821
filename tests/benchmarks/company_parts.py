"""What runs in the processes of `company.py`: the one that times, and those that load everything else."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from collections.abc import Collection, Mapping
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from multiprocessing.synchronize import Semaphore
from typing import cast

import torch

from tunebench.kernels.runtime.policy import set_policy
from tunebench.kernels.runtime.registry import load_model
from tunebench.kernels.runtime.selection import what_is_known
from tunebench.studies.tuning.for_problem import problem_of
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.cores import kept_to
from tunebench.tuner.device import any_gpu, find_device
from tunebench.tuner.errors import CompileError
from tunebench.tuner.fork_server import context, without_main
from tunebench.tuner.kernel import ModelFactory
from tunebench.tuner.study.subject import Subject
from tunebench.tuner.timing.measure import Call, Control, clocks_for, measure_steadily, pick_clock

BEGIN_SECONDS = 60.0
_EDGE = 2048
"""Of the matrices that an oracle multiplies."""


class Timed:
    """A variant as a study times it: in a worker on its cores, the thread that times on its own one."""

    def __init__(
        self, name: str, sizes: Mapping[str, int], device: str, cores: Collection[int], driving: Collection[int]
    ) -> None:
        os.sched_setaffinity(0, cores)
        set_policy(wait=True)
        factory, where = load_model(name), find_device(device)
        kernel = factory.kernel
        subject = Subject.prepare(kernel, cast(ModelFactory, factory), kernel.reference(sizes), kernel.modes[0], where)
        choices = what_is_known(kernel, subject.problem, where).choices()
        configuration = next(one.configuration for one in choices if one.configuration is not None)
        subject.model.pin(build_plan(kernel, configuration, subject.problem, where, compiler_for(where)))
        inputs = subject.oracle.cases[0].inputs

        def call() -> object:
            with torch.no_grad():
                return subject.model(*inputs)

        clocks = clocks_for(where, subject.work)
        self._call: Call = call
        self._clock = pick_clock(clocks, [call])
        self._control = Control(where, clocks[-1])
        self._driving = driving
        self.about = f"{name} ({subject.problem}), {configuration}, by {self._clock.name}"

    def take(self) -> float:
        """One measurement: its median, milliseconds."""
        with kept_to(self._driving):
            measurement, _ = measure_steadily(self._call, self._clock, self._control)
        return measurement.median_ms


_timed: Timed | None = None


def prepare(name: str, sizes: Mapping[str, int], device: str, cores: Collection[int], driving: Collection[int]) -> str:
    """Get ready in this process; what is timed, for people."""
    global _timed  # noqa: PLW0603 - a process times one variant
    _timed = Timed(name, sizes, device, cores, driving)
    return _timed.about


def take() -> float:
    """See `Timed.take`."""
    assert _timed is not None
    return _timed.take()


class Load:
    """Compilers and oracles, one on each core, and an oracle on another GPU; at rest until it is let go.

    Args:
        other: the name of the other GPU; None where there is none.
    """

    def __init__(self, cores: Collection[int], other: str | None) -> None:
        self._processes: list[ForkServerProcess] = []
        self._begun = context().Semaphore(0)
        with without_main():
            for number, core in enumerate(cores):
                if number % 2:
                    self._start(multiply_for_ever, "cpu", core)
                else:
                    self._start(compile_for_ever, core)
            if other is not None:
                self._start(multiply_for_ever, other, None)
            begun = [process.pid for process in self._processes]
            self._guard = context().Process(target=kill_with_parent, args=(begun,), daemon=True)
            self._guard.start()
        for process in self._processes:
            if not self._begun.acquire(timeout=BEGIN_SECONDS):
                self.close()
                raise TimeoutError(f"{process.name} or another one does not begin")
        self.rest()

    def _start(self, *arguments: object) -> None:
        process = context().Process(target=arguments[0], args=(self._begun, *arguments[1:]), daemon=True)  # type: ignore[arg-type]
        process.start()
        self._processes.append(process)

    def go(self) -> None:
        """Load everything."""
        self._signal(signal.SIGCONT)

    def rest(self) -> None:
        """Hold it."""
        self._signal(signal.SIGSTOP)

    def close(self) -> None:
        """End it."""
        self._guard.kill()
        self._signal(signal.SIGKILL)

    @property
    def alive(self) -> bool:
        """Whether all of it is still there."""
        return all(process.is_alive() for process in self._processes)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.kill(process.pid or 0, number)


def kill_with_parent(processes: Collection[int]) -> None:
    """End these once the process that started them is gone: at rest they could not see it."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def compile_for_ever(begun: Semaphore, core: int) -> None:
    """NVRTC on the longest of the shipped sources."""
    os.sched_setaffinity(0, {core})
    factory, gpu = load_model("gemm_scale_bn"), any_gpu("sm_90")
    kernel = factory.kernel
    problem = problem_of(factory, kernel.reference(), kernel.modes[0])
    assert problem is not None
    variant = kernel.variant(kernel.space.default_for(problem, gpu), problem, gpu.architecture)
    compiler = compiler_for(gpu)
    begun.release()
    while True:
        with suppress(CompileError):
            compiler.compile(variant)


def multiply_for_ever(begun: Semaphore, device: str, core: int | None) -> None:
    """What an oracle does: products in float64."""
    if core is not None:
        os.sched_setaffinity(0, {core})
        torch.set_num_threads(1)
    matrix = torch.rand(_EDGE, _EDGE, dtype=torch.float64, device=device)
    begun.release()
    for turn in itertools.count():
        matrix @ matrix
        if device != "cpu" and turn % 16 == 0:
            torch.cuda.synchronize(device)
