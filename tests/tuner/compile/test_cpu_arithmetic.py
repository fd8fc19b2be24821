"""The `cpu` compiler: CUDA's arithmetic functions on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from cpu_launch import blocks_for, extents, run_one


def unary(expressions: Sequence[str], x: torch.Tensor) -> list[torch.Tensor]:
    """Each expression of a float `x`, element by element."""
    assignments = "".join(f"out[{row} * n + i] = {expression};\n" for row, expression in enumerate(expressions))
    text = f"""
    extern "C" __global__ void k(const float* a, float* out, long long n) {{
        const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        const float x = a[i];
        {assignments}
    }}"""
    out = torch.zeros(len(expressions), len(x))
    run_one(text, blocks_for(len(x), 256), extents(256), [x, out, len(x)])
    return list(out)


def units_in_the_last_place(value: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest distance of float32 values from float64 ones, in units of float32's last place there."""
    size = exact.abs().clamp(min=torch.finfo(torch.float32).tiny)
    return float(((value.double() - exact).abs() / torch.exp2(size.log2().floor() - 23)).max())


def test_exp_and_tanh_are_as_exact_as_cudas() -> None:
    x = torch.cat([torch.linspace(-103.9, 88.7, 400_001), torch.linspace(-1, 1, 100_001), torch.randn(100_000) * 1e-3])
    exponential, hyperbolic = unary(["expf(x)", "tanhf(x)"], x)
    assert units_in_the_last_place(exponential, x.double().exp()) < 1.1
    assert units_in_the_last_place(hyperbolic, x.double().tanh()) < 2.0
    special = torch.tensor([torch.inf, -torch.inf, torch.nan, 1000.0, -1000.0, 0.0, -0.0])
    exponential, hyperbolic, other = unary(["expf(x)", "tanhf(x)", "1.0f / (1.0f + __expf(-x))"], special)
    torch.testing.assert_close(exponential, special.exp(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(hyperbolic, special.tanh(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(hyperbolic.signbit()[-2:], torch.tensor([False, True]))
    torch.testing.assert_close(other, special.sigmoid(), equal_nan=True)


def test_minimum_and_maximum_prefer_a_number_to_nan() -> None:
    x = torch.tensor([1.0, -2.0, torch.nan, torch.inf, -torch.inf])
    expressions = ["fminf(x, 0.5f)", "fmaxf(0.5f, x)", "min(x, 0.5f)", "fmax(x, 0.5f)", "__saturatef(x)"]
    results = unary(expressions, x)
    assert results[0].tolist() == results[2].tolist() == [0.5, -2, 0.5, 0.5, -torch.inf]
    assert results[1].tolist() == results[3].tolist() == [1, 0.5, 0.5, torch.inf, 0.5]
    assert results[4].tolist() == [1, 0, 0, 1, 0]


def test_functions_of_the_library_and_the_intrinsics() -> None:
    x = torch.linspace(0.1, 4, 1001)
    cases = {
        "rsqrtf(x)": x.rsqrt(),
        "sqrtf(x) + sqrt(x)": 2 * x.sqrt(),
        "__logf(x) + log(x)": 2 * x.log(),
        "__powf(x, 2.5f)": x**2.5,
        "__sinf(x) * __cosf(x)": x.sin() * x.cos(),
        "__fdividef(1.0f, x) + __frcp_rn(x)": 2 / x,
        "erff(x) + expm1f(x) + log1pf(x)": x.erf() + x.expm1() + x.log1p(),
        "fmaf(x, x, 1.0f)": x * x + 1,
        "__int_as_float(__float_as_int(x) ^ 0x80000000)": -x,
        "float(exp(double(x)) + fma(double(x), 2.0, 1.0))": x.exp() + 2 * x + 1,
        "max(int(x), 2) + min(threadIdx.x, 0u) + abs(-3)": x.int().clamp(min=2).float() + 3,
        "__popc(7) + __ffs(8) + __clz(1) + __brev(1u) / 2147483648u + (isnan(x) || isinf(x))": torch.full_like(x, 39),
    }
    for (expression, expected), value in zip(cases.items(), unary(list(cases), x), strict=True):
        assert torch.allclose(value, expected, rtol=1e-6, atol=1e-6), expression


def test_products_and_sums_contract_unless_each_is_to_be_rounded() -> None:
    x = torch.rand(1000) + 1
    (contracted,) = unary(["x * x - 1.7f"], x)
    (rounded,) = unary(["__fsub_rn(__fmul_rn(x, x), 1.7f)"], x)
    assert torch.equal(rounded, x * x - 1.7)
    in_one_rounding = (x.double() * x.double() - torch.tensor(1.7).double()).float()
    # A processor without the instruction has nothing to contract to.
    assert torch.equal(contracted, in_one_rounding) or torch.equal(contracted, rounded)
