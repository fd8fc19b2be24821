"""Batches of calls in a sandbox, which the judge times: every call has inputs that the module has not met."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tunebench.tuner.gate.memory import synchronise
from tunebench.tuner.gate.model import Model
from tunebench.tuner.gate.truth import device_of_inputs
from tunebench.tuner.gate.values import Values, mapped, tensors_in


@dataclass(frozen=True)
class BatchResult:
    """A sandbox's report of a batch.

    Attributes:
        own_ms: of the calls alone, by its own clock.
        seen: of each output that is looked at, the elements asked for, by the path of their tensor.
    """

    own_ms: float
    seen: Sequence[Mapping[str, torch.Tensor]]


class BatchedCalls:
    """A module, and as many sets of inputs as a batch has calls.

    The sets stay in their memory and get other values between batches: those of one of `bases`, by a scale for what is
    floating-point. A result that was kept by pointer, or for known values, is wrong in the next batch.

    Args:
        bases: inputs that values are taken from.
        count: calls of a batch.
    """

    def __init__(self, model: Model, bases: Sequence[Sequence[Any]], count: int) -> None:
        self._model = model
        self._bases = [tuple(base) for base in bases]
        self._inputs = [scaled(bases[0], 1.0) for _ in range(count)]
        self._kept: dict[int, object] = {}
        self._device = device_of_inputs(bases[0])

    def write(self, values: Sequence[tuple[int, float]]) -> None:
        """Write the values of the next batch, and let go of what the last one returned.

        Args:
            values: for each call the number of the base, and its scale.
        """
        self._kept.clear()
        for inputs, (base, scale) in zip(self._inputs, values, strict=True):
            _write(inputs, self._bases[base], scale)
        synchronise(self._device)

    def run(self, looked_at: Sequence[int], places: Sequence[float]) -> BatchResult:
        """Make every call once, and wait for the device.

        Args:
            looked_at: the numbers of the calls whose outputs are kept.
            places: of the elements asked for, each as a share of a tensor's elements.
        """
        return self._batch(self._model.module, looked_at, places)

    def empty(self, looked_at: Sequence[int], places: Sequence[float]) -> BatchResult:
        """The same without the calls: what everything else costs."""
        return self._batch(_nothing, looked_at, places)

    def _batch(self, call: Callable[..., object], looked_at: Sequence[int], places: Sequence[float]) -> BatchResult:
        def calls() -> None:
            for number, inputs in enumerate(self._inputs):
                output = call(*inputs)
                if number in looked_at:
                    self._kept[number] = output

        own_ms = self._timed(calls)
        return BatchResult(own_ms, [_elements(Values.of(self._kept[number]), places) for number in looked_at])

    def _timed(self, work: Callable[[], None]) -> float:
        if self._device.type != "cuda":
            started = time.perf_counter()
            work()
            return (time.perf_counter() - started) * 1e3
        with torch.cuda.device(self._device):  # events are those of the current one
            start, end = _event(), _event()
            start.record()
            work()
            end.record()
            torch.cuda.synchronize()
        return float(start.elapsed_time(end))

    def output(self, number: int) -> Values:
        """Return the output of the call of that number, one of those that were looked at."""
        return Values.of(self._kept[number])


def scaled(inputs: Sequence[Any], scale: float) -> tuple[Any, ...]:
    """Copies of inputs by a scale, as `BatchedCalls.write` writes them."""
    copies = tuple(
        mapped(value, lambda tensor: tensor.detach().clone().resolve_conj().resolve_neg()) for value in inputs
    )
    _write(copies, inputs, scale)
    return copies


def _write(inputs: Sequence[Any], values: Sequence[Any], scale: float) -> None:
    for mine, value in zip(tensors_in(inputs), tensors_in(values), strict=True):
        if mine.is_floating_point() or mine.is_complex():
            torch.mul(value, scale, out=mine)
        else:
            mine.copy_(value)


def elements_at(tensor: torch.Tensor, places: Sequence[float]) -> torch.Tensor:
    """The elements at places that are each a share of all elements; none of an empty tensor."""
    if not tensor.ndim:
        return tensor.reshape(1)
    numbers = np.array([int(place * tensor.numel()) for place in places if tensor.numel()], dtype=np.int64)
    where = np.unravel_index(numbers, tensor.shape)  # torch's own imports sympy first
    return tensor[tuple(torch.from_numpy(indices).to(tensor.device) for indices in where)]


def _elements(output: Values, places: Sequence[float]) -> dict[str, torch.Tensor]:
    return {path: elements_at(tensor, places) for path, tensor in output.tensors.items()}


def _nothing(*inputs: Any) -> object:
    return inputs[0] if inputs else None


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
