"""What corrections of few bits leave of a product's error, emulated in float64 at gemm_sigmoid_residual's depth.

    python -m tests.benchmarks.corrections

For each kind of correction of `kernels/shared/include/parts_product.cuh` it prints the error of x · wᵀ as a share of a
row's size, largest and RMS, and the largest in eval mode of a new gemm_scale_bn, whose scales are drawn from a normal
distribution. Products are exact here: the truncation of tensor cores comes on top.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

ROWS, DEPTH, FEATURES = 256, 8192, 4096

Rounding = Callable[[torch.Tensor], torch.Tensor]


def scaled(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The matrix with its rows' largest magnitudes in [2^10, 2^11), and the powers of two that did it."""
    powers = torch.exp2(10 - torch.floor(torch.log2(matrix.abs().amax(1, keepdim=True))))
    return matrix * powers, powers


def in_e4m3(values: torch.Tensor) -> torch.Tensor:
    """Rounded to e4m3."""
    return values.to(torch.float8_e4m3fn).double()


def in_whole_numbers(values: torch.Tensor) -> torch.Tensor:
    """Rounded to whole numbers of eight bits."""
    return values.round().clamp(-127, 127)


KINDS: dict[str, tuple[Rounding, float, float]] = {
    "fp16": (lambda values: values.half().double(), 1.0, 1.0),
    "e4m3": (in_e4m3, 2.0**-3, 2.0**9),
    "int8": (in_whole_numbers, 2.0**-4, 2.0**8),
}
"""By kind: the rounding, and what brings high and low parts into its range."""


def main() -> None:
    """Print the table."""
    torch.manual_seed(0)
    x = torch.rand(ROWS, DEPTH)
    weight = (torch.rand(FEATURES, DEPTH) * 2 - 1) / DEPTH**0.5
    scale = torch.randn(FEATURES).double()
    exact = x.double() @ weight.double().T
    (x_scaled, x_powers), (w_scaled, w_powers) = scaled(x), scaled(weight)
    x_high, w_high = x_scaled.half().double(), w_scaled.half().double()
    x_low, w_low = x_scaled.double() - x_high, w_scaled.double() - w_high
    high = x_high @ w_high.T
    size = exact.square().mean(1, keepdim=True).sqrt()
    size_behind = (exact * scale).square().mean(1, keepdim=True).sqrt()
    print(f"{'corrections':12s} {'largest':>9s} {'RMS':>9s} {'largest of gemm_scale_bn':>25s}")
    for kind, (rounded, of_high, of_low) in KINDS.items():
        small = rounded(x_high * of_high) @ rounded(w_low * of_low).T
        small += rounded(x_low * of_low) @ rounded(w_high * of_high).T
        error = (high + small / (of_high * of_low)) / (x_powers * w_powers.T).double() - exact
        share, behind = error / size, error * scale / size_behind
        figures = float(share.abs().max()), float(share.square().mean().sqrt()), float(behind.abs().max())
        print(f"{kind:12s} {figures[0]:9.1e} {figures[1]:9.1e} {figures[2]:25.1e}")


if __name__ == "__main__":
    main()
