"""gemm_div_sum_scale: x · Wᵀ, halved, summed over features, scaled; as a product with the column sums of W."""

from __future__ import annotations

import torch

from tunebench import (
    Constraint,
    Kernel,
    Mode,
    Plan,
    Problem,
    SearchSpace,
    Tunable,
    TunedModule,
    Work,
    ceil_div,
    constraints,
)
from tunebench.kernels.gemm_div_sum_scale.reference import Model
from tunebench.kernels.runtime.tuned_module import computed_in
from tunebench.kernels.shared import DTYPES
from tunebench.kernels.shared.early_launches import BEGINS_EARLY, early_launches
from tunebench.tuner.device import MOST_BLOCKS_ACROSS

_JOIN_THREADS = 256
_JOIN_STRIP = 32
_WARP = 32
_FIRST_STRIP = 2
"""Number of a launch's counters before those of its strips."""


def _divides_hidden(algorithm: str, vector_width: int, problem: Problem) -> bool:
    """Rows of the product are read where the matrix is multiplied first."""
    return algorithm != "gemm" or problem.axes["hidden"] % vector_width == 0


def _rows_fit_block(join: str, block_size: int, row_threads: int) -> bool:
    """One launch has one block size, for the column sums as for the rows."""
    return join != "fused" or row_threads <= block_size


def _rows_fit_registers(vector_width: int, rows_per_thread: int, vectors_in_flight: int, problem: Problem) -> bool:
    """Allow 256 bytes of a thread's registers for what it has in flight; the rest is for sums and addresses."""
    return rows_per_thread * vectors_in_flight * vector_width * problem.item_bytes <= 256


def _sums_now(algorithm: str, problem: Problem) -> bool:
    """Return whether every call sums the columns, so that the way in which it does is worth tuning."""
    return algorithm != "gemm" and not _keeps_sums(problem)


def _joins_sums(algorithm: str, problem: Problem) -> bool:
    """Return whether the rows of W are divided among blocks, so that partial sums are joined."""
    return algorithm == "column_sums" and not _keeps_sums(problem)


def _has_launches(algorithm: str, join: str, problem: Problem) -> bool:
    """Return whether a call has several launches."""
    return _joins_sums(algorithm, problem) and join != "fused"


def _divides_rows(algorithm: str) -> bool:
    """Return whether the rows of x are divided among blocks, not its columns."""
    return algorithm != "strips"


def _keeps_sums(problem: Problem) -> bool:
    return problem.options["mode"] == Mode.FROZEN


def _worth_keeping(algorithm: str, problem: Problem) -> bool:
    """Where sums are kept, no call reads the matrix."""
    return algorithm == "column_sums" or not _keeps_sums(problem)


SPACE = SearchSpace(
    tunables=(
        Tunable("algorithm", ("column_sums", "strips", "gemm")),
        Tunable("join", ("kernel", "dot", "last_block", "fused"), when=_joins_sums),
        Tunable("block_size", (128, 256, 512, 1024), default=256, when=_sums_now),
        Tunable("strip_threads", (32, 128), when=_sums_now),
        Tunable("rows_in_flight", (8, 4, 16), default=4, when=_sums_now),
        Tunable("load_hint", ("normal", "streaming"), when=_sums_now),
        Tunable("waves", (1, 2), when=_joins_sums, host=True),
        Tunable("vector_width", (1, 2, 4, 8)),
        Tunable("row_threads", (32, 128, 256, 512), default=256, when=_divides_rows),
        Tunable("rows_per_thread", (1, 2, 4, 8), when=_divides_rows),
        Tunable("vectors_in_flight", (1, 4), when=_divides_rows),
        early_launches(when=_has_launches),
    ),
    constraints=(
        constraints.vector_fits("vector_width"),
        constraints.divides("vector_width", "in_features"),
        Constraint("vector_divides_hidden", _divides_hidden),
        constraints.block_fits("block_size"),
        Constraint("rows_fit_block", _rows_fit_block),
        Constraint("rows_fit_registers", _rows_fit_registers),
        Constraint("kept_sums_are_used", _worth_keeping),
        BEGINS_EARLY,
    ),
)


def work(problem: Problem) -> Work:
    """Return the work: x, W (its sums where kept) and y cross memory once, and the matrix-vector form's operations."""
    rows, hidden, features = (problem.axes[name] for name in ("rows", "hidden", "in_features"))
    weight = features if _keeps_sums(problem) else hidden * features
    elements = weight + rows * features + rows
    return Work(bytes=elements * problem.item_bytes, operations=weight + 2 * rows * features)


