"""The search space of row reductions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tunebench.kernels.blocks.block import fast_math_tunables
from tunebench.tuner import constraints
from tunebench.tuner.configuration import Value
from tunebench.tuner.device import MOST_BLOCKS, Device
from tunebench.tuner.kernel import ceil_div
from tunebench.tuner.problem import Problem
from tunebench.tuner.space import Constraint, SearchSpace, Tunable

_MOST_THREADS = 1024
_FEWEST_THREADS = 4
_BUSY_THREADS = 512
"""Threads that keep the memory of a multiprocessor busy; with fewer, memory waits for them."""
_VECTORS_OF_BUSY_THREADS = 8
_FEW_ROWS = 8
_OWN_SHARED_BYTES = 4096
"""Bytes reserved in a block's shared memory: more than joining its warps takes."""
_MOST_ELEMENTS = 32
"""Limit of a thread's elements in flight, of all tensors: more take registers and compile time without a gain."""
_BLOCK_BYTES = 128 * 1024
"""Bytes of a block's registers for values kept of rows: half of the register file."""
_FEW_THREADS: tuple[Mapping[str, Value], ...] = ({"keep": "registers", "block_size": 128, "vectors_per_thread": 8},)
"""A study begins with that: where exponentials keep threads busy, few of them wait for each other."""
_VECTOR_BYTES = 16
_SHORT_BYTES = 8192


def padded(features: int, width: int) -> int:
    """Return how many elements a row takes in shared memory, wherever it begins."""
    return (ceil_div(features, width) + 1) * width


def _vectors(features: int, width: int) -> int:
    """Return the most vectors that a row lies in."""
    return ceil_div(features, width) + (features % width > 0)


def space_of(texts: Sequence[str], tensors: int, *, has_online: bool, is_of_rows: bool) -> SearchSpace:
    """Return the space of rows of so many tensors; `has_online`: a maximum and a sum can be made together."""
    fast_math, needs = fast_math_tunables(texts)

    def registers_hold_a_row(
        keep: str, block_size: int, row_threads: int, vector_width: int, vectors_per_thread: int, problem: Problem
    ) -> bool:
        """Return whether registers hold all of a row, without room for another one like it."""
        if keep != "registers":
            return True
        vectors = _vectors(problem.axes["features"], vector_width)
        capacity = row_threads * vectors_per_thread
        is_smallest = row_threads == _FEWEST_THREADS and vectors_per_thread == 1
        fits = block_size * vectors_per_thread * vector_width * problem.item_bytes * tensors <= _BLOCK_BYTES
        return vectors <= capacity and (capacity < 2 * vectors or is_smallest) and fits

    def loops_are_worth_it(
        keep: str, row_threads: int, vector_width: int, vectors_per_thread: int, problem: Problem
    ) -> bool:
        """Require several steps where a row is walked over in steps; few, or all the threads there can be."""
        if keep not in ("shared", "memory"):
            return True
        steps = ceil_div(problem.axes["features"], row_threads * vector_width * vectors_per_thread)
        return steps >= 2 and (steps <= 8 or row_threads == _MOST_THREADS)

    def threads_suffice(keep: str, row_threads: int, vector_width: int, problem: Problem, device: Device) -> bool:
        """Require as many threads as keep memory busy, where there is so much to do that they all have some of it."""
        vectors = ceil_div(_vectors(problem.axes["features"], vector_width), _VECTORS_OF_BUSY_THREADS)
        busy = ceil_div(_BUSY_THREADS * device.multiprocessors, problem.axes["rows"])
        return keep == "split" or row_threads >= min(_MOST_THREADS, vectors, busy)

    def splitting_is_worth_it(
        keep: str,
        block_size: int,
        row_threads: int,
        vector_width: int,
        vectors_per_thread: int,
        problem: Problem,
        device: Device,
    ) -> bool:
        """Require that rows with several blocks each are too few for one block each to keep the device busy."""
        if keep != "split":
            return True
        is_long = problem.axes["features"] >= 2 * row_threads * vector_width * vectors_per_thread
        few = max(_FEW_ROWS, device.multiprocessors * 3 // 4)
        return row_threads == block_size and is_long and problem.axes["rows"] <= few

    def few_are_in_flight(vector_width: int, vectors_per_thread: int) -> bool:
        return vector_width * vectors_per_thread * tensors <= max(_MOST_ELEMENTS, vector_width * tensors)

    def shared_memory_fits(
        keep: str, block_size: int, row_threads: int, vector_width: int, problem: Problem, device: Device
    ) -> bool:
        """Require room for a block's rows in shared memory, and for rows of enough threads in a multiprocessor."""
        if keep != "shared":
            return True
        row = padded(problem.axes["features"], vector_width) * problem.item_bytes * tensors
        room = device.max_shared_bytes - _OWN_SHARED_BYTES
        vectors = ceil_div(_vectors(problem.axes["features"], vector_width), _VECTORS_OF_BUSY_THREADS)
        return block_size // row_threads * row <= room and room // row * row_threads >= min(_BUSY_THREADS, vectors)

    online = (Tunable("online", (False, True)),) if has_online else ()
    stores = () if is_of_rows else (Tunable("store_hint", ("normal", "streaming")),)
    return SearchSpace(
        tunables=(
            *fast_math,
            *online,
            Tunable("keep", ("registers", "shared", "memory", "split")),
            Tunable("block_size", (128, 256, 512, 1024), default=256),
            Tunable("row_threads", (4, 8, 16, 32, 64, 128, 256, 512, 1024), default=256),
            Tunable("vector_width", (1, 2, 4, 8), default=4),
            Tunable("vectors_per_thread", (1, 2, 4, 8, 16), default=4),
            Tunable("load_hint", ("normal", "streaming"), when=_reads_once),
            *stores,
            Tunable("waves", (0, 1, 4), when=_is_one_launch, host=True),
            Tunable("split_waves", (1, 2, 4), when=_is_split, host=True),
        ),
        constraints=(
            constraints.block_fits("block_size"),
            Constraint("rows_fit_block", _rows_fit_block),
            Constraint("vectors_are_of_16_bytes_or_one_element", _vectors_are_whole),
            Constraint("threads_suffice", threads_suffice),
            Constraint("few_elements_are_in_flight", few_are_in_flight),
            Constraint("registers_hold_a_row", registers_hold_a_row),
            Constraint("loops_are_worth_it", loops_are_worth_it),
            Constraint("splitting_is_worth_it", splitting_is_worth_it),
            Constraint("shared_memory_within_limit", shared_memory_fits),
            Constraint("grid_within_limit", _grid_fits),
            *needs,
        ),
        starts=_FEW_THREADS,
    )


def _reads_once(keep: str) -> bool:
    return keep in ("registers", "shared")


def _is_one_launch(keep: str) -> bool:
    return keep != "split"


def _is_split(keep: str) -> bool:
    return keep == "split"


def _rows_fit_block(block_size: int, row_threads: int) -> bool:
    return row_threads <= block_size


def _vectors_are_whole(vector_width: int, problem: Problem) -> bool:
    """Allow the widest vectors alone; or none, where rows are short and begin where no vector does."""
    row_bytes = problem.axes["features"] * problem.item_bytes
    is_odd = row_bytes % _VECTOR_BYTES != 0 and row_bytes <= _SHORT_BYTES
    return vector_width * problem.item_bytes == _VECTOR_BYTES or (vector_width == 1 and is_odd)


def _grid_fits(block_size: int, row_threads: int, problem: Problem) -> bool:
    return problem.axes["rows"] <= MOST_BLOCKS * (block_size // row_threads)
