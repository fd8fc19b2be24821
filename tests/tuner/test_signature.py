"""What is read of a source's parameter lists, and what is not."""

import pytest

from tunebench.tuner.signature import Kind, aliases, declarations, kind_of, signature_of


def kinds(text: str, name: str = "k") -> list[tuple[str, Kind | None]]:
    found = signature_of(declarations([text])[name], aliases([text]))
    return [(parameter.name, parameter.kind) for parameter in found.parameters]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ("", []),
        ("void", []),
        ("const float* __restrict__ a, int n", [("a", Kind.POINTER), ("n", Kind.INT32)]),
        ("float *a, float const * const b", [("a", Kind.POINTER), ("b", Kind.POINTER)]),
        ("unsigned char a[], double** b, void* c", [("a", Kind.POINTER), ("b", Kind.POINTER), ("c", Kind.POINTER)]),
        ("Pair<int, float>* a, bool b", [("a", Kind.POINTER), ("b", Kind.BOOL)]),
        ("float, const int", [("parameter 1", Kind.FLOAT), ("parameter 2", Kind.INT32)]),
        ("unsigned a, long b, long long int c", [("a", Kind.UINT32), ("b", Kind.INT64), ("c", Kind.INT64)]),
        ("int long unsigned a, short int b", [("a", Kind.UINT64), ("b", Kind.INT16)]),
        ("signed char a, std::int8_t b, size_t c", [("a", Kind.INT8), ("b", Kind.INT8), ("c", Kind.UINT64)]),
        ("__half a, __nv_bfloat16 b", [("a", Kind.HALF), ("b", Kind.BFLOAT16)]),
        ("const __grid_constant__ int a", [("a", Kind.INT32)]),
        ("const __grid_constant__ TensorMap a, TensorMap* b", [("a", Kind.TENSOR_MAP), ("b", Kind.POINTER)]),
        ("int /* rows, of x */ a, // (\n float b = 1.0f", [("a", Kind.INT32), ("b", Kind.FLOAT)]),
        ("Span span, Two<float> b, PARAMETERS", [("span", None), ("b", None), ("parameter 3", None)]),
        ("float& a, float (*f)(int)", [("a", None), ("parameter 2", Kind.POINTER)]),
        ("real a, count b, knot c", [("a", Kind.DOUBLE), ("b", Kind.UINT32), ("c", None)]),
    ],
)
def test_parameters(parameters: str, expected: list[tuple[str, Kind | None]]) -> None:
    names = "using real = double;\ntypedef unsigned int count;\nusing knot = knot;\n"
    assert kinds(f'{names}extern "C" __global__ void k({parameters}) {{}}') == expected


@pytest.mark.parametrize(
    "head",
    [
        'extern "C" __global__ void k',
        'extern "C" __global__ void __launch_bounds__(block_size * (2 + 2), 4)\n    k',
        'extern "C" __global__ __launch_bounds__(max(a, b)) void k',
        'extern "C" void __global__ k',
        'extern "C" {\n__device__ int f() { return 1; }\n__global__ void BOUNDS(256) k',
        'extern "C"   // the kernel\n__global__ void\nk',
    ],
)
def test_where_the_name_stands(head: str) -> None:
    assert kinds(f"__device__ float g(int k);\n{head}(int n) {{}}") == [("n", Kind.INT32)]


def test_what_is_no_entry_point() -> None:
    text = r"""
    // extern "C" __global__ void in_a_comment(int n) {}
    const char* text = "extern \"C\" __global__ void in_a_text(int n);";
    #define KERNEL(name) \
        extern "C" __global__ void name(int n)
    template <typename T> __global__ void of_a_template(T* a) {}
    __global__ void mangled(int n) {}
    extern "C" __device__ void of_the_device(int n) {}
    extern "C" { void before(); } __global__ void behind_a_block(int n) {}
    """
    assert declarations([text]) == {}


def test_entry_points_of_headers_and_of_declarations_before_definitions() -> None:
    source = 'extern "C" __global__ void b(int n);\nextern "C" __global__ void b(int n) {}'
    assert list(declarations([source, "", 'extern "C" __global__ void a() {}'])) == ["b", "a"]


def test_a_type_that_two_texts_give_a_name_is_not_told() -> None:
    known = aliases(["using t = float; using u = t;", "using t = double;"])
    assert kind_of("t", known) is None
    assert kind_of("u", known) is None


def test_what_pointers_point_to() -> None:
    text = 'extern "C" __global__ void k(const scalar_t* a, half_t* b, unsigned* c, float** d, void* e);'
    found = signature_of(declarations([text])["k"], aliases(["using scalar_t = float;"]))
    assert [parameter.pointee for parameter in found.parameters] == [Kind.FLOAT, None, Kind.UINT32, None, None]
