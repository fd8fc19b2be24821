"""The reference's answers in float64, and its own error at its own precision."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import torch
from torch import nn

from tunebench.tuner.errors import KernelFolderError
from tunebench.tuner.gate.accuracy import DRAWS, Exactness, exactness
from tunebench.tuner.gate.case import Case, Expected, expect, without_memory
from tunebench.tuner.gate.comparison import real, relative_norm
from tunebench.tuner.gate.distributions import DISTRIBUTIONS, at_ends, changed, graded, is_integer, mixed_signs
from tunebench.tuner.gate.draw import FIXED, Draw
from tunebench.tuner.gate.faults import FAILURES, ReferenceRefusal
from tunebench.tuner.gate.invariants import Form
from tunebench.tuner.gate.judge import judge_structure, judge_values
from tunebench.tuner.gate.manner import Recording
from tunebench.tuner.gate.memory import SENTINELS, Bands, checksums
from tunebench.tuner.gate.model import CallOptions, Model
from tunebench.tuner.gate.sources import Source
from tunebench.tuner.gate.stage_log import StageRefused
from tunebench.tuner.gate.tolerance import tolerance_of
from tunebench.tuner.gate.truth import Truth
from tunebench.tuner.gate.values import Leaf, cloned, tensors_in
from tunebench.tuner.problem import Accuracy
from tunebench.tuner.result import ErrorFigures
from tunebench.tuner.users_code import described

OTHER_DRAWS = 0.05
"""An error that no rounding makes: the call in float64 drew other random numbers."""

_COPY = "a copy of the input"

_STRONGER: Mapping[str, Callable[[Any, int], Any]] = {
    "graded": graded,
    "wide range": lambda value, number: changed(value, DISTRIBUTIONS["wide range"], number),
}
"""Changes of the first case's inputs, given what number an input has, that may tell more than the seeds do."""

_FEW_ELEMENTS = 4096
"""Elements up to which it is asked whether one answer would pass for all inputs; many elements differ somewhere."""


@dataclass(frozen=True)
class Oracle:
    """The reference's answers for one problem, computed once and used for every variant.

    Attributes:
        state: the module's state before each case.
        bands: guard bands around the inputs.
        degenerate: answers that are no answers (zeros, say) and that these cases would let pass.
        steady: a second call on the first case's inputs has the same answer, whatever the first did to the module.
        keeps_state: an answer depends on the calls before it, by more than parameters and buffers; each case is of a
            new model.
        draws: so many of the cases, which come first, are draws of the inputs.
        accuracy: how wrong an answer may be; with it comes the precision of the reference's own answers.
    """

    cases: tuple[Case, ...]
    state: Mapping[str, torch.Tensor]
    bands: Bands
    degenerate: tuple[str, ...]
    steady: bool
    draws: int = 1
    accuracy: Accuracy = Accuracy.TOLERANCE
    keeps_state: bool = False

    @property
    def beside(self) -> Accuracy:
        """The accuracy of all other questions: rounding is compared at the problem's own sizes and inputs alone."""
        return Accuracy.TF32 if self.accuracy is Accuracy.TF32 else Accuracy.TOLERANCE

    def exactness(self, errors: Mapping[str, Mapping[str, ErrorFigures]]) -> list[Exactness]:
        """A variant beside the reference, in each case; nothing where the tolerance is all that is asked.

        Whatever passes under the tolerance passes where products may be in TF32.

        Args:
            errors: of each call, by the case's name and the path in the output.
        """
        if self.accuracy is Accuracy.TOLERANCE:
            return []
        return exactness(errors, self.draws, self.tolerance if self.accuracy is Accuracy.TF32 else 0.0)

    @property
    def tolerance(self) -> float:
        """The bound on the relative error that the output's dtype sets; of several, the widest."""
        return max((tolerance_of(one.like.dtype) for one in self.cases[0].output.values()), default=0.0)


