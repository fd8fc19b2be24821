"""The timing protocol: how samples are taken, when there are enough, and how two things are compared.

On CUDA the caches are cold: a call whose tensors are smaller than five times the L2 cache is preceded by a write of
twice that cache, queued before the start event without a synchronisation in between. On the CPU the caches are warm.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from tunebench.tuner.device import Device, DeviceKind
from tunebench.tuner.result import CacheRegime, Measurement, Ratio
from tunebench.tuner.statistics import median_interval, samples_needed

Call = Callable[[], object]

PROBES = 3
"""Samples that decide whether a variant is worth timing at all."""

HOPELESS = 1.5
"""A variant whose best probe is this many times the incumbent's median is not timed further."""

PRECISION = 0.01
"""Sampling stops when the 95 % interval of the median is within ± this share of it."""

MAX_SAMPLES = 60
MAX_SECONDS = 2.0
"""Of sampling one configuration, whichever comes first."""

_BATCH = 6
_SHORTEST_CPU_SAMPLE_MS = 0.2  # shorter calls are repeated inside a sample: the clock and the call cost a microsecond
_FLUSH_UNLESS = 5  # footprints beyond this many times the L2 leave nothing of the last call in it
_FLUSH_WRITES = 2
_LEAD_FACTOR = 2.0  # the device waits twice as long as the host is expected to take for queueing


class Clock(abc.ABC):
    """Takes samples of calls' times on one kind of device."""

    name: str
    regime: CacheRegime

    @abc.abstractmethod
    def sample(self, calls: Sequence[Call]) -> list[float]:
        """Time the calls one after another, each by itself, in milliseconds."""

    def warm_up(self, call: Call) -> None:
        """Run a call until one-off costs are paid: allocation, first touch, lazy loading."""
        self.sample([call] * 2)


class CudaClock(Clock):
    """CUDA events around each call, caches cold.

    The device is kept busy until the host has queued every call, so that what the host does between a start event and
    its kernel is not part of the sample.
    """

    name = "cuda-event"
    regime = CacheRegime.COLD

    _CYCLES_PER_SECOND = 2.0e9  # near enough to the clock of any recent GPU
    _LONGEST_LEAD_SECONDS = 0.1

    def __init__(self, device: Device, footprint_bytes: int) -> None:
        self._device = device.torch_device
        small = footprint_bytes < _FLUSH_UNLESS * device.l2_bytes
        size = _FLUSH_WRITES * device.l2_bytes if small else 0
        self._flush = torch.empty(size, dtype=torch.uint8, device=self._device)
        self._host_seconds = 1e-4  # what the host took for a call the last time

    def sample(self, calls: Sequence[Call]) -> list[float]:
        """Queue all calls behind a wait, then let them run; once more where the wait turns out to have been short."""
        lead = min(_LEAD_FACTOR * self._host_seconds * len(calls), self._LONGEST_LEAD_SECONDS)
        samples = self._sample(calls, lead)
        host_seconds = self._host_seconds * len(calls)
        if lead < host_seconds < self._LONGEST_LEAD_SECONDS:
            samples = self._sample(calls, _LEAD_FACTOR * host_seconds)
        return samples

    def _sample(self, calls: Sequence[Call], lead_seconds: float) -> list[float]:
        with torch.cuda.device(self._device):
            pairs = [(_event(), _event()) for _ in calls]
            torch.cuda._sleep(int(lead_seconds * self._CYCLES_PER_SECOND))  # type: ignore[no-untyped-call]
            started = time.perf_counter()
            for call, (start, end) in zip(calls, pairs, strict=True):
                if len(self._flush):
                    self._flush.zero_()
                start.record()
                call()
                end.record()
            self._host_seconds = (time.perf_counter() - started) / len(calls)
            torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in pairs]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class CpuClock(Clock):
    """A monotonic clock around each call, caches warm; a short call is repeated inside its sample."""

    name = "monotonic"
    regime = CacheRegime.WARM

    def __init__(self) -> None:
        self._repeats: dict[Call, int] = {}

    def sample(self, calls: Sequence[Call]) -> list[float]:
        """Every sample is one call's time, or the mean of as many as make up 0.2 ms."""
        return [self._sample(call) for call in calls]

    def _sample(self, call: Call) -> float:
        if call not in self._repeats:
            call()
            started = time.perf_counter_ns()
            call()
            once_ms = max((time.perf_counter_ns() - started) / 1e6, 1e-4)
            self._repeats[call] = max(1, int(_SHORTEST_CPU_SAMPLE_MS / once_ms))
        repeats = self._repeats[call]
        started = time.perf_counter_ns()
        for _ in range(repeats):
            call()
        return (time.perf_counter_ns() - started) / 1e6 / repeats


def clock_for(device: Device, footprint_bytes: int) -> Clock:
    """The clock of a device for calls that touch that many bytes."""
    return CudaClock(device, footprint_bytes) if device.kind is DeviceKind.CUDA else CpuClock()


def summarise(samples_ms: Sequence[float], clock: Clock) -> Measurement:
    """A measurement of these samples."""
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


def _precise(samples: Sequence[float]) -> bool:
    if len(samples) < samples_needed():
        return False
    median, low, high = median_interval(samples)
    return high - median <= PRECISION * median and median - low <= PRECISION * median


def interleave(
    calls: Mapping[str, Call], clock: Clock, rounds: int, max_seconds: float
) -> dict[str, tuple[float, ...]]:
    """Time several calls in rounds, one sample of each a round, the order rotating from round to round.

    Whatever drifts (clocks, temperature, a neighbour) then drifts for all of them alike.

    Returns:
        Samples in milliseconds by name; the n-th of each belongs to the same round. At least 6 rounds.
    """
    names = list(calls)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for call in calls.values():
        clock.warm_up(call)
    deadline = time.monotonic() + max_seconds
    for number in range(rounds):
        if number >= samples_needed() and time.monotonic() > deadline:
            break
        shift = number % len(names)
        order = names[shift:] + names[:shift]
        for name, sample in zip(order, clock.sample([calls[name] for name in order]), strict=True):
            samples[name].append(sample)
    return {name: tuple(values) for name, values in samples.items()}


def speedup(of: Sequence[float], over: Sequence[float], confidence: float = 0.95) -> Ratio:
    """How many times faster `of` is than `over`: the median of per-round ratios over/of with its interval."""
    value, low, high = median_interval(np.asarray(over) / np.asarray(of), confidence)
    return Ratio(value, low, high, len(of), confidence)
