"""Where configurations are built and evaluated, and how many of them at once."""

from __future__ import annotations

import abc
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import Protocol, TypeVar

from tunebench.tuner.build import Build
from tunebench.tuner.compile.building import BuildQueue
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device_lock import alone_on
from tunebench.tuner.errors import WorkerError
from tunebench.tuner.kernel import Kernel
from tunebench.tuner.result import TrialResult
from tunebench.tuner.study.evaluate import NOBODY, Leaders
from tunebench.tuner.study.worker import WorkerEvaluator

Answer = TypeVar("Answer")

_CLOSE_SECONDS = 10.0


def in_background(function: Callable[[], Answer], name: str) -> Future[Answer]:
    """Run a function in a thread for which nothing that ends waits; what it raises is raised where it is asked for."""
    future: Future[Answer] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - it is raised where the answer is asked for
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


class Building(Protocol):
    """A build under way."""

    def result(self) -> Build:
        """The build, as soon as it is there.

        Raises:
            CompileError: the source was refused.
            CompilerMissingError: the compiler went away.
        """


class Executor(abc.ABC):
    """Builds configurations and evaluates them, for one problem on devices of one model.

    A study asks no more of it than `slots` evaluations at once, and decides, records and tells everything itself.

    Attributes:
        device: the first one; the others are of its model.
        ahead: so many builds run at once, beside what is being evaluated.
        lost: what it can no longer evaluate with, and why.

    Args:
        evaluators: one for each slot. The first is ready; of several, each is asked by threads.
    """

    def __init__(self, evaluators: Sequence[WorkerEvaluator], ahead: int) -> None:
        self.problem, self.device = evaluators[0].problem, evaluators[0].device
        self.ahead = ahead
        self.lost: list[str] = []
        self._evaluators = list(evaluators)
        self._idle = deque(evaluators)
        self._alone = len(evaluators) == 1
        self._ends = False
        self._running: set[Future[TrialResult]] = set()

    @property
    def first(self) -> WorkerEvaluator:
        """The evaluator for what one device does while nothing else is evaluated."""
        return self._evaluators[0]

    @property
    def slots(self) -> int:
        """How many configurations it evaluates at once: fewer when a device is lost, none when it cannot go on."""
        return len(self._evaluators)

    @property
    def built(self) -> Sequence[float]:
        """Seconds of each build that has come of it on this machine, those from the cache included."""
        return ()

    @abc.abstractmethod
    def build(self, configuration: Configuration) -> Building:
        """The build of a configuration, begun now if it was not already."""

    def begin(self, configuration: Configuration, building: Building, leaders: Leaders = NOBODY) -> Future[TrialResult]:
        """Begin to evaluate a configuration as soon as it is built; a variant that fails is a result as well.

        One evaluator alone has evaluated it when this returns.

        Returns:
            A future that raises what `Building.result` and `WorkerEvaluator.evaluate` do. After a WorkerError, which
            says nothing of the configuration, there is one slot less.
        """
        future: Future[TrialResult] = Future()
        arguments = (future, self._idle.popleft(), configuration, building, leaders)
        if self._alone:
            self._evaluate(*arguments)
        else:
            self._running.add(future)
            threading.Thread(target=self._evaluate, args=arguments, name="evaluate", daemon=True).start()
        return future

    def run(self, function: Callable[..., Answer], *arguments: object) -> Answer:
        """Run a function on the machine of the first device, where nobody times anything; return its answer."""
        with alone_on(self.device, "tunebench tune", shared=True):
            return function(*arguments)

    def close(self) -> None:
        """Let go of the devices, whatever runs there."""
        self._ends = True
        evaluators = self._evaluators.copy()
        for evaluator in evaluators:
            evaluator.kill()
        wait(self._running.copy(), _CLOSE_SECONDS)
        for evaluator in evaluators:
            evaluator.close()

    def _evaluate(
        self,
        future: Future[TrialResult],
        evaluator: WorkerEvaluator,
        configuration: Configuration,
        building: Building,
        leaders: Leaders,
    ) -> None:
        started = time.perf_counter()
        try:
            build = building.result()
            waited = time.perf_counter() - started
            result = evaluator.evaluate(configuration, build, leaders)
        except Exception as error:  # noqa: BLE001 - it is raised where the result is asked for
            if isinstance(error, WorkerError):
                self._lose(evaluator, error)
            else:
                self._idle.append(evaluator)
            future.set_exception(error)
        else:
            self._idle.append(evaluator)
            future.set_result(replace(result, seconds={"wait": waited, **result.seconds}))
        self._running.discard(future)

    def _lose(self, evaluator: WorkerEvaluator, error: WorkerError) -> None:
        if self._ends:
            return
        self._evaluators.remove(evaluator)
        evaluator.close()
        self.lost.append(f"{evaluator.device.torch_device}: {error}")


class LocalExecutor(Executor):
    """Evaluators of this machine, and compilers on its threads.

    Args:
        evaluators: see `Executor`.
        queue: of its builds.
    """

    def __init__(self, kernel: Kernel, evaluators: Sequence[WorkerEvaluator], queue: BuildQueue) -> None:
        super().__init__(evaluators, queue.workers)
        self._kernel = kernel
        self._queue = queue

    def build(self, configuration: Configuration) -> Building:
        """See `Executor.build`."""
        return self._queue.submit(self._kernel, configuration, self.problem, self.device)

    @property
    def built(self) -> Sequence[float]:
        """See `Executor.built`."""
        return self._queue.seconds

    def close(self) -> None:
        """Let go of the devices, and drop builds that have not begun."""
        super().close()
        self._queue.close()