def consult_reference(
    source: Source,
    model: Model,
    accuracy: Accuracy = Accuracy.TOLERANCE,
    draw: Draw = FIXED,
    renew: Callable[[], Model] | None = None,
) -> Oracle:
    """Run the reference, at its own precision and in float64, on several draws of the inputs.

    The last case negates half of the first one's values, so that signs and cancellation are met even where
    `get_inputs` draws from [0, 1). Where the reference refuses that, or an answer that is none would pass for some part
    of the output, as one for all inputs does for a mean over many elements, further cases are further from the first.

    Args:
        model: the reference's model, which is left as it was.
        accuracy: of the oracle; it says how many draws.
        draw: of the run.
        renew: makes the model anew.

    Raises:
        KernelFolderError: two new models give different answers, so that there is nothing to compare with.
    """
    draws = DRAWS[accuracy]
    state = {name: tensor.clone() for name, tensor in model.state().items()}
    bands = Bands()
    model.remember()
    keeps_state = False

    def case_of(name: str, inputs: Sequence[Any], *, everywhere: bool = False) -> Case:
        model.reset(SENTINELS[0])
        given = tuple(bands.around(value) for value in inputs)
        asked = renew() if keeps_state and renew is not None else model
        return ask(asked, name, given, everywhere=everywhere, accuracy=accuracy, seed=draw.seed)

    def all_cases() -> tuple[list[Case], Mapping[str, Sequence[str]]]:
        inputs = {number: source.inputs(draw.seed_of(number)) for number in range(1, draws + 1)}
        cases = [case_of(f"draw {number}", given, everywhere=True) for number, given in inputs.items()]
        drawn, form = cases[0].inputs, Form.of(list(inputs.values()))
        with contextlib.suppress(ReferenceRefusal):  # it may take probabilities only
            signs = [mixed_signs(value, draw.seed_of(number)) for number, value in enumerate(drawn)]
            cases.append(case_of("mixed signs", form.keep(signs)))
        for largest in (True, False) if any(map(is_integer, drawn)) else ():
            with contextlib.suppress(ReferenceRefusal):
                ends = at_ends(list(inputs.values()), largest=largest)
                cases.append(case_of(f"integers as {'large' if largest else 'small'} as they are drawn", ends))
        found = _degenerate(cases)
        for name, change in _STRONGER.items():
            if len(cases) == draws or any(found.values()):
                with contextlib.suppress(ReferenceRefusal):
                    others = form.keep([change(value, number) for number, value in enumerate(drawn)])
                    cases.append(case_of(name, others))
                found = _degenerate(cases)
        return cases, found

    with torch.no_grad():
        cases, found = all_cases()
        model.reset(SENTINELS[0])
        if not _answers_again(model, cases[0], cases[0].call_seed, accuracy=accuracy):
            if renew is not None and not _answers_again(renew(), cases[0], cases[0].call_seed, accuracy=accuracy):
                raise KernelFolderError("the reference does not repeat itself: there is nothing to compare with")
            keeps_state = True
            cases, found = all_cases()
        # A second call has the first one's answer: it neither changes its inputs nor draws random numbers.
        steady = not cases[0].changed and not keeps_state and _answers_again(model, cases[0], accuracy=accuracy)
        model.reset(SENTINELS[0])
        return Oracle(tuple(cases), state, bands, _answers_to_all(found), steady, draws, accuracy, keeps_state)


def _answers_again(model: Model, case: Case, seed: int | None = None, *, accuracy: Accuracy) -> bool:
    """Whether one more call, at the precision of the case's own, has its answer."""
    inputs = cloned(case.inputs) if case.changed else case.inputs
    again = model.call(inputs, CallOptions(byte=None, guarded=False, seed=seed, precision=accuracy))
    try:
        judge_values(case, judge_structure(case, again.output, aliases=again.aliases))
    except StageRefused:
        return False
    return True


def consult(model: nn.Module, name: str, inputs: tuple[Any, ...]) -> Case:
    """One case of a model of this process; see `ask`."""
    return ask(Model(model), name, inputs)


def ask(
    model: Model,
    name: str,
    inputs: tuple[Any, ...],
    autocast: torch.dtype | None = None,
    *,
    everywhere: bool = False,
    accuracy: Accuracy = Accuracy.TOLERANCE,
    seed: int = 0,
    recording: Recording = Recording.NOTHING,
) -> Case:
    """One case; the model's buffers move as in any call.

    Args:
        autocast: the type that the call at the reference's own precision runs under autocast to.
        everywhere: what is not finite in the answer has to be met. Else only where something in the inputs is not
            finite: of what the reference was not made for, such as a negative number under a root, nothing is asked.
        accuracy: see `truth_of`.
        seed: of the run; what the call draws follows from it and the name.
        recording: what torch records of the call.

    Raises:
        ReferenceRefusal: the model raises on these inputs, or returns what is no tree of plain values.
    """
    sums, call_seed = checksums(inputs), crc32(name.encode(), seed)
    try:
        truth = model.consult(inputs, call_seed, autocast, accuracy, recording)
    except FAILURES as error:
        raise ReferenceRefusal(f"the reference does not run: {described(error)}") from error
    if strange := truth.own.strange:
        raise ReferenceRefusal(f"of the reference's answer {strange}; return tensors, numbers and texts")
    free = not everywhere and all(_is_finite(value) for value in inputs)
    output, note = _expected(truth, truth.why, free), truth.why
    if truth.draws and any(one.own.max_relative > OTHER_DRAWS for one in output.values()):
        note = "it draws other random numbers in float64"
        output = _expected(truth, note, free)
    moved = truth.own_buffers if note else truth.exact_buffers
    buffers = {key: real(buffer).double() for key, buffer in moved.items()}
    return Case(
        name=name,
        inputs=inputs,
        call_seed=call_seed,
        draws=truth.draws,
        like=truth.own.mapped(without_memory),
        output=output,
        plain={path: _plain(truth, path) for path in truth.own.leaves if path not in output},
        changed={
            key: expect(own, None if note else truth.exact_inputs.get(key), free=free)
            for key, own in truth.own_inputs.items()
        },
        input_sums=sums,
        expected_buffers=buffers,
        reference_buffer_error=max(
            (relative_norm(truth.own_buffers[key], buffers[key]) for key in buffers), default=0.0
        ),
        shared=truth.shared,
        note=note and f"the reference's own answer is the truth, since {note}",
    )


