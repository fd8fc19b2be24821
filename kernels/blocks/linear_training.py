"""A linear layer that is trained: its product and its two gradients by tuned products, the rest as autograd has it.

A step has three products: x · Wᵀ, the gradient by x, G · W, and that by W, Gᵀ · x. Where a plan's product is made of
parts, all three are, with the plan's tunables: the first is the plan's own with no function behind it, the others are
products of two inputs, which lie as they lie. What stands behind the layer stays the reference's, with its formulas.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch
from torch import nn

from tunebench.kernels.blocks.linear_pass import LinearCall, elements_space, own_output, pass_over
from tunebench.kernels.blocks.linear_source import LinearSource
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.kernels.shared import products, split_product
from tunebench.kernels.shared.products import has_passes, library_product
from tunebench.kernels.shared.split_product import InColumns, RowExponents
from tunebench.tuner.build import Build
from tunebench.tuner.compile.building import shared_build
from tunebench.tuner.compile.compilers import default_compiler
from tunebench.tuner.configuration import Configuration, Value
from tunebench.tuner.errors import CompilerMissingError, UserError
from tunebench.tuner.kernel import Kernel, Mode, Plan
from tunebench.tuner.problem import Problem
from tunebench.tuner.space import SearchSpace

BY_X, BY_WEIGHT = InColumns(x=False, weight=True), InColumns(x=True, weight=True)
"""How the factors of the gradients lie: G · W and Gᵀ · x."""


class TrainedProducts(NamedTuple):
    """The plans of a step's products; None where torch makes one."""

    layer: Plan
    by_x: Plan | None
    by_weight: Plan | None


def trained_products(plan: Plan) -> TrainedProducts | None:
    """Return the products of a step where a plan serves the forward; None where the plan's is torch's own.

    Raises:
        CompileError: the source was refused.
        LaunchError: the device refused a binary.
    """
    if plan["product"] not in ("fused", "parts") or plan.problem.dtype != "float32":
        return None
    rows, depth, features = (plan.problem.axes[name] for name in ("rows", "in_features", "out_features"))
    of_layer = {"rows": rows, "in_features": depth, "out_features": features}
    by_x = {"products": 1, "rows": rows, "in_features": features, "out_features": depth}
    by_weight = {"products": 1, "rows": features, "in_features": rows, "out_features": depth}
    options = {name: value for name, value in plan.problem.options.items() if name != "mode"}
    asked = (
        (None, Problem(of_layer, "float32", {**options, "mode": plan.problem.options.get("mode", Mode.EVAL)})),
        (BY_X, Problem(by_x, "float32", options)),
        (BY_WEIGHT, Problem(by_weight, "float32", options)),
    )
    try:
        begun = [_begun(plan, in_columns, problem) for in_columns, problem in asked]
        layer, *gradients = [None if one is None else one.plan(plan) for one in begun]
    except CompilerMissingError:
        return None
    return None if layer is None else TrainedProducts(layer, *gradients)


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


def _begun(plan: Plan, in_columns: InColumns | None, problem: Problem) -> _Begun | None:
    """Begin to build a product with a plan's tunables; None where no configuration is as exact as the plan's."""
    kernel = _kernel(in_columns)
    values = {"vector_width": 4, **{name: plan[name] for name in plan.configuration}}
    if in_columns is not None:
        if values.get("weight_parts") == "none":
            values["weight_parts"] = "fp16"  # the same halves, made ahead of the product
        if values.get("corrections") in ("e4m3", "int8"):
            values["corrections"] = "half"  # libraries take eight bits in rows alone
    configuration = kernel.space.completed(values, problem, plan.device) or _nearest(kernel, values, problem, plan)
    if configuration is None:
        return None
    variant = kernel.variant(configuration, problem, plan.device.architecture)
    build = shared_build(default_compiler(plan.device), variant, wait=False)
    return _Begun(kernel, configuration, problem, build)


def _nearest(kernel: Kernel, values: Mapping[str, Value], problem: Problem, plan: Plan) -> Configuration | None:
    """Return the configuration that rounds as these values do and is otherwise nearest to the default."""
    rounding = {name: value for name, value in values.items() if name in products.ROUNDING}
    try:
        return kernel.space.choose(rounding, problem, plan.device)
    except UserError:
        return None


@functools.cache
def _kernel(in_columns: InColumns | None) -> Kernel:
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

    def __init__(self, plans: TrainedProducts, model: TunedModule, layer: nn.Linear, exponents: RowExponents) -> None:
        self.plans, self.model, self.layer, self.exponents = plans, model, layer, exponents

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output; of an input that the products are not for, by torch."""
        axes, weight, bias = self.plans.layer.problem.axes, self.layer.weight, self.layer.bias
        if x.shape != (axes["rows"], axes["in_features"]) or x.dtype != weight.dtype:
            return nn.functional.linear(x, weight, bias)
        made: torch.Tensor = _Product.apply(self, x, weight, bias)  # type: ignore[no-untyped-call]
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
        ctx: Any, layer: TrainedLayer, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        return layer.product(layer.plans.layer, x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        _, for_x, for_weight, for_bias = ctx.needs_input_grad
        layer: TrainedLayer = ctx.layer
        by_x, by_weight = layer.plans.by_x, layer.plans.by_weight
        if torch.is_grad_enabled():
            by_x = by_weight = None  # to be differentiated once more
        elif for_x and for_weight:
            gradient = gradient.contiguous()
        of_x, of_weight = None, None
        if for_x:
            of_x = gradient @ weight if by_x is None else layer.product(by_x, gradient, weight.mT, None, BY_X)
        if for_weight:
            of_weight = (
                gradient.mT @ x if by_weight is None else layer.product(by_weight, gradient.mT, x.mT, None, BY_WEIGHT)
            )
        return None, of_x, of_weight, gradient.sum(0) if for_bias else None
