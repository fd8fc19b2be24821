"""Builds: of one configuration, and ahead of the device on compile threads that share them and have deadlines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial

from tunebench.tuner.build import Build
from tunebench.tuner.compile.base import Compiler
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import Device
from tunebench.tuner.errors import CompileTimeoutError
from tunebench.tuner.kernel import Kernel, Plan
from tunebench.tuner.problem import Problem
from tunebench.tuner.variant import Variant

_LOOK_SECONDS = 0.5  # how often a build that is waited for is looked at
_CLOSE_SECONDS = 5.0


def build_plan(
    kernel: Kernel, configuration: Configuration, problem: Problem, device: Device, compiler: Compiler
) -> Plan:
    """A configuration ready to run: its variant from the build cache, built now where it is not there, and loaded.

    Raises:
        CompileError: the source was refused.
        LaunchError: the device refused the binary.
    """
    build = BuildCache().build(compiler, kernel.variant(configuration, problem, device.architecture))
    return Plan(kernel, configuration, problem, device, compiler.load(build, device.index))


class Building:
    """A build under way.

    A compiler that hangs inside this process cannot be killed: at its deadline the thread is given up, another one
    takes its turn, and being a daemon it does not keep the process from ending.
    """

    def __init__(self, compiler: Compiler, cache: BuildCache, variant: Variant, turns: threading.Semaphore) -> None:
        self._compiler = compiler
        self._cache = cache
        self._variant = variant
        self._turns = turns
        self._future: Future[Build] = Future()
        self._began: float | None = None
        self._ending = threading.Lock()
        threading.Thread(target=self._run, name="compile", daemon=True).start()

    def result(self) -> Build:
        """The build, as soon as it is there.

        Raises:
            CompileError: the source was refused, or (CompileTimeoutError) the compiler hangs.
            CompilerMissingError: the compiler went away.
            DiskFullError: there is no room to compile.
        """
        while not wait([self._future], _LOOK_SECONDS).done:
            self._give_up_at_deadline()
        return self._future.result()

    def close(self) -> None:
        """Cancel a build that has not begun; wait a little for one that has, so that no compiler outlives the study."""
        if not self._future.cancel():
            wait([self._future], _CLOSE_SECONDS)

    def _run(self) -> None:
        self._turns.acquire()
        if self._future.set_running_or_notify_cancel():
            self._began = time.monotonic()
            try:
                build = self._cache.build(self._compiler, self._variant)
            except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
                self._end(partial(self._future.set_exception, error))
            else:
                self._end(partial(self._future.set_result, build))
        else:
            self._turns.release()

    def _end(self, conclude: Callable[[], None]) -> None:
        """Conclude once, whether the compiler has ended or was given up first, and let the next build begin."""
        with self._ending:
            if not self._future.done():
                conclude()
                self._turns.release()

    def _give_up_at_deadline(self) -> None:
        # The compiler's own deadline comes first where it has one; this one is for compilers inside this process.
        seconds = self._compiler.deadline_seconds
        if self._began is not None and time.monotonic() - self._began > seconds + _CLOSE_SECONDS:
            error = CompileTimeoutError(f"{self._variant.source.name}.cu was still compiling after {seconds:.0f} s", "")
            self._end(partial(self._future.set_exception, error))


class BuildQueue:
    """Builds variants on threads; configurations that share a variant share its build."""

    def __init__(self, compiler: Compiler, cache: BuildCache, workers: int) -> None:
        self._compiler = compiler
        self._cache = cache
        self._turns = threading.Semaphore(workers)
        self._builds: dict[str, Building] = {}

    def submit(self, kernel: Kernel, configuration: Configuration, problem: Problem, device: Device) -> Building:
        """The build of a configuration, begun now if it was not already."""
        variant = kernel.variant(configuration, problem, device.architecture)
        if variant.digest not in self._builds:
            self._builds[variant.digest] = Building(self._compiler, self._cache, variant, self._turns)
        return self._builds[variant.digest]

    def close(self) -> None:
        """Drop what has not begun."""
        for building in self._builds.values():
            building.close()
