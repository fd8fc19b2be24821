"""How many threads and blocks the rows of a pass have by default."""

from __future__ import annotations

from dataclasses import dataclass

_MOST_KEPT, _MOST_KEPT_ACROSS, _MOST_LANES = 32, 16, 512
"""Upper limits of the elements of a row that a thread keeps from loop to loop (`Trips` in loops.cuh), along memory and
across it, and of such threads."""
_PACK = 8
"""The elements that a thread has of a row, or more, where all rows fill a GPU so: those that it reads at once."""
_MOST_SPLIT, _LEAST_PART, _BLOCKS, _THREADS = 4096, 1024, 512, 1 << 18
"""Most rows that several blocks may have each, least elements of a row for each, enough blocks, enough threads."""


@dataclass(frozen=True)
class Rows:
    """The rows of a pass, at the problem's sizes.

    Attributes:
        kept: how many.
        reduced: the elements of each.
        loops: how many loops go over them.
        along: whether their elements are neighbours in memory.
        has_packs: whether a thread reads several neighbours at once.
        has_window: whether they are windows of several dimensions.
    """

    kept: int
    reduced: int
    loops: int
    along: bool
    has_packs: bool
    has_window: bool

    def threads(self) -> tuple[int, int]:
        """Return rows and lanes of a block of 256 threads: lanes for long rows, or for few of them.

        Of rows that are gone over in several loops there are as many as keep a row in their registers, up to 512; where
        those lie across memory, 512 threads read more neighbours at a time. A window without packs of neighbours has a
        single thread, which knows all places in it.
        """
        kept, reduced = self.kept, self.reduced
        if self.has_window and reduced % 2 == 1 and reduced <= _MOST_KEPT and kept >= _THREADS:
            return 256, 1
        most_kept = _MOST_KEPT if self.along else _MOST_KEPT_ACROSS
        keeping = 1 << (-(-reduced // most_kept) - 1).bit_length() if self.loops > 1 else 1
        if self.along:
            wanted = reduced // (_PACK if self.has_packs and kept * reduced >= _PACK * _THREADS else 4)
        else:
            wanted = min(reduced // 4, 32, max(keeping, _THREADS // max(1, kept)))
        lanes = min(_MOST_LANES if keeping == _MOST_LANES else 256, 1 << max(0, wanted.bit_length() - 1))
        threads = 256 if self.along or self.loops == 1 or lanes == 1 else 512
        rows = min(max(1, threads // lanes), 1 << max(0, kept - 1).bit_length())
        return max(rows, -(-32 // lanes)), lanes

    def may_be_split(self) -> bool:
        """Return whether several blocks may have one of them."""
        return self.loops == 1 and self.kept <= _MOST_SPLIT and self.reduced >= 2 * _LEAST_PART

    def parts(self, rows: int) -> int:
        """Return how many blocks one of them has, a power of two, so that some hundreds are busy.

        Args:
            rows: of a block.
        """
        most = max(1, min(_BLOCKS // -(-self.kept // rows), self.reduced // _LEAST_PART))
        return 1 << min(8, most.bit_length() - 1)
