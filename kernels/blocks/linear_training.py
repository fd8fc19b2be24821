"""A linear layer that is trained: its product and its two gradients by tuned products, and a pass each way behind it.

A step has three products: x · Wᵀ, the gradient by x, G · W, and that by W, Gᵀ · x. Where a plan's product is made of
parts, all three are, with the plan's tunables: the first is the plan's own with no function behind it, the others are
products of two inputs, which lie as they lie. A function of each value and of numbers is one pass over the product, and
one over the gradient by the function's derivative, with the bias's sums. All else behind the layer is the reference's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch
from torch import nn

from tunebench.kernels.blocks.block import Kind, Operand
from tunebench.kernels.blocks.derivative import derivative_of
from tunebench.kernels.blocks.device_function import device_function
from tunebench.kernels.blocks.plain_product import kernel_of_product, product
from tunebench.kernels.blocks.pointwise import pass_over_elements, source_of, space_of
from tunebench.kernels.runtime.gradients import differentiate
from tunebench.kernels.runtime.tuned_module import TunedModule, computed_in
from tunebench.kernels.shared import DTYPES, products, split_product
from tunebench.kernels.shared.split_product import InColumns, RowExponents
from tunebench.tuner import constraints
from tunebench.tuner.build import Build
from tunebench.tuner.compile.building import shared_build
from tunebench.tuner.compile.compilers import default_compiler
from tunebench.tuner.configuration import Configuration, Value
from tunebench.tuner.errors import CompilerMissingError, UserError
from tunebench.tuner.kernel import Kernel, Mode, Plan, ceil_div
from tunebench.tuner.problem import Accuracy, Problem
from tunebench.tuner.space import SearchSpace, Tunable

BY_X, BY_WEIGHT = InColumns(x=False, weight=True), InColumns(x=True, weight=True)
"""How the factors of the gradients lie: G · W and Gᵀ · x."""
_VECTOR_BYTES, _HALF_BYTES = 16, 2
_FEWEST_ROWS = 8
_BLOCKS_OF_MULTIPROCESSOR = 4

_SLOPE = """#include "functions.cuh"
#include "vector.cuh"

