"""The host's side of `include/parts_product.cuh`: the fp32 product from half-precision parts by the library's products.

TF32 parts are not among the choices: torch's matrix products are in TF32 only where a flag of the whole process says
so, which no call could set without changing what other threads compute meanwhile; and they are slower than half types.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from tunebench.tuner.build import Argument, Within
from tunebench.tuner.configuration import Value
from tunebench.tuner.device import Device, DeviceKind
from tunebench.tuner.kernel import Plan, ceil_div
from tunebench.tuner.problem import Problem
from tunebench.tuner.space import Constraint, Tunable

_DTYPE = {"fp16": torch.float16, "bf16": torch.bfloat16}
_LEAST_ARCHITECTURE = {"fp16": 70, "bf16": 80}
_PACK = 8
_REPAIR_THREADS = 256
_MAX_GRID_X = 2**31 - 1


def is_from_parts(product: str) -> bool:
    """Whether the library makes the product from half-precision parts."""
    return product == "parts"


def _runs_parts(product: str, part_type: str, problem: Problem, device: Device) -> bool:
    """Parts hold what fp32 holds, not what fp64 does; on a CPU they are multiplied in fp32, which holds them."""
    if product != "parts":
        return True
    if problem.dtype != "float32":
        return False
    if device.kind is DeviceKind.CPU:
        return True
    return int(device.architecture.removeprefix("sm_")) >= _LEAST_ARCHITECTURE[part_type]


def _fits_memory(product: str, pieces: int, problem: Problem, device: Device) -> bool:
    """Parts and partial products take an eighth of the device at most: what eager can run must not fail here."""
    if product != "parts":
        return True
    rows, depth, features = (problem.axes[name] for name in ("rows", "in_features", "out_features"))
    parts, partial_products = (3, 1) if pieces == 1 else (2, pieces + 1)
    needed = 2 * parts * depth * (rows + features) + 4 * partial_products * rows * features
    return needed <= device.memory_bytes // 8


TUNABLES = (
    Tunable("part_type", ("fp16", "bf16"), when=is_from_parts),
    Tunable("pieces", (1, 2, 4, 8, 16), default=4, when=is_from_parts),
)
CONSTRAINTS = (
    Constraint("parts_are_for_float32_on_tensor_cores", _runs_parts),
    Constraint("parts_fit_memory", _fits_memory),
)


class Parts(NamedTuple):
    """A matrix (rows, depth) in parts; all memory is on its device.

    Attributes:
        factor: (rows, parts · padded depth) of the part type, see `parts_product.cuh`; transposed where it is a weight.
        high: the high parts in pieces (pieces, rows, padded depth / pieces); transposed where it is a weight. None
            where there is one piece.
        exponents, unfit: int32 (rows,): the scale of each row, and whether parts cannot hold it.
    """

    factor: torch.Tensor
    high: torch.Tensor | None
    exponents: Argument
    unfit: Argument


class Product(NamedTuple):
    """What the passes behind a product read: the product itself, or its partial products.

    Attributes:
        first: (rows, features), or `pieces` of these.
        small: the product of the small terms, where it is not in the first.
        x_exponents, w_exponents: of the operands' rows; None where `first` is the product itself.
    """

    first: torch.Tensor
    small: torch.Tensor | None = None
    x_exponents: Argument = None
    w_exponents: Argument = None

    @property
    def is_partial(self) -> bool:
        """Whether the scales are still to be undone and the bias to be added."""
        return self.x_exponents is not None

    @property
    def memory(self) -> torch.Tensor:
        """(rows, features) of it that a pass which reads the product may write over."""
        return self.first if self.small is None else self.small

    def arguments(self, bias: torch.Tensor | None) -> tuple[Argument, ...]:
        """In the order of the kernels' parameters.

        Args:
            bias: (features,), to be added to partial products; torch has added it to a whole one.
        """
        added = bias.contiguous() if self.is_partial and bias is not None else None
        return (*self, added)


def settings_of(plan: Plan) -> tuple[Value, ...]:
    """The values of the tunables that the parts of a matrix depend on."""
    return (plan["part_type"], plan["pieces"])


def split(plan: Plan, matrix: torch.Tensor, *, is_weight: bool, factors: torch.Tensor | None = None) -> Parts:
    """The parts of a float32 matrix (rows, depth), by one launch on torch's current stream.

    Args:
        is_weight: whether it is the transposed factor of the product.
        factors: (rows,), contiguous: each row is multiplied by its factor first.
    """
    matrix = matrix.contiguous()
    rows, depth = matrix.shape
    shape = plan.once(_parts_shape, depth)
    halves = torch.empty(rows, shape.length, dtype=shape.dtype, device=matrix.device)
    notes = torch.empty(2 * rows, dtype=torch.int32, device=matrix.device)
    exponents, unfit = Within(notes, 0), Within(notes, 4 * rows)
    arguments = (matrix, factors, halves, exponents, unfit, rows, depth, shape.padded, is_weight)
    plan.launch("split_parts", *arguments, blocks=min(rows, _MAX_GRID_X), threads=shape.threads)
    high = None
    if shape.pieces > 1:
        piece, offset = shape.padded // shape.pieces, halves.storage_offset() + (shape.padded if is_weight else 0)
        sizes, strides = (shape.pieces, rows, piece), (piece, shape.length, 1)
        if is_weight:
            sizes, strides = (shape.pieces, piece, rows), (piece, 1, shape.length)
        high = halves.as_strided(sizes, strides, offset)
    return Parts(halves.t() if is_weight else halves, high, exponents, unfit)


class _PartsShape(NamedTuple):
    """Of parts of some depth: the length of one and of all of a row; how they are made."""

    padded: int
    length: int
    pieces: int
    dtype: torch.dtype
    threads: int


def _parts_shape(plan: Plan, depth: int) -> _PartsShape:
    pieces = plan.integer("pieces")
    padded = ceil_div(depth, _PACK * pieces) * _PACK * pieces
    length = (3 if pieces == 1 else 2) * padded
    return _PartsShape(padded, length, pieces, _DTYPE[str(plan["part_type"])], plan.integer("split_threads"))


def parts_product(
    plan: Plan, x: torch.Tensor, weight: torch.Tensor, weight_parts: Parts, factors: torch.Tensor | None = None
) -> Product:
    """x · weightᵀ, as partial products, on torch's current stream.

    Args:
        x: (rows, depth), float32.
        weight: (features, depth), float32, on the same device.
        weight_parts: what `split` has made of the weight and the factors.
        factors: (features,) that the parts of the weight's rows were multiplied by.
    """
    x, weight = x.contiguous(), weight.contiguous()
    x_parts = split(plan, x, is_weight=False)
    (rows, depth), features = x.shape, weight.shape[0]
    first, small = _multiply(x_parts.factor, weight_parts.factor), None
    if x_parts.high is not None and weight_parts.high is not None:
        first, small = _multiply(x_parts.high, weight_parts.high), first
    arguments = (x, weight, factors, x_parts.unfit, weight_parts.unfit, first, rows, features, depth)
    plan.launch("repair_parts", *arguments, blocks=plan.device.multiprocessors, threads=_REPAIR_THREADS)
    return Product(first, small, x_parts.exponents, weight_parts.exponents)


def _multiply(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """x · w of matrices of parts, or of stacks of them, with fp32 sums and results."""
    if not _sums_in_fp32(x):
        return torch.matmul(x.float(), w.float())
    return (torch.mm if x.dim() == 2 else torch.bmm)(x, w, out_dtype=torch.float32)


def _sums_in_fp32(parts: torch.Tensor) -> bool:
    """Whether torch multiplies such parts with fp32 sums: no CPU does, nor fp16 where sums in it are allowed."""
    if parts.is_cpu:
        return False
    return parts.dtype != torch.float16 or not torch.backends.cuda.matmul.allow_fp16_accumulation
