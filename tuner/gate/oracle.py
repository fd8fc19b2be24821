"""The reference's answers in float64, and its own error at its own precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from tunebench.tuner.gate.comparison import compare, norm_of, relative_norm, scale_of
from tunebench.tuner.gate.distributions import mixed_signs
from tunebench.tuner.gate.faults import FAILURES, ReferenceRefusal
from tunebench.tuner.gate.memory import SENTINELS, Bands, checksums
from tunebench.tuner.gate.party import LocalParty, Manner, Party
from tunebench.tuner.gate.sources import Source
from tunebench.tuner.gate.tolerance import allowed_error, tolerance_of
from tunebench.tuner.result import ErrorFigures
from tunebench.tuner.users_code import described


@dataclass(frozen=True)
class Case:
    """One set of inputs with what the reference makes of it.

    Attributes:
        expected: the output in float64; where the reference at its own precision is not finite, what it is there.
        expected_buffers: the module's buffers after the call, in float64.
        scale, norm: what errors are relative to (see `comparison.scale_of`).
        output_like: a meta tensor of the reference's own output: shape, dtype, layout.
        aliases_input: whether the reference's output is memory of its input.
        reference_errors: the reference's own error figures, at its own precision.
        reference_buffer_error: the largest relative norm error of its buffers.
        input_sums: checksums of the inputs, none where the reference changes them itself.
        allowance: an error that passes as well.
    """

    name: str
    inputs: tuple[Any, ...]
    expected: torch.Tensor
    expected_buffers: Mapping[str, torch.Tensor]
    scale: torch.Tensor
    norm: float
    output_like: torch.Tensor
    aliases_input: bool
    reference_errors: ErrorFigures
    reference_buffer_error: float
    input_sums: Sequence[torch.Tensor]
    allowance: float = 0.0

    @property
    def bound(self) -> float:
        """The error that passes: the tolerance, or twice the reference's own."""
        return max(allowed_error(self.output_like.dtype, self.reference_errors.max_relative), self.allowance)

    def errors_of(self, output: torch.Tensor, *, kinds_may_differ: bool = False) -> ErrorFigures:
        """The error figures of an output of this shape, beside the reference's own (see `comparison.compare`)."""
        own = self.reference_errors
        errors = compare(output, self.expected, self.scale, self.bound, self.norm, kinds_may_differ=kinds_may_differ)
        return replace(errors, reference_max_relative=own.max_relative, reference_relative_norm=own.relative_norm)


@dataclass(frozen=True)
class Oracle:
    """The reference's answers for one problem, computed once and used for every variant.

    Attributes:
        state: the module's state before each case.
        bands: guard bands around the inputs.
        degenerate: answers that are no answers (zeros, say) and that these cases would let pass.
        steady: a second call on the first case's inputs has the same answer, whatever the first did to the module.
    """

    cases: tuple[Case, ...]
    state: Mapping[str, torch.Tensor]
    bands: Bands
    degenerate: tuple[str, ...]
    steady: bool

    @property
    def dtype(self) -> torch.dtype:
        """Of the reference's output."""
        return self.cases[0].output_like.dtype

    @property
    def tolerance(self) -> float:
        """The bound on the relative error that the output's dtype sets."""
        return tolerance_of(self.dtype)


def consult_reference(source: Source, party: Party, seeds: Sequence[int]) -> Oracle:
    """Run the reference, at its own precision and in float64, on inputs of several seeds.

    The last case negates half of the first one's values, so that signs and cancellation are met even where
    `get_inputs` draws from [0, 1).

    Args:
        party: the reference's model, which is left as it was.
    """
    state = {name: tensor.clone() for name, tensor in party.state().items()}
    bands = Bands()
    drawn = [(f"seed {seed}", source.inputs(seed)) for seed in seeds]
    drawn.append(("mixed signs", tuple(mixed_signs(value) for value in drawn[0][1])))
    party.remember()
    cases = []
    with torch.no_grad():
        for name, inputs in drawn:
            party.reset(SENTINELS[0])
            cases.append(ask(party, name, tuple(bands.around(value) for value in inputs)))
        first = cases[0]
        party.reset(SENTINELS[0])
        plain = Manner(byte=None, guarded=False)
        party.call(first.inputs, plain)
        again = party.call(first.inputs, plain).output
        steady = isinstance(again, torch.Tensor) and first.errors_of(again).max_relative <= first.bound
        party.reset(SENTINELS[0])
        return Oracle(tuple(cases), state, bands, degenerate_answers(cases), steady)


def consult(model: nn.Module, name: str, inputs: tuple[Any, ...]) -> Case:
    """One case of a model of this process; see `ask`."""
    return ask(LocalParty(model), name, inputs)


def ask(party: Party, name: str, inputs: tuple[Any, ...], autocast: torch.dtype | None = None) -> Case:
    """One case; the model's buffers move as in any call.

    Args:
        autocast: the type that the call at the reference's own precision runs under autocast to.

    Raises:
        ReferenceRefusal: the model raises on these inputs, or returns something else than one tensor.
    """
    before = checksums(inputs)
    try:
        truth = party.consult(inputs, autocast)
    except FAILURES as error:
        raise ReferenceRefusal(f"the reference does not run: {described(error)}") from error
    own, expected = truth.own, truth.exact
    if not isinstance(own, torch.Tensor) or expected is None:
        raise ReferenceRefusal(f"the reference returns {own}, not one tensor")
    kind = torch.isfinite(own) & torch.isfinite(expected)
    if not bool(kind.all()):
        # Overflow belongs to a precision: float64 says what the value is, the reference what kind of value it is.
        expected = torch.where(kind, expected, own.double())
    scale, norm = scale_of(expected), norm_of(expected)
    errors = compare(own, expected, scale, math.inf, norm)
    exact = truth.exact_buffers
    buffer_error = max((relative_norm(truth.own_buffers[key], exact[key]) for key in exact), default=0.0)
    return Case(
        name=name,
        inputs=inputs,
        expected=expected,
        expected_buffers=exact,
        scale=scale,
        norm=norm,
        output_like=torch.empty_like(own, device="meta"),
        aliases_input=truth.aliases,
        reference_errors=replace(
            errors, reference_max_relative=errors.max_relative, reference_relative_norm=errors.relative_norm
        ),
        reference_buffer_error=buffer_error,
        input_sums=before if truth.unchanged else [],
    )


def degenerate_answers(cases: Sequence[Case]) -> tuple[str, ...]:
    """The answers that are no answers and that every one of these cases would let pass."""
    first = cases[0]

    def passes(answer: Callable[[Case], torch.Tensor | None]) -> bool:
        for case in cases:
            value = answer(case)
            if value is None or not case.errors_of(value).max_relative <= case.bound:
                return False
        return bool(first.expected.numel())

    answers: dict[str, Callable[[Case], torch.Tensor | None]] = {
        "zeros": lambda case: torch.zeros_like(case.expected),
        "one constant": _constant,
        "a copy of the input": _input_of_that_shape,
        "the answer to other inputs": lambda case: (first if case is not first else cases[-1]).expected,
    }
    return tuple(name for name, answer in answers.items() if passes(answer))


def _constant(case: Case) -> torch.Tensor | None:
    """The mean everywhere; of a single number that is the answer itself, which tells nothing."""
    return None if case.expected.numel() == 1 else torch.full_like(case.expected, float(case.expected.nanmean()))


def _input_of_that_shape(case: Case) -> torch.Tensor | None:
    same = (v for v in case.inputs if isinstance(v, torch.Tensor) and v.shape == case.expected.shape)
    return next(same, None)
