"""Time batches of calls in sandboxes on the judge's clock, on inputs that the judge chooses."""

from __future__ import annotations

import contextlib
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tunebench.tuner.device import Device, DeviceKind, host_memory_bytes
from tunebench.tuner.gate.answers import Answers
from tunebench.tuner.gate.boundary.batched_calls import elements_at, scaled
from tunebench.tuner.gate.boundary.sandbox import RemoteCalls, RemoteModel, Sandbox, SandboxError
from tunebench.tuner.gate.case import Case
from tunebench.tuner.gate.exemptions import Exemptions
from tunebench.tuner.gate.faults import FAILURES, ReferenceRefusal
from tunebench.tuner.gate.judge import judge_structure, judge_values
from tunebench.tuner.gate.memory import SENTINELS, same_bits
from tunebench.tuner.gate.oracle import ask
from tunebench.tuner.gate.stage_log import StageLog, StageRefused
from tunebench.tuner.gate.values import Values
from tunebench.tuner.result import CacheRegime
from tunebench.tuner.timing.measure import Call, Clock
from tunebench.tuner.users_code import described

_BASES = 3
_SMALLEST_SCALE = 0.75  # none is above 1, so that what lies between 0 and 1 goes on to
_PLACES = 32
_BATCH_MS = 20.0  # of the fastest contender: a hundred times what a message takes
_LONGEST_BATCH_MS = 100.0
_MOST_CALLS = 4096
_SHARE_OF_MEMORY = 32
_PROBES = 3
_GROWTH = 8
_LEAST_MS = 1e-6
_JUDGED = 1 / 8
"""The share of batches whose outputs are judged, beside the first and the last: which ones nobody knows before."""

_APART = 1.25
"""A process whose own clock tells another time than the judge's, by this factor and in every batch, has changed its
clock, or does its work when nobody times it. In every batch, since on a busy machine both wait for each other."""


@dataclass(frozen=True)
class Batch:
    """The values that the calls of one batch are given, and what is looked at.

    Attributes:
        values: for each call the number of the base, and its scale.
        looked_at: the call whose output may be judged, beside the last one's, which is there to be waited for.
        places: of elements that have to be there when the batch has ended, as shares of all elements.
        judged: the output is judged as a whole.
    """

    values: tuple[tuple[int, float], ...]
    looked_at: int
    places: tuple[float, ...]
    judged: bool


class Batches:
    """All batches by number, drawn as they are asked for: contenders get the same ones.

    Args:
        count: calls of a batch.
        smallest: of the scales.
    """

    def __init__(self, count: int, smallest: float) -> None:
        self._random = random.SystemRandom()
        self._count = count
        self._smallest = smallest
        self._made: list[Batch] = []

    def __getitem__(self, number: int) -> Batch:
        """The batch of that number."""
        while len(self._made) <= number:
            self._made.append(self._draw())
        return self._made[number]

    def _draw(self) -> Batch:
        draw = self._random
        before = self._made[-1].values if self._made else ((0, 1.0),) * self._count
        # Never the base that stood in the same memory before.
        bases = [(base + draw.randrange(1, _BASES)) % _BASES for base, _ in before]
        return Batch(
            tuple((base, draw.uniform(self._smallest, 1.0)) for base in bases),
            draw.randrange(self._count),
            tuple(draw.random() for _ in range(_PLACES)),
            not self._made or draw.random() < _JUDGED,
        )


class Truths:
    """The reference's answers to the inputs of timed calls.

    Args:
        answers: of the reference, whose model is asked with the state of the beginning; where its answer does not stay
            the same from call to call, nothing is asked.
    """

    def __init__(self, answers: Answers) -> None:
        draw = random.SystemRandom()
        self.bases = [answers.source.inputs(draw.randrange(1 << 31)) for _ in range(_BASES)]
        self.steady = answers.oracle.steady
        self._model, self._accuracy = answers.original, answers.oracle.beside
        self._known: tuple[tuple[int, float], Case] | None = None

    def smallest_scale(self) -> float:
        """Return the smallest scale of the inputs: 1 where the reference refuses them scaled by less."""
        try:
            self.of((0, _SMALLEST_SCALE))
        except ReferenceRefusal:
            return 1.0
        return _SMALLEST_SCALE

    def of(self, values: tuple[int, float]) -> Case:
        """Return the reference's answer to a scaled base; the last is kept: contenders get the same inputs in turn."""
        if self._known is None or self._known[0] != values:
            base, scale = values
            self._model.reset(SENTINELS[0])
            inputs = scaled(self.bases[base], scale)
            self._known = values, ask(self._model, "a timed call", inputs, accuracy=self._accuracy)
        return self._known[1]


