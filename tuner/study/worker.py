"""Evaluation in a process of its own, which a variant may crash or hang without harm to the study.

A worker process serves one study on one device. The parent sends it one variant at a time and waits with a deadline, so
that a death is always charged to the right variant. A worker that dies or hangs is killed and replaced; the replacement
prepares everything anew, which is also the check that the device still works.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

from tunebench.tuner.build import Build
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import Device
from tunebench.tuner.device_lock import DeviceLock, say_on_stderr
from tunebench.tuner.environment import Environment
from tunebench.tuner.errors import DeviceLostError, OutOfTimeError, TunebenchError, WorkerError
from tunebench.tuner.isolation import (
    DeathError,
    DiedError,
    HungError,
    IsolatedProcess,
    Listen,
    LostError,
    asked_again_if_killed,
    leave,
    report,
)
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import Comparison, Stage, TrialResult, TrialStatus
from tunebench.tuner.study.account import Activity
from tunebench.tuner.study.evaluate import NOBODY, Finalist, Leaders, LocalEvaluator
from tunebench.tuner.study.subject import Foreseen
from tunebench.tuner.timing.confirm import most_seconds
from tunebench.tuner.watched import load_seconds

Factory = Callable[[], LocalEvaluator]
"""Makes the evaluator inside the worker; it is pickled, so a `functools.partial` of a module's function."""

Answer = TypeVar("Answer")

Describe = Callable[[Device], Environment]
"""Describes what results on a device are obtained with; it is pickled as well."""

Foresee = Callable[[Problem, Device], None]

_Prepared = tuple[Problem, Device, float, Mapping[Activity, float], Environment | None]
"""The problem, the device, seconds of a call of the reference, seconds of what getting ready took, by activity, and
what results are obtained with."""

PREPARE_SECONDS = 600.0
"""To load the kernel, run the reference in float64 and warm the device up; to answer once it has `load_seconds()`."""

EVALUATE_SECONDS = 60.0
"""To check and time one variant, beside `REFERENCE_CALLS` times what the reference takes."""

REFERENCE_CALLS = 200.0

_LATE_SECONDS = 0.5
"""A worker has so long to end what it has started when its time is over, before it is ended itself."""

_LONGEST_WAIT_SECONDS = 7 * 86400.0
"""For a device that others work on."""

MOST_DEATHS_IN_A_ROW = 3
"""Number of different variants in a row that kill their worker, at which the fault is taken not to be theirs."""


class Workers:
    """Workers of studies that run in threads, for another thread to end."""

    def __init__(self) -> None:
        self._there: list[WorkerEvaluator] = []
        self._ended = False

    def add(self, worker: WorkerEvaluator) -> None:
        """One more, before it begins.

        Raises:
            WorkerError: they have been ended.
        """
        self._there.append(worker)
        if self._ended:
            raise WorkerError("the study has ended")

    def end(self) -> None:
        """End whatever threads wait for, with a `WorkerError`."""
        self._ended = True
        for worker in self._there.copy():
            worker.kill()


