"""Passes over loop nests, as `tunebench new` writes them, and the products between them: their space, their launches,
and what they are for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import gcd
from typing import NamedTuple

import torch
from torch.autograd.graph import increment_version

from tunebench.kernels.blocks.block import fast_math_tunables
from tunebench.kernels.blocks.plain_product import kernel_of_product, product
from tunebench.kernels.blocks.warp_product import chosen_by_warps, kernel_of_warps, product_by_warps
from tunebench.kernels.runtime import attributes
from tunebench.kernels.runtime.axes import UnservedError, sizes_of
from tunebench.kernels.runtime.derived import KeepsNothing
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.kernels.shared.alignment import aligned
from tunebench.kernels.shared.early_launches import begins_early
from tunebench.kernels.shared.split_product import InColumns, RowExponents
from tunebench.tuner import constraints
from tunebench.tuner.build import Argument
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import default_compiler
from tunebench.tuner.configuration import Configuration, Value
from tunebench.tuner.device import Device, DeviceKind
from tunebench.tuner.errors import CompilerMissingError, UserError
from tunebench.tuner.kernel import Kernel, Mode, Plan, ceil_div
from tunebench.tuner.problem import Axes, Problem
from tunebench.tuner.space import Constraint, SearchSpace, Tunable

changed = attributes.changed
_Part = tuple[tuple[Tunable, ...], tuple[Constraint, ...]]
_MOST_BYTES = 24
"""Upper limit of the bytes of a value that is joined."""
_MANY = (1, 4, 16, 64, 256, 1024)
THREADS, WIDTH, EARLY = "element_threads", "pass_vector_width", "early_passes"
PRODUCTS = "products_by"
"""Tunables of all passes: the threads of a block of those over elements, the elements that a thread has at once, and
whether each begins before what is in front of it has ended."""


class ProductSizes(NamedTuple):
    """The sizes of a product between passes, and how its factors lie."""

    products: int
    rows: int
    depth: int
    features: int
    in_columns: InColumns | None

    @property
    def lie(self) -> InColumns:
        """Which factors lie in columns, those of a layer too."""
        return self.in_columns or InColumns(False, False)


def fast_math() -> _Part:
    """Return the tunable that takes CUDA's fast functions, for all passes of a source."""
    return fast_math_tunables(["exp(x)"])


def early() -> _Part:
    """Return the tunable of whether each pass takes its place on the device while what is in front of it ends."""
    return (Tunable(EARLY, (True, False)),), (Constraint("device_begins_passes_early", _device_can),)


def _device_can(early_passes: bool, device: Device) -> bool:
    return not early_passes or begins_early(device)


def vectors() -> _Part:
    """Return the tunable of how many neighbours a thread reads and writes at once, where a size is a multiple of it.

    By default 16 bytes of a half type, which is the largest access, and twice those of float32.
    """
    return (Tunable(WIDTH, (1, 2, 4, 8, 16), default=8),), ()


def over_elements() -> _Part:
    """Return the tunable of all passes that compute elements, a thread each: the threads of a block."""
    return (Tunable(THREADS, (64, 128, 256, 512, 1024), default=256),), ()


def over_rows(name: str, *, rows: int, lanes: int, parts: int = 0, freely: bool = True) -> _Part:
    """Return the tunables of a pass that reduces rows, and their constraints.

    Args:
        rows, lanes: by default, the rows of a block and the threads of each of them.
        parts: by default, the blocks of a row, of a pass that may divide them; 0 of another.
        freely: whether each has all of its values; else, of one of many passes, whose choices multiply, the lanes are
            these or four times as many, and nothing else is tuned.
    """
    names = (f"{name}_rows", f"{name}_lanes")
    several = sorted({*_MANY, lanes}) if freely else [lanes, 4 * lanes]
    tunables = [
        Tunable(names[0], tuple(sorted({*_MANY[:-1], rows})) if freely else (rows,), default=rows),
        Tunable(names[1], tuple(several), default=lanes),
    ]
    if parts:
        tunables.append(
            Tunable(f"{name}_parts", tuple(sorted({1, parts, 4 * parts})) if freely else (parts,), default=parts)
        )
    return tuple(tunables), (constraints.block_fits(*names), constraints.fills_warps(*names))


def products() -> _Part:
    """Return the tunable of what makes the products between passes: torch, or kernels, in single precision from parts.

    Fast ones are as exact as the tolerance asks, or as TF32 where the program permits that.
    """
    return (
        (Tunable(PRODUCTS, ("exact", "fast", "library"), host=True),),
        (Constraint("kernels_multiply_on_gpus", _is_on_a_gpu),),
    )


