"""The host's side of `include/parts_product.cuh`: the fp32 product from parts of fewer bits by the library's products.

TF32 parts are not among the choices: torch's matrix products are in TF32 only where a flag of the whole process says
so, which no call could set without changing what other threads compute meanwhile; and they are slower than half types.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from tunebench.kernels.shared import REPAIR_THREADS
from tunebench.kernels.shared.split_product import MAX_DEPTH_OF_INT8, InColumns
from tunebench.tuner.build import Argument, Within
from tunebench.tuner.configuration import Value
from tunebench.tuner.device import MOST_BLOCKS, Device, DeviceKind
from tunebench.tuner.kernel import Plan, ceil_div
from tunebench.tuner.problem import Accuracy, Problem
from tunebench.tuner.space import Constraint, Tunable

_IN_ROWS = InColumns(x=False, weight=False)
_DTYPE = {"fp16": torch.float16, "bf16": torch.bfloat16}
_LEAST_ARCHITECTURE = {"fp16": 70, "bf16": 80}
_LEAST_ARCHITECTURE_OF_EIGHTS = {"e4m3": 89, "int8": 75}
_EIGHT_BITS = {"e4m3": torch.float8_e4m3fn, "int8": torch.int8}
_SUMS = {"fp32": torch.float32, "bf16": torch.bfloat16}
_LEAST_ROWS_OF_INT8 = 17
_IN_ONE = {"half": 3, "none": 1}
"""The number of a row's parts by the corrections that one product makes, with the large term."""
_PIECES_OF_EAGER = 7
_PACK = 8
_LANES = 32
_LEAST_CHUNK, _MOST_CHUNKS = 64, 64
"""Of the depth of a matrix in columns, a block each."""
_SCALE_WORDS = 4
"""The scale of an operand is the first word of its notes, and what follows is aligned to 16 bytes as before."""


def is_from_parts(product: str) -> bool:
    """Return whether the library makes the product from half-precision parts."""
    return product == "parts"


def _runs_parts(product: str, part_type: str, problem: Problem, device: Device) -> bool:
    """Parts hold what fp32 holds, not what fp64 does; on a CPU they are multiplied in fp32, which holds them."""
    if product != "parts":
        return True
    if problem.dtype != "float32":
        return False
    return device.kind is DeviceKind.CPU or device.is_gpu_from(_LEAST_ARCHITECTURE[part_type])


def _holds_enough(product: str, part_type: str, corrections: str, problem: Problem) -> bool:
    """Return whether parts are exact enough: 16 bits of an operand, or 15 of small terms, never match eager.

    Without small terms operands have fp16's eleven bits, which are TF32's.
    """
    if product != "parts":
        return True
    if corrections == "none":
        return problem.accuracy is Accuracy.TF32
    return problem.accuracy is not Accuracy.EAGER or (part_type == "fp16" and corrections != "e4m3")


def _pieces_are_asked_for(product: str, pieces: int, corrections: str, problem: Problem) -> bool:
    """Allow seven pieces only with `accuracy="eager"`: under the tolerance they are no choice of their own. Beside the
    rounding of operands without small terms, what tensor cores truncate is nothing."""
    if corrections == "none" and pieces > 1:
        return product != "parts"
    return product != "parts" or pieces != _PIECES_OF_EAGER or problem.accuracy is Accuracy.EAGER


def _runs_corrections(product: str, part_type: str, corrections: str, problem: Problem, device: Device) -> bool:
    """Eight bits are enough beside the eleven of fp16, where torch multiplies such matrices of these sizes."""
    if product != "parts" or corrections == "half":
        return True
    if corrections == "none":
        return part_type == "fp16"
    if part_type != "fp16" or (corrections == "int8" and problem.axes["in_features"] > MAX_DEPTH_OF_INT8):
        return False
    if device.kind is DeviceKind.CPU:
        return corrections == "int8" or _cpu_multiplies_e4m3()
    if not device.is_gpu_from(_LEAST_ARCHITECTURE_OF_EIGHTS[corrections]):
        return False
    rows, features = problem.axes["rows"], problem.axes["out_features"]
    return features % 16 == 0 if corrections == "e4m3" else features % 8 == 0 and rows >= _LEAST_ROWS_OF_INT8


