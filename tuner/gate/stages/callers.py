"""Stages about what a program does with any module: hooks, calls by keyword, training loops."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tunebench.tuner.gate.answers import Pair
from tunebench.tuner.gate.changes import HOOKS
from tunebench.tuner.gate.comparison import compare, norm_of, real, relative_norm, scale_of
from tunebench.tuner.gate.distributions import DISTRIBUTIONS
from tunebench.tuner.gate.faults import FAILURES
from tunebench.tuner.gate.gradients import OUTPUT, Backward, Gradients, Incoming, Trained
from tunebench.tuner.gate.harness import Harness
from tunebench.tuner.gate.judge import require_buffers
from tunebench.tuner.gate.manner import Recording
from tunebench.tuner.gate.model import CallOptions, Model
from tunebench.tuner.gate.oracle import OTHER_DRAWS
from tunebench.tuner.gate.sources import Source
from tunebench.tuner.gate.stage_log import StageRefused
from tunebench.tuner.gate.tolerance import FEW_SAMPLES_MULTIPLE, REFERENCE_MULTIPLE, allowed_error, tolerance_of
from tunebench.tuner.gate.values import in_type, mapped
from tunebench.tuner.kernel import Mode
from tunebench.tuner.users_code import described

_SIZES = 2
_MOSTLY_ROUNDING = 0.1
_OF_ROUNDING = 32.0


def hooks(harness: Harness) -> None:
    """Forward hooks and pre-hooks of the model fire, and what they return counts.

    Those of its parts are not asked about: a forward that is one kernel calls none of them.
    """
    for name in harness.draw.shuffled("hooks", HOOKS):
        pair = harness.pair()
        inputs = pair.inputs(1)
        harness.agree(pair, inputs, f"before {name}")
        pair.change(name)
        harness.agree(pair, inputs, f"with {name}")


def keywords(harness: Harness) -> None:
    """Called with its inputs by their names in the reference's signature, and with a number, a flag or a tensor for
    each that the reference does without, by what it takes."""
    pair = harness.pair()
    inputs = pair.inputs(1)
    names = tuple(pair.reference.input_names(len(inputs)))
    if not names:
        harness.pass_over("the reference's inputs have no names")
        return
    harness.agree(pair, inputs, f"called with {', '.join(names)} by name", CallOptions(keywords=names))
    number = harness.draw.factor("an option")
    for option, default in pair.reference.options(len(inputs)).items():
        names = (*names, option)
        values: Sequence[Any] = ()
        with harness.reference_first(f"with {option}"):
            values = pair.twin().values_for(pair.inputs(1), option, number)
        if not values:
            harness.pass_over(f"no value for {option} is found that the reference takes and shows")
        for value in values:
            given = CallOptions(keywords=names)
            harness.agree(harness.pair(), (*inputs, value), f"with {option} = {_shown(value)}", given)
        inputs = (*inputs, default)


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of {tuple(value.shape)}"
    return f"({', '.join(map(_shown, value))})" if isinstance(value, tuple) else repr(value)


GRADIENTS: Mapping[str, Backward] = {
    "of inputs and parameters": Backward(),
    "of parameters": Backward(inputs=False),
    "of two steps in a row": Backward(course="fbfb"),
}
TRAINING: Mapping[str, Backward] = {
    "of inputs alone": Backward(parameters=Trained.NONE),
    "with some weights frozen": Backward(parameters=Trained.SOME),
    "for a strided gradient of the output": Backward(incoming=Incoming.STRIDED),
    "for an expanded gradient of the output": Backward(incoming=Incoming.EXPANDED),
    "of two backwards, added up": Backward(course="fbfb", adds_up=True),
    "of two forwards before their backwards": Backward(course="ffbb"),
    "after a call in inference mode": Backward(course="ifb"),
    "of gradients": Backward(second=True),
    "for a transposed gradient of the output": Backward(incoming=Incoming.TRANSPOSED),
    "for zeros in the gradient of the output": Backward(incoming=Incoming.ZEROS),
    "for an infinity in the gradient of the output": Backward(incoming=Incoming.INFINITE),
    "of every other parameter, such as the bias alone": Backward(inputs=False, parameters=Trained.OTHERS),
    "in float64": Backward(wide=True),
    "after a forward under autocast": Backward(autocast=torch.bfloat16),
    "of two calls by one backward": Backward(course="ffa"),
    "of two backwards of one graph": Backward(course="frb"),
    "of an output that was changed in place": Backward(course="fwb"),
}
_STEPS = Backward(course="nfbfb")
_STEPS_IN_BOTH_MODES = Backward(course="nfbfbefbtfb")


def gradients(harness: Harness) -> None:
    """Gradients of inputs and parameters equal the reference's, and so does the output where they are recorded; a
    result is never silently detached. First comes a call as most programs make it, which nothing watches.

    Gradients are those of the forward that was computed: after the same seed both have drawn the same random numbers,
    what the forward has dropped has no gradient, and generators and buffers are where the reference leaves them.
    """
    pair = harness.pair()
    plainly = CallOptions(byte=None, guarded=False, recording=Recording.GRADIENTS)
    harness.agree(pair, pair.inputs(1), "a call where gradients are recorded", plainly)
    order = harness.draw.shuffled("gradients", GRADIENTS.items())
    reasons = [ask_gradients(harness, label, how) for label, how in order]
    if None not in reasons and (why := next(filter(None, reasons), "")):
        harness.leave_out(why)


def training(harness: Harness) -> None:
    """Gradients as training loops ask for them: weights frozen, gradients added up, gradients of gradients; in train
    mode, whatever mode the question is about, and by whatever policy a model chooses what serves it."""
    for label, how in harness.draw.shuffled("training", TRAINING.items()):
        ask_gradients(harness, label, how)
    for source in _odd(harness):
        sizes = ", ".join(f"{name}={size:g}" for name, size in source.sizes.items())
        ask_gradients(harness, f"at {sizes}", Backward(), source=source)
    if harness.answers.mode is not Mode.TRAIN:
        ask_gradients(harness, "of two steps in train mode", _STEPS, mode=Mode.TRAIN)
    pair = harness.pair()
    for policy, model in harness.contender.choosing(pair.source, pair.mode, pair.reference.state()).items():
        ask_gradients(harness, f"under the policy '{policy}', in both modes", _STEPS_IN_BOTH_MODES, model)


def _odd(harness: Harness) -> list[Source]:
    """Sizes that have been asked about, first those with the most odd numbers: there vectors and tiles have a rest."""
    order = harness.draw.shuffled("sizes of gradients", harness.sizes_met)
    return sorted(order, key=lambda source: -sum(size % 2 for size in source.sizes.values()))[:_SIZES]


def ask_gradients(
    harness: Harness,
    label: str,
    how: Backward,
    model: Model | None = None,
    mode: Mode | None = None,
    source: Source | None = None,
) -> str | None:
    """Ask for gradients; return why there was nothing to ask, empty where the reference's output needs none.

    Args:
        model: who is asked in the contender's place.
        mode: in which; None for that which the question is about.
        source: at which sizes; None for those of other questions.
    """
    pair, label = harness.pair(source), harness.labelled(label)
    how = replace(how, seed=harness.draw.seed_of(0))
    candidate = pair.candidate if model is None else model
    if mode is not None:
        candidate.put(mode)
    drawn = pair.inputs(1)
    if how.wide:
        candidate.to(torch.float64)
        drawn = tuple(mapped(value, in_type(torch.float64)) for value in drawn)
    normal = harness.in_form(pair, pair.changed(drawn, DISTRIBUTIONS["normal"]))
    # Of both signs, where the reference is made for them.
    asked = _Answer.of(pair, mode, how, normal)
    if isinstance(asked, str):
        asked = _Answer.of(pair, mode, how, drawn)
    if isinstance(asked, str):
        if asked:
            harness.pass_over(asked)
        return asked
    with harness.refusing(f"gradients {label}"):
        with torch.no_grad():
            reason = candidate.ready(asked.inputs)
        if reason is not None:
            harness.pass_over(reason)
            return reason
        got = candidate.gradients(asked.inputs, how)
    harness.count()
    try:
        asked.judge(replace(got, found=_with_zeros(got.found, asked.own.found)) if how.second else got)
    except StageRefused as refusal:
        raise StageRefused(f"gradients {label}: {refusal}") from refusal
    return None


@dataclass(frozen=True)
class _Answer:
    """The reference's answer to a course.

    Attributes:
        inputs: of each call.
        own: at its own precision; of the gradients those that are judged.
        exact: in float64.
        redrawn: that is no truth, since it has drawn other random numbers or lacks a gradient: the own answer is.
        infinite: an infinity has come in; what becomes of it and a zero, or another one, depends on the formula.
    """

    inputs: tuple[Any, ...]
    own: Gradients
    exact: Gradients
    redrawn: bool
    infinite: bool

    @classmethod
    def of(cls, pair: Pair, mode: Mode | None, how: Backward, inputs: tuple[Any, ...]) -> _Answer | str:
        """Return why there is none: the reference raises, or not all are finite; empty where no output needs any."""
        reference = pair.twin(mode)
        if how.wide:
            reference.to(torch.float64)
        exact: Gradients | None = None
        with contextlib.suppress(*FAILURES):
            exact = reference.gradients(inputs, how, exact=True)
        try:
            own = reference.gradients(inputs, how)
        except FAILURES as error:
            return f"the reference has no such gradients: {described(error)}"
        lacking = exact is None or set(exact.found) != set(own.found)
        if exact is None or lacking:
            exact = own
        finite = {name for name in exact.found if _is_finite(exact.found[name]) and _is_finite(own.found[name])}
        if how.incoming is Incoming.INFINITE:
            finite = {name for name in exact.found if _are_infinite_alike(own.found[name], exact.found[name])}
        names = [name for name in own.found if name in finite or not name.startswith(OUTPUT)]
        if all(name.startswith(OUTPUT) for name in names):
            return ""
        if not finite.issuperset(names):
            return "the reference's gradients are not finite"
        found = {name: own.found[name] for name in names}
        outputs = [name for name in names if name.startswith(OUTPUT)]
        redrawn = lacking or (
            own.draws and any(_error(found[name], exact.found[name]) > OTHER_DRAWS for name in outputs)
        )
        return cls(inputs, replace(own, found=found), exact, redrawn, how.incoming is Incoming.INFINITE)

    def judge(self, got: Gradients) -> None:
        """Judge what another module makes of it.

        Raises:
            StageRefused: it is something else.
        """
        if not got.found:
            raise StageRefused("the output is detached: no gradient reaches inputs or parameters")
        differing = set(self.own.found) ^ set(got.found)
        missing = ", ".join(sorted(name for name in differing if not name.startswith(OUTPUT)))
        if missing:
            raise StageRefused(f"gradients are there for other tensors than the reference's: {missing}")
        if not torch.equal(got.random_state, self.own.random_state):
            raise StageRefused("it draws other random numbers than the reference: the generator is left elsewhere")
        for name, gradient in self.own.found.items():
            what = f"{name}, where gradients are recorded," if name.startswith(OUTPUT) else f"the gradient of {name}"
            if name not in got.found or not _is_like(got.found[name], gradient):
                raise StageRefused(f"{what} has another shape or type than the reference's")
            self._judge(what, got.found[name], gradient, self.exact.found[name])
        truth = self.own if self.redrawn else self.exact
        expected = {name: real(buffer).double() for name, buffer in truth.buffers.items()}
        own_error = max((relative_norm(self.own.buffers[name], expected[name]) for name in expected), default=0.0)
        require_buffers("afterwards", got.buffers, expected, own_error)

    def _judge(self, what: str, got: torch.Tensor, own: torch.Tensor, exact: torch.Tensor) -> None:
        if self.infinite:
            if lost := int((torch.isinf(own) & torch.isfinite(got)).sum()):
                raise StageRefused(f"{what} is finite in {lost} places where the reference's is infinite")
            known = torch.isfinite(own) & torch.isfinite(exact) & torch.isfinite(got)
            got, own, exact = (torch.where(known, one, 0.0) for one in (got, own, exact))
        bound = 0.0
        if self.redrawn:
            # What is left of rounding, such as the gradient of a bias before a normalisation, is less in float64.
            own_error = float(norm_of(exact) <= _MOSTLY_ROUNDING * norm_of(own.double()))
            exact, bound = own.double(), REFERENCE_MULTIPLE * tolerance_of(own.dtype)
        else:
            own_error = _error(own, exact)
        multiple = FEW_SAMPLES_MULTIPLE if own_error < _MOSTLY_ROUNDING else _OF_ROUNDING
        bound = max(bound, allowed_error(own.dtype, own_error), multiple * own_error)
        # One that vanishes, as of a softmax of one number, is relative to what comes in, whose elements are about 1.
        scale = scale_of(exact) if exact.any() else exact.new_ones(1, 1, dtype=torch.float64)
        error = compare(got, exact, scale, bound).max_relative
        if not error <= bound:
            raise StageRefused(f"{what} is off by {error:.2e} of its size, allowed {bound:.2e}")
        dropped = (own == 0) & (exact == 0)
        if self.own.draws and not self.redrawn and (wrong := int((got[dropped] != 0).sum())):
            raise StageRefused(f"{what} is not zero in {wrong} places that the forward has dropped")


def _error(own: torch.Tensor, exact: torch.Tensor) -> float:
    return compare(own, exact, scale_of(exact), math.inf).max_relative


def _are_infinite_alike(own: torch.Tensor, exact: torch.Tensor) -> bool:
    return bool((torch.isinf(own) == torch.isinf(exact)).all())


def _is_like(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


def _is_finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def _with_zeros(got: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The gradients with zeros for those that a graph does not reach: it does not say whether it knows that."""
    return {name: torch.zeros_like(gradient) for name, gradient in expected.items()} | dict(got)
