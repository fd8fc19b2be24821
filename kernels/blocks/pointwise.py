"""Pointwise: a device function of the elements of one or more tensors, in one pass over memory.

    class ModelNew(blocks.Pointwise, Model):
        function = "x * sigmoid(x) + y"

All tensors that `forward` takes have one shape and lie alike in memory, densely: contiguous, channels-last or any other
permutation. Tensors that are broadcast along it are named: `per_feature`, `per_row`, `per_channel`, `per_tensor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from tunebench.kernels.blocks.block import (
    Block,
    Design,
    Kind,
    Operand,
    axes_of,
    fast_math_line,
    fast_math_tunables,
)
from tunebench.kernels.blocks.device_function import device_function
from tunebench.tuner import constraints
from tunebench.tuner.kernel import Plan, ceil_div
from tunebench.tuner.problem import OUTPUT, Problem
from tunebench.tuner.space import SearchSpace, Tunable

_AXES = {
    Kind.ELEMENT: "elements",
    Kind.PER_FEATURE: "features",
    Kind.PER_ROW: "rows",
    Kind.PER_CHANNEL: "channels",
    Kind.PER_TENSOR: "ones",
}
_BROADCAST = tuple(_AXES)[1:]
_INNER_AND_SIZE = {
    Kind.PER_FEATURE: ("1", "{name}_size"),
    Kind.PER_ROW: ("{name}_inner", "{name}_size"),
    Kind.PER_CHANNEL: ("{name}_inner", "{name}_size"),
    Kind.PER_TENSOR: ("1", "1"),
}
"""The number of neighbours in memory with one value, and of values; a number known here is no division."""

_SOURCE = """{fast_math}#include "pointwise.cuh"

{function}
extern "C" __global__ void __launch_bounds__(block_size)
    pointwise({parameters}) {{
    each_element<{tensors}, {broadcasts}>({{{{{inputs}}}}}, {{{rows}}}, output, elements,
                 [=](const accumulator_t* element, const accumulator_t* row) {{
        return functions::function({arguments});
    }});
}}
"""


class Pointwise(Block):
    """A device function of elements; attributes as in `Block`."""

    first: ClassVar[int]
    """The place among the operands of the tensor whose shape and layout the output has."""
    broadcast: ClassVar[tuple[str, ...]]
    """The kinds of the operands that are broadcast, in order."""

    @classmethod
    def design(cls) -> Design:
        """Design one pass, whose entry point is `pointwise`."""
        text = cls.text("function")
        cls.used = cls.operands({"function": text})
        if not any(one.kind is Kind.ELEMENT for one in cls.used):
            raise cls.wrong("function", f"it uses no tensor of forward ({', '.join(cls._arguments())})")
        cls.first = next(at for at, one in enumerate(cls.used) if one.kind is Kind.ELEMENT)
        cls.broadcast = tuple(one.kind.value for one in cls.used if one.kind in _BROADCAST)
        axes = {**axes_of(cls.used, _AXES), OUTPUT: "elements"}
        return Design(source_of(f"{cls.__name__}.function", text, cls.used), space_of(text), axes)

    def problem(self, *inputs: Any, **named: Any) -> Problem | None:
        """Accept tensors that lie alike, and broadcast ones that fit them."""
        problem = super().problem(*inputs, **named)
        if problem is None:
            return None
        values = self.values(inputs)
        name, first = self.used[self.first].name, values[self.first]
        for one, value in zip(self.used, values, strict=True):
            if one.kind is Kind.ELEMENT and not (value.shape == first.shape and _lie_alike(value, first)):
                return self.unserved(f"'{one.name}' does not lie in memory as '{name}' does")
            if one.kind in _BROADCAST and (reason := _misfit(one.kind, value, first)):
                return self.unserved(f"'{one.path}' {reason}")
        return problem

    def tuned_forward(self, plan: Plan, *inputs: Any, **named: Any) -> torch.Tensor:  # noqa: ARG002
        """Compute the function of all elements, in the layout of the first tensor."""
        values = self.values(inputs)
        first = values[self.first]
        output = torch.empty_like(first)
        extents = [extent for kind in self.broadcast for extent in _extents(kind, first)]
        pass_over_elements(plan, values, output, extents)
        return output


def pass_over_elements(plan: Plan, values: Sequence[Any], output: torch.Tensor, extents: Sequence[int] = ()) -> None:
    """Launch the pass over all elements.

    Args:
        values: of the operands, tensors that lie as the output does among them.
        extents: of broadcast ones: see `_INNER_AND_SIZE`.
    """
    elements = output.numel()
    blocks, threads = plan.once(_grid, elements)
    plan.launch("pointwise", *values, output, elements, *extents, blocks=blocks, threads=threads)


def space_of(text: str) -> SearchSpace:
    """Return the space of a pass that computes this function."""
    fast_math, needs = fast_math_tunables([text])
    return SearchSpace(
        tunables=(
            *fast_math,
            Tunable("block_size", (64, 128, 256, 512, 1024), default=256),
            Tunable("vector_width", (1, 2, 4, 8), default=4),
            Tunable("items_per_thread", (1, 2, 4, 8)),
            Tunable("unroll", (True, False), when=_has_items),
            Tunable("grid", ("one_shot", "stride")),
            Tunable("waves", (1, 2, 4, 8), when=_strides, host=True),
            Tunable("load_hint", ("normal", "streaming")),
            Tunable("store_hint", ("normal", "streaming")),
        ),
        constraints=(
            constraints.vector_fits("vector_width"),
            constraints.grid_fits("elements", "block_size", "vector_width", "items_per_thread"),
            constraints.block_fits("block_size"),
            *needs,
        ),
    )


def _has_items(items_per_thread: int) -> bool:
    return items_per_thread > 1


def _strides(grid: str) -> bool:
    return grid == "stride"


def _grid(plan: Plan, elements: int) -> tuple[int, int]:
    """Return blocks and threads of a launch."""
    threads = plan.integer("block_size")
    blocks = ceil_div(elements, threads * plan.integer("vector_width") * plan.integer("items_per_thread"))
    if plan["grid"] == "stride":
        blocks = min(blocks, plan.integer("waves") * plan.resident_blocks("pointwise", threads))
    return blocks, threads


def _extents(kind: str, first: torch.Tensor) -> tuple[int, ...]:
    """Return the sizes that place a broadcast tensor's values and are unknown to the source: see `_INNER_AND_SIZE`."""
    if kind == Kind.PER_FEATURE:
        return (first.shape[-1],)
    if kind == Kind.PER_ROW:
        return first.shape[-1], first.numel() // first.shape[-1]
    return (max(1, first.stride(1)), first.shape[1]) if kind == Kind.PER_CHANNEL else ()


