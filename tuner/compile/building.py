"""Builds: of one configuration, in the background of a program, and ahead of the device in a study."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from tunebench.tuner.build import Build, CompilerName
from tunebench.tuner.compile.base import Compiler
from tunebench.tuner.compile.bundle import find_bundled
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.cores import kept_to
from tunebench.tuner.device import Device
from tunebench.tuner.errors import CompileTimeoutError
from tunebench.tuner.kernel import Kernel, Plan
from tunebench.tuner.problem import Problem
from tunebench.tuner.variant import Variant

MOST_BUILDS = 16
"""Upper limit of concurrent builds of one study."""
_LOOK_SECONDS = 0.5  # how often a build that is waited for is looked at
_CLOSE_SECONDS = 5.0


_MOST_AT_ONCE = max(1, min(4, (os.cpu_count() or 1) // 2))
"""Limit of concurrent builds in the background: the program has work of its own."""

_shared: dict[tuple[CompilerName, str], Future[Build]] = {}
_sharing = threading.Lock()
_turns = threading.Semaphore(_MOST_AT_ONCE)


def build_plan(
    kernel: Kernel, configuration: Configuration, problem: Problem, device: Device, compiler: Compiler
) -> Plan:
    """Return a plan ready to run: its variant from the build cache, built now where it is missing, and loaded.

    Raises:
        CompileError: the source was refused.
        LaunchError: the device refused the binary.
    """
    build = BuildCache().build(compiler, kernel.variant(configuration, problem, device.architecture))
    return Plan(kernel, configuration, problem, device, compiler.load(build, device.index))


def known_build(compiler: Compiler, variant: Variant) -> Future[Build] | None:
    """Return the build of a variant, where it is in a bundle, in the build cache or under way in this process.

    Raises:
        CompilerMissingError: it is in no bundle, and the compiler is not on this machine.
    """
    compiler = compiler.of(variant)
    if (under_way := _shared.get((compiler.name, variant.digest))) is not None:
        return under_way
    found = find_bundled(compiler.name, variant) or BuildCache().find(compiler, variant)
    if found is None:
        return None
    build: Future[Build] = Future()
    build.set_result(found)
    return build


def shared_build(compiler: Compiler, variant: Variant, *, wait: bool) -> Future[Build]:
    """Return the build of a variant, made once in this process however often it is requested; so is a refusal.

    Args:
        wait: build now, in this thread, if nobody else does; else it is built in the background by a thread that
            neither holds up nor outlives the process.
    """
    compiler = compiler.of(variant)
    key = (compiler.name, variant.digest)
    with _sharing:
        if key in _shared:
            return _shared[key]
        build = _shared[key] = Future()
    if wait:
        _build_shared(key, build, compiler, variant, nullcontext())
    else:
        arguments = (key, build, compiler.apart(), variant, _turns)
        threading.Thread(target=_build_shared, args=arguments, name="compile", daemon=True).start()
    return build


def _build_shared(
    key: tuple[CompilerName, str],
    build: Future[Build],
    compiler: Compiler,
    variant: Variant,
    turns: AbstractContextManager[object],
) -> None:
    try:
        with turns:
            build.set_result(BuildCache().build(compiler, variant))
    except Exception as error:  # noqa: BLE001 - it is raised where the result is asked for
        build.set_exception(error)
    except BaseException as error:
        forget_shared_builds(key)
        build.set_exception(error)
        raise


def forget_shared_builds(*keys: tuple[CompilerName, str]) -> None:
    """Forget these builds, or all: they are looked for, and built, again."""
    with _sharing:
        for key in keys or tuple(_shared):
            _shared.pop(key, None)


def _begin_in_fork() -> None:
    """Start with no pending builds and new locks after a fork: no thread is left there to finish or release the old."""
    global _sharing, _turns
    _sharing, _turns = threading.Lock(), threading.Semaphore(_MOST_AT_ONCE)
    _shared.clear()


os.register_at_fork(after_in_child=_begin_in_fork)


class Building:
    """A build under way.

    A compiler that hangs inside this process cannot be killed: at its deadline the thread is given up, another one
    takes its turn, and being a daemon it does not keep the process from ending.

    Attributes:
        seconds: that it took; 0 while it is under way, and of one that failed.
    """

    def __init__(
        self,
        compiler: Compiler,
        cache: BuildCache,
        variant: Variant,
        turns: threading.Semaphore,
        cores: Collection[int] = (),
    ) -> None:
        self._compiler = compiler.of(variant)
        self._cache = cache
        self._variant = variant
        self._turns = turns
        self._cores = cores
        self._future: Future[Build] = Future()
        self._began: float | None = None
        self.seconds = 0.0
        self._ending = threading.Lock()
        threading.Thread(target=self._run, name="compile", daemon=True).start()

    def result(self) -> Build:
        """Return the build, as soon as it is there.

        Raises:
            CompileError: the source was refused, or (CompileTimeoutError) the compiler hangs.
            CompilerMissingError: the compiler went away.
            DiskFullError: there is no room to compile.
        """
        while not wait([self._future], _LOOK_SECONDS).done:
            self._give_up_at_deadline()
        return self._future.result()

    def close(self) -> None:
        """Cancel a build that has not begun; wait a little for one that has, where it would outlive the study."""
        if not self._future.cancel() and not self._compiler.is_apart:
            wait([self._future], _CLOSE_SECONDS)

    def _run(self) -> None:
        self._turns.acquire()
        if self._future.set_running_or_notify_cancel():
            self._began = time.monotonic()
            try:
                with kept_to(self._cores):
                    build = self._cache.build(self._compiler, self._variant)
            except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
                self._end(partial(self._future.set_exception, error))
            else:
                self.seconds = time.monotonic() - self._began
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
            error = CompileTimeoutError(f"{self._variant.source.file} was still compiling after {seconds:.0f} s", "")
            self._end(partial(self._future.set_exception, error))


class BuildQueue:
    """A queue that builds variants on threads; configurations that share a variant share its build.

    Args:
        cache: of builds; the user's own unless given.
        driving: cores that compilers keep off, see `driving_cores`.
        share: of the other cores, how much its compilers may use at once: other studies have theirs.
        workers: so many builds run at once; as many as that share has cores unless given.
        apart: all builds but the first are made apart, where the compiler can: nobody waits for them in the end.
    """

    def __init__(
        self,
        compiler: Compiler,
        cache: BuildCache | None = None,
        driving: Collection[int] = (),
        share: float = 1.0,
        *,
        workers: int | None = None,
        apart: bool = False,
    ) -> None:
        cores = os.sched_getaffinity(0) - set(driving)
        self.workers = workers or max(1, min(MOST_BUILDS, int(len(cores) * share)))
        self._cores = cores if driving else ()
        self._compiler = compiler
        self._later = compiler.apart() if apart else compiler
        self._cache = cache or BuildCache()
        self._turns = threading.Semaphore(self.workers)
        self._builds: dict[str, Building] = {}

    def submit(self, kernel: Kernel, configuration: Configuration, problem: Problem, device: Device) -> Building:
        """Return the build of a configuration, begun now if it was not already."""
        variant = kernel.variant(configuration, problem, device.architecture)
        if variant.digest not in self._builds:
            compiler = self._later if self._builds else self._compiler
            self._builds[variant.digest] = Building(compiler, self._cache, variant, self._turns, self._cores)
        return self._builds[variant.digest]

    @property
    def seconds(self) -> Sequence[float]:
        """The seconds that each finished build took, those from the cache included."""
        return [building.seconds for building in self._builds.values() if building.seconds]

    def close(self) -> None:
        """Drop what has not begun."""
        for building in reversed(self._builds.values()):  # which would begin while an earlier one is waited for
            building.close()
