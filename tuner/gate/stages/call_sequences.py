"""Stages about calls that follow one another: memory that is used again, and what earlier calls leave behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from tunebench.tuner.gate.answers import Pair
from tunebench.tuner.gate.changes import place_of
from tunebench.tuner.gate.distributions import DISTRIBUTIONS, hold_together, is_integer
from tunebench.tuner.gate.faults import FAILURES
from tunebench.tuner.gate.harness import Harness
from tunebench.tuner.gate.memory import all_equal, checksums, same_bits, synchronise
from tunebench.tuner.gate.model import Answer, CallOptions
from tunebench.tuner.gate.questions import LEAK_BYTES
from tunebench.tuner.gate.stage_log import StageRefused
from tunebench.tuner.gate.values import Values, mapped, own_part

_CALLS = 64
_HELD = 3
_AT_ONCE = 16
_FEW = 4
_MOST_INPUTS = 4
_KEEPS_STATE = "the reference keeps a state from call to call"


def same_memory(harness: Harness) -> None:
    """The same tensors with new content, and other tensors on the same memory: an answer kept for either is stale."""
    if harness.answers.oracle.keeps_state:
        harness.pass_over(_KEEPS_STATE)  # it may be the memory of an input
        return
    pair, held = harness.pair(), CallOptions(held=True)
    inputs = pair.inputs(1)
    pair.candidate.hold(inputs)
    harness.agree(pair, inputs, "the first call", held)
    harness.agree(pair, _rewritten(harness, pair, inputs, 2, counted=True), "new content in the same tensors", held)
    inputs = _rewritten(harness, pair, inputs, 3, counted=False)
    harness.agree(pair, inputs, "new content through .data", held)
    pair.candidate.exchange()
    pair.candidate.rewrite(inputs, counted=False)  # a call may have changed them
    harness.agree(pair, inputs, "other tensors on the same memory", held)
    inputs = _rewritten(harness, pair, inputs, 4, counted=False)
    harness.agree(pair, inputs, "other tensors on the same memory, new content", held)
    inputs = _written(harness, pair, _each(inputs, partial(_balanced, seed=harness.draw.seed_of(6))))
    harness.agree(pair, inputs, "whole eighths", held)
    share = harness.draw.factor("an element's place") / 2
    for name, edit in _EDITS.items():
        others = harness.in_form(pair, _each(inputs, partial(edit, share=share)))
        if not all(all_equal(checksums(inputs), checksums(others))):  # else nothing would be asked
            inputs = _written(harness, pair, others)
            harness.agree(pair, inputs, name, held)
    for name, draw in _INDICES.items():
        others = _with_indices(inputs, pair.inputs(5), draw)
        if any(one is not other for one, other in zip(inputs, others, strict=True)):
            inputs = _written(harness, pair, others)
            harness.agree(pair, inputs, name, held)
    one_row = partial(_one_row, share=share)
    for number in range(min(len(inputs), _MOST_INPUTS)):
        inputs = _written(
            harness, pair, (*inputs[:number], *_each(inputs[number : number + 1], one_row), *inputs[number + 1 :])
        )
        harness.agree(pair, inputs, f"input {number + 1} changed alone", held)


def _written(harness: Harness, pair: Pair, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs, which are in the candidate's tensors now; torch's version counters have not seen it."""
    inputs = harness.in_form(pair, inputs)
    pair.candidate.rewrite(inputs, counted=False)
    return inputs


def _each(inputs: Sequence[Any], edit: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Any, ...]:
    return tuple(mapped(value, partial(_edited, edit)) for value in inputs)


