"""Normalisations of rows, as layers and as functions: what their rows are, and where their own tensors stand."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from tunebench.studies.writing.new.named_numbers import NamedNumber, path_of
from tunebench.studies.writing.new.trace import Traced

_INSTANCE_NORMS: dict[type[nn.Module], int] = {nn.InstanceNorm1d: 1, nn.InstanceNorm2d: 2, nn.InstanceNorm3d: 3}
"""With how many dimensions each averages."""
_FUNCTIONS = (nn.functional.layer_norm, nn.functional.rms_norm, nn.functional.group_norm)


@dataclass(frozen=True)
class RowsOf:
    """The dimensions or groups that a row is made of.

    Attributes:
        dimensions: how many of the last ones.
        groups: of dimension 1 with all that is behind it; a number or where the model has it, 0 where rows are none.
    """

    dimensions: int
    groups: int | str = 0

    def lines(self) -> list[tuple[str, object]]:
        """Return the attributes of the block `Rows` that describe it."""
        if self.groups:
            return [("groups", self.groups)]
        return [("row_dimensions", self.dimensions)] if self.dimensions > 1 else []

    def __str__(self) -> str:
        return "groups" if self.groups else f"{self.dimensions} dimensions"


@dataclass(frozen=True)
class Norm:
    """One normalisation.

    Attributes:
        eps: a number, named where it is a module's.
        weight, bias: their paths; None where there is none.
        has_mean: whether the mean is subtracted.
    """

    rows: RowsOf
    eps: float
    weight: str | None
    bias: str | None
    has_mean: bool


def norm_of(node: fx.Node, traced: Traced, dimensions: int) -> Norm | None:
    """The normalisation that a node is, of a value of so many dimensions; None of any other node."""
    if node.op == "call_module":
        return _layer(traced.model.get_submodule(str(node.target)), str(node.target), dimensions)
    return _function(node, dimensions) if node.target in _FUNCTIONS else None


def _layer(module: nn.Module, path: str, dimensions: int) -> Norm | None:
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        rows = RowsOf(len(module.normalized_shape))
    elif isinstance(module, nn.GroupNorm):
        rows = RowsOf(dimensions - 1, f"{path}.num_groups")
    elif isinstance(module, tuple(_INSTANCE_NORMS)) and not (module.affine or module.track_running_stats):
        rows = RowsOf(_INSTANCE_NORMS.get(type(module), 0))
    else:
        return None
    eps = getattr(module, "eps", None)
    if type(module) not in (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, *_INSTANCE_NORMS) or not isinstance(eps, float):
        return None
    weight, bias = (
        f"{path}.{name}" if getattr(module, name, None) is not None else None for name in ("weight", "bias")
    )
    return Norm(rows, NamedNumber(eps, f"{path}.eps"), weight, bias, not isinstance(module, nn.RMSNorm))


def _function(node: fx.Node, dimensions: int) -> Norm | None:
    made = inspect.signature(node.target).bind(*node.args, **node.kwargs)  # type: ignore[arg-type]
    made.apply_defaults()
    given: dict[str, Any] = made.arguments
    tensors = [one for one in (given["weight"], given.get("bias")) if one is not None]
    if not isinstance(given["eps"], float) or not all(
        isinstance(one, fx.Node) and one.op == "get_attr" for one in tensors
    ):
        return None
    groups, shape = given.get("num_groups"), given.get("normalized_shape")
    if isinstance(groups, int):
        rows = RowsOf(dimensions - 1, path_of(groups) or int(groups))
    elif isinstance(shape, list | tuple):
        rows = RowsOf(len(shape))
    else:
        return None  # calculated from the input
    weight, bias = (None if given.get(name) is None else str(given[name].target) for name in ("weight", "bias"))
    return Norm(rows, given["eps"], weight, bias, node.target is not nn.functional.rms_norm)