@functools.cache
def _cpu_multiplies_e4m3() -> bool:
    """Return whether this torch multiplies e4m3 on the CPU, found by trying."""
    numbers = torch.ones(16, 16).to(torch.float8_e4m3fn)
    one = torch.ones(())
    try:
        found = torch._scaled_mm(numbers, numbers.t(), one, one, out_dtype=torch.float32)
    except (RuntimeError, NotImplementedError):
        return False
    return bool((found == 16.0).all())


def _fits_memory(product: str, pieces: int, corrections: str, problem: Problem, device: Device) -> bool:
    """Parts and partial products take an eighth of the device at most: what eager can run must not fail here."""
    if product != "parts":
        return True
    rows, depth, features = (problem.axes[name] for name in ("rows", "in_features", "out_features"))
    in_one = pieces == 1 and corrections in _IN_ONE
    parts, partial_products = (_IN_ONE[corrections], 1) if in_one else (2, pieces + 1)
    needed = 2 * parts * depth * (rows + features) + 4 * partial_products * rows * features
    return needed <= device.memory_bytes // 8


def _sums_may_be_rounded(product: str, corrections: str) -> bool:
    return product == "parts" and corrections == "e4m3"


TUNABLES = (
    Tunable("part_type", ("fp16", "bf16"), when=is_from_parts),
    Tunable("corrections", ("half", "e4m3", "int8", "none"), when=is_from_parts),
    Tunable("correction_sums", ("fp32", "bf16"), when=_sums_may_be_rounded),
    Tunable("pieces", (1, 2, 4, _PIECES_OF_EAGER, 8, 16), default=4, when=is_from_parts),
)
CONSTRAINTS = (
    Constraint("parts_are_for_float32_on_tensor_cores", _runs_parts),
    Constraint("eight_bit_corrections_need_fp16_parts_and_a_library_that_multiplies_them", _runs_corrections),
    Constraint("parts_hold_as_much_as_is_asked_for", _holds_enough),
    Constraint("pieces_are_as_many_as_is_asked_for", _pieces_are_asked_for),
    Constraint("parts_fit_memory", _fits_memory),
)


def _parts_are_of_one_product(product: str, problem: Problem) -> bool:
    return product != "parts" or problem.axes["products"] == 1


def _columns_are_in_halves(product: str, corrections: str) -> bool:
    """Libraries take matrices of eight bits in rows alone."""
    return product != "parts" or corrections in _IN_ONE


CONSTRAINTS_OF_INPUTS = (Constraint("parts_are_of_one_product", _parts_are_of_one_product),)
CONSTRAINTS_IN_COLUMNS = (Constraint("parts_in_columns_are_halves", _columns_are_in_halves),)


class Parts(NamedTuple):
    """A matrix (rows, depth) in parts; all memory is on its device, all matrices transposed where it is a weight.

    Attributes:
        factor: of the small terms (rows, parts · padded depth), see `parts_product.cuh`: in halves, or in eight bits.
            Without small terms, of the product.
        high: the high parts in pieces (pieces, rows, padded depth / pieces), with one piece (rows, padded depth). None
            where they are in the factor.
        exponents, unfit: int32 (rows,): the scale of each row, and whether parts cannot hold it.
        scale: float32 (1,): of a factor in eight bits.
    """

    factor: torch.Tensor
    high: torch.Tensor | None
    exponents: Argument
    unfit: Argument
    scale: torch.Tensor | None


