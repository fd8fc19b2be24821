"""Stages about what a module holds: what it keeps between calls must follow every change of what that was made from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from tunebench.tuner.gate.answers import Pair
from tunebench.tuner.gate.changes import STATISTICS_CHANGES, UNCOUNTED, WEIGHT_CHANGES
from tunebench.tuner.gate.faults import FAILURES
from tunebench.tuner.gate.harness import Harness
from tunebench.tuner.gate.model import CallOptions
from tunebench.tuner.gate.questions import Setting
from tunebench.tuner.gate.stage_log import StageRefused
from tunebench.tuner.kernel import Mode


def construction(harness: Harness) -> None:
    """Made after the same seed, both have the same state, name by name and bit by bit: nobody has to copy it."""
    source, mode = harness.base, harness.answers.mode
    expected = source.model(mode).state()
    with harness.refusing("making the model"):
        got = harness.contender.model(source, mode, None).state()
    harness.count()
    if list(expected) != list(got):
        raise StageRefused(f"its state is ({', '.join(got) or 'empty'}) in place of ({', '.join(expected) or 'empty'})")
    for name, tensor in expected.items():
        if tensor.shape != got[name].shape or tensor.dtype != got[name].dtype:
            raise StageRefused(
                f"'{name}' is {tuple(got[name].shape)} {got[name].dtype} in place of {tuple(tensor.shape)}"
            )
        if not torch.equal(tensor, got[name]):
            raise StageRefused(f"'{name}' has other values than the reference's after the same seed")


def weights(harness: Harness) -> None:
    """Each way to change parameters changes the next output as the reference's."""
    pair = harness.pair()
    if not pair.reference.has("parameters"):
        harness.pass_over("the reference has no parameters")
        return
    inputs = pair.inputs(1)
    harness.agree(pair, inputs, "as made")
    for name in WEIGHT_CHANGES:
        ask_changed(harness, pair, inputs, name)


def ask_changed(harness: Harness, pair: Pair, inputs: Sequence[Any], name: str) -> None:
    """Ask about a model after one of `CHANGES`."""
    pair.change(name)
    _freeze_again(pair, name)
    harness.agree(pair, inputs, f"after {name}")


def statistics(harness: Harness) -> None:
    """Buffers and the settings of normalisations: each change shows in the next output as in the reference's."""
    pair = harness.pair()
    if not (pair.reference.has("buffers") or pair.reference.has("normalisations")):
        harness.pass_over("the reference has no buffers")
        return
    inputs = pair.inputs(1)
    harness.agree(pair, inputs, "as made")
    for name in STATISTICS_CHANGES:
        try:
            pair.change(name)
        except FAILURES:
            harness.pass_over("the modules have other parts")
            continue
        _freeze_again(pair, name)
        harness.agree(pair, inputs, f"after {name}")


def _freeze_again(pair: Pair, change: str) -> None:
    """Freeze the candidate again after an edit that PyTorch does not count, as `freeze` requires of its callers."""
    if change in UNCOUNTED and pair.mode is Mode.FROZEN:
        pair.candidate.put(pair.mode)


def mode(harness: Harness) -> None:
    """Calls in train mode, in eval mode, and in train mode again: outputs and buffers move as the reference's. What
    changes the mode returns the module."""
    pair = harness.pair()
    inputs = pair.inputs(1)
    still = Mode.FROZEN if harness.answers.mode is Mode.FROZEN else Mode.EVAL
    for number, now in enumerate((Mode.TRAIN, still, Mode.TRAIN, still)):
        pair.both(lambda model, now=now: model.put(now))  # type: ignore[misc]
        if harness.agree(pair, inputs, f"call {number + 1}, in {now} mode") is None:
            pair = harness.pair()  # a reference that refuses a batch of one may have counted it before
            pair.both(lambda model: model.put(still))
    for change in ("an in-place edit", "an edit through .data"):
        pair.change(change)
        if still is Mode.FROZEN and change in UNCOUNTED:
            pair.candidate.put(still)
        harness.agree(pair, inputs, f"weights that were edited in {still} mode, by {change}")
    pair = harness.pair()
    if pair.reference.returns_itself():
        with harness.refusing("train() and eval()"):
            returns = pair.candidate.returns_itself()
        if not returns:
            raise StageRefused("train() or eval() does not return the module: `model = model.eval()` is something else")


def settings(harness: Harness) -> None:
    """Numbers that the model and its parts hold as attributes, such as `eps`, a slope or a stride: where the
    reference's output follows a change of one, so does the contender's, if it has that attribute at all. Asked are
    values that a part could have been made with."""
    pair = harness.pair()
    inputs = pair.inputs(1)
    theirs, state = pair.candidate.settings(), pair.reference.state()
    for name, value in pair.reference.settings().items():
        if "parametrizations" in name.split("."):
            harness.pass_over(f"{name}, which goes with the tensors that it was made with")
            continue
        other = None
        with harness.reference_first(f"another {name}"):
            other = _followed(pair, state, inputs, name, value)
        if other is None:
            continue
        if theirs.get(name) != value:
            harness.pass_over("the modules have other attributes")
            continue
        changed = harness.pair()
        harness.agree(changed, inputs, f"before another {name}")
        for number in (other, value):
            changed.both(lambda model, name=name, number=number: model.set(name, number))  # type: ignore[misc]
            harness.agree(changed, inputs, f"with {name} = {number}")


def _followed(
    pair: Pair, state: Mapping[str, torch.Tensor], inputs: Sequence[Any], name: str, value: Setting
) -> Setting | None:
    """Another value that the reference takes and shows in its output, in two models alike; None where there is none."""
    plain = CallOptions(byte=None, guarded=False, seed=0)
    for other in _others(value, pair.draw.factor(name)):
        if not pair.twin(state=state).could_hold(name, other):
            continue
        outputs: list[Mapping[str, torch.Tensor]] = []
        try:
            for number in (value, other, other):
                model = pair.twin(state=state)
                model.set(name, number)
                outputs.append(model.call(inputs, plain).output.tensors)
        except FAILURES:
            continue
        if _differ(*outputs[:2]) and not _differ(*outputs[1:]):
            return other
    return None


def _others(value: Setting, factor: float) -> Iterator[Setting]:
    """Other values for a setting; of a tuple, all numbers change alike, and what is positive stays so."""
    if isinstance(value, float):
        yield factor * value + 0.375
        return
    numbers = value if isinstance(value, tuple) else (value,)
    halves = [max(1, n // 2) if n > 0 else n // 2 for n in numbers]
    for others in ([n + 1 for n in numbers], [2 * n for n in numbers], halves):
        yield tuple(others) if isinstance(value, tuple) else others[0]


def _differ(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    """Whether outputs of the same structure differ, in shape or in values."""
    return list(one) == list(other) and not all(torch.equal(one[path], other[path]) for path in one)