def _splits(plan: Plan, hidden: int, features: int) -> tuple[int, int]:
    """Return strips of columns, and splits of rows: as many as fill the device `waves` times, none of them idle."""
    block_size, strip_threads = plan.integer("block_size"), plan.integer("strip_threads")
    strips = ceil_div(features, strip_threads * plan.integer("vector_width"))
    wanted = plan.integer("waves") * plan.resident_blocks("sum_columns", block_size) // strips
    most = ceil_div(hidden, block_size // strip_threads)
    return strips, max(1, min(wanted, most, MOST_BLOCKS_ACROSS))


def _row_geometry(plan: Plan, rows: int) -> tuple[int, int]:
    """Return blocks and threads of a sum along rows."""
    row_threads = plan.integer("row_threads")
    threads = plan.integer("block_size") if plan["join"] == "fused" else max(row_threads, 128)
    return ceil_div(rows, threads // row_threads * plan.integer("rows_per_thread")), threads


def _column_sums(plan: Plan, weight: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return the factors of dot_rows: half the column sums and 0, or the partial sums and how many they are."""
    join = plan["join"]
    hidden, features = weight.shape
    strips, splits = plan.once(_splits, hidden, features)
    partials = _sums(weight, splits, features)
    sums = partials if join == "dot" else _sums(weight, features)
    counters = _counters(weight, strips) if join == "last_block" else None
    arguments = (weight, partials, sums, counters, hidden, features)
    threads, early = plan.integer("block_size"), bool(plan["early_launches"])
    plan.launch("sum_columns", *arguments, blocks=(strips, splits), threads=threads, early=early)
    if join == "kernel":
        blocks = ceil_div(features, _JOIN_STRIP)
        plan.launch("join_sums", partials, sums, splits, features, blocks=blocks, threads=_JOIN_THREADS, early=early)
    return sums, splits if join == "dot" else 0


def _sums(weight: torch.Tensor, *shape: int) -> torch.Tensor:
    """Allocate memory for sums, in the type that they are computed in."""
    return weight.new_empty(*shape, dtype=computed_in(weight.dtype))


def _counters(weight: torch.Tensor, strips: int) -> torch.Tensor:
    """Return zeros of this call's own: calls on two streams must not count each other's blocks."""
    return torch.zeros(_FIRST_STRIP + strips, dtype=torch.int32, device=weight.device)


class ModelNew(TunedModule, Model):
    """`Model` of `reference.py`, run by `gemm_div_sum_scale.cu`.

    The sum over features of x · Wᵀ is x times the column sums of W: one pass over W takes the place of the product.
    It is an algebraic rewrite: a row in which the reference meets Inf − Inf between two features' products, and makes
    NaN of it, can come out as Inf, since the sums of W never see that x.

    Frozen, the column sums are kept between calls (see `freeze` for how a change of the weight is noticed, and its
    cost): a call is then one launch that reads x and the sums. Not frozen, every call reads W as it is.
    """

    kernel = Kernel.declare(
        __file__,
        SPACE,
        axes={"x": ("rows", "in_features"), "weight": ("hidden", "in_features")},
        work=work,
        modes=("eval", "frozen"),
        dtypes=DTYPES,
        rewrites_algebra=True,
    )

    def problem(self, x: torch.Tensor) -> Problem | None:
        """Accept 2-d batches whose rows lie dense in memory, with a factor that is a number."""
        if not isinstance(self.scaling_factor, int | float):
            return self.unserved("the scaling factor is not a number")
        return super().problem(x)

    def accepts_layout(self, name: str, tensor: torch.Tensor) -> bool:
        """Accept an x whose rows are apart."""
        return name == "x" and (tensor.stride(1) == 1 or tensor.shape[1] == 1)

    def tuned_forward(self, plan: Plan, x: torch.Tensor) -> torch.Tensor:
        """Map (rows, in_features) to (rows, 1)."""
        output: torch.Tensor = x.new_empty(x.shape[0], 1)
        weight, algorithm = self.weight, plan["algorithm"]
        if algorithm == "gemm":
            self._sum_product(plan, torch.matmul(x, weight.T), output)
        elif algorithm == "strips":
            self._through(plan, x, weight, output)
        elif plan["join"] == "fused":
            self._fused(plan, x, weight, output)
        else:
            kept = self.derived("column sums", lambda: _column_sums(plan, weight), (weight,), plan.configuration)
            self._dot(plan, x, *kept, output)
        return output

    def _dot(self, plan: Plan, x: torch.Tensor, sums: torch.Tensor, splits: int, output: torch.Tensor) -> None:
        arguments = (x, sums, output, self.scaling_factor, *x.shape, x.stride(0), splits)
        (blocks, threads), early = plan.once(_row_geometry, x.shape[0]), bool(plan["early_launches"])
        plan.launch("dot_rows", *arguments, blocks=blocks, threads=threads, early=early)

    def _sum_product(self, plan: Plan, product: torch.Tensor, output: torch.Tensor) -> None:
        arguments = (product, output, self.scaling_factor, *product.shape)
        blocks, threads = plan.once(_row_geometry, product.shape[0])
        plan.launch("sum_rows", *arguments, blocks=blocks, threads=threads)

    def _fused(self, plan: Plan, x: torch.Tensor, weight: torch.Tensor, output: torch.Tensor) -> None:
        hidden, features = weight.shape
        strips, splits = plan.once(_splits, hidden, features)
        partials = _sums(weight, splits, features)
        sums = _sums(weight, features)
        sizes = (x.shape[0], hidden, features, x.stride(0), strips, splits)
        row_blocks, threads = plan.once(_row_geometry, x.shape[0])
        written = (partials, sums, _counters(weight, strips), output)
        arguments = (weight, x, *written, self.scaling_factor, *sizes)
        plan.launch("fused", *arguments, blocks=strips * splits + row_blocks, threads=threads)

    def _through(self, plan: Plan, x: torch.Tensor, weight: torch.Tensor, output: torch.Tensor) -> None:
        rows, features = x.shape
        strip_threads = plan.integer("strip_threads")
        strips = ceil_div(features, strip_threads * plan.integer("vector_width"))
        products = _sums(weight, strips * (strip_threads // _WARP), rows)
        sizes = (rows, len(weight), features, x.stride(0), strips)
        blocks = strips + ceil_div(rows, _JOIN_STRIP)
        arguments = (weight, x, products, _counters(weight, 0), output, self.scaling_factor, *sizes)
        plan.launch("through", *arguments, blocks=blocks, threads=plan.integer("block_size"))
