"""The host's side of `include/parts_product.cuh`: the fp32 product from half-precision parts by the library's products.

TF32 parts are not among the choices: torch's matrix products are in TF32 only where a flag of the whole process says
so, which no call could set without changing what other threads compute meanwhile; and they are slower than half types.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tunebench.tuner.build import Argument
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


@dataclass(frozen=True)
class Parts:
    """A matrix (rows, depth) in parts; all tensors are on its device.

    Attributes:
        halves: (rows, parts · padded depth) of the part type, see `parts_product.cuh`.
        exponents, unfit: int32 (rows,): the scale of each row, and whether parts cannot hold it.
        padded: the length of one part of a row.
    """

    halves: torch.Tensor
    exponents: torch.Tensor
    unfit: torch.Tensor
    padded: int


@dataclass(frozen=True)
class Product:
    """What the passes behind a product read: the product itself, or its partial products.

    Attributes:
        first: (rows, features), or `pieces` of these.
        small: the product of the small terms, where it is not in the first.
        x_exponents, w_exponents: of the operands' rows; None where `first` is the product itself.
    """

    first: torch.Tensor
    small: torch.Tensor | None = None
    x_exponents: torch.Tensor | None = None
    w_exponents: torch.Tensor | None = None

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
        tensors = (self.first, self.small, self.x_exponents, self.w_exponents)
        added = bias.contiguous() if self.is_partial and bias is not None else None
        return (*tensors, added)


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
    pieces = plan.integer("pieces")
    padded = ceil_div(depth, _PACK * pieces) * _PACK * pieces
    dtype = _DTYPE[str(plan["part_type"])]
    halves = torch.empty(rows, (3 if pieces == 1 else 2) * padded, dtype=dtype, device=matrix.device)
    exponents, unfit = (torch.empty(rows, dtype=torch.int32, device=matrix.device) for _ in range(2))
    arguments = (matrix, factors, halves, exponents, unfit, rows, depth, padded, is_weight)
    threads = plan.integer("split_threads")
    plan.launch("split_parts", *arguments, blocks=min(rows, _MAX_GRID_X), threads=threads)
    return Parts(halves, exponents, unfit, padded)


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
    (rows, depth), features = x.shape, len(weight)
    pieces, padded = plan.integer("pieces"), x_parts.padded
    small = None
    if pieces == 1:
        first = _multiply(x_parts.halves, weight_parts.halves)
    else:
        x_high, w_high = x_parts.halves[:, :padded], weight_parts.halves[:, padded:]
        stacked = (matrix.view(len(matrix), pieces, -1).transpose(0, 1) for matrix in (x_high, w_high))
        first = _multiply(*stacked)
        small = _multiply(x_parts.halves, weight_parts.halves)
    product = Product(first, small, x_parts.exponents, weight_parts.exponents)
    arguments = (x, weight, factors, x_parts.unfit, weight_parts.unfit, first, rows, features, depth)
    plan.launch("repair_parts", *arguments, blocks=plan.device.multiprocessors, threads=_REPAIR_THREADS)
    return product


def _multiply(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """x · wᵀ of matrices of parts, or of stacks of them, with fp32 sums and results."""
    transposed = w.transpose(-2, -1)
    if not _sums_in_fp32(x):
        return torch.matmul(x.float(), transposed.float())
    if x.dim() == 2:
        return torch.mm(x, transposed, out_dtype=torch.float32)
    return torch.bmm(x, transposed, out_dtype=torch.float32)


def _sums_in_fp32(parts: torch.Tensor) -> bool:
    """Whether torch multiplies such parts with fp32 sums: no CPU does, nor fp16 where sums in it are allowed."""
    if parts.device.type == "cpu":
        return False
    return parts.dtype != torch.float16 or not torch.backends.cuda.matmul.allow_fp16_accumulation