def _lie_alike(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether equal places in memory are equal places in two tensors of one shape."""
    strides = zip(tensor.stride(), other.stride(), tensor.shape, strict=True)
    return all(one == two or size == 1 for one, two, size in strides)


def _misfit(kind: Kind, tensor: torch.Tensor, first: torch.Tensor) -> str:
    """Return why a tensor cannot be broadcast along another; nothing where it can."""
    if first.dim() < (2 if kind is Kind.PER_CHANNEL else 1):
        return f"is {kind} of a tensor of {first.dim()} dimensions"
    wanted = (_extents(kind, first) or (1,))[-1]
    if tensor.numel() != wanted:
        return f"has {tensor.numel()} elements, not {wanted}"
    if not tensor.is_contiguous():
        return "is not contiguous"
    if kind is Kind.PER_ROW and not first.is_contiguous():
        return "is for the rows of a tensor that is not contiguous"
    if kind is Kind.PER_FEATURE and first.stride(-1) != 1 and wanted > 1:
        return "is for features that are not neighbours in memory"
    return ""


def source_of(where: str, text: str, used: Sequence[Operand]) -> str:
    """Return the CUDA text: the device function, and an entry point whose parameters are the operands."""
    pointers = [one.name for one in used if one.kind is Kind.ELEMENT]
    broadcast = [one.name for one in used if one.kind in _BROADCAST]
    extents = {
        one.name: [extent.format(name=one.name) for extent in _INNER_AND_SIZE[one.kind]]
        for one in used
        if one.kind in _BROADCAST
    }
    parameters = [
        f"accumulator_t {one.name}_value"
        if one.kind is Kind.SCALAR
        else f"const scalar_t* __restrict__ {one.name}_data"
        for one in used
    ]
    parameters += ["scalar_t* __restrict__ output", "long long elements"]
    parameters += [f"long long {extent}" for of_one in extents.values() for extent in of_one if extent != "1"]
    of_name = {name: f"element[{at}]" for at, name in enumerate(pointers)}
    of_name |= {name: f"row[{at}]" for at, name in enumerate(broadcast)}
    return _SOURCE.format(
        fast_math=fast_math_line([text]),
        function=device_function(where, "function", text, [one.name for one in used]),
        parameters=", ".join(parameters),
        tensors=len(pointers),
        broadcasts=len(broadcast),
        inputs=", ".join(f"{name}_data" for name in pointers),
        rows="{" + ", ".join(f"{{{name}_data, {', '.join(of_one)}}}" for name, of_one in extents.items()) + "}"
        if broadcast
        else "",
        arguments=", ".join(of_name.get(one.name, f"{one.name}_value") for one in used),
    )