def _is_on_a_gpu(products_by: str, problem: Problem, device: Device) -> bool:
    if products_by == "library":
        return True
    types = ("float32",) if products_by == "fast" else ("float32", "float16", "bfloat16")
    return device.kind is DeviceKind.CUDA and problem.dtype in types


def space(*parts: _Part) -> SearchSpace:
    """Return the space of several passes."""
    tunables = {one.name: one for part in parts for one in part[0]}
    return SearchSpace(tuple(tunables.values()), tuple(one for part in parts for one in part[1]))


def takes(model: TunedModule, axes: Axes, *inputs: object, indices: Collection[str] = ()) -> bool:
    """Return whether passes around a block can read the inputs of a call; where not, the reason is kept.

    Args:
        axes: the names of the inputs, and of the dimensions of each.
        indices: the names of those that are positions, classes or masks.
    """

    def accepts(name: str, tensor: torch.Tensor) -> bool:
        return name not in axes and model.accepts_layout(name, tensor)

    try:
        sizes_of(model, dict(zip(axes, inputs, strict=True)), axes, indices, accepts)
    except UnservedError as error:
        model.unserved(str(error))
        return False
    return True


def sized(model: TunedModule, problem: Problem | None, *, is_read: bool = True, **sizes: int) -> Problem | None:
    """Return a block's problem with sizes that are constants of the passes around it.

    None, with a reason, where passes read the block's output, and that is not contiguous, as a convolution's is for
    channels-last filters.

    Args:
        is_read: whether passes read it.
    """
    if problem is None:
        return None
    if is_read and problem.options.get("output", "nchw") != "nchw":
        return model.unserved("the passes are for contiguous tensors")
    return replace(problem, axes={**problem.axes, **sizes})


def launch(
    plan: Plan,
    name: str,
    tensors: Sequence[Argument],
    kept: int,
    reduced: int | None = None,
    *,
    innermost: int = 1,
    joins: int = 0,
    changes: Sequence[int] = (),
) -> None:
    """Launch a pass.

    Args:
        kept: the number of elements that it keeps.
        reduced: the number of elements that it reduces to each; None where it reduces none.
        innermost: the size of the dimension whose elements a thread has several of, of a pass that reduces none.
        joins: how many values of a row are joined where several blocks may have it; 0 where one has.
        changes: the places among the tensors of those of the module that it writes into.
    """
    if kept == 0:
        return
    given = tensors
    rows = plan.integer(THREADS) if reduced is None else plan.integer(f"{name}_rows")
    threads = rows * (1 if reduced is None else plan.integer(f"{name}_lanes"))
    early = plan.once(_begin_early)
    # Passes read nothing else at a tensor's place, and what they write there is copied back.
    tensors = [aligned(one) if isinstance(one, torch.Tensor) else one for one in tensors]
    blocks, parts = (
        ceil_div(kept, rows * gcd(plan.integer(WIDTH), innermost) if innermost > 1 else rows),
        plan.integer(f"{name}_parts") if joins else 1,
    )
    if parts == 1:
        plan.launch(name, *tensors, blocks=blocks, threads=threads, early=early)
    else:
        device = next(one.device for one in tensors if isinstance(one, torch.Tensor))
        made = [torch.empty(kept * parts * _MOST_BYTES, dtype=torch.uint8, device=device) for _ in range(joins)]
        plan.launch(f"{name}_part", *tensors, *made, blocks=(blocks, parts), threads=threads, early=early)
        plan.launch(f"{name}_join", *tensors, *made, blocks=blocks, threads=threads, early=early)
    for at in changes:
        own, written = given[at], tensors[at]
        assert isinstance(own, torch.Tensor) and isinstance(written, torch.Tensor)
        if written is not own:
            own.copy_(written)
        elif not own.is_inference():
            increment_version(own)  # what a kernel writes PyTorch does not count by itself


def _begin_early(plan: Plan) -> bool:
    """Whether passes begin early; those that were written before there was such a tunable do not wait, and do not."""
    return any(one.name == EARLY for one in plan.kernel.space.tunables) and bool(plan[EARLY])


