"""How far an output is from the float64 reference; how far it may be is in `tolerance.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from tunebench.tuner.result import ErrorFigures

_CHUNK_ELEMENTS = 1 << 26  # comparing piece by piece bounds the float64 temporaries to 512 MB each
_LEAST_FILL = 1e4  # masks fill with -1e4 in half types, and with larger numbers in others
_FILL_OVER_REST = 1e5
_ROW_ELEMENTS = 32  # the size of a row of fewer elements is too uncertain


def real(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers as real ones: complex ones as pairs along one more axis."""
    return torch.view_as_real(tensor.resolve_conj().resolve_neg()) if tensor.is_complex() else tensor


def scale_of(expected: torch.Tensor) -> torch.Tensor:
    """Return the size that errors are relative to: each row's RMS (first axis) with enough elements, else the whole's.

    Where a row is filled with one large number in several places, as a mask does, that is relative to itself, and the
    rest to the RMS of the rest: beside the fill no error in the rest would show.

    Returns:
        float64 tensor of shape (rows, 1), or (1, 1); of the shape of the rows where some are filled.
    """
    rows = _as_rows(expected)
    finite = torch.where(torch.isfinite(rows), rows, 0.0)
    scale = _root_mean_square(finite, finite.new_full((1, 1), rows.shape[1]))
    if rows.numel() and float(torch.linalg.vector_norm(finite, ord=math.inf)) >= _LEAST_FILL:
        scale = _beside_fills(finite, scale)
    floor: torch.Tensor = scale.clamp_min(torch.finfo(torch.float64).tiny)  # a row of zeros must be met exactly
    return floor


