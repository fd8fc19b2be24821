"""gemm_scale_bn: Linear, a scale per feature, BatchNorm1d; everything behind the product in one pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import increment_version

from tunebench import (
    Constraint,
    Kernel,
    Mode,
    Plan,
    Problem,
    SearchSpace,
    Tunable,
    TunedModule,
    ceil_div,
    constraints,
)
from tunebench.kernels.gemm_scale_bn.reference import Model
from tunebench.kernels.runtime.tuned_module import computed_in, own_tensors
from tunebench.kernels.shared import DTYPES, products
from tunebench.kernels.shared.parts_product import Parts, Product, parts_product, settings_of, split
from tunebench.kernels.shared.products import library_product
from tunebench.kernels.shared.split_product import RowExponents, fused_product
from tunebench.tuner.build import Argument

_MAX_GRID_Y = 65535
_STATISTICS_COLUMNS = 32
_PREPARING_THREADS = 128
_VECTORS = ("scale", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var")


def _is_train(problem: Problem) -> bool:
    return problem.options["mode"] == Mode.TRAIN


def _normalises_rows(product: str, normalisation: str, problem: Problem) -> bool:
    """Whether there is a pass behind the product: not where its epilogue or the weight does what such a pass would."""
    if product == "fused":
        return _is_train(problem)
    return product == "parts" or normalisation != "weight"


def _weight_can_normalise(product: str, normalisation: str, problem: Problem) -> bool:
    """Statistics of a batch come behind its product, the fused product reads the weight as it is, and float16 has not
    the range for what small or large statistics make of a weight."""
    return normalisation != "weight" or (product != "fused" and not _is_train(problem) and problem.dtype != "float16")


SPACE = SearchSpace(
    tunables=(
        *products.TUNABLES,
        Tunable("normalisation", ("per_element", "reciprocal", "folded", "weight")),
        Tunable("block_size", (64, 128, 256, 512), default=256, when=_normalises_rows),
        Tunable("vector_width", (1, 2, 4, 8), when=_normalises_rows),
        Tunable("rows_per_thread", (1, 2, 4, 8), when=_normalises_rows),
        Tunable("in_place", (False, True), when=_normalises_rows, host=True),
        Tunable("statistics_rows", (4, 8, 16, 32), default=8, when=_is_train),
    ),
    constraints=(
        *products.CONSTRAINTS,
        constraints.vector_fits("vector_width"),
        constraints.divides("vector_width", "out_features"),
        constraints.block_fits("block_size"),
        Constraint("weight_normalises_before_its_product", _weight_can_normalise),
    ),
)


class _Constants(NamedTuple):
    """Vectors (features,) that a value is normalised with.

    Attributes:
        of_batch: mean and variance are a batch's, in the type that is computed in, and not the module's own.
        multiplier, offset: where the configuration has them prepared.
    """

    scale: torch.Tensor
    mean: torch.Tensor
    variance: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor
    of_batch: bool
    multiplier: torch.Tensor | None = None
    offset: torch.Tensor | None = None

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """In the order of the kernels' parameters."""
        return (*self[:5], self.multiplier, self.offset)


class _NormalisingWeight(NamedTuple):
    """A weight, whole or in parts, whose rows the multiplier (features,) has scaled, and the bias that goes with it."""

    weight: torch.Tensor | Parts
    bias: torch.Tensor
    multiplier: torch.Tensor


