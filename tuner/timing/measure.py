"""The timing protocol of one call: how samples are taken, when there are enough, and whether the device was steady.

On CUDA the caches are cold and clean: a call whose tensors are smaller than five times the L2 cache is preceded by a
read of twice that cache, queued before the start event without a synchronisation in between. (A write would leave the
cache full of lines that the timed call has to write back.) On the CPU the caches are warm.
`confirm.py` compares several calls.
"""

from __future__ import annotations

import abc
import math
import statistics
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from tunebench.tuner.device import Device, DeviceKind
from tunebench.tuner.errors import CaptureError
from tunebench.tuner.problem import Work
from tunebench.tuner.result import CacheRegime, Conditions, Measurement
from tunebench.tuner.timing.capture import capture
from tunebench.tuner.timing.conditions import read_conditions
from tunebench.tuner.timing.statistics import median_interval, samples_needed

Call = Callable[[], object]

PROBES = 3
"""Samples that decide whether a variant is worth timing at all."""

HOPELESS = 1.5
"""A variant whose best probe is this many times the incumbent's median is not timed further."""

PRECISION = 0.01
"""Sampling stops when the 95 % interval of the median is within ± this share of it."""

MAX_SAMPLES = 60
MAX_SECONDS = 2.0
"""Limits of sampling one configuration, whichever comes first: number of samples, and seconds."""

SHORT_WORK = Work(bytes=64 << 20, operations=2_000_000_000)
"""Work so small that on a GPU the gaps between a forward's launches are a visible part of its time. Stated as work and
not as a time, so that every study of a problem is timed alike."""

AGREEMENT = 0.005
"""The device is in a steady state when three medians in a row of the control call agree within this share."""

MOST_REPEATS = 2
"""A measurement during which the device changed its state is taken again so often at most."""

_CONTROL_SAMPLES = 9
_BATCH = 6
_SHORTEST_CPU_SAMPLE_MS = 0.2  # shorter calls are repeated inside a sample: the clock and the call cost a microsecond
_LONGEST_CPU_WARMING_MS = 5.0  # a longer call warms itself
_FLUSH_UNLESS = 5  # footprints beyond this many times the L2 leave nothing of the last call in it
_FLUSH_READS = 2
_LEAD_FACTOR = 2.0  # the device waits twice as long as the host is expected to take for queueing


class Clock(abc.ABC):
    """A clock that takes samples of calls' times on one kind of device."""

    name: str
    regime: CacheRegime
    settle_seconds: float
    """The longest wait for a steady state, in seconds."""
    drift: float
    """The share by which the control call may be off before the state counts as another one."""

    @abc.abstractmethod
    def sample(self, calls: Sequence[Call]) -> list[float]:
        """Time the calls one after another, each by itself, in milliseconds."""

    def warm_up(self, call: Call) -> None:
        """Run a call until one-off costs are paid: allocation, first touch, lazy loading."""
        self.sample([call] * 2)


class CudaClock(Clock):
    """CUDA events around each call, caches cold.

    The device is kept busy until the host has queued every call, so that what the host does between a start event and
    its kernel is not part of the sample. A call that waits for the device ends that early, and what is queued after it
    would be timed with the host's own work: from then on each call is queued by itself.
    """

    name = "cuda-event"
    regime = CacheRegime.COLD
    settle_seconds = 5.0
    drift = 0.015

    _CYCLES_PER_SECOND = 2.0e9  # near enough to the clock of any recent GPU
    _LONGEST_LEAD_SECONDS = 0.1

    def __init__(self, device: Device, footprint_bytes: int) -> None:
        self._device = device.torch_device
        small = footprint_bytes < _FLUSH_UNLESS * device.l2_bytes
        size = _FLUSH_READS * device.l2_bytes if small else 0
        self._flush = torch.zeros(size // 4, dtype=torch.float32, device=self._device)
        self._flushed = torch.empty((), dtype=torch.float32, device=self._device)
        self._host_seconds = 1e-4  # what the host took for a call the last time
        self._apart = False  # a call has waited for the device

    def sample(self, calls: Sequence[Call]) -> list[float]:
        """Queue all calls behind a wait, then let them run; once more where the wait turns out to have been short."""
        if self._apart and len(calls) > 1:
            return [self.sample([call])[0] for call in calls]
        samples, in_time = self._queued(calls)
        if not in_time:
            samples, in_time = self._queued(calls)
        if not in_time and len(calls) > 1:
            self._apart = True
            return self.sample(calls)
        return samples

    def _queued(self, calls: Sequence[Call]) -> tuple[list[float], bool]:
        """Return samples, and whether the last call was queued before the device began with the first."""
        lead_seconds = min(_LEAD_FACTOR * self._host_seconds * len(calls), self._LONGEST_LEAD_SECONDS)
        with torch.cuda.device(self._device):
            pairs = [(_event(), _event()) for _ in calls]
            torch.cuda._sleep(int(lead_seconds * self._CYCLES_PER_SECOND))  # type: ignore[no-untyped-call]
            started = time.perf_counter()
            for call, (start, end) in zip(calls, pairs, strict=True):
                self._empty_caches()
                start.record()
                call()
                end.record()
            self._host_seconds = (time.perf_counter() - started) / len(calls)
            in_time = not pairs[0][0].query()  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in pairs], in_time

    def _empty_caches(self) -> None:
        if len(self._flush):
            torch.sum(self._flush, dim=0, out=self._flushed)


