"""Attention of three arguments of `forward`, as the block that has it."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from tunebench.studies.writing.new.core import Core, result_of
from tunebench.studies.writing.new.operations import bound, taking
from tunebench.studies.writing.new.trace import Traced
from tunebench.studies.writing.new.translate import UntranslatedError

_TAKES = taking("q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False")
_FUNCTIONS = (nn.functional.scaled_dot_product_attention, torch.ops.aten.scaled_dot_product_attention.default)
_TURNS = {("transpose", 1, 2), ("transpose", 2, 1), ("permute", 0, 2, 1, 3)}


def attention(traced: Traced) -> Core:
    """Return a model that is nothing but attention, as a block.

    Raises:
        UntranslatedError: it is none, or one that the block does not have.
    """
    assert traced.graph is not None
    found = [node for node in traced.graph.nodes if node.target in _FUNCTIONS]
    if len(found) != 1 or traced.dtype is not torch.float32:
        raise UntranslatedError("attention in float32 alone")
    given = bound(_TAKES, found[0].args, found[0].kwargs)
    if given["attn_mask"] is not None or any(given[name] for name in ("dropout_p", "is_causal", "enable_gqa")):
        raise UntranslatedError("attention with a mask, a dropout or grouped queries")
    ends = dict(_followed(given[name]) for name in "qkv")
    last = result_of(traced.graph)
    result, is_turned = _followed(last)
    are_arguments = all(one.op == "placeholder" and turned == is_turned for one, turned in ends.items())
    if result is not found[0] or not are_arguments or len(ends) < 3:
        raise UntranslatedError("attention of values that are computed, or of one of them twice")
    if last is not result and not is_turned:
        raise UntranslatedError("attention that is made to lie otherwise than PyTorch leaves it")
    scale = given["scale"]
    if not (scale is None or isinstance(scale, int | float)):
        raise UntranslatedError("attention by a number that is computed")
    attributes: list[tuple[str, object]] = [("tensors", tuple(one.name for one in ends))]
    attributes += [("scale", scale)] if scale is not None else []
    attributes += [("heads", 2)] if is_turned else []
    return Core("Attention", attributes)


def _followed(node: Any) -> tuple[fx.Node, bool]:
    """Return the node of which a value is made by turning its heads and its length, and whether they are turned.

    Raises:
        UntranslatedError: the value is no tensor.
    """
    is_turned = False
    while isinstance(node, fx.Node):
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        dimensions = node.args[1:] if len(node.args) != 2 else node.args[1]
        if name == "contiguous" and len(node.all_input_nodes) == 1:
            node = node.args[0]
        elif isinstance(dimensions, list | tuple) and (name, *dimensions) in _TURNS:
            node, is_turned = node.args[0], not is_turned
        else:
            return node, is_turned
    raise UntranslatedError("attention of a value that is no tensor")
