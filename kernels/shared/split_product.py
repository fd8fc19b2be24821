"""The host's side of `include/split_product.cuh`: tunables, buffers, launches, and what is kept of a weight."""

from __future__ import annotations

import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch

from tunebench.kernels.runtime.derived import Keeper
from tunebench.kernels.shared import REPAIR_THREADS
from tunebench.kernels.shared.early_launches import BEGINS_EARLY, early_launches
from tunebench.tuner.build import Argument, Within
from tunebench.tuner.constraints import needs, shared_memory_fits
from tunebench.tuner.device import Device
from tunebench.tuner.kernel import Mode, Plan, ceil_div
from tunebench.tuner.problem import Accuracy, Problem
from tunebench.tuner.space import Constraint, Tunable

BULK_COPIES = ("split_product", "half_product")
"""The entry points that copy with cp.async.bulk."""

_TILE_DEPTH = 32
TILE_ROWS = 128
_W_STAGE_BYTES = TILE_ROWS * (_TILE_DEPTH * 4 + 32)
_BARRIER_BYTES = 16
_LINE_BYTES = 128
MAX_DEPTH_OF_INT8 = 2**31 // (2 * 127 * 127)
"""Largest depth of two small terms whose factors are 8-bit integers and whose sums are int32."""
PRODUCT_THREADS = 384
_MOST_TILE_THREADS = 512
_ROWS_OF_SPLIT_BLOCK = 8
_COLUMNS_OF_SPLIT_BLOCK = 16
_MOST_BLOCK_ROWS = 32
_WHOLE_RUN, _RUN_OF_THREAD = 128, 16
_LEAST_SLICE = 4 * _WHOLE_RUN
_MOST_ROUNDS = 8
"""Limit of the tiles of all slices that a block makes."""
_LATE_BYTES = 3 * 4 * 2048
"""Bytes of shared memory for rows on their way to the warps that split them during the product."""
_SUM_STAGES_OF_EAGER = 14


HALVES = "halves"
"""The weight's parts, and those of x, are rows in fp16, for `rounded_product.py`."""
_ROUNDED = ("rounded", HALVES)


def is_fused(product: str) -> bool:
    """Return whether the product is ours, from split halves, with everything behind it in its epilogue."""
    return product == "fused"


def splits(product: str, problem: Problem) -> bool:
    """Return whether its operands are split, as those of half types are not."""
    return is_fused(product) and problem.dtype == "float32"


def _splits_weight(product: str, weight_parts: str, problem: Problem) -> bool:
    """Return whether every call splits the weight, so that the place for it is worth tuning."""
    mode = problem.options.get("mode")  # of two inputs there is none
    return splits(product, problem) and weight_parts not in ("none", HALVES) and mode not in (None, Mode.FROZEN)


def _shared_bytes(product_columns: int, product_stages: int, weight_parts: str) -> int:
    if weight_parts != "none":
        return product_stages * ((TILE_ROWS + product_columns) * _LINE_BYTES + _BARRIER_BYTES)
    return product_stages * (_W_STAGE_BYTES + 2 * product_columns * _TILE_DEPTH * 2 + _BARRIER_BYTES)


def _rows_are_held(weight_parts: str, split_threads: int) -> bool:
    """Registers hold the rows of a block while their parts are made; those of more threads do not."""
    return weight_parts == "none" or split_threads <= _MOST_TILE_THREADS


def _shared_bytes_beside(product_columns: int, product_stages: int, weight_parts: str, weight_split: str) -> int:
    late = _LATE_BYTES if weight_split == "beside" else 0
    return _shared_bytes(product_columns, product_stages, weight_parts) + late


def _rows_on_their_way_fit(
    product_columns: int, product_stages: int, weight_parts: str, weight_split: str, device: Device
) -> bool:
    return _shared_bytes_beside(product_columns, product_stages, weight_parts, weight_split) <= device.max_shared_bytes