class TimedModel:
    """A contender's model in a sandbox, called batch by batch.

    Args:
        log: of the contender; a refusal is noted there.
        others: sandboxes that stand still while it is timed.
    """

    def __init__(
        self, model: RemoteModel, truths: Truths, exemptions: Exemptions, log: StageLog, others: Sequence[Sandbox] = ()
    ) -> None:
        self._model = model
        self._others = others
        self._truths = truths
        self._exemptions = exemptions
        self._log = log
        self._turns: RemoteCalls | None = None
        self._batches: Batches | None = None
        self._done = 0
        self._own_ms: list[float] = []
        self._walls_ms: list[float] = []
        self._last = 0
        self._seen: Mapping[str, torch.Tensor] = {}

    def probe(self, count: int) -> float:
        """Milliseconds of a batch of so many calls, roughly.

        Raises:
            StageRefused: it does not run.
        """
        with self._noted():
            turns = RemoteCalls(self._model, self._truths.bases, count)
            called, empty = [], []
            for number in range(_PROBES):
                turns.write([(number % _BASES, 1.0)] * count)
                empty.append(_wall(lambda: turns.empty([0], [0.5]))[0])
                called.append(_wall(lambda: turns.run([0], [0.5]))[0])
        return max(min(called) - min(empty), _LEAST_MS)

    def begin(self, batches: Batches, count: int) -> None:
        """Make room for batches of so many calls."""
        self._batches, self._last = batches, count - 1
        self._turns = RemoteCalls(self._model, self._truths.bases, count)

    def take(self) -> float:
        """Milliseconds of the next batch with its message.

        Raises:
            StageRefused: it does not run, or an output is wrong or was not there when the batch had ended.
        """
        assert self._turns is not None and self._batches is not None
        turns, batch = self._turns, self._batches[self._done]
        self._done += 1
        with self._noted():
            turns.write(batch.values)
            with contextlib.ExitStack() as still:
                for sandbox in self._others:
                    still.enter_context(sandbox.standing_still())
                wall_ms, told = _wall(lambda: turns.run([batch.looked_at, self._last], batch.places))
            self._seen = told.seen[0]
            self._own_ms.append(told.own_ms)
            self._walls_ms.append(wall_ms)
            if batch.judged:
                self._judge(turns, batch)
        return wall_ms

    def end(self, overhead_ms: float) -> None:
        """Judge the last batch, a call that comes after it, and the process's own clock.

        Args:
            overhead_ms: what a batch costs beside its calls.

        Raises:
            StageRefused: one of them is wrong.
        """
        assert self._turns is not None and self._batches is not None
        with self._noted():
            self._judge(self._turns, self._batches[self._done - 1])
        net = [max(wall - overhead_ms, _LEAST_MS) for wall in self._walls_ms]
        shares = [own / wall for own, wall in zip(self._own_ms, net, strict=True)]
        with self._log.stage("clock"):
            if max(shares) < 1 / _APART or min(shares) > _APART:
                raise StageRefused(
                    f"its process tells {statistics.median(shares):.3g} times the time that its batches take on the "
                    "judge's clock: a clock that is changed, or work that is done when nobody times it"
                )

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except (StageRefused, SandboxError, *FAILURES) as error:
            told = str(error) if isinstance(error, StageRefused | SandboxError) else described(error)
            with self._log.stage("after timing"):
                raise StageRefused(told, error.errors if isinstance(error, StageRefused) else None) from error

    def _judge(self, turns: RemoteCalls, batch: Batch) -> None:
        output = turns.output(batch.looked_at)
        self._require_seen(output, batch.places)
        if self._truths.steady:
            case = self._truths.of(batch.values[batch.looked_at])
            judge_structure(case, output, dense=self._exemptions.dense)
            judge_values(case, output, rewritten=self._exemptions.rewrites_algebra)

    def _require_seen(self, output: Values, places: Sequence[float]) -> None:
        for path, tensor in output.tensors.items():
            expected, seen = elements_at(tensor, places), self._seen.get(path)
            if seen is None or seen.dtype != expected.dtype or not same_bits(seen.contiguous(), expected.contiguous()):
                raise StageRefused("a timed call's output was not there yet when the batch had ended")


class JudgeClock(Clock):
    """The judge's own: wall time of a batch, less that of an empty one in the reference's process, by call.

    Inputs take turns, so that nothing of a call is in the caches unless all of a batch fits there.

    Args:
        empty: the reference's turns.
    """

    name = "judge"
    regime = CacheRegime.COLD
    settle_seconds = 0.2
    drift = 0.05

    def __init__(self, empty: RemoteCalls, count: int) -> None:
        self._empty = empty
        self._count = count
        self._overheads_ms: list[float] = []

    @property
    def overhead_ms(self) -> float:
        """Milliseconds that a batch takes without its calls: the median so far."""
        return statistics.median(self._overheads_ms)

    def sample(self, calls: Sequence[Call]) -> list[float]:
        """One batch of each contender's, and an empty one.

        Args:
            calls: `TimedModel.take` of contenders.
        """
        looked_at = [0, self._count - 1]
        self._overheads_ms.append(_wall(lambda: self._empty.empty(looked_at, [0.5] * _PLACES))[0])
        walls = [call() for call in calls]
        return [max(float(wall) - self.overhead_ms, _LEAST_MS) / self._count for wall in walls]  # type: ignore[arg-type]


def calls_of_a_batch(models: Sequence[TimedModel], bytes_of_inputs: int, device: Device) -> int:
    """Return the number of calls that take the fastest model `_BATCH_MS`; the slowest model and memory limit it.

    Raises:
        StageRefused: a model does not run.
    """
    fits = _memory_of(device) // _SHARE_OF_MEMORY // max(bytes_of_inputs, 1)
    most = max(1, min(fits, _MOST_CALLS))
    count = 1
    while True:
        batches_ms = [model.probe(count) for model in models]
        fast, slow = min(batches_ms) / count, max(batches_ms) / count
        if count == most or fast * count >= _BATCH_MS / _GROWTH or slow * count >= _LONGEST_BATCH_MS / _GROWTH:
            return max(1, math.ceil(min(_BATCH_MS / fast, _LONGEST_BATCH_MS / slow, most)))
        count = min(count * _GROWTH, most)


def _memory_of(device: Device) -> int:
    if device.kind is DeviceKind.CUDA:
        return int(torch.cuda.get_device_properties(device.torch_device).total_memory)
    return host_memory_bytes()


def _wall(action: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds on this process's clock, and what the action returned."""
    started = time.perf_counter()
    value = action()
    return (time.perf_counter() - started) * 1e3, value