def _event(*, external: bool = False) -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True, external=external)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    start: torch.cuda.Event
    end: torch.cuda.Event


class CudaGraphClock(CudaClock):
    """A forward captured in a CUDA graph between two event nodes, caches cold.

    Nothing of the host, and no gap between the launches of one forward, is part of a sample. Each call is captured once
    and replayed for each sample, since the caches are emptied in between. A graph lives as long as its call does.
    """

    name = "cuda-graph"

    def __init__(self, device: Device, footprint_bytes: int) -> None:
        super().__init__(device, footprint_bytes)
        self._graphs: weakref.WeakKeyDictionary[Call, _Captured] = weakref.WeakKeyDictionary()

    def sample(self, calls: Sequence[Call]) -> list[float]:
        """Replay each call's graph and wait for it.

        Raises:
            CaptureError: a call cannot be captured.
        """
        return [self._replay(call) for call in calls]

    def captures(self, call: Call) -> bool:
        """Return whether a call can be captured."""
        try:
            self.sample([call])
        except CaptureError:
            return False
        return True

    def _replay(self, call: Call) -> float:
        with torch.cuda.device(self._device):
            if call not in self._graphs:
                self._graphs[call] = self._capture(call)
            captured = self._graphs[call]
            self._empty_caches()
            captured.graph.replay()
            torch.cuda.synchronize()
            return float(captured.start.elapsed_time(captured.end))

    @staticmethod
    def _capture(call: Call) -> _Captured:
        # External events are nodes of the graph, recorded anew by each replay.
        start, end = _event(external=True), _event(external=True)

        def timed() -> None:
            start.record()
            call()
            end.record()

        graph, _ = capture(timed, warming=call)
        return _Captured(graph, start, end)


class CpuClock(Clock):
    """A monotonic clock around each call, caches warm; a short call is repeated inside its sample."""

    name = "monotonic"
    regime = CacheRegime.WARM
    settle_seconds = 0.2  # a CPU changes its clock within milliseconds; what is left is its other tenants
    drift = 0.05

    def __init__(self) -> None:
        self._once_ms: weakref.WeakKeyDictionary[Call, float] = weakref.WeakKeyDictionary()

    def sample(self, calls: Sequence[Call]) -> list[float]:
        """Take samples: each is one call's time, or the mean of as many as make up 0.2 ms."""
        return [self._sample(call) for call in calls]

    def _sample(self, call: Call) -> float:
        if call not in self._once_ms:
            call()
            started = time.perf_counter_ns()
            call()
            once_ms = max((time.perf_counter_ns() - started) / 1e6, 1e-4)
            self._once_ms[call] = once_ms
        elif self._once_ms[call] < _LONGEST_CPU_WARMING_MS:
            call()  # whatever ran before has left its own data in the caches
        repeats = max(1, int(_SHORTEST_CPU_SAMPLE_MS / self._once_ms[call]))
        started = time.perf_counter_ns()
        for _ in range(repeats):
            call()
        return (time.perf_counter_ns() - started) / 1e6 / repeats


