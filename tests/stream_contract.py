"""The product of few rows by a pass over the weight: what it promises on any device; who joins names its own."""

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch
from parts_contract import CHANGES, error, product_model, run

from tunebench.tuner.configuration import Value

LANES: Mapping[str, Value] = {"product": "stream", "stream_unit": "lanes"}
TILES: Mapping[str, Value] = {"product": "stream", "stream_unit": "tensor_cores", "stream_corrections": "bf16"}
VARIANTS: Mapping[str, Mapping[str, Value]] = {
    "one feature a warp": {**LANES, "stream_features": 1, "stream_split": 1, "stream_unroll": 1},
    "two in two warps": {**LANES, "stream_features": 2, "stream_split": 2, "stream_unroll": 4},
    "four in eight warps": {**LANES, "stream_features": 4, "stream_split": 8, "stream_unroll": 2},
    "a tile a warp": {
        **TILES,
        "stream_corrections": "tf32",
        "stream_features": 16,
        "stream_split": 1,
        "stream_unroll": 1,
    },
    "two tiles in four warps": {**TILES, "stream_features": 32, "stream_split": 4, "stream_unroll": 2},
}
ROUNDED: Mapping[str, Mapping[str, Value]] = {
    "a tile of TF32": {**VARIANTS["a tile a warp"], "stream_corrections": "none"},
    "halves and tiles": {
        **VARIANTS["two tiles in four warps"],
        "stream_corrections": "none",
        "stream_weight": "rounded",
    },
    "halves and lanes": {**VARIANTS["two in two warps"], "stream_weight": "rounded"},
}
"""Operands rounded to eleven bits, as where a program permits TF32."""
SIZES = [
    *((1, 1, 1), (1, 130, 512), (2, 9, 1000), (3, 130, 33), (5, 31, 33)),
    *((31, 20, 300), (33, 12, 256), (64, 7, 777), (64, 20, 2048), (5, 31, 2048)),
]
"""Rows, features, depth."""
FEW = 64

each_variant = pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
each_weight = pytest.mark.parametrize("kept", [False, True], ids=["whole", "parts"])


class StreamContract:
    """The tests; a subclass says on which device."""

    device: ClassVar[str]

    def matrices(self, rows: int, features: int, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(rows, depth, generator=generator)
        return x.to(self.device), torch.randn(features, depth, generator=generator).to(self.device)

    def model(self, x: torch.Tensor, weight: torch.Tensor, values: Mapping[str, Value], *, kept: bool = False) -> Any:
        """With as many rows at once as the batch takes; of a kept weight, frozen and in three bytes an element."""
        of_lanes = values["stream_unit"] == "lanes"
        rows = min(x.shape[0], 32) if of_lanes else max(x.shape[0], 8)
        rows = 1 << max(0, rows - 1).bit_length()
        unroll = max(1, min(int(values["stream_unroll"]), 16 // rows)) if of_lanes else values["stream_unroll"]
        weight_is = values.get("stream_weight", "parts" if kept else "whole")
        shape = {"stream_rows": rows, "stream_unroll": unroll, "stream_weight": weight_is}
        return product_model(x, weight, {**values, **shape}, frozen=weight_is != "whole")

    @pytest.mark.slow
    @each_variant
    @pytest.mark.parametrize(("size", "kept"), [(size, number % 2 == 1) for number, size in enumerate(SIZES)], ids=str)
    def test_sizes(self, size: tuple[int, int, int], values: Mapping[str, Value], *, kept: bool) -> None:
        x, weight = self.matrices(*size)
        model = self.model(x, weight, values, kept=kept)
        found = run(model, x)
        has_eight_bits = kept or values.get("stream_corrections") == "bf16"
        if size[2] < FEW:
            # Errors of few products do not make up for each other: both operands are off by 2⁻²¹, and a term is left
            # out; where the small terms have eight bits, it is 2⁻¹⁷.
            most = 2.0 ** (-17 if has_eight_bits else -19)
        else:
            most = 2e-6 if has_eight_bits else 2e-7
        assert (off := error(found, x, weight)) < most, off
        assert torch.equal(found, run(model, x))

    @each_variant
    @each_weight
    def test_magnitudes(self, values: Mapping[str, Value], *, kept: bool) -> None:
        x, weight = self.matrices(8, 30, 512)
        x *= torch.logspace(-20, 15, 8, device=self.device)[:, None]
        weight *= torch.logspace(15, -15, 30, device=self.device)[:, None]
        assert error(run(self.model(x, weight, values, kept=kept), x), x, weight) < 2e-6

    @each_variant
    @each_weight
    def test_what_is_not_finite_and_what_is_huge_or_tiny(self, values: Mapping[str, Value], *, kept: bool) -> None:
        x, weight = self.matrices(8, 20, 600)
        x[3, 5], x[4, 0], x[5, 599], weight[11, 2], weight[15, 4] = torch.inf, torch.nan, 3e38, -torch.inf, 1e-44
        weight[12, 3], weight[13], weight[14, 7] = torch.nan, 0.0, 3e38
        model = self.model(x, weight, values, kept=kept)
        torch.testing.assert_close(run(model, x), x @ weight.T, rtol=1e-4, atol=1e-3, equal_nan=True)

    @each_weight
    def test_operands_off_their_alignment(self, *, kept: bool) -> None:
        depth = 516
        x = torch.randn(5 * depth + 1, device=self.device)[1:].view(5, depth)
        weight = torch.randn(30 * depth + 3, device=self.device)[3:].view(30, depth)
        for values in VARIANTS.values():
            assert error(run(self.model(x, weight, values, kept=kept), x), x, weight) < 2e-6

    @pytest.mark.parametrize("values", ROUNDED.values(), ids=ROUNDED)
    def test_rounded_operands_are_off_by_what_eleven_bits_leave(self, values: Mapping[str, Value]) -> None:
        # The rest of a depth is rounded by tiles alone, and errors of few products do not make up for each other.
        for size in ((5, 31, 33), (1, 20, 300), (8, 30, 516), (33, 12, 2048)):
            x, weight = self.matrices(*size)
            weight *= torch.logspace(15, -15, len(weight), device=self.device)[:, None]
            found = run(self.model(x, weight, values), x)
            least = 0.0 if size[2] < 2048 else 1e-6
            assert least < (off := error(found, x, weight)) < 2.0**-10, off

    @pytest.mark.parametrize("values", ROUNDED.values(), ids=ROUNDED)
    def test_what_is_not_finite_stays_so_where_operands_are_rounded(self, values: Mapping[str, Value]) -> None:
        x, weight = self.matrices(8, 20, 600)
        x[3, 5], x[4, 0], x[5, 599], weight[11, 2] = torch.inf, torch.nan, 3e38, -torch.inf
        weight[12, 3], weight[13], weight[14, 7] = torch.nan, 0.0, 3e38
        x[6].view(torch.int32)[9] = weight[16].view(torch.int32)[9] = 0x7FFFFFFF  # the NaN of a GPU's arithmetic
        wanted = x @ weight.T
        torch.testing.assert_close(run(self.model(x, weight, values), x), wanted, rtol=2e-2, atol=1e-1, equal_nan=True)

    @pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
    @each_weight
    def test_a_change_of_the_weight_changes_the_next_output(self, change: Any, *, kept: bool) -> None:
        x, weight = self.matrices(8, 40, 512)
        model = self.model(x, weight, VARIANTS["two in two warps"], kept=kept)
        for _ in range(2):
            change(model)
            assert error(run(model, x), x, model.gemm.weight.detach()) < 2e-6