class Product(NamedTuple):
    """The input of the passes behind a product: the product itself, or its partial products.

    Attributes:
        first: (rows, features), or `pieces` of these.
        small: the product of the small terms, where it is not in the first; of the type that `correction_sums` says, or
            of int32.
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
        if self.small is not None and self.small.dtype == self.first.dtype:
            return self.small
        return self.first if self.first.dim() == 2 else self.first[0]

    def arguments(self, bias: torch.Tensor | None) -> tuple[Argument, ...]:
        """Return the arguments in the order of the kernels' parameters.

        Args:
            bias: (features,), to be added to partial products; torch has added it to a whole one.
        """
        added = bias.contiguous() if self.is_partial and bias is not None else None
        return (*self, added)


def settings_of(plan: Plan) -> tuple[Value, ...]:
    """Return the values of the tunables that the parts of a matrix depend on."""
    return (plan["part_type"], plan["pieces"], plan["corrections"])


def split(plan: Plan, matrix: torch.Tensor, *, is_weight: bool, factors: torch.Tensor | None = None) -> Parts:
    """Make the parts of a float32 matrix (rows, depth), by one launch on torch's current stream.

    Args:
        is_weight: whether it is the transposed factor of the product.
        factors: (rows,), contiguous: each row is multiplied by its factor first.
    """
    matrix = matrix.contiguous()
    rows, depth = matrix.shape
    shape = plan.once(_parts_shape, depth)
    halves = torch.empty(rows, shape.length, dtype=shape.dtype, device=matrix.device)
    notes = torch.empty(_SCALE_WORDS + 2 * rows, dtype=torch.int32, device=matrix.device)
    eights, scale = None, None
    if shape.eights is not None:
        eights = torch.empty(rows, 2 * shape.padded, dtype=shape.eights, device=matrix.device)
        scale = notes[:1].view(torch.float32)
    exponents, unfit = Within(notes, 4 * _SCALE_WORDS), Within(notes, 4 * (_SCALE_WORDS + rows))
    arguments = (matrix, factors, halves, eights, exponents, unfit, scale, rows, depth, shape.padded, is_weight)
    plan.launch("split_parts", *arguments, blocks=min(rows, MOST_BLOCKS), threads=shape.threads)
    high = None
    if shape.pieces > 1:
        piece = shape.padded // shape.pieces
        # In a row of halves alone the weight's low parts come first.
        offset = halves.storage_offset() + (shape.padded if is_weight and eights is None else 0)
        sizes, strides = (shape.pieces, rows, piece), (piece, shape.length, 1)
        if is_weight:
            sizes, strides = (shape.pieces, piece, rows), (piece, 1, shape.length)
        high = halves.as_strided(sizes, strides, offset)
    elif eights is not None:
        high = halves.t() if is_weight else halves
    factor = halves if eights is None else eights
    return Parts(factor.t() if is_weight else factor, high, exponents, unfit, scale)


def split_columns(plan: Plan, matrix: torch.Tensor, *, is_weight: bool) -> Parts:
    """Make the parts of a float32 matrix (rows, depth) that lies in columns: of memory (depth, rows), as it lies."""
    memory = matrix.mT.contiguous()
    depth, rows = memory.shape
    shape, threads = plan.once(_parts_shape, depth), plan.integer("split_threads")
    chunk = max(_LEAST_CHUNK, ceil_div(shape.padded, _MOST_CHUNKS))
    chunks = ceil_div(shape.padded, chunk)
    halves = torch.empty(shape.length, rows, dtype=shape.dtype, device=memory.device)
    notes = torch.empty((2 + chunks) * rows, dtype=torch.int32, device=memory.device)
    exponents, unfit, magnitudes = (Within(notes, 4 * rows * number) for number in range(3))
    grid = (ceil_div(rows, _LANES), chunks)
    plan.launch("column_magnitudes", memory, magnitudes, rows, depth, chunk, blocks=grid, threads=threads)
    arguments = (memory, magnitudes, halves, exponents, unfit, rows, depth, shape.padded, chunk, chunks, is_weight)
    plan.launch("split_columns", *arguments, blocks=(ceil_div(rows, threads), chunks), threads=threads)
    high = None
    if shape.pieces > 1:
        first = shape.padded if is_weight else 0
        high = halves[first : first + shape.padded].view(shape.pieces, -1, rows)
    if is_weight:
        return Parts(halves, high, exponents, unfit, None)
    return Parts(halves.t(), None if high is None else high.mT, exponents, unfit, None)


class _PartsShape(NamedTuple):
    """The shape of parts of some depth: the length of one and of all halves of a row; how they are made."""

    padded: int
    length: int
    pieces: int
    dtype: torch.dtype
    eights: torch.dtype | None
    threads: int


def _parts_shape(plan: Plan, depth: int) -> _PartsShape:
    pieces, eights = plan.integer("pieces"), _EIGHT_BITS.get(str(plan["corrections"]))
    padded = ceil_div(depth, _PACK * pieces) * _PACK * pieces
    halves = 1 if eights is not None else _IN_ONE[str(plan["corrections"])] if pieces == 1 else 2
    dtype = _DTYPE[str(plan["part_type"])]
    return _PartsShape(padded, halves * padded, pieces, dtype, eights, plan.integer("split_threads"))


def parts_of(plan: Plan, matrix: torch.Tensor, *, is_weight: bool, in_columns: bool) -> Parts:
    """Make the parts of a matrix as it lies."""
    return (split_columns if in_columns else split)(plan, matrix, is_weight=is_weight)


def parts_product(
    plan: Plan,
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_parts: Parts,
    factors: torch.Tensor | None = None,
    in_columns: InColumns = _IN_ROWS,
) -> Product:
    """Compute x · weightᵀ, as partial products, on torch's current stream.

    Args:
        x: (rows, depth), float32.
        weight: (features, depth), float32, on the same device.
        weight_parts: what `split` has made of the weight and the factors.
        factors: (features,) that the parts of the weight's rows were multiplied by.
    """
    x_parts = parts_of(plan, x, is_weight=False, in_columns=in_columns.x)
    (rows, depth), features = x.shape, weight.shape[0]
    x = (x.mT if in_columns.x else x).contiguous()
    weight = (weight.mT if in_columns.weight else weight).contiguous()
    first, small = _small_terms(plan, x_parts, weight_parts), None
    if x_parts.high is not None and weight_parts.high is not None:
        first, small = _multiply(x_parts.high, weight_parts.high), first
    arguments = (x, weight, factors, x_parts.unfit, weight_parts.unfit, first, rows, features, depth)
    plan.launch("repair_parts", *arguments, blocks=plan.device.multiprocessors, threads=REPAIR_THREADS)
    return Product(first, small, x_parts.exponents, weight_parts.exponents)


def _small_terms(plan: Plan, x: Parts, w: Parts) -> torch.Tensor:
    """Compute the small terms of the product of two matrices in parts; with one piece in halves all of it."""
    if x.factor.dtype == torch.int8:
        return torch._int_mm(x.factor, w.factor)
    if x.scale is None or w.scale is None:
        return _multiply(x.factor, w.factor)
    # Sums that are promoted now and then would cost time, and the small terms need no more bits than fast ones have.
    return torch._scaled_mm(
        x.factor, w.factor, x.scale, w.scale, out_dtype=_SUMS[str(plan["correction_sums"])], use_fast_accum=True
    )


def _multiply(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Multiply x · w of matrices of halves, or of stacks of them, with fp32 sums and results."""
    if not _sums_in_fp32(x):
        return torch.matmul(x.float(), w.float())
    return (torch.mm if x.dim() == 2 else torch.bmm)(x, w, out_dtype=torch.float32)


def _sums_in_fp32(parts: torch.Tensor) -> bool:
    """Return whether torch multiplies such parts with fp32 sums: no CPU does, nor fp16 where sums in it are allowed."""
    if parts.is_cpu:
        return False
    return parts.dtype != torch.float16 or not torch.backends.cuda.matmul.allow_fp16_accumulation