{function}
// The gradient of a product, and for the bias the sums of its columns: of `chunk` rows in each row of blocks.
extern "C" __global__ void __launch_bounds__(block_size)
    slope(const scalar_t* __restrict__ gradient, const scalar_t* __restrict__ product{parameters},
          scalar_t* __restrict__ output, accumulator_t* __restrict__ sums, long long rows, long long features,
          long long chunk) {{
    using vector_t = vector_of<scalar_t, vector_width>;
    const long long column = (static_cast<long long>(blockIdx.x) * block_size + threadIdx.x) * vector_width;
    if (column >= features) {{
        return;
    }}
    accumulator_t sum[vector_width] = {{}};
    const long long begin = blockIdx.y * chunk, end = min(begin + chunk, rows);
#pragma unroll 4
    for (long long row = begin; row < end; ++row) {{
        const long long place = (row * features + column) / vector_width;
        auto made = load<false>(reinterpret_cast<const vector_t*>(gradient) + place);
        auto values = load<false>(reinterpret_cast<const vector_t*>(product) + place);
        accumulator_t slopes[vector_width];
        for_each(values, [&](scalar_t& value, int i) {{
            slopes[i] = functions::derivative(accumulator_t(value){arguments});
        }});
        for_each(made, [&](scalar_t& element, int i) {{
            element = scalar_t(accumulator_t(element) * slopes[i]);
            sum[i] += accumulator_t(element);
        }});
        store<false>(reinterpret_cast<vector_t*>(output) + place, made);
    }}
#pragma unroll
    for (int i = 0; i < vector_width; ++i) {{
        sums[blockIdx.y * features + column + i] = sum[i];
    }}
}}
"""
_MOST_FUNCTIONS = 256


class TrainedPlans(NamedTuple):
    """The plans of a step; None where torch does it.

    Attributes:
        layer: the product.
        by_x, by_weight: its gradients.
        behind: the function of the product's values, and `slope`, the gradient times its derivative.
    """

    layer: Plan | None
    by_x: Plan | None
    by_weight: Plan | None
    behind: Plan | None
    slope: Plan | None


def trained_plans(plan: Plan, function: str, used: tuple[Operand, ...]) -> tuple[TrainedPlans, ...]:
    """Return the plans of a step where a plan serves the forward, and others to try; none where torch does all of it.

    To read a weight in columns takes longer than in rows: where TF32 is permitted, torch's G · W may be the faster one.

    Args:
        function: of one `value` of the product, where nothing else stands behind it; empty elsewhere.
        used: what it reads besides.

    Raises:
        CompileError: a source was refused.
        LaunchError: the device refused a binary.
    """
    begun: list[_Begun | None] = [None] * len(TrainedPlans._fields)
    try:
        if plan["product"] in ("fused", "parts") and plan.problem.dtype == "float32":
            begun[:3] = _products(plan)
        derivative = derivative_of(function) if function not in ("", "value") else None
        if derivative is not None and all(one.kind is Kind.SCALAR for one in used):
            begun[3] = _pass(plan, function, used)
            begun[4] = _slope(plan, derivative, used)
        made = [None if one is None else one.plan(plan) for one in begun]
    except CompilerMissingError:
        return ()
    plans = TrainedPlans(*made)
    others = (plans._replace(by_x=None),) if plans.by_x and plan.problem.accuracy is Accuracy.TF32 else ()
    return (plans, *others) if any(plans) else ()


_VALUE = Operand("value", Kind.ELEMENT, "value", None)


def _products(plan: Plan) -> list[_Begun | None]:
    rows, depth, features = (plan.problem.axes[name] for name in ("rows", "in_features", "out_features"))
    of_layer = {"rows": rows, "in_features": depth, "out_features": features}
    by_x = {"products": 1, "rows": rows, "in_features": features, "out_features": depth}
    by_weight = {"products": 1, "rows": features, "in_features": rows, "out_features": depth}
    options = {name: value for name, value in plan.problem.options.items() if name != "mode"}
    of_mode = {**options, "mode": plan.problem.options.get("mode", Mode.EVAL)}
    return [
        _product(plan, None, Problem(of_layer, "float32", of_mode)),
        _product(plan, BY_X, Problem(by_x, "float32", options)),
        _product(plan, BY_WEIGHT, Problem(by_weight, "float32", options)),
    ]


class _Begun(NamedTuple):
    """A product whose build is under way."""

    kernel: Kernel
    configuration: Configuration
    problem: Problem
    build: Future[Build]

    def plan(self, like: Plan) -> Plan:
        """Return its plan, on the device of another."""
        loaded = default_compiler(like.device).load(self.build.result(), like.device.index)
        return Plan(self.kernel, self.configuration, self.problem, like.device, loaded)


def _begin(kernel: Kernel, configuration: Configuration, problem: Problem, plan: Plan) -> _Begun:
    """Begin to build what is for a plan's device."""
    variant = kernel.variant(configuration, problem, plan.device.architecture)
    build = shared_build(default_compiler(plan.device), variant, wait=False)
    return _Begun(kernel, configuration, problem, build)


def _product(plan: Plan, in_columns: InColumns | None, problem: Problem) -> _Begun | None:
    """Begin to build a product with a plan's tunables; None where no configuration is as exact as the plan's."""
    kernel = kernel_of_product(in_columns)
    values = {"vector_width": 4, **{name: plan[name] for name in plan.configuration}}
    if in_columns is not None:
        if values.get("weight_parts") == "none":
            values["weight_parts"] = "fp16"  # the same halves, made ahead of the product
        if values.get("weight_parts") == split_product.HALVES:
            values["weight_parts"] = "rounded"  # the same in tiles, which are made of columns too
        if values.get("corrections") in ("e4m3", "int8"):
            values["corrections"] = "half"  # libraries take eight bits in rows alone
    configuration = kernel.space.completed(values, problem, plan.device) or _nearest(kernel, values, problem, plan)
    return None if configuration is None else _begin(kernel, configuration, problem, plan)