def _expected(truth: Truth, note: str, free: bool) -> dict[str, Expected]:
    """Return what tensors and floats of the output should be, by path.

    Args:
        note: why the answer in float64 is no truth; empty where it is.
    """
    exact = {} if note or truth.exact is None else truth.exact.leaves
    alternatives = [] if note else truth.alternatives
    in_order = {} if note or truth.in_order is None else truth.in_order.leaves
    return {
        path: expect(
            own,
            exact.get(path),
            [other.get(path) for other in alternatives],
            in_order.get(path),
            aliases=path in truth.aliases,
            free=free,
        )
        for path, own in truth.own.leaves.items()
        if isinstance(own, torch.Tensor | float)
    }


def _plain(truth: Truth, path: str) -> list[Leaf]:
    """Return the values that a leaf may have which is neither a tensor nor a float."""
    others = [*([] if truth.exact is None else [truth.exact.leaves]), *truth.alternatives]
    return [truth.own.leaves[path], *(one[path] for one in others if path in one)]


def _is_finite(value: Any) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors_in([value]))


def _answers_to_all(found: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The answers that pass everywhere; none where some part of the output lets none of them pass.

    A copy of the input that passes in a wide range of values as well is the answer.
    """
    names = {name for answers in found.values() for name in answers}
    told = tuple(name for name in _NO_ANSWERS if name in names and name != _COPY)
    return told if all(found.values()) else ()


def _degenerate(cases: Sequence[Case]) -> dict[str, list[str]]:
    """The answers that are no answers and that every case would let pass, by path of the output."""
    first = cases[0]

    def passes(answer: _NoAnswer, path: str) -> bool:
        for case in cases:
            value = answer(cases, case, path)
            expected = case.output.get(path)
            if value is None or expected is None or value.shape != expected.like.shape:
                return False
            if value.is_complex() != expected.like.is_complex():
                return False
            if not expected.errors_of(value).max_relative <= expected.bound:
                return False
        return True

    paths = [path for path, expected in first.output.items() if expected.values.numel()]
    return {path: [name for name, answer in _NO_ANSWERS.items() if passes(answer, path)] for path in paths}


_NoAnswer = Callable[[Sequence[Case], Case, str], torch.Tensor | None]
"""Makes an answer that is none to one of the cases, of the output's part at a path."""


def _zeros(_cases: Sequence[Case], case: Case, path: str) -> torch.Tensor:
    expected = case.output[path]
    return torch.zeros(expected.like.shape, dtype=expected.like.dtype, device=expected.device)


def _constant(_cases: Sequence[Case], case: Case, path: str) -> torch.Tensor | None:
    """The mean everywhere; of a single number that is the answer itself, which tells nothing."""
    expected = case.output[path]
    if expected.values.numel() == 1 or expected.like.is_complex():
        return None
    mean = expected.values.flatten().mode().values if expected.is_exact else expected.values.nanmean()
    return torch.full_like(expected.values, mean.item())


def _input_of_that_shape(_cases: Sequence[Case], case: Case, path: str) -> torch.Tensor | None:
    like = case.output[path].like
    same = (v for v in case.inputs if isinstance(v, torch.Tensor) and v.shape == like.shape)
    return next((v for v in same if v.dtype is not torch.bool or like.dtype is torch.bool), None)


def _of_other_inputs(cases: Sequence[Case], case: Case, path: str) -> torch.Tensor | None:
    other = cases[0] if case is not cases[0] else cases[-1]
    return other.output[path].answer if path in other.output else None


def _one_for_all(cases: Sequence[Case], case: Case, path: str) -> torch.Tensor | None:
    """The middle of all answers, which few numbers may all be close to."""
    if case.output[path].is_exact or case.output[path].values.numel() > _FEW_ELEMENTS:
        return None
    answers = [one.output[path].answer for one in cases if path in one.output]
    if any(answer.shape != answers[0].shape or answer.is_complex() for answer in answers):
        return None
    stacked = torch.stack(answers)
    return (stacked.amax(0) + stacked.amin(0)) / 2


_NO_ANSWERS: Mapping[str, _NoAnswer] = {
    "zeros": _zeros,
    "one constant": _constant,
    _COPY: _input_of_that_shape,
    "the answer to other inputs": _of_other_inputs,
    "one answer for all inputs": _one_for_all,
}