def _edited(edit: Callable[[torch.Tensor], torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
    """Edit a tensor, and leave it as it lies in memory: the candidate has what is asked about in tensors of its own."""
    if not ((tensor.is_floating_point() or tensor.is_complex()) and tensor.numel()):
        return tensor
    own = own_part(tensor)
    return torch.empty_like(own).copy_(edit(own)).expand(tensor.shape)


def _one_element(value: torch.Tensor, share: float) -> torch.Tensor:
    """Neither the first nor the last, at which a key made of a few elements would look."""
    edited = value.clone()
    edited[tuple(int(size * share) for size in value.shape)].mul_(-1.5).add_(2.0)
    return edited


def _one_row(value: torch.Tensor, share: float) -> torch.Tensor:
    edited = value.clone()
    edited[tuple(int(size * share) for size in value.shape[:1])].mul_(-1.5).add_(0.25)
    return edited


def _element(remainder: int) -> Callable[..., torch.Tensor]:
    def edit(value: torch.Tensor, share: float) -> torch.Tensor:
        edited = value.clone()
        edited[place_of(value, remainder, share)].mul_(-1.5).add_(2.0)
        return edited

    return edit


def _all_by_less(value: torch.Tensor, share: float) -> torch.Tensor:  # noqa: ARG001
    """Change whole eighths by less than a key of numbers in bfloat16 sees."""
    return value * (1.0 + 0.0015 * _signs_in_turns(value))


def _all_by_little(value: torch.Tensor, share: float) -> torch.Tensor:  # noqa: ARG001
    """Less than a key of rounded numbers sees, and not all by the same, which a softmax does not see."""
    return value + 0.05 * _signs_in_turns(value)


def _signs_in_turns(value: torch.Tensor) -> torch.Tensor:
    signs = torch.arange(value.numel(), device=value.device) % 2 * 2 - 1
    return signs.to(value.dtype).reshape(value.shape)


def _balanced(value: torch.Tensor, seed: int) -> torch.Tensor:
    """Whole eighths, none of them zero, for each its negative: their sum, mean and deviation are exact, in whatever
    order they are."""
    generator = torch.Generator(value.device).manual_seed(seed)
    eighths = torch.randint(1, 17, (value.numel() // 2,), generator=generator, device=value.device)
    numbers = torch.cat([eighths, -eighths, eighths.new_zeros(value.numel() % 2)]) / 8
    return torch.empty_like(value).copy_(numbers.reshape(value.shape))


def _other_order(value: torch.Tensor, share: float = 0.0) -> torch.Tensor:  # noqa: ARG001
    """With the same sum."""
    return value.roll(tuple(1 for _ in value.shape), tuple(range(value.dim()))) if value.dim() else value


def _imaginary_part(value: torch.Tensor, share: float) -> torch.Tensor:  # noqa: ARG001
    edited = value.clone()
    if value.is_complex():
        edited.imag.mul_(-0.5).add_(0.25)
    return edited


_EDITS: Mapping[str, Callable[..., torch.Tensor]] = {
    "the same elements in another order": _other_order,
    "all elements changed by a thousandth": _all_by_less,
    "all elements changed by 0.05": _all_by_little,
    "one element changed": _one_element,
    "an odd element changed": _element(5),
    "an even element changed": _element(4),
    "one row changed": _one_row,
    "the imaginary part changed": _imaginary_part,
}
"""Edits of floating-point inputs, which are told at which share of each axis the one place is that they change."""


def _indices_in_another_order(value: torch.Tensor, _other: torch.Tensor) -> torch.Tensor:
    """With the same sum. Not of one axis: such numbers may count something."""
    return _other_order(value) if value.dim() > 1 and not _hold_together(value) else value


def _one_row_of_another_draw(value: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Replace one row by another draw's: what is valid in a place in one draw is so in every draw."""
    if _hold_together(value):
        return value
    row = tuple(size * 2 // 3 for size in value.shape[:1])
    edited = value.clone()
    edited[row] = other[row]
    return edited


def _hold_together(value: torch.Tensor) -> bool:
    return is_integer(value) and any(hold_together(value, axis) for axis in range(value.dim()))


_INDICES: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "indices or masks in another order": _indices_in_another_order,
    "one row of indices or masks changed": _one_row_of_another_draw,
    "other indices or masks": lambda _value, other: other,
}
"""Edits of indices, labels and masks, which are taken from another draw."""


def _with_indices(
    inputs: Sequence[Any], drawn: Sequence[Any], edit: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> tuple[Any, ...]:
    """The inputs with their integers and truth values edited; the same objects where that changes nothing."""

    def edited(value: Any, other: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.is_floating_point() or value.is_complex():
            return value
        if not value.numel() or value.shape != other.shape:
            return value
        new = torch.empty_like(value).copy_(edit(value, other))
        return value if torch.equal(new, value) else new

    return tuple(edited(value, other) for value, other in zip(inputs, drawn, strict=True))


def _rewritten(harness: Harness, pair: Pair, inputs: tuple[Any, ...], number: int, *, counted: bool) -> tuple[Any, ...]:
    """Other values, which are in the candidate's tensors now, whether torch's version counter has seen it or not."""
    others = harness.in_form(pair, pair.changed(inputs, DISTRIBUTIONS["normal"], 100 * number))
    pair.candidate.rewrite(others, counted=counted)
    return others


def later_calls(harness: Harness) -> None:
    """Each of many calls on inputs that take turns is right, and so is one on other inputs after them."""
    if harness.answers.oracle.keeps_state:
        harness.pass_over(_KEEPS_STATE)
        return
    pair = harness.pair()
    turns = [pair.inputs(21), pair.inputs(22)]
    if harness.agree(pair, turns[0], "the first call") is None:
        return
    # Buffers move as the candidate's do.
    own = pair.reference.call_many(turns, _CALLS if pair.reference.has("buffers") else _FEW)
    with harness.refusing(f"{_CALLS} calls"):
        answers = pair.candidate.call_many(turns, _CALLS)
    _judge_each(harness, turns, own, answers, f"one of {_CALLS} calls")
    last = harness.in_form(pair, pair.changed(turns[0], DISTRIBUTIONS["normal"], 23))
    harness.agree(pair, last, f"the call after {_CALLS} others")


def _judge_each(
    harness: Harness,
    turns: Sequence[tuple[Any, ...]],
    own: Sequence[Sequence[Answer]],
    answers: Sequence[Sequence[Answer]],
    label: str,
) -> None:
    """Judge the different answers to inputs that took turns, where the reference has one answer to each of them."""
    if any(len(of_inputs) > 1 for of_inputs in own):
        harness.pass_over("the reference itself gives another answer in every call")
        return
    for number, (inputs, of_inputs) in enumerate(zip(turns, answers, strict=True)):
        # Of a reference of its own, so that the pair's stay together.
        case = harness.answers.case(harness.pair(), f"{label}, inputs {number + 1}", partial(tuple, inputs))
        if case is None:
            continue
        for answer in of_inputs:
            harness.count()
            harness.judge(case, answer)


def held_results(harness: Harness) -> None:
    """Results that a caller holds are the caller's: later calls leave them alone, and nobody else keeps them."""
    pair = harness.pair()
    copies: list[Values] = []
    for seed in range(_HELD):
        options = CallOptions(byte=None, keep=True)
        output = harness.agree(pair, pair.inputs(seed), f"result {seed + 1}", options)
        if output is None:
            return
        copies.append(output.mapped(torch.clone))
        del output
    synchronise(harness.device)
    if not _are_same(copies, pair.candidate.kept()):
        raise StageRefused("a result that a caller holds was overwritten by a later call")
    turns = [pair.inputs(seed) for seed in range(_HELD)]
    if not pair.reference.changed_results(turns, _HELD):
        with harness.refusing(f"{_CALLS} results that are held"):
            overwritten = pair.candidate.changed_results(turns, _CALLS)
        if overwritten:
            raise StageRefused(f"{overwritten} of {_CALLS} results that a caller holds were overwritten by later calls")
    if pair.candidate.keeps_outputs() and not _returns_own_memory(pair):
        raise StageRefused("the output is memory that the module, or something beside it, keeps for itself")


def _are_same(copies: Sequence[Values], kept: Sequence[Values]) -> bool:
    pairs = zip(copies, kept, strict=True)
    return all(same_bits(tensor, now.tensors[path]) for copy, now in pairs for path, tensor in copy.tensors.items())


def _returns_own_memory(pair: Pair) -> bool:
    """Whether the reference itself returns one of its parameters or buffers."""
    pair.reference.call(pair.inputs(0), CallOptions(byte=None, guarded=False, keep=True))
    return pair.reference.keeps_outputs()


def growth(harness: Harness) -> None:
    """Calls leave no memory behind."""
    pair = harness.pair()
    turns = [pair.inputs(31), pair.inputs(32)]
    with harness.refusing(f"{_CALLS} calls"):
        if (reason := pair.candidate.ready(turns[0])) is not None:
            harness.pass_over(reason)
            return
        left = pair.candidate.left_behind(turns, _CALLS)
    if left is None:
        harness.pass_over("this system does not say what memory is in use")
        return
    harness.count()
    if left >= LEAK_BYTES and left > 2 * (pair.reference.left_behind(turns, _CALLS) or 0):
        raise StageRefused(f"each of {_CALLS} calls leaves {left} bytes of memory in use behind")


def instances(harness: Harness) -> None:
    """Two models with different weights that are called in turns: none gets what the other has kept."""
    one, other = harness.pair(), harness.pair()
    if not one.reference.has("parameters"):
        harness.pass_over("the reference has no parameters")
        return
    one.change("an edit of one row")  # as many counted writes as to the other: version counters tell nothing
    other.change("an in-place edit")
    inputs = one.inputs(1)
    for turn in (1, 2):
        harness.agree(one, inputs, f"turn {turn} of a model")
        harness.agree(other, inputs, f"turn {turn} of a model with other weights")


def copies(harness: Harness) -> None:
    """A deep copy and its original, one edited and then the other: neither moves the other. Then what `torch.load`
    makes of what `torch.save` has written of it."""
    pair = harness.pair()
    inputs = pair.inputs(1)
    if harness.agree(pair, inputs, "the original") is None:
        return
    try:
        pair.reference.copied()
    except FAILURES:
        harness.pass_over("the reference cannot be copied")
        return
    with harness.refusing("a deep copy"):
        copied = pair.copied()
    harness.agree(copied, inputs, "a deep copy")
    copied.change("an in-place edit")
    harness.agree(copied, inputs, "a deep copy that was edited")
    harness.agree(pair, inputs, "the original of a copy that was edited")
    pair.change("an edit of one row")
    harness.agree(pair, inputs, "an original that was edited after it was copied")
    harness.agree(copied, inputs, "the copy of an original that was edited")
    try:
        pair.reference.copied(pickled=True)
    except FAILURES:
        harness.pass_over("the reference cannot be pickled")
        return
    with harness.refusing("a model that torch.save has written"):
        loaded = pair.copied(pickled=True)
    harness.agree(loaded, inputs, "a model that torch.load has made")


def threads(harness: Harness) -> None:
    """Two threads that call one model at once, each on inputs of its own, both get what is theirs."""
    pair = harness.pair()
    turns = [pair.inputs(41), pair.inputs(42)]
    for number, inputs in enumerate(turns):
        if harness.agree(pair, inputs, f"inputs {number + 1}, one thread") is None:
            return
    own = pair.reference.at_once(turns, _AT_ONCE)
    with harness.refusing("two threads at once"):
        answers = pair.candidate.at_once(turns, _AT_ONCE)
    _judge_each(harness, turns, own, answers, "two threads at once")
