"""Comparison of two sets of best results: a pure function of rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tunebench.db.queries.rows import BestRow
from tunebench.db.queries.selectors import Selector

Key: TypeAlias = tuple[str | None, ...]


@dataclass(frozen=True)
class Pair:
    """The best of both sides for the same kernel, problem and cache regime."""

    before: BestRow
    after: BestRow

    @property
    def ratio(self) -> float:
        """How many times slower `after` is; below one where it is faster. Of medians taken at different moments."""
        assert self.before.median_ms and self.after.median_ms
        return self.after.median_ms / self.before.median_ms

    @property
    def flipped(self) -> bool:
        """Whether another configuration is the best now."""
        return self.before.configuration != self.after.configuration


@dataclass(frozen=True)
class Difference:
    """The best results that two sets have in common, and those that only one of them has.

    Attributes:
        pairs: the one that became slowest first.
    """

    pairs: tuple[Pair, ...]
    only_before: tuple[BestRow, ...]
    only_after: tuple[BestRow, ...]

    def slower(self, threshold: float) -> list[Pair]:
        """Return the pairs whose ratio is beyond a threshold such as 1.05."""
        return [pair for pair in self.pairs if pair.ratio > threshold]


def compared_apart(before: Selector, after: Selector) -> set[str]:
    """Return the conditions that may differ within a pair: those that the sides are about. All others have to be equal.

    Two databases are two states of the same project, whose sources may have changed between them.
    """
    names = {*before.conditions, *after.conditions}
    apart = {"source"} if {"source"} & names or (before.database or "") != (after.database or "") else set()
    if names & {"device", "architecture"}:
        apart.add("device")
    return apart | ({"compiler"} & names)


def differences(before: Iterable[BestRow], after: Iterable[BestRow], apart: Collection[str]) -> Difference:
    """Pair the rows of two sides.

    Args:
        apart: which of `source`, `device` and `compiler` may differ within a pair; where a side then has several rows
            for one key, the newest confirmed one stands for it, else the fastest.
    """
    ours, theirs = _by_key(before, apart), _by_key(after, apart)
    pairs = [Pair(row, theirs[key]) for key, row in ours.items() if key in theirs]
    return Difference(
        pairs=tuple(sorted(pairs, key=lambda pair: -pair.ratio)),
        only_before=tuple(row for key, row in ours.items() if key not in theirs),
        only_after=tuple(row for key, row in theirs.items() if key not in ours),
    )


def _by_key(rows: Iterable[BestRow], apart: Collection[str]) -> dict[Key, BestRow]:
    found: dict[Key, list[BestRow]] = {}
    for row in rows:
        found.setdefault(_key(row, apart), []).append(row)
    return {key: _representative(alike) for key, alike in found.items()}


def _key(row: BestRow, apart: Collection[str]) -> Key:
    return (
        row.kernel,
        row.problem.key,
        row.regime,
        None if "source" in apart else row.source_digest,
        None if "device" in apart else f"{row.device_name} {row.architecture}",
        None if "compiler" in apart else row.compiler,
    )


def _representative(rows: Sequence[BestRow]) -> BestRow:
    confirmed = [row for row in rows if row.confirmed_at is not None]
    if confirmed:
        return max(confirmed, key=lambda row: (row.confirmed_at, row.trial_id))
    return min(rows, key=lambda row: (row.median_ms or 0.0, row.trial_id))
