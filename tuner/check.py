"""The correctness gate: a model under one configuration against the reference in float64.

A variant passes when its error against float64 is within the tolerance, relative to the size of the output, or within
twice the error that the reference itself makes at its own precision. Both figures are kept.
"""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from tunebench.tuner.kernel import Plan, TunableModel
from tunebench.tuner.reference import Reference
from tunebench.tuner.result import ErrorFigures, Stage, Verdict

TOLERANCE: Mapping[torch.dtype, float] = {
    torch.float64: 1e-10,
    torch.float32: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 1e-2,
}
"""The largest error relative to the size of the output, by dtype of the output."""

REFERENCE_MULTIPLE = 2.0
"""A variant may also be this many times as wrong as the reference itself."""

SENTINELS = (0xFF, 0x7F)
"""Bytes that memory is filled with before a run: a NaN that no arithmetic makes, and a large finite number."""

_CHUNK_ELEMENTS = 1 << 26  # comparing piece by piece bounds the float64 temporaries to 512 MB each
_ROW_ELEMENTS = 32  # a row of fewer elements says too little about its own size


class PoisonedMemory(TorchFunctionMode):
    """Fills every tensor that the model allocates without initialising it with one byte, again and again.

    An element that a kernel never writes then shows, whatever the allocator handed out before.
    """

    # Not a TorchDispatchMode: entering the first one imports torch's compiler, which takes seconds.
    _ALLOCATORS = (
        torch.empty,
        torch.empty_like,
        torch.empty_strided,
        torch.empty_permuted,
        torch.Tensor.new_empty,
        torch.Tensor.new_empty_strided,
    )

    def __init__(self, byte: int) -> None:
        super().__init__()
        self._byte = byte

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation; poison what it allocated."""
        result = func(*args, **(kwargs or {}))
        if func in self._ALLOCATORS and result.device.type != "meta":
            _storage_bytes(result).fill_(self._byte)
        return result


@dataclass(frozen=True)
class Case:
    """One set of inputs with what the reference makes of it.

    Attributes:
        expected: the output in float64.
        expected_buffers: the module's floating-point buffers after the call, in float64.
        scale: what errors are relative to, one number a row (see `scale_of`).
        output_like: a meta tensor of the reference's own output: shape, dtype, layout.
        aliases_input: whether the reference's output is memory of its input.
        reference_errors: the reference's own error figures, at its own precision.
        reference_buffer_error: the largest relative norm error of its buffers.
    """

    name: str
    inputs: tuple[Any, ...]
    expected: torch.Tensor
    expected_buffers: Mapping[str, torch.Tensor]
    scale: torch.Tensor
    output_like: torch.Tensor
    aliases_input: bool
    reference_errors: ErrorFigures
    reference_buffer_error: float


@dataclass(frozen=True)
class Oracle:
    """The reference's answers for one problem, computed once and used for every variant."""

    cases: tuple[Case, ...]
    tolerance: float
    state: Mapping[str, torch.Tensor]


def consult_reference(reference: Reference, model: nn.Module, device: torch.device, seeds: Sequence[int]) -> Oracle:
    """Run the reference, at its own precision and in float64, on inputs of several seeds.

    The last case negates half of the first one's values, so that signs and cancellation are met even where
    `get_inputs` draws from [0, 1).
    """
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    drawn = [(f"seed {seed}", reference.make_inputs(seed, device)) for seed in seeds]
    drawn.append(("mixed signs", tuple(_mixed_signs(value) for value in drawn[0][1])))
    with torch.no_grad():
        cases = tuple(_consult(model, state, name, inputs) for name, inputs in drawn)
    model.load_state_dict(state)
    return Oracle(cases, TOLERANCE.get(cases[0].output_like.dtype, 1e-4), state)


def _consult(model: nn.Module, state: Mapping[str, torch.Tensor], name: str, inputs: tuple[Any, ...]) -> Case:
    model.load_state_dict(state)
    eager = model(*inputs)
    eager_buffers = _float_buffers(model)
    exact = copy.deepcopy(model)
    exact.load_state_dict(state)
    exact = exact.double()
    expected = exact(*[_double(value) for value in inputs])
    buffers = _float_buffers(exact)
    scale = scale_of(expected)
    errors = compare(eager, expected, scale, bound=math.inf)
    buffer_error = max((_relative_norm(eager_buffers[key], buffers[key]) for key in buffers), default=0.0)
    figures = replace(errors, reference_max_relative=errors.max_relative, reference_relative_norm=errors.relative_norm)
    return Case(
        name=name,
        inputs=inputs,
        expected=expected,
        expected_buffers=buffers,
        scale=scale,
        output_like=torch.empty_like(eager, device="meta"),
        aliases_input=_shares_memory(eager, inputs),
        reference_errors=figures,
        reference_buffer_error=buffer_error,
    )


