"""The host's side of `linear_batch_norm.cuh`: BatchNorm1d behind a linear layer and a function, in both modes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.autograd.graph import increment_version

from tunebench.kernels.blocks.linear_pass import LinearCall, Tuned, columns_space, own_output, pass_over
from tunebench.kernels.runtime.derived import Source
from tunebench.kernels.runtime.tuned_module import TunedModule, computed_in, own_tensors
from tunebench.kernels.shared.half_product import HALF_TYPES
from tunebench.kernels.shared.parts_product import Parts, Product, parts_product, settings_of, split
from tunebench.kernels.shared.products import has_passes, library_product
from tunebench.kernels.shared.split_product import Unfit, is_fused
from tunebench.tuner.build import Argument
from tunebench.tuner.kernel import Mode, ceil_div
from tunebench.tuner.problem import Problem
from tunebench.tuner.space import Constraint, Tunable

_STATISTICS_COLUMNS = 32
_PREPARING_THREADS = 128
_MOST_COLUMNS_PER_ELEMENT = 128
_UNPREPARED = ("per_element", "in_registers")
"""The ways to normalise that read the module's own vectors."""
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class Norm(NamedTuple):
    """A BatchNorm1d behind a layer.

    Attributes:
        model: whose cache keeps what is made of the weights alone.
        constants: tensors and numbers that the function in front of it has for each feature, where it is affine.
        finishes: whether there is a function behind it.
    """

    model: TunedModule
    module: nn.BatchNorm1d
    constants: list[Argument]
    finishes: bool

    @property
    def sources(self) -> list[Source]:
        """The tensors and the module that the folded vectors are computed from."""
        return [*(one for one in self.constants if isinstance(one, torch.Tensor)), self.module]

    @property
    def settings(self) -> tuple[object, ...]:
        """The numbers that they are made of."""
        return (self.module.eps, *(one for one in self.constants if not isinstance(one, torch.Tensor)))


class _Vectors(NamedTuple):
    """Vectors (features,) that a value is normalised with.

    Attributes:
        multiplier, offset: where the configuration has them prepared.
    """

    mean: torch.Tensor
    variance: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor
    multiplier: torch.Tensor | None = None
    offset: torch.Tensor | None = None


class _TileMoments(NamedTuple):
    """The batch's statistics as the fused product's epilogue leaves them.

    Attributes:
        moments: (tiles of rows, features, 2), of each tile's values: mean, and squares of the distances from it.
        unfit: rows behind which moments do not hold.
    """

    moments: torch.Tensor
    unfit: Unfit


class _NormalisingWeight(NamedTuple):
    """A weight, whole or in parts, whose rows the multiplier (features,) has scaled, and the bias that goes with it."""

    weight: torch.Tensor | Parts
    bias: torch.Tensor
    multiplier: torch.Tensor


_NONE = (None,) * 6
"""The vectors where nothing is to be normalised, or the weight has done it."""


def is_train(problem: Problem) -> bool:
    """Return whether the statistics are the batch's own."""
    return problem.options["mode"] == Mode.TRAIN


def _takes_moments(product: str, problem: Problem) -> bool:
    """Return whether the fused product has all values of a feature's tile at hand."""
    return is_fused(product) and is_train(problem) and problem.dtype == "float32"


def _has_pass(product: str, normalisation: str, problem: Problem) -> bool:
    """Return whether there is a pass: not where the product's epilogue or the weight does its work."""
    if not has_passes(product):
        return is_train(problem)
    return product == "parts" or normalisation != "weight"


def _has_pass_or_finish(product: str, problem: Problem) -> bool:
    """Return the same as `_has_pass`, or whether something is left to do behind a weight that normalises."""
    return has_passes(product) or is_train(problem)


def _weight_can_normalise(product: str, normalisation: str, problem: Problem) -> bool:
    """Statistics of a batch come behind its product, our own products read the weight as it is, and float16 has not the
    range for what small or large statistics make of a weight."""
    return normalisation != "weight" or (has_passes(product) and not is_train(problem) and problem.dtype != "float16")


def _weight_cannot(normalisation: str) -> bool:
    """Refuse a weight that normalises: the function between the product and the normalisation is not affine."""
    return normalisation != "weight"


def _divides_in_registers(normalisation: str, problem: Problem) -> bool:
    """Return whether it is offered: half types alone have products so short that divisions of each element show."""
    return normalisation != "in_registers" or problem.dtype in HALF_TYPES


