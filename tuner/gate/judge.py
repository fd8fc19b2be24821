"""One call's results against a case: structure, values and buffers. Each function refuses or returns."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tunebench.tuner.gate.comparison import relative_norm
from tunebench.tuner.gate.oracle import Case
from tunebench.tuner.gate.stage_log import StageRefused
from tunebench.tuner.gate.tolerance import allowed_buffer_error
from tunebench.tuner.result import ErrorFigures


def judge_structure(
    case: Case, output: torch.Tensor | str, *, aliases: bool = False, dense: bool = False
) -> torch.Tensor:
    """The output, once it has the reference's shape, dtype, layout and device.

    Args:
        output: the tensor, or the name of the type of whatever else it is.
        aliases: it is memory of an input.
        dense: it may lie in memory in any order of its axes, without gaps.

    Raises:
        StageRefused: it is not like the reference's.
    """
    want = case.output_like
    if not isinstance(output, torch.Tensor):
        raise StageRefused(f"{case.name}: the output is {output}, not a tensor")
    any_order = dense and torch.ops.aten.is_non_overlapping_and_dense(output)
    strides = _strides_that_matter(want if any_order else output)
    got = (tuple(output.shape), output.dtype, strides)
    if got != (tuple(want.shape), want.dtype, _strides_that_matter(want)):
        raise StageRefused(
            f"{case.name}: shape {got[0]}, {got[1]}, strides {output.stride()} in place of "
            f"{tuple(want.shape)}, {want.dtype}, {want.stride()}"
        )
    if output.device != case.expected.device:
        raise StageRefused(f"{case.name}: the output is on {output.device}, the inputs on {case.expected.device}")
    if aliases and not case.aliases_input:
        raise StageRefused(f"{case.name}: the output is memory of an input")
    return output


def judge_values(case: Case, output: torch.Tensor, *, kinds_may_differ: bool = False) -> ErrorFigures:
    """The output's error figures, beside the reference's own.

    Raises:
        StageRefused: its error is beyond the case's bound.
    """
    errors = case.errors_of(output, kinds_may_differ=kinds_may_differ)
    if not errors.max_relative <= case.bound:
        raise StageRefused(
            f"{case.name}: error {errors.max_relative:.2e} of the output's size, allowed {case.bound:.2e}; "
            f"first wrong element {errors.first_wrong_index}",
            errors,
        )
    return errors


def judge_buffers(case: Case, buffers: Mapping[str, torch.Tensor]) -> None:
    """The module's buffers after the call.

    Raises:
        StageRefused: one is missing or not what the reference's is.
    """
    for name, expected in case.expected_buffers.items():
        if name not in buffers:
            raise StageRefused(f"{case.name}: there is no buffer '{name}'")
        allowed = allowed_buffer_error(buffers[name].dtype, case.reference_buffer_error)
        error = relative_norm(buffers[name], expected)
        if not error <= allowed:
            raise StageRefused(f"{case.name}: buffer '{name}' is off by {error:.2e} of its size, allowed {allowed:.2e}")


def _strides_that_matter(tensor: torch.Tensor) -> tuple[int, ...]:
    """Strides of axes along which there is a step to take."""
    if not tensor.numel():
        return ()
    return tuple(stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)