def _sums_are_exact(weight_parts: str, problem: Problem) -> bool:
    """Whole numbers of eight bits are summed in 32."""
    return weight_parts != "int8" or problem.axes["in_features"] <= MAX_DEPTH_OF_INT8


def _holds_enough(weight_parts: str, problem: Problem) -> bool:
    """Small terms of four significant bits are never as exact as eager; without any, operands have TF32's eleven."""
    if weight_parts in _ROUNDED:
        return problem.accuracy is Accuracy.TF32
    return weight_parts != "e4m3" or problem.accuracy is not Accuracy.EAGER


def _sums_are_asked_for(product: str, sum_stages: int, problem: Problem) -> bool:
    """Allow this number of sum stages only with `accuracy="eager"`; under the tolerance it is no choice of its own."""
    return not is_fused(product) or sum_stages != _SUM_STAGES_OF_EAGER or problem.accuracy is Accuracy.EAGER


def _sums_are_worth_it(weight_parts: str, sum_stages: int) -> bool:
    """Beside the rounding of the operands, what tensor cores truncate is nothing."""
    return weight_parts not in _ROUNDED or sum_stages == 0


def _bytes_of_parts(weight_parts: str) -> int:
    """Return the bytes of an element's parts."""
    return 2 if weight_parts in _ROUNDED else 4


def _fits_memory(weight_parts: str, problem: Problem, device: Device) -> bool:
    """Return whether the parts of both operands take an eighth of the device at most."""
    rows, depth, features = (problem.axes[name] for name in ("rows", "in_features", "out_features"))
    tiles = (rows + 2 * TILE_ROWS) + (features + TILE_ROWS)
    needed = _bytes_of_parts(weight_parts) * tiles * (depth + _LINE_BYTES)
    return weight_parts == "none" or needed <= device.memory_bytes // 8