class ModelNew(TunedModule, Model):
    """`Model` of `reference.py`: a product by torch, in fp32 or from parts, with passes behind it; or a fused one.

    Frozen, what is made from parameters and running statistics alone is kept between calls: the parts of the weight,
    the weight that normalises, the folded vectors (see `freeze` for how a change is noticed, and its cost). Not frozen,
    every forward reads parameters and statistics as they are. The fused product keeps a guess at the magnitude of the
    weight's rows, frozen or not, which it verifies whenever it reads the weight (see `RowExponents`): a change is
    noticed in the call that meets it, also one through `.data`.
    """

    kernel = Kernel.declare(
        __file__,
        SPACE,
        axes={**products.AXES, **dict.fromkeys(_VECTORS, ("out_features",))},
        work=products.work,
        bulk_copies=products.BULK_COPIES,
        modes=("eval", "frozen", "train"),
        dtypes=DTYPES,
    )

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._exponents = RowExponents()

    def mode(self) -> Mode:
        """As BatchNorm's own."""
        return Mode.TRAIN if self.bn.training else Mode.FROZEN if self.is_frozen else Mode.EVAL

    def problem(self, x: torch.Tensor) -> Problem | None:
        """2-d batches of at least one row (two in train mode), and a BatchNorm with weights and statistics."""
        found = super().problem(x)
        if found is not None and self.bn.training and found.axes["rows"] < 2:
            return self.unserved("a batch of one row has no variance")
        return found

    def accepts_layout(self, name: str, tensor: torch.Tensor) -> bool:  # noqa: ARG002
        """What goes into the product is made contiguous first."""
        return name in ("x", "gemm.weight", "gemm.bias")

    def tuned_forward(self, plan: Plan, x: torch.Tensor) -> torch.Tensor:
        """(rows, in_features) to (rows, out_features); in train mode the running statistics move as in BatchNorm1d."""
        weight, bias = own_tensors(self.gemm)
        fused = plan["product"] == "fused"
        if _is_train(plan.problem):
            if fused:
                made = Product(self._fused(plan, x, weight, bias, None))
            else:
                made = library_product(plan, self, weight, bias, x)
            mean, variance = self._batch_statistics(plan, made, bias)
            return self._normalise(plan, Product(made.memory), self._constants(plan, mean, variance), None)
        if plan["normalisation"] == "weight":
            return self._normalised_by_weight(plan, x, weight, bias)
        constants = self._running_constants(plan)
        if fused:
            return self._fused(plan, x, weight, bias, constants)
        return self._normalise(plan, library_product(plan, self, weight, bias, x), constants, bias)

    def _normalised_by_weight(
        self, plan: Plan, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """A product with a weight and a bias that scale and normalise."""
        bn, (scale,) = self.bn, own_tensors(self)
        settings = (bn.eps, *(plan.once(settings_of) if plan["product"] == "parts" else ()))
        sources = (weight, scale, bn) if bias is None else (weight, scale, bn, bias)
        folded = self.derived("normalising weight", lambda: self._fold(plan), sources, settings)
        if not isinstance(folded.weight, Parts):
            return nn.functional.linear(x, folded.weight, folded.bias)
        made = parts_product(plan, x, weight, folded.weight, folded.multiplier)
        return self._normalise(plan, made, None, folded.bias)

    def _fold(self, plan: Plan) -> _NormalisingWeight:
        bn = self.bn
        constants = self._constants(plan, bn.running_mean, bn.running_var)
        multiplier, offset = constants.multiplier, constants.offset
        assert multiplier is not None and offset is not None
        weight = self.gemm.weight.detach()
        if plan["product"] == "parts":
            parts = split(plan, weight, is_weight=True, factors=multiplier)
            return _NormalisingWeight(parts, offset, multiplier)
        scaled = (weight * multiplier[:, None]).to(weight.dtype)
        return _NormalisingWeight(scaled, offset.to(weight.dtype), multiplier)

    def _running_constants(self, plan: Plan) -> _Constants:
        """Those of eval mode; what is computed of them is kept while the module is frozen."""
        bn, normalisation = self.bn, plan["normalisation"]

        def make() -> _Constants:
            _, _, mean, variance, _ = own_tensors(bn)
            return self._constants(plan, mean, variance)

        if normalisation == "per_element":
            return make()
        return self.derived("constants", make, (self.scale, bn), (normalisation, bn.eps))

    def _constants(self, plan: Plan, mean: torch.Tensor | None, variance: torch.Tensor | None) -> _Constants:
        """What a value of a feature is normalised with."""
        assert mean is not None and variance is not None
        normalisation, of_batch, bn = plan["normalisation"], _is_train(plan.problem), self.bn
        weight, bias, *_ = own_tensors(bn)
        vectors = (own_tensors(self)[0], mean, variance, weight, bias)
        if normalisation == "per_element":
            return _Constants(*vectors, of_batch)
        (features,), dtype = mean.shape, computed_in(mean.dtype)
        multiplier, offset = mean.new_empty(features, dtype=dtype), mean.new_empty(features, dtype=dtype)
        linear_bias = self.gemm.bias if normalisation == "weight" else None
        added = None if linear_bias is None else linear_bias.contiguous()
        arguments = (*vectors, added, bn.eps, multiplier, offset, features, of_batch)
        blocks = ceil_div(features, _PREPARING_THREADS)
        plan.launch("prepare_features", *arguments, blocks=blocks, threads=_PREPARING_THREADS)
        return _Constants(*vectors, of_batch, multiplier, offset)

    def _fused(
        self,
        plan: Plan,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        constants: _Constants | None,
    ) -> torch.Tensor:
        """The product with the linear bias, normalised where the constants are known before it is."""
        output = x.new_empty(x.shape[0], weight.shape[0])
        offset = None if bias is None else bias.contiguous()
        vectors = constants.arguments if constants else (None,) * 7
        known = constants is not None
        fused_product(plan, x, weight, self._exponents, offset, output, *vectors, self.bn.eps, known)
        return output

    def _normalise(
        self, plan: Plan, product: Product, constants: _Constants | None, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """One pass over the product.

        Args:
            constants: None where the weight normalises.
            bias: what to add to partial products.
        """
        memory = product.memory
        rows, features = memory.shape
        output = memory if plan["in_place"] else torch.empty_like(memory)
        read = product.arguments(bias)
        vectors = constants.arguments if constants else (None,) * 7
        of_batch = constants is not None and constants.of_batch
        arguments = (*read, output, *vectors, self.bn.eps, rows, features, of_batch)
        blocks, threads = plan.once(_grid, rows, features)
        plan.launch("normalise_rows", *arguments, blocks=blocks, threads=threads)
        return output

    def _batch_statistics(
        self, plan: Plan, product: Product, bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and biased variance of product · scale per feature; partial products are summed into their memory.

        The running statistics move as in BatchNorm1d: the unbiased variance is kept, and momentum None means a
        cumulative average.
        """
        whole, bn = product.memory, self.bn
        _, _, running_mean, running_variance, batches = own_tensors(bn)
        (rows, features), dtype = whole.shape, computed_in(whole.dtype)
        batches.add_(1)
        share = 1.0 / float(batches) if bn.momentum is None else bn.momentum
        mean, variance = whole.new_empty(features, dtype=dtype), whole.new_empty(features, dtype=dtype)
        moved = (running_mean, running_variance, 1.0 - share, share, share * rows / (rows - 1))
        (scale,) = own_tensors(self)
        arguments = (*product.arguments(bias), whole, scale, mean, variance, *moved, rows, features)
        threads = (_STATISTICS_COLUMNS, plan.integer("statistics_rows"))
        plan.launch("batch_statistics", *arguments, blocks=ceil_div(features, _STATISTICS_COLUMNS), threads=threads)
        # What a kernel writes PyTorch does not count by itself.
        increment_version([one for one in (running_mean, running_variance) if not one.is_inference()])
        return mean, variance


def _grid(plan: Plan, rows: int, features: int) -> tuple[tuple[int, int], int]:
    """Blocks and threads of the pass over a product."""
    threads = plan.integer("block_size")
    blocks = ceil_div(features, threads * plan.integer("vector_width"))
    return (blocks, min(ceil_div(rows, plan.integer("rows_per_thread")), _MAX_GRID_Y)), threads
