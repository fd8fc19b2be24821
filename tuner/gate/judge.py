"""One call's results against a case: structure, values, inputs and buffers. Each function refuses or returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import shorten

import torch

from tunebench.tuner.gate.case import Case, Expected, figures
from tunebench.tuner.gate.comparison import relative_norm
from tunebench.tuner.gate.memory import all_equal
from tunebench.tuner.gate.model import Answer
from tunebench.tuner.gate.stage_log import StageRefused
from tunebench.tuner.gate.tolerance import allowed_buffer_error
from tunebench.tuner.gate.truth import named_tensors
from tunebench.tuner.gate.values import ROOT, Values, difference_of_kinds, words
from tunebench.tuner.result import ErrorFigures


def judge_structure(
    case: Case,
    output: Values,
    *,
    aliases: Sequence[str] = (),
    shared: Sequence[str] = (),
    strict: bool = False,
    dense: bool = False,
) -> Values:
    """The output, once it is built as the reference's, and its tensors have their shapes, dtypes and devices.

    Args:
        aliases: the paths of what is memory of an input.
        shared: the paths of what is memory of an earlier part of the output.
        strict: tensors have to lie in memory as the reference's do, and tuples to have the names that torch's have.
        dense: where they have to lie so, any order of their axes without gaps will do.

    Raises:
        StageRefused: it is not like the reference's.
    """
    if difference := difference_of_kinds(output, case.like, by_name=strict):
        raise StageRefused(f"{case.name}: {difference}")
    for path, tensor in output.tensors.items():
        name, want = case.name if path == ROOT else f"{case.name}: {path}", case.output[path]
        like = want.like
        wrong = tensor.shape != like.shape or tensor.dtype != like.dtype
        if strict and not (dense and torch.ops.aten.is_non_overlapping_and_dense(tensor)):
            wrong = wrong or _strides_that_matter(tensor) != _strides_that_matter(like)
        if wrong:
            raise StageRefused(
                f"{name}: shape {tuple(tensor.shape)}, {tensor.dtype}, strides {tensor.stride()} in place of "
                f"{tuple(like.shape)}, {like.dtype}, {like.stride()}"
            )
        if tensor.device != want.device:
            raise StageRefused(f"{name}: the output is on {tensor.device}, the reference's on {want.device}")
        if path in aliases and not want.aliases:
            raise StageRefused(f"{case.name}: {words(path)} is memory of an input")
        if strict and path in shared and path not in case.shared:
            raise StageRefused(f"{case.name}: {words(path)} is memory of another part of the output")
    return output


def judge_values(case: Case, output: Values, *, rewritten: bool = False) -> ErrorFigures:
    """The error figures of the output's worst part, beside the reference's own.

    Args:
        output: built as the reference's (see `judge_structure`).
        rewritten: it comes from a declared rewrite of the algebra.

    Raises:
        StageRefused: a part's error is beyond its bound.
    """
    for path, answers in case.plain.items():
        got = output.leaves[path]
        if not any(got == answer for answer in answers):
            raise StageRefused(f"{case.name}: {words(path)} is {shorten(repr(got), 60)} in place of {answers[0]!r}")
    worst = ErrorFigures(0.0, 0.0, 0.0, 0.0, 0.0)
    for path, expected in case.output.items():
        name = case.name if path == ROOT else f"{case.name}: {path}"
        errors = _judge_tensor(name, expected, figures(output.leaves[path]), rewritten)  # type: ignore[arg-type]
        if errors.max_relative >= worst.max_relative:
            worst = errors
    return worst


def errors_in(case: Case, output: Values) -> dict[str, ErrorFigures]:
    """The error figures of the parts of an output that rounding takes part in, by path."""
    return {
        path: expected.errors_of(figures(output.leaves[path]))  # type: ignore[arg-type]
        for path, expected in case.output.items()
        if not expected.is_exact
    }


def _judge_tensor(name: str, expected: Expected, tensor: torch.Tensor, rewritten: bool) -> ErrorFigures:
    errors = expected.errors_of(tensor, rewritten=rewritten)
    if errors.max_relative <= expected.bound:
        return errors
    where = f"first wrong element {errors.first_wrong_index}"
    if expected.is_exact:
        count = round(errors.max_relative * tensor.numel())
        raise StageRefused(f"{name}: {count} of {tensor.numel()} elements are wrong; {where}", errors)
    raise StageRefused(
        f"{name}: error {errors.max_relative:.2e} of the output's size, allowed {expected.bound:.2e}; {where}", errors
    )


def judge_inputs(case: Case, answer: Answer) -> None:
    """Check what the inputs hold: what they held, or what the reference leaves in those that it changes.

    Raises:
        StageRefused: one holds something else.
    """
    same = all_equal(case.input_sums, answer.input_sums)
    for name, unchanged in zip(named_tensors(case.inputs), same, strict=True):
        if not unchanged and name not in case.changed:
            raise StageRefused(f"{case.name}: {name} was changed")
    for name, expected in case.changed.items():
        after = answer.inputs[name]
        if after.shape != expected.like.shape or after.dtype != expected.like.dtype:
            raise StageRefused(f"{case.name}: {name} has another shape or type after the call")
        try:
            _judge_tensor(case.name, expected, after, rewritten=False)
        except StageRefused as refusal:
            reason = f"{case.name}: {name} does not hold what the reference leaves in it ({refusal})"
            raise StageRefused(reason, refusal.errors) from refusal


def judge_buffers(case: Case, buffers: Mapping[str, torch.Tensor]) -> None:
    """The module's buffers after the call.

    Raises:
        StageRefused: one is missing or not what the reference's is.
    """
    require_buffers(case.name, buffers, case.expected_buffers, case.reference_buffer_error)


def require_buffers(
    when: str, buffers: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor], reference_error: float
) -> None:
    """Refuse buffers that are not what they should be.

    Args:
        when: for people.
        expected: in float64.
        reference_error: the largest relative norm error of the reference's own.

    Raises:
        StageRefused: one is missing or off.
    """
    for name, wanted in expected.items():
        if name not in buffers:
            raise StageRefused(f"{when}: there is no buffer '{name}'")
        allowed = allowed_buffer_error(buffers[name].dtype, reference_error)
        error = relative_norm(buffers[name], wanted)
        if not error <= allowed:
            raise StageRefused(f"{when}: buffer '{name}' is off by {error:.2e} of its size, allowed {allowed:.2e}")


def _strides_that_matter(tensor: torch.Tensor) -> tuple[int, ...]:
    """Strides of axes along which there is a step to take."""
    if not tensor.numel():
        return ()
    return tuple(stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)