def blocks_of_product(x_tiles: int, features: int, cluster: int, device: Device) -> int:
    """Return the fewest blocks that go over the tiles in as many rounds as all that the device holds at once."""
    tiles = ceil_div(features, TILE_ROWS * cluster) * x_tiles  # in clusters, as all here
    rounds = ceil_div(tiles, max(1, device.multiprocessors // cluster))
    return ceil_div(tiles, rounds) * cluster


def _first_late_row(rows: int, features: int, columns: int, cluster: int, device: Device) -> int:
    """Return the first row of the weight, at a tile's beginning, that no block's first tile needs."""
    x_tiles = ceil_div(rows, columns)
    tiles = ceil_div(blocks_of_product(x_tiles, features, cluster, device), cluster * x_tiles) * cluster
    return min(tiles, ceil_div(features, TILE_ROWS)) * TILE_ROWS


def _has_late_rows(
    weight_split: str, product_columns: int, product_cluster: int, problem: Problem, device: Device
) -> bool:
    """Return whether there is something to split during the product: more than its first tiles need."""
    rows, features = problem.axes["rows"], problem.axes["out_features"]
    return weight_split != "beside" or features > _first_late_row(
        rows, features, product_columns, product_cluster, device
    )


def _slices_fill_the_device(
    product: str, product_slices: int, product_columns: int, product_cluster: int, problem: Problem, device: Device
) -> bool:
    """Return whether slices, which are whole runs of one product's depth, are as many as give all blocks a tile."""
    if not splits(product, problem) or problem.axes["products"] > 1:
        return product_slices == 1
    rows, depth, features = (problem.axes[name] for name in ("rows", "in_features", "out_features"))
    tiles = ceil_div(features, TILE_ROWS * product_cluster) * product_cluster * ceil_div(rows, product_columns)
    least = 1 << max(0, ceil_div(device.multiprocessors // 2, tiles) - 1).bit_length()
    if product_slices == 1:
        return least == 1 or depth < least * _LEAST_SLICE
    most = _MOST_ROUNDS * device.multiprocessors // tiles
    return 1 < least <= product_slices <= most and depth >= product_slices * _LEAST_SLICE


def _threads_have_runs(
    product: str, split_threads: int, split_block_rows: int, product_slices: int, problem: Problem
) -> bool:
    """Return whether at least half of a block's threads have something to split."""
    runs = ceil_div(problem.axes["in_features"], product_slices * _WHOLE_RUN) * _WHOLE_RUN // _RUN_OF_THREAD
    of_row = split_threads // split_block_rows
    return not splits(product, problem) or of_row <= 2 * runs or split_block_rows == _MOST_BLOCK_ROWS


def _inputs_are_in_parts(product: str, weight_parts: str, problem: Problem) -> bool:
    """Return whether operands are split, and nothing is kept of either between calls, not even a guess."""
    return not splits(product, problem) or weight_parts != "none"


def _inputs_fit_memory(product: str, product_slices: int, problem: Problem, device: Device) -> bool:
    """Return whether the parts of all products, or what slices give, take an eighth of the device at most."""
    products, rows, depth, features = (
        problem.axes[name] for name in ("products", "rows", "in_features", "out_features")
    )
    parts = 4 * products * (rows + features + 3 * TILE_ROWS) * (depth + _LINE_BYTES)
    partial = 4 * product_slices * rows * features if product_slices > 1 else 0
    return not splits(product, problem) or max(parts, partial) <= device.memory_bytes // 8


TUNABLES = (
    Tunable("weight_parts", ("none", "e4m3", "int8", "fp16", "rounded", HALVES), when=splits),
    Tunable("product_columns", (256, 128), when=is_fused),
    Tunable("product_stages", (3, 4, 6), default=4, when=is_fused),
    Tunable("product_cluster", (1, 2), default=2, when=is_fused),
    Tunable("weight_split", ("ahead", "beside"), when=_splits_weight),
    Tunable("sum_stages", (0, 8, 12, _SUM_STAGES_OF_EAGER, 16, 32, 64, 128), default=16, when=splits),
    early_launches(when=is_fused),
)
CONSTRAINTS = (
    BEGINS_EARLY,
    # Warpgroup products are Hopper's; halves hold what fp32 holds, not what fp64 does.
    needs("product", "fused", dtypes=("float32", "float16", "bfloat16"), architectures=("sm_90",)),
    shared_memory_fits(_shared_bytes),
    Constraint("shared_memory_holds_rows_on_their_way", _rows_on_their_way_fit),
    Constraint("sums_of_whole_numbers_are_exact", _sums_are_exact),
    Constraint("tiles_hold_as_much_as_is_asked_for", _holds_enough),
    Constraint("sums_are_as_often_as_is_asked_for", _sums_are_asked_for),
    Constraint("sums_of_rounded_operands_are_the_tensor_cores", _sums_are_worth_it),
    Constraint("tiles_fit_memory", _fits_memory),
    Constraint("rows_are_left_to_split_beside", _has_late_rows),
    Constraint("tiles_are_made_in_registers", _rows_are_held),
)


OF_INPUTS = (
    Tunable("product_slices", (1, 2, 4, 8, 16, 32, 64, 128, 256), when=splits),
    Tunable("split_block_rows", (2, 4, 8, 16, _MOST_BLOCK_ROWS), default=4, when=splits),
)
"""The choices of two inputs alone."""
CONSTRAINTS_OF_INPUTS = (
    Constraint("threads_have_something_to_split", _threads_have_runs),
    Constraint("inputs_are_read_in_parts", _inputs_are_in_parts),
    Constraint("inputs_in_parts_fit_memory", _inputs_fit_memory),
)


OF_HALVES = tuple(needs("product", product, dtypes=("float32",)) for product in ("fused", "stream"))
SLICES = Constraint("slices_fill_the_device", _slices_fill_the_device)


class InColumns(NamedTuple):
    """Which of two inputs lie in columns: their memory is (depth, rows)."""

    x: bool
    weight: bool


def _empty_that_lasts(rows: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Allocate memory that outlives the call.

    While `torch.compile` warms up for its CUDA graphs, a thread's memory comes from a pool of theirs, where nothing may
    stay that they do not know of. So it is another thread that asks.
    """
    if "torch._inductor.cudagraph_trees" not in sys.modules:
        return torch.empty(rows, dtype=dtype, device=device)
    stream = torch.cuda.current_stream(device)

    def allocate() -> torch.Tensor:
        with torch.cuda.stream(stream):
            return torch.empty(rows, dtype=dtype, device=device)

    with ThreadPoolExecutor(1) as executor:
        return executor.submit(allocate).result()


class RowExponents:
    """The exponents of a weight's rows, guessed from one call to the next.

    A guess that is off costs time, never the answer: the product verifies it against the weight it reads, and
    `repair_rows` corrects both. It is made anew where the weight is another tensor or PyTorch counts a change, so that
    optimiser steps cost one pass over the weight and not a repair.
    """

    def __init__(self) -> None:
        self._exponents: torch.Tensor | None = None
        self._weight: weakref.ref[torch.Tensor] | None = None
        self._version = -1
        self._captured: list[torch.Tensor] = []

    def of(self, plan: Plan, weight: torch.Tensor) -> torch.Tensor:
        """Return the exponents of a contiguous weight (rows, depth): int32 (rows,), there; the kernels write to it."""
        version = -1 if weight.is_inference() else weight._version
        same = self._weight is not None and self._weight() is weight and self._version == version
        found, (rows, depth) = self._exponents, weight.shape
        capturing = torch.cuda.is_current_stream_capturing()
        if not same or found is None or found.get_device() != weight.get_device() or found.shape[0] != rows:
            found = (torch.empty if capturing else _empty_that_lasts)(rows, dtype=torch.int32, device=weight.device)
            threads = plan.integer("split_threads")
            blocks = min(rows, plan.device.multiprocessors * (plan.device.max_threads_per_multiprocessor // threads))
            early = bool(plan["early_launches"])
            plan.launch("row_exponents", weight, found, rows, depth, blocks=blocks, threads=threads, early=early)
            if not capturing:
                self._exponents, self._weight, self._version = found, weakref.ref(weight), version
        elif capturing:
            self._captured.append(found)  # the graph reads and writes this memory whenever it is replayed
        return found

    def __getstate__(self) -> dict[str, object]:
        """Return no state: a copy makes its own."""
        return {}

    def __setstate__(self, state: object) -> None:
        """Begin as new."""
        self.__init__()  # type: ignore[misc]


class Unfit(NamedTuple):
    """Notes on rows of x and of the weight that parts cannot hold, and which were computed again: int32, 0 or not."""

    x: Within
    weight: Within


def fused_product(
    plan: Plan,
    x: torch.Tensor,
    weight: torch.Tensor,
    exponents: RowExponents,
    *epilogue: Argument,
    model: Keeper | None = None,
) -> Unfit:
    """Launch x · weightᵀ with the source's epilogue on torch's current stream.

    Args:
        x: (rows, depth), float32.
        weight: (features, depth), float32, on the same device.
        epilogue: what the source's `split_product` and `repair_rows` take behind the sizes, outputs among it.
        model: keeps the parts of the weight while it is frozen; without it they are made in every call.

    Returns:
        what of the epilogue's work on its tiles was done again behind it.
    """
    x, contiguous, early = x.contiguous(), weight.contiguous(), bool(plan["early_launches"])
    (rows, depth), (features, _) = x.shape, weight.shape
    geometry = plan.once(_geometry, rows, features, depth)
    scratch = x.new_empty(geometry.scratch) if geometry.scratch else None
    shape = {"blocks": geometry.blocks, "threads": PRODUCT_THREADS, "shared": geometry.shared}
    kept: torch.Tensor | None = None
    late: LateRows | None = None
    if plan["weight_parts"] != "none":
        if plan["weight_split"] == "beside" and not _is_kept(model) and _has_whole_words(contiguous):
            kept = exponents.of(plan, contiguous)
            late = LateRows.of(contiguous, kept, geometry.first_late)
        tiles, w_tiles = tiles_of_both(plan, x, weight, contiguous, model, late)
        read = (w_tiles.parts, tiles.parts, tiles.exponents, w_tiles.exponents, w_tiles.unfit)
        x_unfit, w_unfit = tiles.unfit, w_tiles.unfit
    else:
        kept = exponents.of(plan, contiguous)
        parts = x.new_empty(geometry.parts)
        notes = x.new_empty(2 * (rows + features))  # each word of them holds an int
        x_exponents, x_unfit = Within(notes, 0), Within(notes, 4 * rows)
        w_exponents, w_unfit = Within(notes, 8 * rows), Within(notes, 4 * (2 * rows + features))
        split = (x, parts, x_exponents, x_unfit, kept, w_exponents, rows, depth, features)
        plan.launch("split_rows", *split, blocks=geometry.split_blocks, threads=geometry.split_threads, early=early)
        read = (contiguous, parts, x_exponents, w_exponents, w_unfit)
    beside = (None, None, features + TILE_ROWS) if late is None else (contiguous, late.counts, late.first)
    plan.launch("split_product", *read, scratch, rows, features, depth, *epilogue, *beside, **shape, early=early)
    noted = (x, contiguous, x_unfit, w_unfit, kept, rows, features, depth)
    blocks = plan.device.multiprocessors
    plan.launch("repair_rows", *noted, *epilogue, blocks=blocks, threads=REPAIR_THREADS, early=early)
    return Unfit(x_unfit, w_unfit)


class Tiles(NamedTuple):
    """A matrix in parts, tile by tile (see `tile_product.cuh`).

    Attributes:
        parts: of all rows, filled up to whole tiles; two or four bytes an element.
        exponents, unfit: int32 (rows,): the scale of each row, and whether parts cannot hold it.
        whole: how many rows there are in whole tiles.
    """

    parts: torch.Tensor
    exponents: Within
    unfit: Within
    whole: int

    @classmethod
    def for_matrix(cls, plan: Plan, matrix: torch.Tensor, tile_rows: int) -> Tiles:
        """Allocate the memory."""
        return cls.of(plan, matrix, 1, matrix.shape[0], matrix.shape[1], tile_rows)

    @classmethod
    def of(cls, plan: Plan, matrix: torch.Tensor, products: int, rows: int, depth: int, tile_rows: int) -> Tiles:
        """Allocate the memory of the operands of so many products, on the device of a matrix."""
        whole = products * (ceil_div(rows, tile_rows) * tile_rows)
        rows *= products
        words = whole * ceil_div(depth, _LINE_BYTES) * _LINE_BYTES * _bytes_of_parts(str(plan["weight_parts"])) // 4
        parts = matrix.new_empty(words)
        notes = torch.empty(2 * rows, dtype=torch.int32, device=matrix.device)
        return cls(parts, Within(notes, 0), Within(notes, 4 * rows), whole)


class LateRows(NamedTuple):
    """Rows of a weight that the product itself splits (see `late_rows.cuh`).

    Attributes:
        exponents: int32 (rows,): a guess at those of all rows.
        counts: int32: how far the product has come with them.
        first: the first of them.
    """

    exponents: torch.Tensor
    counts: torch.Tensor
    first: int

    @classmethod
    def of(cls, weight: torch.Tensor, exponents: torch.Tensor, first: int) -> LateRows:
        """Return late rows with memory for their counts."""
        tiles = ceil_div(weight.shape[0], TILE_ROWS)
        return cls(exponents, torch.empty(1 + tiles, dtype=torch.int32, device=weight.device), first)


def _has_whole_words(weight: torch.Tensor) -> bool:
    """Return whether its rows begin at multiples of 16 bytes: those that do not are all split ahead."""
    return weight.shape[1] % 4 == 0 and weight.data_ptr() % 16 == 0


def _is_kept(model: Keeper | None) -> bool:
    """Return whether the weight's parts are kept between calls."""
    return model is not None and model.is_frozen


def tiles_of_both(
    plan: Plan,
    x: torch.Tensor,
    weight: torch.Tensor,
    contiguous: torch.Tensor,
    model: Keeper | None,
    late: LateRows | None = None,
) -> tuple[Tiles, Tiles]:
    """Return the tiles of x and of the weight, the latter made in every call, or kept while the model is frozen.

    Args:
        contiguous: the weight's values, in rows one after the other.
        late: which of its rows the product has yet to split.
    """
    threads, early = plan.integer("split_threads"), bool(plan["early_launches"])
    rows_of_block = 4 if threads == 512 else 2
    (rows, depth), features = x.shape, contiguous.shape[0]
    x_tiles = Tiles.for_matrix(plan, x, plan.integer("product_columns"))
    x_blocks = x_tiles.whole // rows_of_block

    def split(x_blocks: int, tiles: Tiles | None) -> None:
        of_x = (x, x_tiles.parts, x_tiles.exponents, x_tiles.unfit, rows, x_blocks)
        of_weight: tuple[Argument, ...] = (None, None, None, None, 0)
        blocks = x_blocks
        if tiles is not None:
            of_weight = (contiguous, tiles.parts, tiles.exponents, tiles.unfit, features)
            blocks += (tiles.whole if late is None else late.first) // rows_of_block
        left = (None, None, 0) if late is None else late
        plan.launch("split_tiles", *of_x, *of_weight, depth, *left, depth, blocks=blocks, threads=threads, early=early)

    def kept() -> Tiles:
        tiles = Tiles.for_matrix(plan, contiguous, TILE_ROWS)
        split(0, tiles)
        return tiles

    if model is not None and _is_kept(model):
        w_tiles = model.derived("weight tiles", kept, (weight,), (plan["weight_parts"],))
        split(x_blocks, None)
    else:
        w_tiles = Tiles.for_matrix(plan, contiguous, TILE_ROWS)
        split(x_blocks, w_tiles)
    return x_tiles, w_tiles


def as_they_lie(x: torch.Tensor, weight: torch.Tensor, in_columns: InColumns) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two inputs in the order of their memory; one that lies in another way is copied."""
    return (x.mT if in_columns.x else x).contiguous(), (weight.mT if in_columns.weight else weight).contiguous()


def whole_runs(depth: int) -> int:
    """Return the depth to which rows in parts are filled with zeros."""
    return ceil_div(depth, _WHOLE_RUN) * _WHOLE_RUN


def tiles_of_inputs(
    plan: Plan,
    x: torch.Tensor,
    weight: torch.Tensor,
    in_columns: InColumns,
    sizes: tuple[int, int, int, int, int],
) -> tuple[Tiles, Tiles]:
    """Return the tiles of two inputs, made by one launch.

    Args:
        x, weight: contiguous, as they lie.
        sizes: how many products there are, rows, features, and the depth of one and of all slices.
    """
    products, rows, features, depth, whole_depth = sizes
    x_tiles = Tiles.of(plan, x, products, rows, depth, plan.integer("product_columns"))
    w_tiles = Tiles.of(plan, x, products, features, depth, TILE_ROWS)
    threads, early = plan.integer("split_threads"), bool(plan["early_launches"])
    of_rows = plan.integer("split_block_rows")
    x_blocks, w_blocks = (
        tiles.whole // (max(of_rows, _COLUMNS_OF_SPLIT_BLOCK) if lies else of_rows)
        for tiles, lies in zip((x_tiles, w_tiles), in_columns, strict=True)
    )
    of_x = (x, x_tiles.parts, x_tiles.exponents, x_tiles.unfit, rows, x_blocks)
    of_weight = (weight, w_tiles.parts, w_tiles.exponents, w_tiles.unfit, features)
    split = (*of_x, *of_weight, depth, None, None, 0, whole_depth)
    plan.launch("split_tiles", *split, blocks=x_blocks + w_blocks, threads=threads, early=early)
    return x_tiles, w_tiles


def product_of_inputs(
    plan: Plan, x: torch.Tensor, weight: torch.Tensor, in_columns: InColumns, *epilogue: Argument
) -> Unfit:
    """Launch x · weightᵀ of two inputs, or as many such products as there are in them.

    Args:
        x: (…, rows, depth), float32.
        weight: (…, features, depth), float32, on the same device, of as many products.
        in_columns: as which they are read; one that lies in memory in another way is copied.
        epilogue: as of `fused_product`; of `product_slices`, the output has (slices, rows, features).
    """
    (rows, whole_depth), features = x.shape[-2:], weight.shape[-2]
    x, weight = as_they_lie(x, weight, in_columns)
    early, slices = bool(plan["early_launches"]), plan.integer("product_slices")
    products = x.shape[:-2].numel() if slices == 1 else slices
    depth = whole_depth if slices == 1 else ceil_div(whole_depth, slices * _WHOLE_RUN) * _WHOLE_RUN
    geometry = plan.once(_geometry, rows, features, depth, products)
    scratch = x.new_empty(geometry.scratch) if geometry.scratch else None
    x_tiles, w_tiles = tiles_of_inputs(plan, x, weight, in_columns, (products, rows, features, depth, whole_depth))
    sizes, of_inputs = (rows, features, depth), (products, whole_depth)
    read = (w_tiles.parts, x_tiles.parts, x_tiles.exponents, w_tiles.exponents, w_tiles.unfit, scratch)
    shape = {"blocks": geometry.blocks, "threads": PRODUCT_THREADS, "shared": geometry.shared}
    plan.launch("split_product", *read, *sizes, *epilogue, None, None, 0, *of_inputs, **shape, early=early)
    noted = (x, weight, x_tiles.unfit, w_tiles.unfit, None)
    blocks = plan.device.multiprocessors
    plan.launch(
        "repair_rows", *noted, *sizes, *epilogue, *of_inputs, blocks=blocks, threads=REPAIR_THREADS, early=early
    )
    return Unfit(x_tiles.unfit, w_tiles.unfit)


class _Geometry(NamedTuple):
    """The launch of a product of some size: blocks and threads, floats of its buffers, bytes of shared memory.

    `first_late` is the first row of the weight that the product may split itself.
    """

    columns: int
    split_blocks: int
    split_threads: int
    blocks: int
    shared: int
    parts: int
    scratch: int
    first_late: int


def _geometry(plan: Plan, rows: int, features: int, depth: int, products: int = 1) -> _Geometry:
    columns, cluster = plan.integer("product_columns"), plan.integer("product_cluster")
    x_tiles = ceil_div(rows, columns)
    blocks = blocks_of_product(x_tiles * products, features, cluster, plan.device)
    return _Geometry(
        columns=columns,
        split_blocks=x_tiles * columns // _ROWS_OF_SPLIT_BLOCK,
        split_threads=plan.integer("split_threads"),
        blocks=blocks,
        shared=_shared_bytes_beside(
            columns, plan.integer("product_stages"), str(plan["weight_parts"]), str(plan["weight_split"])
        ),
        parts=x_tiles * ceil_div(depth, _TILE_DEPTH) * columns * _TILE_DEPTH,  # two halves are as long as one float
        scratch=blocks * TILE_ROWS * columns if plan.integer("sum_stages") else 0,
        first_late=_first_late_row(rows, features, columns, cluster, plan.device),
    )
