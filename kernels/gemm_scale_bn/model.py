"""gemm_scale_bn: Linear, a scale per feature, BatchNorm1d; everything behind the product in one pass."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from tunebench.kernels import INCLUDE
from tunebench.kernels.tuned_module import ITEM_BYTES, SCALAR_TYPE, TunedModule, is_plain
from tunebench.tuner.compile.base import Argument
from tunebench.tuner.device import Device
from tunebench.tuner.kernel import Kernel, Plan
from tunebench.tuner.problem import Problem, Work
from tunebench.tuner.space import Constraint, SearchSpace, Tunable

_MAX_GRID_Y = 65535
_STATISTICS_COLUMNS = 32
_NULL = ctypes.c_void_p(None)


def _fits_vector(vector_width: int, problem: Problem) -> bool:
    """A vector access moves 16 bytes at most."""
    return vector_width * ITEM_BYTES[problem.dtype] <= 16


def _divides_features(vector_width: int, problem: Problem) -> bool:
    return problem.axes["out_features"] % vector_width == 0


def _block_runs(block_size: int, device: Device) -> bool:
    return block_size <= device.max_threads_per_block


def _is_train(problem: Problem) -> bool:
    return problem.options["mode"] == "train"


SPACE = SearchSpace(
    tunables=(
        Tunable("normalisation", ("per_element", "reciprocal", "folded")),
        Tunable("block_size", (64, 128, 256, 512)),
        Tunable("vector_width", (1, 2, 4)),
        Tunable("rows_per_thread", (1, 2, 4, 8)),
        Tunable("in_place", (False, True), host=True),
        Tunable("statistics_rows", (4, 8, 16, 32), when=_is_train),
    ),
    constraints=(
        Constraint("vector_is_at_most_16_bytes", _fits_vector),
        Constraint("vector_divides_features", _divides_features),
        Constraint("block_within_limit", _block_runs),
    ),
    default={
        "normalisation": "per_element",
        "block_size": 256,
        "vector_width": 1,
        "rows_per_thread": 1,
        "in_place": False,
        "statistics_rows": 8,
    },
)


def work(problem: Problem) -> Work:
    """x, W and y cross memory once; the product has 2·rows·in·out operations, the rest a few per element."""
    rows, inputs, outputs = (problem.axes[name] for name in ("rows", "in_features", "out_features"))
    elements = rows * inputs + inputs * outputs + rows * outputs
    return Work(bytes=elements * ITEM_BYTES[problem.dtype], operations=2 * rows * inputs * outputs)


class ModelNew(TunedModule):
    """`Model` of `reference.py`; the product by torch, scale and normalisation by `gemm_scale_bn.cu`.

    Nothing is kept between calls: every forward reads the parameters and running statistics as they are.
    """

    kernel = Kernel.declare(
        __file__,
        entry_points=("batch_statistics", "prepare_features", "normalise_rows"),
        space=SPACE,
        work=work,
        include=INCLUDE,
        modes=("eval", "train"),
    )

    def __init__(
        self,
        in_features: int,
        out_features: int,
        scale_shape: Sequence[int],
        eps: float = 1e-5,
        momentum: float | None = 0.1,
    ) -> None:
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features)
        self.scale = nn.Parameter(torch.randn(tuple(scale_shape)))
        self.bn = nn.BatchNorm1d(out_features, eps=eps, momentum=momentum)

    def problem(self, *inputs: Any) -> Problem | None:
        """2-d float32 and float64 batches of at least one row (two in train mode), on the parameters' device."""
        (x,) = inputs
        bn, features = self.bn, self.gemm.out_features
        if not isinstance(x, torch.Tensor) or x.dim() != 2 or x.shape[1] != self.gemm.in_features:
            return None
        if not (is_plain(self.gemm, nn.Linear) and is_plain(bn, nn.BatchNorm1d)):
            return None
        if bn.running_mean is None or bn.running_var is None or bn.num_batches_tracked is None or not bn.affine:
            return None
        mode = "train" if bn.training else "eval"
        dtype = str(x.dtype).removeprefix("torch.")
        vectors = (self.scale, bn.weight, bn.bias, bn.running_mean, bn.running_var)
        if (
            dtype not in SCALAR_TYPE
            or x.shape[0] < (2 if mode == "train" else 1)
            or any(v.shape != (features,) or not v.is_contiguous() for v in vectors)
            or any(t.dtype != x.dtype or t.device != x.device for t in (*vectors, self.gemm.weight))
        ):
            return None
        axes = {"rows": x.shape[0], "in_features": x.shape[1], "out_features": features}
        return Problem(axes, dtype, {"mode": mode})

    def tuned_forward(self, plan: Plan, *inputs: Any) -> torch.Tensor:
        """(rows, in_features) to (rows, out_features); in train mode the running statistics move as in BatchNorm1d."""
        (x,) = inputs
        product = self.gemm(x)
        rows, features = product.shape
        configuration = plan.configuration
        if plan.problem.options["mode"] == "train":
            mean, variance = self._batch_statistics(plan, product)
            self._update_running_statistics(mean, variance, rows)
        else:
            assert self.bn.running_mean is not None and self.bn.running_var is not None
            mean, variance = self.bn.running_mean, self.bn.running_var

        block_size = configuration.integer("block_size")
        vector_width = configuration.integer("vector_width")
        eps = SCALAR_TYPE[plan.problem.dtype](self.bn.eps)
        counts = (ctypes.c_longlong(rows), ctypes.c_longlong(features))
        vectors = (self.scale, mean, variance, self.bn.weight, self.bn.bias)
        multiplier: Argument = _NULL
        offset: Argument = _NULL
        if configuration["normalisation"] != "per_element":
            multiplier, offset = product.new_empty(features), product.new_empty(features)
            blocks = -(-features // block_size)
            written = (multiplier, offset, counts[1])
            plan.launch("prepare_features", (blocks, 1, 1), (block_size, 1, 1), *vectors, eps, *written)

        output = product if configuration["in_place"] else torch.empty_like(product)
        blocks_x = -(-features // (block_size * vector_width))
        blocks_y = min(-(-rows // configuration.integer("rows_per_thread")), _MAX_GRID_Y)
        read = (product, output, *vectors, multiplier, offset)
        plan.launch("normalise_rows", (blocks_x, blocks_y, 1), (block_size, 1, 1), *read, eps, *counts)
        return output

    def _batch_statistics(self, plan: Plan, product: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and biased variance of product · scale per feature."""
        rows, features = product.shape
        mean, variance = product.new_empty(features), product.new_empty(features)
        blocks = -(-features // _STATISTICS_COLUMNS)
        block = (_STATISTICS_COLUMNS, plan.configuration.integer("statistics_rows"), 1)
        counts = (ctypes.c_longlong(rows), ctypes.c_longlong(features))
        plan.launch("batch_statistics", (blocks, 1, 1), block, product, self.scale, mean, variance, *counts)
        return mean, variance

    @torch.no_grad()
    def _update_running_statistics(self, mean: torch.Tensor, variance: torch.Tensor, rows: int) -> None:
        """As BatchNorm1d does: the unbiased variance is kept, and momentum None means a cumulative average."""
        bn = self.bn
        assert bn.running_mean is not None and bn.running_var is not None and bn.num_batches_tracked is not None
        bn.num_batches_tracked.add_(1)
        factor = 1.0 / float(bn.num_batches_tracked) if bn.momentum is None else bn.momentum
        bn.running_mean.mul_(1.0 - factor).add_(mean, alpha=factor)
        bn.running_var.mul_(1.0 - factor).add_(variance, alpha=factor * rows / (rows - 1))

    def reference_forward(self, *inputs: Any) -> torch.Tensor:
        """The reference's operations."""
        (x,) = inputs
        output: torch.Tensor = self.bn(self.gemm(x) * self.scale)
        return output