def _registers_hold_vectors(normalisation: str, product_columns: int, problem: Problem) -> bool:
    """Return whether an epilogue of halves, all of whose features' vectors are in registers, has so many left."""
    return problem.dtype == "float32" or normalisation != "per_element" or product_columns <= _MOST_COLUMNS_PER_ELEMENT


def batch_norm_space(*, is_affine: bool, finishes: bool) -> Tuned:
    """Return the tunables and constraints of the work behind the product.

    Args:
        is_affine: whether the function before the normalisation is, so that it can go into the weight.
        finishes: whether there is a function behind the normalisation.
    """
    behind = columns_space(_has_pass_or_finish if finishes else _has_pass)
    return Tuned(
        tunables=(
            Tunable("normalisation", ("per_element", "reciprocal", "folded", "weight", "in_registers")),
            *behind.tunables,
            Tunable("statistics_rows", (4, 8, 16, 32), default=8, when=is_train),
            Tunable("statistics_in", ("memory", "epilogue"), when=_takes_moments),
        ),
        constraints=(
            *behind.constraints,
            Constraint("halves_are_normalised_in_registers", _divides_in_registers),
            Constraint("registers_hold_what_normalises_halves", _registers_hold_vectors),
            Constraint("weight_normalises_before_its_product", _weight_can_normalise if is_affine else _weight_cannot),
        ),
    )


def normalised(call: LinearCall, norm: Norm) -> torch.Tensor:
    """Return the layer's values, normalised; in train mode the running statistics move as in BatchNorm1d."""
    plan, eps = call.plan, norm.module.eps
    is_own = not has_passes(str(plan["product"]))
    if is_train(plan.problem):
        made, of_tiles = _own_product(call, eps) if is_own else (_product(call, norm), None)
        vectors = _batch_vectors(call, norm, made, of_tiles)
        return pass_over(call, Product(made.memory), None, *vectors, eps, True)
    if plan["normalisation"] == "weight":
        return _normalised_by_weight(call, norm)
    vectors = _running_vectors(call, norm)
    if is_own:
        return own_output(call, (*vectors, eps, True), (None,)).values
    return pass_over(call, _product(call, norm), call.bias, *vectors, eps, False)


def _product(call: LinearCall, norm: Norm) -> Product:
    return library_product(call.plan, norm.model, call.weight, call.bias, call.x, call.in_columns)


def _own_product(call: LinearCall, eps: float) -> tuple[Product, _TileMoments | None]:
    """Return a product that is not normalised yet, and its epilogue's part of the statistics."""
    (rows, _), features = call.x.shape, call.weight.shape[0]
    moments: torch.Tensor | None = None
    if call.plan["statistics_in"] == "epilogue":
        moments = call.x.new_empty(ceil_div(rows, call.plan.integer("product_columns")), features, 2)
    values, unfit = own_output(call, (*_NONE, eps, False), (moments,))
    of_tiles = None if moments is None or unfit is None else _TileMoments(moments, unfit)
    return Product(values), of_tiles


def _normalised_by_weight(call: LinearCall, norm: Norm) -> torch.Tensor:
    """Compute a product with a weight and a bias that normalise."""
    plan, weight = call.plan, call.weight
    sources = [weight, *norm.sources, *([] if call.bias is None else [call.bias])]
    settings = (*norm.settings, *(plan.once(settings_of) if plan["product"] == "parts" else ()))
    folded = norm.model.derived("normalising weight", lambda: _fold(call, norm), sources, settings)
    if isinstance(folded.weight, Parts):
        made = parts_product(plan, call.x, weight, folded.weight, folded.multiplier)
    else:
        whole = nn.functional.linear(call.x, folded.weight, folded.bias)
        if not norm.finishes:
            return whole
        made = Product(whole)
    return pass_over(call, made, folded.bias, *_NONE, norm.module.eps, False)


def _fold(call: LinearCall, norm: Norm) -> _NormalisingWeight:
    weight = call.weight.detach()
    mean, variance = own_tensors(norm.module, *_STATISTICS[:2])
    added = None if call.bias is None else call.bias.contiguous()
    *_, multiplier, offset = _vectors(call, norm, mean, variance, added)
    assert multiplier is not None and offset is not None
    if call.plan["product"] == "parts":
        parts = split(call.plan, weight, is_weight=True, factors=multiplier)
        return _NormalisingWeight(parts, offset, multiplier)
    scaled = (weight * multiplier[:, None]).to(weight.dtype)
    return _NormalisingWeight(scaled, offset.to(weight.dtype), multiplier)