class WorkerEvaluator:
    """Evaluates in a worker process; the same questions and answers as `LocalEvaluator`.

    Args:
        factory: makes the evaluator in the worker.
        environment: describes there what its results are obtained with; None for what the study's log was opened under.
        device_lock: the name of a device that only one process works on at a time; None where it is shared.
        known: the problem and the device. The worker then comes up when it is first asked, in the thread that asks.
        among: which it is one of from the beginning.
        process: the worker, wherever it is; one of this machine unless given.
        foresee: is told the problem and the device, where the worker has them before it is ready.

    Raises:
        UserError: the factory refused, as it would have here.
        WorkerError: the worker died while it prepared.
    """

    def __init__(
        self,
        factory: Factory,
        environment: Describe | None = None,
        device_lock: str | None = None,
        known: tuple[Problem, Device] | None = None,
        among: Workers | None = None,
        process: IsolatedProcess | None = None,
        foresee: Foresee | None = None,
    ) -> None:
        self._foresee = foresee
        self._factory = factory
        self._lock = device_lock
        self._describe = environment
        self._environment: Environment | None = None
        self.process = process or IsolatedProcess()
        self._starting = threading.Lock()
        self._deaths = 0
        self._restart_seconds = 0.0  # of the variant at hand
        self._seconds = EVALUATE_SECONDS
        self.prepared: Mapping[Activity, float] = {}
        if among is not None:
            among.add(self)
        if known is not None:
            self.problem, self.device = known
            return
        try:
            self.problem, self.device = self._prepare()
        except BaseException:
            self.close()
            raise

    def come_up(self) -> None:
        """Begin to start the worker now, so that the first variant does not wait for all of it."""
        threading.Thread(target=self._come_up, name="come up", daemon=True).start()

    def evaluate(self, configuration: Configuration, build: Build, leaders: Leaders = NOBODY) -> TrialResult:
        """One variant's result, whatever it does to its worker.

        Raises:
            OutOfTimeError: it was not over when the study's time was.
            WorkerError: three variants in a row have killed their worker, or a new worker does not come up.
        """
        self._restart_seconds = 0.0
        result = self._charged(configuration, build, leaders)
        if self._restart_seconds:
            result = replace(result, seconds={"restart": self._restart_seconds, **result.seconds})
        return replace(result, build=build, environment=self._environment)

    def _charged(self, configuration: Configuration, build: Build, leaders: Leaders) -> TrialResult:
        """The result; a death of the worker is the variant's."""
        is_short = leaders.seconds is not None and leaders.seconds < self._seconds
        try:
            result = self._ask(
                leaders.seconds if is_short else None, LocalEvaluator.evaluate, configuration, build, leaders
            )
        except HungError as hung:
            if is_short:
                raise OutOfTimeError(f"the study's time was over before this variant was: {configuration}") from hung
            return self._charge(configuration, build, TrialStatus.TIMEOUT, str(hung))
        except LostError:
            raise
        except DiedError as death:
            return self._charge(configuration, build, TrialStatus.RUNTIME, str(death))
        self._deaths = 0
        return result

    def _ask(
        self, seconds: float | None, method: Callable[..., Answer], *arguments: object, shared: bool = False
    ) -> Answer:
        """Ask the evaluator of a worker that is prepared; once more where it was killed from outside.

        Args:
            seconds: None for a variant's deadline.
            shared: it times nothing, see `DeviceLock.take`.

        Raises:
            WorkerError: see `evaluate`.
            DeathError: the worker died or hung.
        """

        def question() -> Answer:
            self._require_worker()
            limit = self._seconds if seconds is None else seconds
            answer: Answer = self._alone(limit, _answer, method.__name__, *arguments, shared=shared)
            return answer

        return asked_again_if_killed(question)

    def _alone(
        self,
        seconds: float,
        function: Callable[..., Answer],
        *arguments: object,
        first: float | None = None,
        shared: bool = False,
        listen: Listen = lambda _: None,
    ) -> Answer:
        """Ask the worker once it has the device for itself; only then its time begins."""
        if self._lock is not None:
            self.process.ask(_LONGEST_WAIT_SECONDS, _take_device, self._lock, shared, listen=say_on_stderr)
        return self.process.ask(seconds, function, *arguments, first=first, listen=listen)

    def prove(self, finalist: Finalist) -> Stage | None:
        """See `LocalEvaluator.prove`; that the worker dies refuses it, too.

        Raises:
            WorkerError: a new worker does not come up.
        """
        try:
            return self._ask(None, LocalEvaluator.prove, finalist, shared=True)
        except LostError:
            raise
        except DeathError as death:
            return Stage("process", False, 0.0, str(death))

    def sanitize(self, finalist: Finalist, seconds: float = math.inf) -> Stage:
        """See `LocalEvaluator.sanitize`.

        Raises:
            OutOfTimeError: see there.
            WorkerError: the worker died or hung.
        """
        try:
            most = min(PREPARE_SECONDS, seconds + _LATE_SECONDS)
            return self._ask(most, LocalEvaluator.sanitize, finalist, seconds, shared=True)
        except DeathError as death:
            if isinstance(death, HungError) and most < PREPARE_SECONDS:
                raise OutOfTimeError("compute-sanitizer on the winner was not over in time") from death
            raise WorkerError(f"compute-sanitizer on the winner failed: {death}") from death

    def compile(self, seconds: float = PREPARE_SECONDS) -> str:
        """See `LocalEvaluator.compile`."""
        try:
            return self._ask(seconds, LocalEvaluator.compile)
        except DeathError as death:
            return f"torch.compile: {death}"

    def compare(
        self,
        finalists: Sequence[Finalist],
        default: Finalist | None,
        leader: Configuration,
        seconds: float | None = None,
    ) -> Comparison:
        """See `LocalEvaluator.compare`.

        Raises:
            WorkerError: the worker died or hung.
        """
        try:
            most = PREPARE_SECONDS + most_seconds()
            comparison = self._ask(most, LocalEvaluator.compare, list(finalists), default, leader, seconds)
            return replace(comparison, environment=self._environment)
        except DeathError as death:
            raise WorkerError(f"the final comparison failed: {death}; the same command tries it again") from death

    def kill(self) -> None:
        """End whatever another thread waits for here, with a `WorkerError`; nothing can be asked any more."""
        self.process.kill()

    def close(self) -> None:
        """Kill the worker, whatever it does."""
        self.kill()
        with self._starting:  # it may come up in another thread
            self.process.close()

    def _charge(self, configuration: Configuration, build: Build, status: TrialStatus, message: str) -> TrialResult:
        self._deaths += 1
        return TrialResult(configuration, status, build, message=message)

    def _require_worker(self) -> None:
        if self._deaths >= MOST_DEATHS_IN_A_ROW:
            raise WorkerError(
                f"stopped: {self._deaths} variants in a row killed their worker, so the fault is likely not theirs; "
                "what was done is recorded, and 'tunebench trials --status runtime' shows how they died"
            )
        if self._starting.locked() or not self.process.alive:
            started = time.perf_counter()
            self._bring_up()
            self._restart_seconds += time.perf_counter() - started

    def _come_up(self) -> None:
        with suppress(TunebenchError):  # whoever asks for a variant then is told
            self._bring_up()

    def _bring_up(self) -> None:
        with self._starting:
            if not self.process.alive:
                self._prepare()

    def _prepare(self) -> tuple[Problem, Device]:
        try:
            problem, device, seconds, self.prepared, self._environment = asked_again_if_killed(self._start)
        except DeathError as death:
            raise WorkerError(f"the worker did not come up: {death}") from death
        self._seconds = EVALUATE_SECONDS + REFERENCE_CALLS * seconds
        return problem, device

    def _start(self) -> _Prepared:
        self.process.start()

        def listen(content: object) -> None:
            if self._foresee is not None and isinstance(content, Foreseen):
                self._foresee(content.problem, content.device)

        arguments = (self._factory, self._describe)
        return self._alone(PREPARE_SECONDS, _prepare, *arguments, first=load_seconds(), listen=listen)