def multiply(plan: Plan, function: Callable[..., torch.Tensor], *given: torch.Tensor, **numbers: float) -> torch.Tensor:
    """Return what torch.mm, bmm, addmm or baddbmm makes, by a kernel where the plan has one.

    Args:
        given: as the function takes them: what is added, if anything, and the two factors.
        numbers: its factors.
    """
    if plan[PRODUCTS] == "library" or numbers:
        return function(*given, **numbers)
    *added, x, weight = given
    sizes = sizes_of_product(x, weight)
    own = plan.once(_own_product, sizes)
    if own is None:
        return function(*given)
    if own.is_by_warps:
        made = product_by_warps(own.plan, x, weight.mT, sizes.lie)
        return made.add_(added[0]) if added else made
    is_bias = sizes.in_columns is None and added and added[0].stride()[:-1] in ((), (0,))
    bias = added[0].reshape(-1, sizes.features)[0] if is_bias else None
    made = product(own.plan, KeepsNothing(), x, weight.mT, bias, own.exponents, sizes.in_columns)
    made = made.view(*x.shape[:-1], sizes.features)
    return made.add_(added[0]) if added and bias is None else made


def sizes_of_product(x: torch.Tensor, weight: torch.Tensor) -> ProductSizes:
    """Return the sizes of a product as torch.mm and bmm take its factors; those of a layer lie in rows both."""
    rows, depth, features = *x.shape[-2:], weight.shape[-1]
    if x.dim() == 2 and x.is_contiguous() and weight.mT.is_contiguous():
        return ProductSizes(1, rows, depth, features, None)
    in_columns = InColumns(not x.is_contiguous() and x.mT.is_contiguous(), not weight.mT.is_contiguous())
    return ProductSizes(x.shape[:-2].numel(), rows, depth, features, in_columns)


_WAYS: Mapping[str, Sequence[Mapping[str, Value]]] = {
    "exact": ({"product": "fused", "weight_parts": "fp16"},),
    "fast": ({"product": "fused", "weight_parts": "rounded"}, {"product": "fused", "weight_parts": "e4m3"}),
    "half": ({"product": "fused"},),
}
"""What a product is made by, the first that is valid for it."""
_SINGLE_BYTES = 4


class _OwnProduct(NamedTuple):
    plan: Plan
    exponents: RowExponents

    @property
    def is_by_warps(self) -> bool:
        return "warps" in self.plan.configuration


def make_product(plan: Plan, products: int, rows: int, depth: int, features: int, in_columns: InColumns | None) -> None:
    """Build the kernel of a product between passes, where the plan has one."""
    if plan[PRODUCTS] != "library":
        plan.once(_own_product, ProductSizes(products, rows, depth, features, in_columns))


def _own_product(plan: Plan, sizes: ProductSizes) -> _OwnProduct | None:
    """Return the plan of a product; None where there is no kernel for it, or nothing can be built."""
    found = product_kernel(sizes, str(plan[PRODUCTS]), plan.problem, plan.device)
    if found is None:
        return None
    try:
        made = build_plan(*found, plan.device, default_compiler(plan.device))
    except CompilerMissingError:
        return None
    return _OwnProduct(made, RowExponents())


def product_kernel(
    sizes: ProductSizes, way: str, around: Problem, device: Device
) -> tuple[Kernel, Configuration, Problem] | None:
    """Return the kernel of a product, its configuration and problem; None where no configuration is valid.

    Args:
        way: of the tunable.
        around: the problem whose product it is.
    """
    products, rows, depth, features, in_columns = sizes
    axes = {"rows": rows, "in_features": depth, "out_features": features}
    if in_columns is not None:
        axes["products"] = products
    kernel = kernel_of_product(in_columns)
    problem = Problem(axes, around.dtype, {**around.options, "mode": Mode.EVAL})
    for wanted in _WAYS["half" if problem.item_bytes < _SINGLE_BYTES else way]:
        with contextlib.suppress(UserError):
            return kernel, kernel.space.choose(wanted, problem, device), problem
    if problem.item_bytes < _SINGLE_BYTES and (tiles := chosen_by_warps(rows, depth, features, sizes.lie)):
        kernel = kernel_of_warps(sizes.lie)
        return kernel, kernel.space.choose(tiles, problem, device), problem
    return None


def accumulator(plan: Plan) -> torch.dtype:
    """Return the type that a problem's sums are made in."""
    return torch.float64 if plan.problem.dtype == "float64" else torch.float32


def is_same(value: object, number: object) -> bool:
    """Whether an argument of a call is the number, or the None, that passes were written for."""
    return type(value) is type(number) and value == number
