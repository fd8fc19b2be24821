"""Evaluation in a process of its own, which a variant may crash or hang without harm to the study.

One worker process serves one study. The parent sends it one variant at a time and waits with a deadline, so that a
death is always charged to the right variant. A worker that dies or hangs is killed and replaced; the replacement
prepares everything anew, which is also the check that the device still works. Pools, deadlines and kills are pebble's.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pebble import ProcessExpired, ProcessPool

from tunebench.tuner.build import Build
from tunebench.tuner.device import Device
from tunebench.tuner.disk import full_disk_named
from tunebench.tuner.errors import DeviceLostError, WorkerError
from tunebench.tuner.isolation import context
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import Comparison, Stage, TrialResult, TrialStatus
from tunebench.tuner.space import Configuration
from tunebench.tuner.study.evaluate import Finalist, LocalEvaluator
from tunebench.tuner.study.history import PastTrial

Factory = Callable[[], LocalEvaluator]
"""Makes the evaluator inside the worker; it is pickled, so a `functools.partial` of a module's function."""

Answer = TypeVar("Answer")

PREPARE_SECONDS = 600.0
"""To load the kernel, run the reference in float64 and warm the device up."""

EVALUATE_SECONDS = 60.0
"""To check and time one variant, beside `REFERENCE_CALLS` times what the reference takes."""

REFERENCE_CALLS = 200.0

MOST_DEATHS_IN_A_ROW = 3
"""So many different variants in a row that kill their worker mean that the fault is not the variants'."""

_DEVICE_LOST = 97

_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)
"""Signals that a variant does not cause itself: an operator's, or the system's when memory runs out."""


class DeathError(Exception):
    """The worker is gone."""


class HungError(DeathError):
    """It was killed at its deadline."""


class DiedError(DeathError):
    """It died by itself, or was killed from outside.

    Attributes:
        from_outside: by a signal that what it ran did not cause, as far as one can tell.
    """

    def __init__(self, message: str, *, from_outside: bool = False) -> None:
        super().__init__(message)
        self.from_outside = from_outside


class Worker:
    """One process that is asked one thing at a time; after a death the next question goes to a new one."""

    def __init__(self) -> None:
        with full_disk_named(Path(tempfile.gettempdir())):
            self._note = Path(tempfile.mkdtemp(prefix="tunebench-")) / "note"
        self._pool = ProcessPool(1, context=context(), initializer=_begin, initargs=[str(self._note)])

    def ask(self, seconds: float, function: Callable[..., Answer], *arguments: object) -> Answer:
        """What the function returns or raises there; both travel by pickle.

        Raises:
            HungError: there was no answer within the seconds.
            DiedError: the worker died.
        """
        self._note.unlink(missing_ok=True)
        future = self._pool.schedule(function, args=list(arguments), timeout=seconds)
        try:
            return future.result()
        except FutureTimeoutError:
            raise HungError(f"no answer within {seconds:.0f} s") from None
        except ProcessExpired as expired:
            code = expired.exitcode
            raise DiedError(self._cause(code), from_outside=-code in _FROM_OUTSIDE) from None

    def close(self) -> None:
        """Kill it, whatever it does."""
        self._pool.stop()  # type: ignore[no-untyped-call]
        self._pool.join()
        self._note.unlink(missing_ok=True)
        self._note.parent.rmdir()

    def _cause(self, code: int) -> str:
        if self._note.exists():
            return self._note.read_text(encoding="utf-8")
        if code < 0:
            return f"the worker was killed by {signal.Signals(-code).name}"
        return f"the worker ended with exit code {code}"