def _running_vectors(call: LinearCall, norm: Norm) -> _Vectors:
    """Return the vectors of eval mode; those computed from the statistics are kept while the module is frozen."""
    normalisation = call.plan["normalisation"]

    def make() -> _Vectors:
        mean, variance = own_tensors(norm.module, *_STATISTICS[:2])
        return _vectors(call, norm, mean, variance, None)

    if normalisation in _UNPREPARED:
        return make()
    return norm.model.derived("constants", make, norm.sources, (normalisation, *norm.settings))


def _vectors(
    call: LinearCall, norm: Norm, mean: torch.Tensor, variance: torch.Tensor, added: torch.Tensor | None
) -> _Vectors:
    """Return the vectors that normalise the values of each feature.

    Args:
        added: a linear bias that goes into the offset.
    """
    found = _unprepared(call, norm, mean, variance)
    _prepare(call, norm, found, added)
    return found


def _prepare(call: LinearCall, norm: Norm, vectors: _Vectors, added: torch.Tensor | None) -> None:
    """Write the multiplier and the offset, where there are some; see `_vectors`."""
    if vectors.multiplier is None:
        return
    plan, features = call.plan, vectors.mean.shape[0]
    of_batch = is_train(plan.problem)
    read = (vectors.mean, vectors.variance, vectors.weight, vectors.bias, norm.module.eps, of_batch, added)
    arguments = (*read, vectors.multiplier, vectors.offset, features, *call.values)
    blocks = ceil_div(features, _PREPARING_THREADS)
    early = bool(plan["early_launches"])
    plan.launch("prepare_features", *arguments, blocks=blocks, threads=_PREPARING_THREADS, early=early)


def _unprepared(call: LinearCall, norm: Norm, mean: torch.Tensor, variance: torch.Tensor) -> _Vectors:
    """Return the vectors, of which a kernel has yet to write the multiplier and the offset."""
    weight, bias = own_tensors(norm.module, "weight", "bias")
    if call.plan["normalisation"] in _UNPREPARED:
        return _Vectors(mean, variance, weight, bias)
    dtype = computed_in(mean.dtype)
    multiplier, offset = torch.empty_like(mean, dtype=dtype), torch.empty_like(mean, dtype=dtype)
    return _Vectors(mean, variance, weight, bias, multiplier, offset)


def _batch_vectors(call: LinearCall, norm: Norm, product: Product, of_tiles: _TileMoments | None) -> _Vectors:
    """Return vectors with the function's mean and biased variance per feature; partial products are summed in place.

    The running statistics move as in BatchNorm1d: the unbiased variance is kept, and momentum None means a cumulative
    average.
    """
    plan, whole, momentum = call.plan, product.memory, norm.module.momentum
    running_mean, running_variance, batches = own_tensors(norm.module, *_STATISTICS)
    (rows, features), dtype = whole.shape, computed_in(whole.dtype)
    batches.add_(1)
    share = 1.0 / float(batches) if momentum is None else momentum
    mean, variance = whole.new_empty(features, dtype=dtype), whole.new_empty(features, dtype=dtype)
    moved = (running_mean, running_variance, 1.0 - share, share, share * rows / (rows - 1))
    arguments = (*product.arguments(call.bias), whole, rows, features, mean, variance, *moved, *call.values)
    threads = (_STATISTICS_COLUMNS, plan.integer("statistics_rows"))
    blocks = ceil_div(features, _STATISTICS_COLUMNS)
    vectors = _unprepared(call, norm, mean, variance)
    joined: tuple[Argument, ...] = (None, None, None, 0)
    if of_tiles is not None:
        joined = (of_tiles.moments, *of_tiles.unfit, plan.integer("product_columns"))
    prepared = (vectors.weight, vectors.bias, norm.module.eps, vectors.multiplier, vectors.offset)
    early = bool(plan["early_launches"])
    plan.launch("batch_statistics", *arguments, *joined, *prepared, blocks=blocks, threads=threads, early=early)
    if of_tiles is None:  # else the same kernel has
        _prepare(call, norm, vectors, None)
    # What a kernel writes PyTorch does not count by itself.
    increment_version([one for one in (running_mean, running_variance) if not one.is_inference()])
    return vectors
