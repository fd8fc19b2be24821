"""Attention on a GPU: sizes, layouts, lengths, and what is not finite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from attentions import PAIRS, SIZES, Reference, TunedAttention, error, found, tensors
from torch import nn

from tunebench.tuner.configuration import Value
from tunebench.tuner.gate.indices import IndicesInRange

pytestmark = pytest.mark.gpu

CONFIGURATIONS: list[Mapping[str, Value]] = [
    {"warps": warps, "row_tiles": tiles, "tile_keys": keys, "score_parts": parts}
    for warps, tiles, keys, parts in (
        *((2, 1, 32, 2), (4, 1, 16, 3)),  # for heads of any size
        *((2, 1, 32, 3), (4, 2, 32, 3), (8, 2, 64, 2)),  # up to 64 elements
        *((8, 1, 64, 3), (4, 2, 64, 3)),  # up to 40
    )
]


@pytest.mark.parametrize("size", [*SIZES, (2, 8, 1000, 3000, 40), (1, 4, 515, 515, 64)], ids=str)
@pytest.mark.parametrize(("reference", "tuned"), PAIRS)
def test_sizes_and_layouts(size: tuple[int, int, int, int, int], reference: type[nn.Module], tuned: Any) -> None:
    given = tensors(size, "cuda", heads=tuned.heads)
    aligned = [one.clone() for one in given]
    for values in CONFIGURATIONS[: 7 if size[-1] <= 40 else 5 if size[-1] <= 64 else 2]:
        made = found(tuned(), given, values)
        assert error(made, reference(), given) < 2e-5
        assert made.stride() == reference()(*aligned).stride()


def test_the_gate_asks_pytorch_nothing_that_ends_its_context() -> None:
    q, k, v = tensors((1, 2, 20, 30, 24), "cuda")
    with IndicesInRange():
        Reference()(q, k, v.clone())
        with pytest.raises(ValueError, match="attention of tensors off alignment"):
            Reference()(q, k, v)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("place", range(3))
def test_what_is_not_finite_is_no_number_where_it_is_none_for_pytorch(value: float, place: int) -> None:
    given = [one.clone() for one in tensors((1, 2, 137, 145, 24), "cuda")]
    given[place][0, 1, 30, 5] = value
    made, wanted = found(TunedAttention(), given, CONFIGURATIONS[0]), Reference()(*given)
    assert wanted.isnan().any()
    torch.testing.assert_close(made, wanted, equal_nan=True, atol=2e-5, rtol=1e-4)