class Control:
    """A fixed piece of work whose time says what state the device is in.

    Args:
        call: the work; None for a matrix product and a copy, which follow the clocks of the cores and of the memory.
    """

    def __init__(self, device: Device, clock: Clock, call: Call | None = None) -> None:
        self._device = device
        self._clock = clock
        self._call = call or _control_call(device)
        self._level_ms = 0.0
        self._last_ms = 0.0

    def settle(self, longest: float = math.inf) -> None:
        """Wait until the device is in a steady state, or for as long as the clock allows, or this many seconds."""
        deadline = time.monotonic() + min(self._clock.settle_seconds, longest)
        medians: list[float] = []
        while len(medians) < 3 or (max(medians) > (1 + AGREEMENT) * min(medians) and time.monotonic() < deadline):
            medians = [*medians[-2:], self._median_ms()]
        self._level_ms = self._last_ms = medians[-1]

    def steady(self) -> bool:
        """Return whether the device still is in the state that it settled in; it settles first where it never has."""
        if not self._level_ms:
            self.settle()
        self._last_ms = self._median_ms()
        return abs(self._last_ms - self._level_ms) <= self._clock.drift * self._level_ms

    def conditions(self) -> Conditions:
        """Return the device's state, with the control call's time when it was last looked at."""
        return replace(read_conditions(self._device), control_ms=self._last_ms or None)

    def _median_ms(self) -> float:
        return statistics.median(self._clock.sample([self._call] * _CONTROL_SAMPLES))


def _control_call(device: Device) -> Call:
    size, elements = (1024, 1 << 22) if device.kind is DeviceKind.CUDA else (64, 1 << 12)
    matrix = torch.ones(size, size, device=device.torch_device)
    product = torch.empty_like(matrix)
    source = torch.ones(elements, device=device.torch_device)
    target = torch.empty_like(source)

    def call() -> object:
        torch.mm(matrix, matrix, out=product)
        return target.copy_(source)

    return call


def copy_of(size: int, device: Device) -> Call | None:
    """Return a call that copies memory and so moves that many bytes, half of them written; None without room."""
    try:
        source = torch.ones(max(1, size // 2), dtype=torch.uint8, device=device.torch_device)
        target = torch.empty_like(source)
    except (torch.OutOfMemoryError, MemoryError):
        return None
    return lambda: target.copy_(source)


def clocks_for(device: Device, work: Work) -> tuple[Clock, ...]:
    """Return the clocks that can time a problem of that work on a device, the preferred one first."""
    if device.kind is not DeviceKind.CUDA:
        return (CpuClock(),)
    eager = CudaClock(device, work.bytes)
    if work.bytes <= SHORT_WORK.bytes and work.operations <= SHORT_WORK.operations:
        return (CudaGraphClock(device, work.bytes), eager)
    return (eager,)


def pick_clock(clocks: Sequence[Clock], calls: Sequence[Call]) -> Clock:
    """Return the first clock that can time all of these calls: one that cannot be captured makes all of them eager."""
    for clock in clocks[:-1]:
        if not isinstance(clock, CudaGraphClock) or all(clock.captures(call) for call in calls):
            return clock
    return clocks[-1]


def summarise(samples_ms: Sequence[float], clock: Clock) -> Measurement:
    """Return a measurement of these samples."""
    median, low, high = median_interval(samples_ms)
    return Measurement(tuple(samples_ms), median, low, high, clock.regime, clock.name)


def measure(call: Call, clock: Clock, incumbent_ms: float | None = None) -> tuple[Measurement, bool]:
    """Time a call until its median is known well enough.

    Args:
        incumbent_ms: median of the best configuration so far; a call hopelessly slower is given up after the probes.

    Returns:
        The measurement, and whether it was given up.
    """
    clock.warm_up(call)
    samples = clock.sample([call] * PROBES)
    if incumbent_ms is not None and min(samples) > HOPELESS * incumbent_ms:
        return summarise(samples, clock), True
    deadline = time.monotonic() + MAX_SECONDS
    while not _precise(samples) and len(samples) < MAX_SAMPLES and time.monotonic() < deadline:
        samples += clock.sample([call] * _BATCH)
    return summarise(samples, clock), False


def measure_steadily(
    call: Call, clock: Clock, control: Control, incumbent_ms: float | None = None
) -> tuple[Measurement, bool]:
    """Time a call in one state of the device: where that has changed meanwhile, settle and time it again.

    The control call runs after every measurement, so that what came since the last look is this one alone.

    Returns:
        As `measure`; the measurement with the conditions it was taken under.
    """
    for _ in range(MOST_REPEATS):
        measurement, hopeless = measure(call, clock, incumbent_ms)
        if control.steady():
            break
        control.settle()
    else:
        measurement, hopeless = measure(call, clock, incumbent_ms)
        control.steady()
    return replace(measurement, conditions=control.conditions()), hopeless


def _precise(samples: Sequence[float]) -> bool:
    if len(samples) < samples_needed():
        return False
    median, low, high = median_interval(samples)
    return high - median <= PRECISION * median and median - low <= PRECISION * median