def _root_mean_square(rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    norms: torch.Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return norms / counts.clamp_min(1).sqrt()


def _beside_fills(rows: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The scale of each element where some rows are filled; the rows' scale where none is."""
    largest = torch.linalg.vector_norm(rows, ord=math.inf, dim=1, keepdim=True)
    places = rows.abs() == largest
    count = places.sum(1, keepdim=True)
    rest = _root_mean_square(torch.where(places, 0.0, rows), rows.shape[1] - count)
    filled = (largest >= _LEAST_FILL) & (count > 1) & (rest > 0) & (largest >= _FILL_OVER_REST * rest)
    if not bool(filled.any()):
        return scale
    return torch.where(filled, torch.where(places, largest, rest), scale)


def norm_of(expected: torch.Tensor) -> float:
    """The norm of what is finite."""
    return float(torch.linalg.vector_norm(torch.where(torch.isfinite(expected), expected, 0.0)))


def _as_rows(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() >= 2 and tensor.numel() // max(1, tensor.shape[0]) >= _ROW_ELEMENTS:
        return tensor.reshape(tensor.shape[0], -1)
    return tensor.reshape(1, -1)


def compare(
    output: torch.Tensor,
    expected: torch.Tensor,
    scale: torch.Tensor,
    bound: float,
    norm: float | None = None,
    *,
    rewritten: bool = False,
    free: bool = False,
) -> ErrorFigures:
    """Error figures of an output against the float64 reference.

    Where the reference is not finite, the output must be the same kind of not finite; anything else is an infinite
    error.

    Args:
        bound: on the relative error; it decides which index is the first wrong one.
        norm: `norm_of(expected)`, where it is known already.
        rewritten: any value that is not finite will do where the reference is not finite, and elsewhere in such a row:
            a sum of columns, a transform or a tile takes a NaN further than the reference does.
        free: where the reference is not finite, anything will do.
    """
    rows, wanted = _as_rows(output), _as_rows(expected)
    if not rows.numel():
        return ErrorFigures(0.0, 0.0, 0.0, 0.0, 0.0)
    step = max(1, _CHUNK_ELEMENTS // wanted.shape[1])
    parts = [
        _Part(rows[start : start + step], wanted[start : start + step], _rows_of(scale, start, step), start)
        for start in range(0, wanted.shape[0], step)
    ]
    # One question to the device for all parts: waiting for it is what costs.
    summaries = torch.stack([part.summary(part.difference) for part in parts]).tolist()
    differences = {}
    for number, part in enumerate(parts):
        if not all(math.isfinite(figure) for figure in summaries[number]):
            differences[number] = part.difference_of_kinds(rewritten, free)
            summaries[number] = part.summary(differences[number]).tolist()
    first_wrong = None
    for number, part in enumerate(parts):
        if summaries[number][1] > bound:
            wrong = differences.get(number, part.difference).abs() > bound * part.scale
            first_wrong = part.first_row * wanted.shape[1] + int(wrong.flatten().to(torch.uint8).argmax())
            break
    distance = math.sqrt(sum(summary[2] ** 2 for summary in summaries))
    return ErrorFigures(
        max_absolute=max(summary[0] for summary in summaries),
        max_relative=max(summary[1] for summary in summaries),
        relative_norm=_share(distance, norm_of(expected) if norm is None else norm),
        reference_max_relative=0.0,
        reference_relative_norm=0.0,
        first_wrong_index=first_wrong,
    )


def _rows_of(scale: torch.Tensor, start: int, step: int) -> torch.Tensor:
    return scale[start : start + step] if scale.shape[0] > 1 else scale


class _Part:
    """Some rows of an output with what they should be; few passes over memory, for this is most of what a gate costs.

    Attributes:
        first_row: which row of the whole is this one's first.
    """

    def __init__(self, got: torch.Tensor, exact: torch.Tensor, scale: torch.Tensor, first_row: int) -> None:
        self._got = got
        self._exact = exact
        self.scale = scale
        self.first_row = first_row

    @property
    def difference(self) -> torch.Tensor:
        """In float64; made anew each time, so that only one of them takes memory."""
        return torch.sub(self._exact, self._got)

    def summary(self, difference: torch.Tensor) -> torch.Tensor:
        """Largest difference, largest relative to the scale, norm; not finite where anything is not."""
        largest = torch.linalg.vector_norm(difference, ord=math.inf, dim=1, keepdim=True)
        relative = largest if self.scale.shape[1] == 1 else difference.abs()
        return torch.stack([largest.max(), (relative / self.scale).max(), torch.linalg.vector_norm(difference)])

    def difference_of_kinds(self, rewritten: bool, free: bool) -> torch.Tensor:
        """The difference where both are finite, 0 where what is not finite passes, infinite elsewhere."""
        got, exact = self._got, self._exact
        finite, wanted = torch.isfinite(got), torch.isfinite(exact)
        same = (got == exact) | (torch.isnan(got) & torch.isnan(exact))
        if rewritten:
            same |= ~finite & ~wanted.all(dim=1, keepdim=True)
        if free:
            same |= ~wanted
        return torch.where(finite & wanted, self.difference, torch.where(same, 0.0, math.inf))


def count_differing(output: torch.Tensor, expected: torch.Tensor, others: Sequence[torch.Tensor]) -> ErrorFigures:
    """Error figures of integers or truth values: the relative error is the share of elements that are none of these.

    Args:
        others: answers that pass as well, element by element.
    """
    wrong = output != expected
    for other in others:
        wrong &= output != other
    count = int(wrong.sum())
    if not count:
        return ErrorFigures(0.0, 0.0, 0.0, 0.0, 0.0)
    distance = torch.where(wrong, output.double() - expected.double(), 0.0).abs()
    share = count / wrong.numel()
    norm = _share(float(torch.linalg.vector_norm(distance)), norm_of(expected.double()))
    return ErrorFigures(float(distance.max()), share, norm, 0.0, 0.0, int(wrong.flatten().to(torch.uint8).argmax()))


def relative_norm(value: torch.Tensor, expected: torch.Tensor) -> float:
    """‖value − expected‖ / ‖expected‖ over what is finite; infinite where one is finite and the other is not.
    Complex values are expected as pairs.

    What is not finite may be so in any way: of values with an infinity among them the mean is infinite, and Welford's,
    which some libraries take and others do not, is NaN.
    """
    wide = real(value).double()
    same = (wide == expected) | ~(torch.isfinite(wide) | torch.isfinite(expected))
    distance = float(torch.linalg.vector_norm(torch.where(same, 0.0, wide - expected)))
    return _share(distance if math.isfinite(distance) else math.inf, norm_of(expected))


def _share(distance: float, norm: float) -> float:
    return distance / norm if norm else (0.0 if distance == 0.0 else math.inf)
