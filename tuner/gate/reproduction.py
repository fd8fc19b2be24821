"""The one call that shows what was refused: found by making it, so that what is told to a user is what happens."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import torch

from tunebench.tuner.gate.case import Case, figures
from tunebench.tuner.gate.contender import Contender
from tunebench.tuner.gate.draw import Draw
from tunebench.tuner.gate.faults import FAILURES, ReferenceRefusal
from tunebench.tuner.gate.judge import judge_structure, judge_values
from tunebench.tuner.gate.manner import Manner
from tunebench.tuner.gate.model import CallOptions, in_part
from tunebench.tuner.gate.oracle import ask
from tunebench.tuner.gate.refusal import Element, Reproduction
from tunebench.tuner.gate.sources import Source
from tunebench.tuner.gate.stage_log import StageRefused
from tunebench.tuner.gate.values import ROOT, Values, mapped, tensors_in
from tunebench.tuner.users_code import described

_NUMBERS = (1, 2, 0, 11, 12, 21, 22, 23)
"""Numbers of the inputs that the gate's stages draw."""

_MOST_BYTES = 1 << 25
"""Inputs that no seed draws are kept up to this size."""


def reproduce(
    source: Source, contender: Contender, manner: Manner, inputs: Sequence[Any], draw: Draw, *, strict: bool
) -> Reproduction | None:
    """Return what one call of a new model shows, with these inputs and the reference's weights; None where it is right.

    Args:
        source: the reference at the sizes of the call.
        manner: in which the call is made.
        draw: what the run has drawn its inputs from.
        strict: where the output lies in memory counts as well.
    """
    try:
        reference = in_part(source.model(manner.mode), manner)
        candidate = in_part(contender.model(source, manner.mode, reference.state()), manner)
        if candidate.ready(inputs) is not None:
            return None
        case = ask(reference, "one call", tuple(inputs), recording=manner.recording)
    except (*FAILURES, ReferenceRefusal):
        return None
    exemptions, element = contender.exemptions, None
    seeds = [draw.seed_of(number) for number in _NUMBERS]
    try:
        options = CallOptions(byte=None, guarded=False, seed=case.call_seed, recording=manner.recording)
        output = candidate.call(inputs, options).output
        judge_structure(case, output)
        element = _first_wrong(case, output, exemptions.rewrites_algebra)
        judge_values(case, output, rewritten=exemptions.rewrites_algebra)
        judge_structure(case, output, strict=strict, dense=exemptions.dense)
    except StageRefused as refusal:
        return _reproduction(source, manner, inputs, seeds, case.call_seed, str(element or refusal), element)
    except FAILURES as error:
        return _reproduction(source, manner, inputs, seeds, case.call_seed, described(error))
    return None


def _first_wrong(case: Case, output: Values, rewritten: bool) -> Element | None:
    """The first element of the first part that is off; None where none is, or that part's are complex."""
    for path, expected in case.output.items():
        tensor = figures(output.leaves[path])  # type: ignore[arg-type]
        errors = expected.errors_of(tensor, rewritten=rewritten)
        if errors.max_relative <= expected.bound:
            continue
        if errors.first_wrong_index is None or tensor.is_complex():
            return None
        place = _place(errors.first_wrong_index, tensor.shape)
        allowed = expected.allowed_at(errors.first_wrong_index)
        return Element(path.removeprefix(ROOT), place, float(expected.values[place]), float(tensor[place]), allowed)
    return None


def _place(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The index by axis of an element that a flat index names."""
    index = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return tuple(reversed(index))


def _reproduction(
    source: Source,
    manner: Manner,
    inputs: Sequence[Any],
    seeds: Sequence[int],
    call_seed: int,
    shown: str,
    element: Element | None = None,
) -> Reproduction:
    seed = next((seed for seed in seeds if _same(source.inputs(seed), inputs)), None)
    kept = _kept(inputs) if seed is None else None
    shapes = tuple(map(_form, inputs))
    return Reproduction(
        dict(source.sizes),
        manner.mode.value,
        seed,
        kept,
        call_seed,
        shapes,
        shown,
        str(manner),
        manner.recording.value,
        manner.part,
        manner.part_mode.value if manner.part else "",
        element,
    )


def _same(drawn: Sequence[Any], inputs: Sequence[Any]) -> bool:
    return len(drawn) == len(inputs) and all(map(_alike, drawn, inputs))


def _alike(drawn: Any, given: Any) -> bool:
    """Whether these are the same values in the same layout, so that `get_inputs` makes what is needed."""
    if type(drawn) is not type(given):
        return False
    if isinstance(drawn, dict):
        return drawn.keys() == given.keys() and all(_alike(drawn[key], given[key]) for key in drawn)
    if isinstance(drawn, list | tuple):
        return _same(drawn, given)
    if not isinstance(drawn, torch.Tensor):
        return bool(drawn == given)
    form = (given.shape, given.stride(), given.dtype, given.storage_offset() % 4)
    same = form == (drawn.shape, drawn.stride(), drawn.dtype, drawn.storage_offset() % 4)
    return same and torch.equal(drawn, given)


def _kept(inputs: Sequence[Any]) -> bytes | None:
    """Return the inputs as `torch.save` packs them, with their layouts; None where they are too many bytes."""
    own = [mapped(value, _without_surroundings) for value in inputs]
    if sum(tensor.untyped_storage().nbytes() for tensor in tensors_in(own)) > _MOST_BYTES:
        return None
    stream = io.BytesIO()
    torch.save(own, stream)
    return stream.getvalue()


def _without_surroundings(value: torch.Tensor) -> torch.Tensor:
    """Without the guard bands around it, where its layout does not need other memory than its own elements."""
    value = value.detach()
    return value.clone() if torch.ops.aten.is_non_overlapping_and_dense(value) else value


def _form(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    if tensors := tensors_in([value]):
        return f"{type(value).__name__} of {', '.join(map(_form, tensors))}"
    return repr(value)[:40]