class WorkerEvaluator:
    """Evaluates in a worker process; the same questions and answers as `LocalEvaluator`.

    Args:
        factory: makes the evaluator in the worker.

    Raises:
        UserError: the factory refused, as it would have here.
        WorkerError: the worker died while it prepared.
    """

    def __init__(self, factory: Factory) -> None:
        self._factory = factory
        self._worker = Worker()
        self._ready = False
        self._deaths = 0
        self._restart_seconds = 0.0  # of the variant at hand
        self._seconds = EVALUATE_SECONDS
        try:
            self.problem, self.device = self._prepare()
        except BaseException:
            self.close()
            raise

    def evaluate(
        self,
        configuration: Configuration,
        build: Build,
        incumbent: PastTrial | None = None,
        finalist_ms: float | None = None,
    ) -> TrialResult:
        """One variant's result, whatever it does to its worker.

        Raises:
            WorkerError: three variants in a row have killed their worker, or a new worker does not come up.
        """
        self._restart_seconds = 0.0
        result = self._charged(configuration, build, incumbent, finalist_ms)
        if self._restart_seconds:
            result = replace(result, seconds={"restart": self._restart_seconds, **result.seconds})
        return result

    def _charged(
        self, configuration: Configuration, build: Build, incumbent: PastTrial | None, finalist_ms: float | None
    ) -> TrialResult:
        """The result; a death of the worker is the variant's."""
        try:
            result = self._evaluate(configuration, build, incumbent, finalist_ms)
        except HungError:
            message = f"still running after {self._seconds:.0f} s: killed"
            return self._charge(configuration, build, TrialStatus.TIMEOUT, message)
        except DiedError as death:
            return self._charge(configuration, build, TrialStatus.RUNTIME, str(death))
        self._deaths = 0
        return result

    def _evaluate(
        self, configuration: Configuration, build: Build, incumbent: PastTrial | None, finalist_ms: float | None
    ) -> TrialResult:
        """A worker killed from outside says nothing of its variant, which is tried once more and no third time."""
        self._require_worker()
        try:
            return self._worker.ask(self._seconds, _evaluate, configuration, build, incumbent, finalist_ms)
        except DiedError as death:
            self._ready = False
            if not death.from_outside:
                raise
        self._require_worker()
        return self._worker.ask(self._seconds, _evaluate, configuration, build, incumbent, finalist_ms)

    def sanitize(self, finalists: Sequence[Finalist]) -> list[Stage]:
        """See `LocalEvaluator.sanitize`.

        Raises:
            WorkerError: the worker died or hung.
        """
        self._require_worker()
        try:
            return self._worker.ask(PREPARE_SECONDS, _sanitize, list(finalists))
        except DeathError as death:
            raise WorkerError(f"compute-sanitizer on the finalists failed: {death}") from death

    def compare(self, finalists: Sequence[Finalist], default: Finalist | None) -> Comparison:
        """See `LocalEvaluator.compare`.

        Raises:
            WorkerError: the worker died or hung.
        """
        self._require_worker()
        try:
            return self._worker.ask(PREPARE_SECONDS, _compare, list(finalists), default)
        except DeathError as death:
            raise WorkerError(f"the final comparison failed: {death}; the same command tries it again") from death

    def close(self) -> None:
        """Kill the worker, whatever it does."""
        self._worker.close()

    def _charge(self, configuration: Configuration, build: Build, status: TrialStatus, message: str) -> TrialResult:
        self._ready = False
        self._deaths += 1
        return TrialResult(configuration, status, build, message=message)

    def _require_worker(self) -> None:
        if self._deaths >= MOST_DEATHS_IN_A_ROW:
            raise WorkerError(
                f"stopped: {self._deaths} variants in a row killed their worker, so the fault is likely not theirs; "
                "what was done is recorded, and 'tunebench trials --status runtime' shows how they died"
            )
        if not self._ready:
            started = time.perf_counter()
            self._prepare()
            self._restart_seconds += time.perf_counter() - started

    def _prepare(self) -> tuple[Problem, Device]:
        try:
            problem, device, reference_seconds = self._worker.ask(PREPARE_SECONDS, _prepare, self._factory)
        except DeathError as death:
            raise WorkerError(f"the worker did not come up: {death}") from death
        self._ready = True
        self._seconds = EVALUATE_SECONDS + REFERENCE_CALLS * reference_seconds
        return problem, device


# What follows runs in the worker.

_evaluator: LocalEvaluator | None = None
_note: Path | None = None


def _begin(note: str) -> None:
    global _note  # noqa: PLW0603 - a worker process has one evaluator and one note
    _note = Path(note)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    """A worker whose parent was killed must not keep the device."""
    parent.join()
    os._exit(1)


def _prepare(factory: Factory) -> tuple[Problem, Device, float]:
    global _evaluator  # noqa: PLW0603
    _evaluator = factory()
    return _evaluator.problem, _evaluator.device, _evaluator.reference_seconds()


def _evaluate(
    configuration: Configuration, build: Build, incumbent: PastTrial | None, finalist_ms: float | None
) -> TrialResult:
    assert _evaluator is not None
    try:
        return _evaluator.evaluate(configuration, build, incumbent, finalist_ms)
    except DeviceLostError as error:
        # The device is lost to this process only: leave the reason behind and make room for the next one.
        assert _note is not None
        _note.write_text(str(error), encoding="utf-8")
        os._exit(_DEVICE_LOST)


def _sanitize(finalists: Sequence[Finalist]) -> list[Stage]:
    assert _evaluator is not None
    return _evaluator.sanitize(finalists)


def _compare(finalists: Sequence[Finalist], default: Finalist | None) -> Comparison:
    assert _evaluator is not None
    return _evaluator.compare(finalists, default)