# What follows runs in the worker.

_evaluator: LocalEvaluator | None = None
_device_lock: DeviceLock | None = None


def _take_device(name: str, shared: bool) -> None:
    """Take the device for the next question; with its answer it is let go of, as it is when this process ends."""
    global _device_lock  # noqa: PLW0603 - a worker process has one device
    _device_lock = DeviceLock(name, "tunebench tune")
    _device_lock.take(report, shared=shared)


@contextmanager
def _device_let_go_of() -> Iterator[None]:
    try:
        yield
    finally:
        if _device_lock is not None:
            _device_lock.release()


@_device_let_go_of()
def _prepare(factory: Factory, describe: Describe | None) -> _Prepared:
    global _evaluator  # noqa: PLW0603 - a worker process has one evaluator
    _evaluator = made = factory()
    environment = None if describe is None else describe(made.device)
    return made.problem, made.device, made.reference_seconds(), made.prepared, environment


@_device_let_go_of()
def _answer(method: str, *arguments: object) -> Any:
    """Return what a method of the evaluator answers; a result without its build, which whoever asks has."""
    try:
        answer = getattr(_evaluator, method)(*arguments)
        return replace(answer, build=None) if isinstance(answer, TrialResult) else answer
    except DeviceLostError as error:
        leave(str(error))  # the device is lost to this process only: it makes room for the next one