def _pass(plan: Plan, function: str, used: tuple[Operand, ...]) -> _Begun | None:
    """Begin to build the pass over a product."""
    problem = Problem({"elements": plan.problem.axes["rows"] * plan.problem.axes["out_features"]}, plan.problem.dtype)
    values = {**_fast_math_of(plan), "vector_width": _VECTOR_BYTES // problem.item_bytes}
    kernel = _kernel_of_pass(function, used)
    configuration = kernel.space.completed(values, problem, plan.device)
    return None if configuration is None else _begin(kernel, configuration, problem, plan)


def _slope(plan: Plan, derivative: str, used: tuple[Operand, ...]) -> _Begun:
    """Begin to build the pass over a gradient."""
    features = plan.problem.axes["out_features"]
    problem = Problem({"out_features": features}, plan.problem.dtype)
    width = math.gcd(features, _VECTOR_BYTES // problem.item_bytes)
    kernel = _kernel_of_slope(derivative, used)
    configuration = kernel.space.choose({**_fast_math_of(plan), "vector_width": width}, problem, plan.device)
    return _begin(kernel, configuration, problem, plan)


def _fast_math_of(plan: Plan) -> dict[str, Value]:
    """Return the plan's choice; beside the rounding of half types it is off by nothing."""
    if "fast_math" not in plan.configuration:
        return {}
    return {"fast_math": bool(plan["fast_math"]) or plan.problem.item_bytes == _HALF_BYTES}


def _nearest(kernel: Kernel, values: Mapping[str, Value], problem: Problem, plan: Plan) -> Configuration | None:
    """Return the configuration that rounds as these values do and is otherwise nearest to the default."""
    rounding = {name: value for name, value in values.items() if name in products.ROUNDING}
    try:
        return kernel.space.choose(rounding, problem, plan.device)
    except UserError:
        return None


@functools.lru_cache(_MOST_FUNCTIONS)
def _kernel_of_pass(function: str, used: tuple[Operand, ...]) -> Kernel:
    source = source_of("function", function, (_VALUE, *used))
    return _kernel("trained_function", space_of(function), source)


@functools.lru_cache(_MOST_FUNCTIONS)
def _kernel_of_slope(derivative: str, used: tuple[Operand, ...]) -> Kernel:
    names = [one.name for one in used]
    # The header needs `fast_math`, whatever the derivative calls.
    space = SearchSpace(
        (
            Tunable("fast_math", (False, True)),
            Tunable("block_size", (64, 128, 256), default=256),
            Tunable("vector_width", (1, 2, 4, 8)),
        ),
        (constraints.vector_fits("vector_width"), constraints.divides("vector_width", "out_features")),
    )
    source = _SLOPE.format(
        function=device_function("derivative", "derivative", derivative, ["value", *names]),
        parameters="".join(f", accumulator_t {name}_" for name in names),
        arguments="".join(f", {name}_" for name in names),
    )
    return _kernel("trained_slope", space, source)


def _kernel(name: str, space: SearchSpace, source: str) -> Kernel:
    return Kernel.declare(__file__, space, source=source, name=name, texts={}, axes={}, dtypes=DTYPES)


class TrainedLayer(NamedTuple):
    """One call of a linear layer, alone or with the function behind it.

    Attributes:
        model: whose layer it is.
        layer: with the parameters.
        exponents: what is kept of the weight's magnitude.
        sums: of the columns of a gradient of the product, beside it.
        numbers: that the function reads.
        reference: the reference's own operations behind a product; None of the layer alone.
    """

    plans: TrainedPlans
    model: TunedModule
    layer: nn.Linear
    exponents: RowExponents
    sums: list[tuple[torch.Tensor, torch.Tensor]]
    numbers: Sequence[Any] = ()
    reference: Callable[[torch.Tensor], torch.Tensor] | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output, by a node of the autograd graph for the product and one for the function."""
        weight, bias = self.layer.weight, self.layer.bias
        if x.dim() != 2 or x.dtype != weight.dtype:
            product = nn.functional.linear(x, weight, bias)
            return product if self.reference is None else self.reference(product)
        made: torch.Tensor
        if not any(self.plans[:3]):
            # torch's node costs the host a fraction of ours; but the bias's gradient is there with the function's.
            product = nn.functional.linear(x, weight, None if bias is None else bias.detach())
            made = _Behind.apply(self, product, bias)  # type: ignore[no-untyped-call]
            return made
        made = _Product.apply(self, x, weight, bias)  # type: ignore[no-untyped-call]
        return made if self.reference is None else _Behind.apply(self, made, None)  # type: ignore[no-untyped-call]

    def product(
        self,
        plan: Plan | None,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        in_columns: InColumns | None = None,
    ) -> torch.Tensor:
        """Compute x · weightᵀ + bias."""
        return product(plan, self.model, x, weight, bias, self.exponents, in_columns)

    def behind(self, product: torch.Tensor) -> torch.Tensor:
        """Return the function of a product's values."""
        assert self.plans.behind is not None
        output = torch.empty_like(product)
        pass_over_elements(self.plans.behind, (product, *self.numbers), output)
        return output

    def slope(self, gradient: torch.Tensor, product: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the gradient of the product, of that of the output, and the sums of its columns, in parts."""
        plan, gradient = self.plans.slope, gradient.contiguous()
        assert plan is not None
        if gradient.data_ptr() % _VECTOR_BYTES:
            gradient = gradient.clone()
        rows, features = product.shape
        blocks, chunk = plan.once(_slope_grid, rows, features)
        made = torch.empty_like(product)
        sums = product.new_empty(blocks[1], features, dtype=computed_in(product.dtype))
        threads = plan.integer("block_size")
        arguments = (gradient, product, *self.numbers, made, sums, rows, features, chunk)
        plan.launch("slope", *arguments, blocks=blocks, threads=threads)
        return made, sums

    def of_bias(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the bias, of that of the product."""
        kept = next((sums for one, sums in self.sums if one is gradient), gradient)
        return kept.sum(0).to(gradient.dtype)


def _slope_grid(plan: Plan, rows: int, features: int) -> tuple[tuple[int, int], int]:
    """Return the blocks, and how many rows each does."""
    across = ceil_div(features, plan.integer("block_size") * plan.integer("vector_width"))
    down = ceil_div(_BLOCKS_OF_MULTIPROCESSOR * plan.device.multiprocessors, across)
    chunk = max(_FEWEST_ROWS, ceil_div(rows, down))
    return (across, ceil_div(rows, chunk)), chunk


class _Product(torch.autograd.Function):
    """The product of a layer; second derivatives are those of torch's products. It saves what torch's own does."""

    @staticmethod
    def forward(
        ctx: Any, layer: TrainedLayer, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        _, for_x, for_weight, _ = ctx.needs_input_grad
        ctx.layer = layer
        ctx.save_for_backward(x if for_weight else None, weight if for_x else None)
        return layer.product(layer.plans.layer, x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,), layer = gradients, ctx.layer
        layer.model._note_backward()
        x, weight = ctx.saved_tensors
        _, for_x, for_weight, for_bias = ctx.needs_input_grad
        of_bias = layer.of_bias(gradient) if for_bias else None
        layer.sums.clear()
        by_x, by_weight = layer.plans.by_x, layer.plans.by_weight
        if torch.is_grad_enabled():
            by_x = by_weight = None  # to be differentiated once more
        else:
            gradient = gradient.contiguous()
        of_x = layer.product(by_x, gradient, weight.mT, None, BY_X) if for_x else None
        of_weight = layer.product(by_weight, gradient.mT, x.mT, None, BY_WEIGHT) if for_weight else None
        return None, of_x, of_weight, of_bias


class _Behind(torch.autograd.Function):
    """The function behind a layer; second derivatives are those of the reference's operations.

    A bias is one whose gradient the product's node leaves to this one: it is in the product, as a constant there.
    """

    @staticmethod
    def forward(ctx: Any, layer: TrainedLayer, product: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.layer, ctx.bias = layer, bias  # not saved: as with torch's own node, it may change before the backward
        ctx.save_for_backward(product)
        return layer.behind(product)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        layer: TrainedLayer = ctx.layer
        (product,), bias = ctx.saved_tensors, ctx.bias
        layer.model._note_backward()
        reference, needed = layer.reference, ctx.needs_input_grad[1:]
        if not torch.is_grad_enabled() or reference is None:
            made, sums = layer.slope(gradients[0], product)
            if bias is None:
                layer.sums[:] = [(made, sums)]
            return None, made, sums.sum(0).to(made.dtype) if needed[1] else None

        def behind(given: Sequence[torch.Tensor]) -> torch.Tensor:
            value = given[0]
            for one in given[1:]:  # the bias, which is in the value
                value = value + (one - one.detach())
            return reference(value)

        tensors = (product,) if bias is None else (product, bias)
        found = differentiate(behind, tensors, needed[: len(tensors)], gradients, higher=True)
        return None, *found, *([None] if bias is None else [])
