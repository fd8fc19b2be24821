"""A linear layer that is trained: its product and its two gradients by tuned products, and a pass each way behind it.

A step has three products: x · Wᵀ, the gradient by x, G · W, and that by W, Gᵀ · x. Where a plan's product is made of
parts, all three are, with the plan's tunables: the first is the plan's own with no function behind it, the others are
products of two inputs, which lie as they lie. A function of each value and of numbers is one pass over the product, and
one over the gradient by the function's derivative. All else behind the layer is the reference's own, with its formulas.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch
from torch import nn

from tunebench.kernels.blocks.block import Kind, Operand
from tunebench.kernels.blocks.derivative import derivative_of
from tunebench.kernels.blocks.linear_pass import LinearCall, elements_space, own_output, pass_over
from tunebench.kernels.blocks.linear_source import LinearSource
from tunebench.kernels.blocks.pointwise import pass_over_elements, source_of, space_of
from tunebench.kernels.runtime.gradients import differentiate
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.kernels.shared import DTYPES, products, split_product
from tunebench.kernels.shared.products import has_passes, library_product
from tunebench.kernels.shared.split_product import InColumns, RowExponents
from tunebench.tuner.build import Build
from tunebench.tuner.compile.building import shared_build
from tunebench.tuner.compile.compilers import default_compiler
from tunebench.tuner.configuration import Configuration, Value
from tunebench.tuner.errors import CompilerMissingError, UserError
from tunebench.tuner.kernel import Kernel, Mode, Plan
from tunebench.tuner.problem import Accuracy, Problem
from tunebench.tuner.space import SearchSpace

BY_X, BY_WEIGHT = InColumns(x=False, weight=True), InColumns(x=True, weight=True)
"""How the factors of the gradients lie: G · W and Gᵀ · x."""
_VECTOR_BYTES = 16
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
        derivative = derivative_of(function)
        if derivative is not None and function != "value" and all(one.kind is Kind.SCALAR for one in used):
            begun[3] = _pass(plan, function, (_VALUE, *used))
            begun[4] = _pass(plan, f"gradient * {derivative}", (_GRADIENT, _VALUE, *used))
        made = [None if one is None else one.plan(plan) for one in begun]
    except CompilerMissingError:
        return ()
    plans = TrainedPlans(*made)
    others = (plans._replace(by_x=None),) if plans.by_x and plan.problem.accuracy is Accuracy.TF32 else ()
    return (plans, *others) if any(plans) else ()


_VALUE, _GRADIENT = (Operand(name, Kind.ELEMENT, name, None) for name in ("value", "gradient"))


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
    kernel = _kernel_of_product(in_columns)
    values = {"vector_width": 4, **{name: plan[name] for name in plan.configuration}}
    if in_columns is not None:
        if values.get("weight_parts") == "none":
            values["weight_parts"] = "fp16"  # the same halves, made ahead of the product
        if values.get("corrections") in ("e4m3", "int8"):
            values["corrections"] = "half"  # libraries take eight bits in rows alone
    configuration = kernel.space.completed(values, problem, plan.device) or _nearest(kernel, values, problem, plan)
    return None if configuration is None else _begin(kernel, configuration, problem, plan)


def _pass(plan: Plan, text: str, operands: Sequence[Operand]) -> _Begun | None:
    """Begin to build a pass over the elements of a plan's output."""
    problem = Problem({"elements": plan.problem.axes["rows"] * plan.problem.axes["out_features"]}, plan.problem.dtype)
    kernel = _kernel_of_pass(text, tuple(operands))
    values = {"vector_width": _VECTOR_BYTES // problem.item_bytes}
    if "fast_math" in plan.configuration:
        values["fast_math"] = bool(plan["fast_math"])
    configuration = kernel.space.completed(values, problem, plan.device)
    return None if configuration is None else _begin(kernel, configuration, problem, plan)


def _nearest(kernel: Kernel, values: Mapping[str, Value], problem: Problem, plan: Plan) -> Configuration | None:
    """Return the configuration that rounds as these values do and is otherwise nearest to the default."""
    rounding = {name: value for name, value in values.items() if name in products.ROUNDING}
    try:
        return kernel.space.choose(rounding, problem, plan.device)
    except UserError:
        return None


@functools.lru_cache(_MOST_FUNCTIONS)
def _kernel_of_pass(text: str, operands: tuple[Operand, ...]) -> Kernel:
    """Return the kernel of one pass over elements."""
    source = source_of("function", text, operands)
    return Kernel.declare(
        __file__, space_of(text), source=source, name="trained_function", texts={}, axes={}, dtypes=DTYPES
    )


@functools.cache
def _kernel_of_product(in_columns: InColumns | None) -> Kernel:
    """Return the kernel of a layer's product, or of a product of two inputs, with no function behind it."""
    source = LinearSource("product", "value", "value", (), batch_norm=False, inputs=in_columns)
    passes = elements_space()
    of_inputs = () if in_columns is None else split_product.OF_INPUTS
    limits = () if in_columns is None else (*products.limits_of_inputs(in_columns), split_product.SLICES)
    return Kernel.declare(
        __file__,
        SearchSpace(
            (*products.TUNABLES, *of_inputs, *passes.tunables),
            tuple(dict.fromkeys((*products.CONSTRAINTS, *passes.constraints, *limits))),
        ),
        source=source.text(),
        name="trained_layer" if in_columns is None else f"gradient_by_{'weight' if in_columns.x else 'x'}",
        texts={},
        axes={},
        modes=(Mode.EVAL, Mode.FROZEN) if in_columns is None else (Mode.EVAL,),
        bulk_copies=products.BULK_COPIES,
    )


class TrainedLayer:
    """A linear layer's forward, as one node of the autograd graph for each call.

    Args:
        plans: of its products.
        model: whose layer it is.
        layer: with the parameters.
        exponents: what is kept of the weight's magnitude.
    """

    def __init__(self, plans: TrainedPlans, model: TunedModule, layer: nn.Linear, exponents: RowExponents) -> None:
        self.plans, self.model, self.layer, self.exponents = plans, model, layer, exponents

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output; of an input that the products are not for, by torch."""
        plan, weight, bias = self.plans.layer, self.layer.weight, self.layer.bias
        if plan is None or x.dim() != 2 or x.dtype != weight.dtype:
            return nn.functional.linear(x, weight, bias)
        made: torch.Tensor = _Product.apply(self, plan, x, weight, bias)  # type: ignore[no-untyped-call]
        return made

    def product(
        self,
        plan: Plan,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        in_columns: InColumns | None = None,
    ) -> torch.Tensor:
        """Compute x · weightᵀ + bias."""
        call = LinearCall(plan, x, weight, bias, self.exponents, (), False, True, self.model, in_columns)
        if not has_passes(str(plan["product"])):
            return own_output(call).values
        return pass_over(call, library_product(plan, self.model, weight, bias, x, in_columns), bias)


class _Product(torch.autograd.Function):
    """The product of a layer; second derivatives are those of torch's products."""

    @staticmethod
    def forward(
        ctx: Any, layer: TrainedLayer, plan: Plan, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        return layer.product(plan, x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        _, _, for_x, for_weight, for_bias = ctx.needs_input_grad
        layer: TrainedLayer = ctx.layer
        by_x, by_weight = layer.plans.by_x, layer.plans.by_weight
        if torch.is_grad_enabled():
            by_x = by_weight = None  # to be differentiated once more
        else:
            gradient = gradient.contiguous()
        of_x, of_weight = None, None
        if for_x:
            of_x = gradient @ weight if by_x is None else layer.product(by_x, gradient, weight.mT, None, BY_X)
        if for_weight:
            turned = gradient.mT
            of_weight = turned @ x if by_weight is None else layer.product(by_weight, turned, x.mT, None, BY_WEIGHT)
        return None, None, of_x, of_weight, gradient.sum(0) if for_bias else None


class TrainedFunction(NamedTuple):
    """The function behind a layer.

    Attributes:
        behind, slope: the plans of its passes.
        numbers: that it reads.
        reference: the reference's own operations behind a product.
    """

    behind: Plan
    slope: Plan
    numbers: Sequence[Any]
    reference: Callable[[torch.Tensor], torch.Tensor]

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        """Return the function of the product's values."""
        made: torch.Tensor = _Behind.apply(self, value)  # type: ignore[no-untyped-call]
        return made


class _Behind(torch.autograd.Function):
    """A pass over a product, and one over the gradient; second derivatives are the reference's."""

    @staticmethod
    def forward(ctx: Any, function: TrainedFunction, value: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(value)
        ctx.function = function
        output = torch.empty_like(value)
        pass_over_elements(function.behind, (value, *function.numbers), output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,), (value,) = gradients, ctx.saved_tensors
        function: TrainedFunction = ctx.function
        if torch.is_grad_enabled():
            run = lambda tensors: function.reference(tensors[0])  # noqa: E731
            return None, *differentiate(run, (value,), (True,), (gradient,), higher=True)
        found = torch.empty_like(value)
        pass_over_elements(function.slope, (gradient.contiguous(), value, *function.numbers), found)
        return None, found
