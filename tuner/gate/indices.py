"""Raise where an operation of the reference would read or write beyond a tensor, before a GPU is asked to.

A CPU raises there by itself. On a GPU an assertion fails, after which no call of the process runs; so it is with
attention in float32 of tensors off alignment (https://github.com/pytorch/pytorch/issues/183484).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from tunebench.tuner.gate.dispatch import OperationMode

_ALONG = frozenset(
    f"{name}{suffix}"
    for name in ("gather", "index_add", "index_copy", "index_fill", "index_select", "scatter", "scatter_add")
    for suffix in ("", "_")
)
"""Operations of a tensor, a dimension and places along it."""
_EVERYWHERE = frozenset({"index", "_unsafe_index", "index_put", "index_put_"})
"""Operations of a tensor and places along each of its first dimensions, or None."""
_ATTENTION = torch.ops.aten._scaled_dot_product_efficient_attention.default
_ALIGNMENT = 16
_LOSSES = frozenset({"nll_loss_forward", "nll_loss2d_forward"})


def require_in_range(operation: Any, arguments: Sequence[Any]) -> None:
    """Return where an operation's indices are within what they index; it waits for the GPU.

    Raises:
        IndexError: some are not.
    """
    packet = getattr(operation, "overloadpacket", operation)
    for values, least, most in _ranges(packet.__name__, arguments):
        if type(values) is not torch.Tensor or values.device.type == "meta" or not values.numel():
            continue
        low, high = torch.stack(torch.aminmax(values)).tolist()
        if not (least <= low and high <= most):  # a NaN is nowhere
            raise IndexError(f"{packet.__name__}: from {low} to {high}, where {least} to {most} is legal")


def require_aligned(operation: Any, arguments: Sequence[Any]) -> None:
    """Return where PyTorch's kernel can read what attention is given.

    Raises:
        ValueError: it cannot.
    """
    if operation is _ATTENTION and any(one.data_ptr() % _ALIGNMENT for one in arguments[:3]):
        raise ValueError("attention of tensors off alignment")


def _ranges(name: str, arguments: Sequence[Any]) -> Iterator[tuple[torch.Tensor, int, int]]:
    """Yield values that an operation takes, with the least and the largest that are legal."""
    if name == "embedding":
        table, places, *_ = arguments
        yield places, 0, len(table) - 1
    elif name in _ALONG:
        tensor, dimension, places, *_ = arguments
        yield places, 0, (tensor.shape[dimension] if tensor.dim() else 1) - 1
    elif name in _EVERYWHERE:
        tensor, axis = arguments[0], 0
        for places in arguments[1]:
            is_mask = places is not None and places.dtype in (torch.bool, torch.uint8)
            if places is not None and not is_mask:
                yield places, -tensor.shape[axis], tensor.shape[axis] - 1
            axis += places.dim() if is_mask else 1
    elif name in _LOSSES:
        tensor, target, _, _, ignored = arguments
        yield target[target != ignored], 0, tensor.shape[min(1, tensor.dim() - 1)] - 1
    elif name == "binary_cross_entropy":
        yield arguments[0], 0, 1


class IndicesInRange(OperationMode):
    """Require of each operation that its indices are in range, and its tensors such as it can read."""

    def run(self, operation: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Run the operation where it ends no context."""
        require_in_range(operation, arguments)
        require_aligned(operation, arguments)
        return operation(*arguments, **named)