def scale_of(expected: torch.Tensor) -> torch.Tensor:
    """What errors are relative to: the RMS of each row (first axis) with enough elements, else of the whole output.

    Returns:
        float64 tensor of shape (rows, 1), or (1, 1).
    """
    rows = _as_rows(expected)
    finite = torch.where(torch.isfinite(rows), rows, 0.0)
    norms = torch.linalg.vector_norm(finite, dim=1, keepdim=True) / math.sqrt(max(1, rows.shape[1]))
    floor: torch.Tensor = norms.clamp_min(torch.finfo(torch.float64).tiny)  # a row of zeros must be met exactly
    return floor


def _as_rows(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() >= 2 and tensor.numel() // max(1, tensor.shape[0]) >= _ROW_ELEMENTS:
        return tensor.reshape(tensor.shape[0], -1)
    return tensor.reshape(1, -1)


def compare(output: torch.Tensor, expected: torch.Tensor, scale: torch.Tensor, bound: float) -> ErrorFigures:
    """Error figures of an output against the float64 reference.

    Where the reference is not finite, the output must be the same kind of not finite; anything else is an infinite
    error. `bound` on the relative error decides which index is the first wrong one.
    """
    rows, wanted = _as_rows(output), _as_rows(expected)
    step = max(1, _CHUNK_ELEMENTS // max(1, wanted.shape[1]))
    totals = _Totals()
    for start in range(0, wanted.shape[0], step):
        part = slice(start, start + step)
        totals.add(rows[part], wanted[part], scale[part] if scale.shape[0] > 1 else scale, bound, start)
    return totals.figures()


class _Totals:
    """Error figures gathered piece by piece, in few passes over memory: this is most of what the gate costs."""

    def __init__(self) -> None:
        self._max_absolute = self._max_relative = self._squares = self._norm = 0.0
        self._first_wrong: int | None = None

    def add(self, got: torch.Tensor, exact: torch.Tensor, scale: torch.Tensor, bound: float, row: int) -> None:
        if not got.numel():
            return
        difference = torch.sub(exact, got)
        largest = torch.linalg.vector_norm(difference, ord=math.inf, dim=1, keepdim=True)  # NaN where one is NaN
        if not bool(torch.isfinite(largest).all()):
            difference = _difference_of_kinds(difference, got, exact)
            largest = torch.linalg.vector_norm(difference, ord=math.inf, dim=1, keepdim=True)
            exact = torch.where(torch.isfinite(exact), exact, 0.0)
        relative = largest / scale
        summary = torch.stack(
            [
                largest.max(),
                relative.max(),
                torch.linalg.vector_norm(difference),
                torch.linalg.vector_norm(exact),
            ]
        ).tolist()
        self._max_absolute = max(self._max_absolute, summary[0])
        self._max_relative = max(self._max_relative, summary[1])
        self._squares += summary[2] ** 2
        self._norm += summary[3] ** 2
        if summary[1] > bound and self._first_wrong is None:
            wrong = difference.abs() > bound * scale
            self._first_wrong = row * exact.shape[1] + int(wrong.flatten().to(torch.uint8).argmax())

    def figures(self) -> ErrorFigures:
        distance = math.sqrt(self._squares)
        relative_norm = distance / math.sqrt(self._norm) if self._norm else (0.0 if distance == 0.0 else math.inf)
        return ErrorFigures(self._max_absolute, self._max_relative, relative_norm, 0.0, 0.0, self._first_wrong)


def _difference_of_kinds(difference: torch.Tensor, got: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """The difference where both are finite, 0 where both are not finite and of one kind, infinite elsewhere."""
    same = (got == exact) | (torch.isnan(got) & torch.isnan(exact))
    both = torch.isfinite(exact) & torch.isfinite(got)
    return torch.where(both, difference, torch.where(same, 0.0, math.inf))


def check(model: TunableModel, plan: Plan, oracle: Oracle) -> Verdict:
    """The gate: cheap stages first; the first refusal ends it.

    Stages: `structure` (shape, dtype, layout, device), `written` (every element, whatever memory held), `inputs`
    (inputs and parameters unchanged), `repeatable` (bitwise), `values` and `buffers` (against float64).

    Raises:
        LaunchError: the device refused a launch.
    """
    gate = _Gate(model, plan, oracle)
    model.pin(plan)
    try:
        with torch.no_grad():
            return gate.verdict()
    finally:
        model.pin(None)
        model.load_state_dict(oracle.state)


class _Refusal(Exception):
    """A stage did not pass."""


class _Gate:
    """One run of the stages."""

    def __init__(self, model: TunableModel, plan: Plan, oracle: Oracle) -> None:
        self._model = model
        self._problem = plan.problem
        self._oracle = oracle
        self._stages: list[Stage] = []
        self._errors: ErrorFigures | None = None

    def verdict(self) -> Verdict:
        reason = ""
        try:
            first = self._oracle.cases[0]
            output = self._first_run(first)
            self._repeat(first, output)
            self._values(first, output)
            del output
            for case in self._oracle.cases[1:]:
                self._values(case, self._run(case, SENTINELS[0]))
        except _Refusal as refusal:
            reason = str(refusal)
        return Verdict(not reason, tuple(self._stages), self._oracle.tolerance, self._errors, reason)

    def _run(self, case: Case, sentinel: int) -> torch.Tensor:
        self._model.load_state_dict(self._oracle.state)
        if self._model.problem(*case.inputs) != self._problem:
            raise _Refusal(f"{case.name}: the model takes these inputs for another problem")
        with PoisonedMemory(sentinel):
            output: torch.Tensor = self._model(*case.inputs)
        return output

    def _first_run(self, case: Case) -> torch.Tensor:
        before = [value.clone() for value in case.inputs if isinstance(value, torch.Tensor)]
        output = self._run(case, SENTINELS[0])
        with self._stage("structure") as refuse:
            want = case.output_like
            got = (tuple(output.shape), output.dtype, output.stride())
            if got != (tuple(want.shape), want.dtype, want.stride()):
                refuse(
                    f"shape {got[0]}, {got[1]}, strides {got[2]} in place of "
                    f"{tuple(want.shape)}, {want.dtype}, {want.stride()}"
                )
            if output.device != case.expected.device:
                refuse(f"the output is on {output.device}, the inputs on {case.expected.device}")
        with self._stage("written") as refuse:
            if untouched := _count_sentinel(output, SENTINELS[0]):
                self._errors = ErrorFigures(math.inf, math.inf, math.inf, 0.0, 0.0, None, untouched)
                refuse(f"{untouched} of {output.numel()} elements were never written")
        with self._stage("inputs") as refuse:
            after = [value for value in case.inputs if isinstance(value, torch.Tensor)]
            if not all(_same_bits(a, b) for a, b in zip(before, after, strict=True)):
                refuse("an input was changed")
            if not case.aliases_input and _shares_memory(output, case.inputs):
                refuse("the output is memory of an input")
            for name, parameter in self._model.named_parameters():
                if not _same_bits(parameter, self._oracle.state[name]):
                    refuse(f"parameter '{name}' was changed")
        return output

    def _repeat(self, case: Case, output: torch.Tensor) -> None:
        again = self._run(case, SENTINELS[1])
        with self._stage("repeatable") as refuse:
            if output.data_ptr() == again.data_ptr():
                refuse("a later call overwrites the output of an earlier one")
            if not _same_bits(output, again):
                refuse("two runs on the same inputs differ: a race, or elements that were never written")

    def _values(self, case: Case, output: torch.Tensor) -> None:
        reference = case.reference_errors
        bound = max(self._oracle.tolerance, REFERENCE_MULTIPLE * reference.max_relative)
        with self._stage(f"values, {case.name}") as refuse:
            errors = replace(
                compare(output, case.expected, case.scale, bound),
                reference_max_relative=reference.max_relative,
                reference_relative_norm=reference.relative_norm,
            )
            if self._errors is None or errors.max_relative > self._errors.max_relative:
                self._errors = errors
            if not errors.max_relative <= bound:
                refuse(
                    f"{case.name}: error {errors.max_relative:.2e} of the output's size, allowed {bound:.2e}; "
                    f"first wrong element {errors.first_wrong_index}"
                )
        with self._stage(f"buffers, {case.name}") as refuse:
            buffers = dict(self._model.named_buffers())
            allowed = max(self._oracle.tolerance, REFERENCE_MULTIPLE * case.reference_buffer_error)
            for name, expected in case.expected_buffers.items():
                error = _relative_norm(buffers[name].double(), expected)
                if not error <= allowed:
                    refuse(f"{case.name}: buffer '{name}' is off by {error:.2e} of its size, allowed {allowed:.2e}")

    @contextlib.contextmanager
    def _stage(self, name: str) -> Iterator[Callable[[str], None]]:
        def refuse(reason: str) -> None:
            raise _Refusal(reason)

        started = time.perf_counter()
        try:
            yield refuse
        except _Refusal as refusal:
            self._stages.append(Stage(name, False, time.perf_counter() - started, str(refusal)))
            raise
        self._stages.append(Stage(name, True, time.perf_counter() - started))


def _mixed_signs(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    flat = value.flatten()
    signs = torch.ones_like(flat)
    signs[::2] = -1.0
    return (flat * signs).reshape(value.shape)


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _float_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Every buffer as float64; counts such as `num_batches_tracked` too, since they must move the same way."""
    return {name: buffer.double().clone() for name, buffer in model.named_buffers()}


def _relative_norm(value: torch.Tensor, expected: torch.Tensor) -> float:
    norm = float(torch.linalg.vector_norm(expected))
    distance = float(torch.linalg.vector_norm(value.double() - expected))
    return distance / norm if norm else (0.0 if distance == 0.0 else math.inf)


def _storage_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _shares_memory(tensor: torch.Tensor, values: Sequence[Any]) -> bool:
    mine = tensor.untyped_storage().data_ptr()
    return any(mine == value.untyped_storage().data_ptr() for value in values if isinstance(value, torch.Tensor))


_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().view(_INTEGER_OF_SIZE[tensor.element_size()])


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(_bits(one), _bits(other))


def _count_sentinel(tensor: torch.Tensor, byte: int) -> int:
    pattern = int.from_bytes(bytes([byte] * tensor.element_size()), "little", signed=tensor.element_size() > 1)
    return int((_bits(tensor) == pattern).sum())
