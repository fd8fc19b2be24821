"""Arguments by an entry point's signature: their bytes, and one line for what is not legal."""

import math
import re
import struct
from typing import Any

import pytest
import torch

from tunebench.tuner.compile.arguments import Arguments, dim3
from tunebench.tuner.errors import LaunchError
from tunebench.tuner.signature import aliases, declarations, signature_of

CPU = torch.device("cpu")


def arguments(parameters: str, scalar: str = "float") -> Arguments:
    (declaration,) = declarations([f'extern "C" __global__ void k({parameters});']).values()
    return Arguments(signature_of(declaration, aliases([f"using scalar_t = {scalar};"])), CPU)


def test_each_value_in_its_parameters_type() -> None:
    tensor = torch.ones(3)
    packer = arguments("bool a, const scalar_t* b, char c, double d, int e, scalar_t f, unsigned long long g, short h")
    packed = packer.pack([True, tensor[1:], -1, 2, 7, 0.5, 2**64 - 1, False])
    values = [packed[at : at + size] for at, size in zip(packer.offsets, packer.sizes, strict=True)]
    expected = [
        ("?", True), ("P", tensor.data_ptr() + 4), ("b", -1), ("d", 2.0), ("i", 7), ("f", 0.5), ("Q", 2**64 - 1),
        ("h", 0),
    ]  # fmt: skip
    assert values == [struct.pack(code, value) for code, value in expected]
    assert all(at % size == 0 for at, size in zip(packer.offsets, packer.sizes, strict=True))


def test_none_is_a_null_pointer() -> None:
    assert arguments("float* a").pack([None]) == bytes(8)


@pytest.mark.parametrize("scalar", ["__half", "__nv_bfloat16", "float"])
@pytest.mark.parametrize(
    "value", [0, 1, -2.5, 1 / 3, 1e-8, 65519.0, 65520.0, -1e30, 3.4e38, 1e300, math.inf, -math.inf, math.nan, 3.3961e38]
)
def test_floating_point_numbers_are_rounded_as_torch_rounds_them(scalar: str, value: float) -> None:
    dtype = {"__half": torch.float16, "__nv_bfloat16": torch.bfloat16, "float": torch.float32}[scalar]
    packed = torch.frombuffer(bytearray(arguments("scalar_t s", scalar).pack([value])), dtype=dtype)
    # torch rounds twice where it goes through single precision, as the header of CUDA does.
    assert torch.equal(packed.nan_to_num(1.0), torch.tensor([value], dtype=dtype).nan_to_num(1.0))
    assert packed.isnan().item() == math.isnan(value)


@pytest.mark.parametrize(
    ("parameters", "given", "message"),
    [
        ("int n", [], "it takes 1 arguments (n), not 0"),
        ("void", [1], "it takes 0 arguments (none), not 1"),
        ("int n", [2.0], "parameter 'n' (int) takes an int or a bool, not 2.0 (float)"),
        ("int n", [None], "parameter 'n' (int) takes an int or a bool, not NoneType"),
        ("long long n", [2**63], f"parameter 'n' (long long) takes {-(2**63)} to {2**63 - 1}, not {2**63}"),
        ("unsigned n", [-1], "parameter 'n' (unsigned) takes 0 to 4294967295, not -1"),
        ("float s", ["2"], "parameter 's' (float) takes a float or an int, not str"),
        ("float s", [torch.ones(1)], "parameter 's' (float) takes a float or an int, not Tensor"),
        ("const float* x", [8], "parameter 'x' (const float*) takes a tensor or None, not 8 (int)"),
        (
            "const float* x",
            [torch.ones(1).double()],
            "parameter 'x' (const float*) takes a float32 tensor, not float64",
        ),
        ("int* x", [torch.ones(1).long()], "parameter 'x' (int*) takes a tensor of 32-bit integers, not int64"),
        ("int* x", [torch.ones(1)], "parameter 'x' (int*) takes a tensor of 32-bit integers, not float32"),
        ("float* x", [torch.ones(1, device="meta")], "parameter 'x' (float*) takes a tensor on cpu, not on meta"),
        ("TensorMap m", [torch.ones(1)], "parameter 'm' (TensorMap) takes a TensorMap, not Tensor"),
        ("int n, Span s", [1], "parameter 's' (Span) cannot be given an argument: its type is not a pointer"),
    ],
)
def test_one_line_that_names_the_parameter(parameters: str, given: list[Any], message: str) -> None:
    with pytest.raises(LaunchError, match="launch of 'k': " + re.escape(message)) as refused:
        arguments(parameters).pack(given)
    assert "\n" not in str(refused.value)


def test_pointers_to_bytes_and_to_types_of_the_source_take_any_tensor() -> None:
    packer = arguments("unsigned char* a, pack_t* b, void* c")
    for tensor in (torch.ones(1), torch.ones(1).long()):
        assert packer.pack([tensor] * 3) == struct.pack("3P", *[tensor.data_ptr()] * 3)


@pytest.mark.parametrize(("extent", "expected"), [(3, (3, 1, 1)), ((3,), (3, 1, 1)), ([3, 2], (3, 2, 1))])
def test_extents(extent: Any, expected: tuple[int, int, int]) -> None:
    assert dim3(extent) == expected


@pytest.mark.parametrize("extent", [(), (1, 2, 3, 4), 2.0, (1.5, 1), None, "12"])
def test_what_is_no_extent(extent: Any) -> None:
    with pytest.raises(LaunchError, match="blocks and threads are an int or up to three of them"):
        dim3(extent)
