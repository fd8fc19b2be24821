"""The CUDA C++ of a linear layer and what stands behind it: a block's functions as text, and the entry points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tunebench.kernels.blocks.affine import affine_form
from tunebench.kernels.blocks.block import Kind, Operand, fast_math_line
from tunebench.kernels.blocks.device_function import body_of, device_function, has_fast_tanh
from tunebench.kernels.shared.split_product import InColumns

_ARGUMENTS = """
struct Arguments {{
{members}
    struct Row {{ {row_members} }};
    template <int width> struct Columns {{ {column_members} }};
    template <int width> struct Elements {{ {element_members} }};

    __device__ __forceinline__ Row row(long long number) const {{ return {{{row_values}}}; }}
    template <int width> __device__ __forceinline__ Columns<width> columns(long long feature) const {{
        return {{{column_values}}};
    }}
    template <int width>
    __device__ __forceinline__ Elements<width> elements(long long position, const Columns<width>&) const {{
        return {{{element_values}}};
    }}{joined}
    static constexpr bool reads_elements = {reads_elements};
    __device__ __forceinline__ void fetch_ahead(long long position, int count) const {{ {ahead} }}
    template <int width>
    __device__ __forceinline__ accumulator_t before(accumulator_t value, const Columns<width>& columns, const Row& row,
                                                    const Elements<width>& elements, int i) const {{
        return functions::value_before({values});
    }}
    template <int width>
    __device__ __forceinline__ accumulator_t behind(accumulator_t value, const Columns<width>& columns, const Row& row,
                                                    const Elements<width>& elements, int i) const {{
        return functions::value_behind({values});
    }}
}};
"""

_JOINED = """
    template <int width>
    __device__ __forceinline__ Elements<width> elements(long long position, const Columns<width>& columns,
                                                        const Numbers<width>* products) const {{
        return {{{element_values}}};
    }}"""

_AFFINE = """
// The function before the normalisation as multiplier · value + offset; 1 and 0 where it is not affine.
namespace functions {{
__device__ __forceinline__ Affine affine_before({parameters}) {{
    {body}
}}
}}  // namespace functions
__device__ __forceinline__ Affine affine_of(long long feature, const Arguments& given) {{
    const auto columns = given.columns<1>(feature);
    const auto row = given.row(0);
    return functions::affine_before({values});
}}
using Norm = BatchNorm<{is_affine}>;
"""

_PRODUCTS = """
extern "C" __global__ void __launch_bounds__(product_threads, 1) TUNEBENCH_CLUSTER(product_cluster)
    split_product(const float* __restrict__ w, const unsigned char* __restrict__ parts,
                  const int* __restrict__ x_exponents, const int* __restrict__ w_exponents, int* __restrict__ w_unfit,
                  float* __restrict__ scratch, long long x_rows, long long w_rows, long long depth,
                  const scalar_t* __restrict__ linear_bias, scalar_t* __restrict__ output{parameters},
                  const float* __restrict__ late_rows, unsigned* __restrict__ late_counts,
                  long long first_late{of_inputs}) {{
#if TUNEBENCH_HOPPER
    if constexpr (fused && !rounds_rows) {{
        const ProductShape shape{{x_rows, w_rows, depth{products}}};
        const LateRows late{{late_rows, late_counts, first_late}};
        const ProductEpilogue<Behind> epilogue{{{behind}, linear_bias, output, w_rows, {whole}}};
        {fused_product}
    }}
#endif
}}

extern "C" __global__ void __launch_bounds__(product_threads, 1) TUNEBENCH_CLUSTER(product_cluster)
    half_product(const __grid_constant__ TensorMap x, {maps},
                 long long x_rows, long long w_rows, long long depth, const scalar_t* __restrict__ linear_bias,
                 scalar_t* __restrict__ output{parameters}) {{
#if TUNEBENCH_HOPPER
    if constexpr (fused_halves) {{
        const TensorMap* const weights[] = {{{weights}}};
        half_product_of_block(x, weights, ProductShape{{x_rows, w_rows, depth}},
                              ProductEpilogue<Behind>{{{behind}, linear_bias, output, w_rows, true}});
    }}
#endif
}}

extern "C" __global__ void __launch_bounds__(product_threads, 1) TUNEBENCH_CLUSTER(product_cluster)
    rounded_product(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w,
                    const int* __restrict__ x_exponents, const int* __restrict__ w_exponents, long long x_rows,
                    long long w_rows, long long depth, const scalar_t* __restrict__ linear_bias,
                    scalar_t* __restrict__ output{parameters}) {{
#if TUNEBENCH_HOPPER
    if constexpr (rounds_rows) {{
        const TensorMap* const weights[] = {{&w}};
        half_product_of_block(x, weights, ProductShape{{x_rows, w_rows, depth}},
                              ProductEpilogue<Behind>{{{behind}, linear_bias, output, w_rows, {of_whole}}},
                              RowScales{{x_exponents, w_exponents}});
    }}
#endif
}}

extern "C" __global__ void __launch_bounds__(half_stream_threads, 1) TUNEBENCH_CLUSTER(halves_split)
    half_stream(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, long long rows,
                long long features, long long depth, const scalar_t* __restrict__ linear_bias,
                scalar_t* __restrict__ output{parameters}) {{
#if TUNEBENCH_HOPPER
    if constexpr (streams_halves) {{
        half_stream_of_block(x, w, rows, features, depth,
                             ProductEpilogue<Behind>{{{behind}, linear_bias, output, features, {of_layers}}});
    }}
#endif
}}

extern "C" __global__ void __launch_bounds__(repair_threads, 1)
    repair_rows(const float* __restrict__ x, const float* __restrict__ w, const int* __restrict__ x_unfit,
                const int* __restrict__ w_unfit, int* __restrict__ kept_exponents, long long x_rows, long long w_rows,
                long long depth, const scalar_t* __restrict__ linear_bias,
                scalar_t* __restrict__ output{parameters}{of_inputs}) {{
    if constexpr (fused) {{
        begin_launch();
        repair_rows_of_block(x, w, x_unfit, w_unfit, kept_exponents, LyingX{{x_rows, depth, {whole_depth}}},
                             LyingW{{w_rows, depth, {whole_depth}}}, {count},
                             ProductEpilogue<Behind>{{{behind}, linear_bias, output, w_rows, {whole}}});
    }}
}}

extern "C" __global__ void __launch_bounds__(stream_threads)
    stream_product(const float* __restrict__ x, const float* __restrict__ w, const half_t* __restrict__ highs,
                   const signed char* __restrict__ lows, const int* __restrict__ exponents,
                   const int* __restrict__ unfit, long long rows, long long features, long long depth,
                   long long chunked, const scalar_t* __restrict__ linear_bias,
                   scalar_t* __restrict__ output{parameters}) {{
    if constexpr (streams) {{
        stream_product_of_block({{x, w, highs, lows, exponents, unfit, rows, features, depth, chunked}},
                                ProductEpilogue<Behind>{{{behind}, linear_bias, output, features, {of_whole}}});
    }}
}}
"""

_FUSED = "split_product_of_block(w, parts, x_exponents, w_exponents, w_unfit, scratch, shape, late, epilogue);"
_FUSED_WITH_MOMENTS = """if constexpr (moments_in_epilogue) {
            const MomentsEpilogue<Behind> taking(epilogue, moments);
            split_product_of_block(w, parts, x_exponents, w_exponents, w_unfit, scratch, shape, late, taking);
        } else {
            split_product_of_block(w, parts, x_exponents, w_exponents, w_unfit, scratch, shape, late, epilogue);
        }"""

_PRODUCT_PARAMETERS = (
    "const scalar_t* first, const void* small, const int* __restrict__ x_exponents, "
    "const int* __restrict__ w_exponents, const scalar_t* __restrict__ linear_bias"
)
"""The parameters whose arguments `Product.arguments` gives."""
_PRODUCT = "const Product product{first, small, x_exponents, w_exponents, linear_bias, rows, features};"

_PASS = """
extern "C" __global__ void __launch_bounds__(block_size)
    behind_product({product_parameters}, scalar_t* output, long long rows, long long features{parameters}) {{
    begin_launch();
    {product}
    {pass_over}(product, output, {behind}, {whole});
}}
"""

_BATCH_NORM = """
extern "C" __global__ void __launch_bounds__(statistics_columns * statistics_rows)
    batch_statistics({product_parameters}, scalar_t* whole, long long rows, long long features,
                     accumulator_t* __restrict__ mean, accumulator_t* __restrict__ variance,
                     scalar_t* __restrict__ running_mean, scalar_t* __restrict__ running_variance, accumulator_t kept,
                     accumulator_t mean_share, accumulator_t variance_share{own}, const void* __restrict__ moments,
                     const int* __restrict__ x_unfit, const int* __restrict__ w_unfit, int tile_rows,
                     const scalar_t* __restrict__ weight, const scalar_t* __restrict__ bias, accumulator_t eps,
                     accumulator_t* __restrict__ multiplier, accumulator_t* __restrict__ offset) {{
    begin_launch();
    {product}
    const Arguments arguments{{{names}}};
    const Statistics written{{mean, variance, running_mean, running_variance, kept, mean_share, variance_share}};
    if constexpr (moments_in_epilogue) {{
        const TileMoments of_tiles{{static_cast<const Moments*>(moments), x_unfit, w_unfit, tile_rows}};
        join_moments_of_block(product, whole, arguments, written, of_tiles);
        const long long column = static_cast<long long>(blockIdx.x) * statistics_columns + threadIdx.x;
        if (is_prepared && threadIdx.y == 0 && column < features) {{  // Who has written the statistics reads them.
            const Norm norm{{mean, variance, weight, bias, nullptr, nullptr, eps, true}};
            norm.prepare(column, affine_of(column, arguments), nullptr, multiplier, offset);
        }}
    }} else {{
        batch_statistics_of_block(product, whole, arguments, written);
    }}
}}

extern "C" __global__ void
    prepare_features(const void* __restrict__ mean, const void* __restrict__ variance,
                     const scalar_t* __restrict__ weight, const scalar_t* __restrict__ bias, accumulator_t eps,
                     bool of_batch, const scalar_t* __restrict__ linear_bias, accumulator_t* __restrict__ multiplier,
                     accumulator_t* __restrict__ offset, long long features{own}) {{
    begin_launch();
    const long long column = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (column < features) {{
        const Norm norm{{mean, variance, weight, bias, nullptr, nullptr, eps, of_batch}};
        norm.prepare(column, affine_of(column, {{{names}}}), linear_bias, multiplier, offset);
    }}
}}
"""
_NORM_PARAMETERS = (
    ", const void* __restrict__ mean, const void* __restrict__ variance, const scalar_t* __restrict__ weight, "
    "const scalar_t* __restrict__ bias, const accumulator_t* __restrict__ multiplier, "
    "const accumulator_t* __restrict__ offset, accumulator_t eps"
)
_NORM = "mean, variance, weight, bias, multiplier, offset, eps"


_OPERANDS = """// Two inputs, and how they lie in memory; what is kept of their product.
constexpr bool of_inputs = {of_inputs}, x_in_columns = {x_in_columns}, w_in_columns = {w_in_columns};
constexpr bool has_triangle = {has_triangle}, keeps_upper = {keeps_upper};
"""


@dataclass(frozen=True)
class LinearSource:
    """The functions that a block applies to the values of a product.

    Attributes:
        owner: the class, for the compiler's messages.
        before, behind: device functions of `value`: before a normalisation, and behind it.
        used: what they read besides, in the order of the kernels' parameters. In the place of another layer's values
            the fused product of half types, which makes these too, has that layer's bias.
        batch_norm: whether that normalisation is a BatchNorm.
        inputs: how two inputs lie, whose product it is; None of a layer.
        triangle: what is kept of the product: `upper`, `lower`, or all where it is empty.
    """

    owner: str
    before: str
    behind: str
    used: Sequence[Operand]
    batch_norm: bool
    inputs: InColumns | None = None
    triangle: str = ""

    @property
    def by_columns(self) -> bool:
        """Whether what becomes of a value depends on its column or its row, or is read with what does."""
        return self.batch_norm or bool(self._of(Kind.PER_FEATURE, Kind.PER_ROW, Kind.PER_TENSOR))

    @property
    def joins(self) -> bool:
        """Whether the functions read the values of other layers."""
        return bool(self._of(Kind.LAYER))

    @property
    def affine(self) -> tuple[str, str] | None:
        """Multiplier and offset of the function before the normalisation; None where it is not affine in `value`."""
        constants = self._of(Kind.SCALAR, Kind.PER_TENSOR, Kind.PER_FEATURE)
        return affine_form(self.before, {one.name for one in constants})

    def text(self, head: str | None = None) -> str:
        """Return the translation unit.

        Args:
            head: what has to stand before `functions.cuh` is included; None for what these functions need.
        """
        texts = (self.before, self.behind)
        if head is None:
            head = fast_math_line(texts) + ("#define FAST_TANH fast_tanh\n" if has_fast_tanh(texts) else "")
        header = "linear_batch_norm.cuh" if self.batch_norm else "linear.cuh"
        parts = [
            f'{self._operands()}{head}#include "functions.cuh"\n#include "{header}"\n\n',
            self._function("value_before", "function", self.before),
            self._function("value_behind", "finish", self.behind),
            self._arguments(),
            self._with_batch_norm() if self.batch_norm else "using Behind = Chain<Arguments>;\n",
            self._pass(),
            self._products(),
        ]
        return "".join(parts)

    def _operands(self) -> str:
        """Return constants that say what is multiplied."""
        x, weight = self.inputs or InColumns(x=False, weight=False)
        flags = {"of_inputs": self.inputs is not None, "x_in_columns": x, "w_in_columns": weight}
        flags |= {"has_triangle": bool(self.triangle), "keeps_upper": self.triangle == "upper"}
        text = _OPERANDS.format(**{name: str(flag).lower() for name, flag in flags.items()})
        return text if self.inputs else f"{text}constexpr int product_slices = 1, split_block_rows = 0;\n"

    def _function(self, name: str, attribute: str, text: str) -> str:
        return device_function(f"{self.owner}.{attribute}", name, text, ["value", *(one.name for one in self.used)])

    def _arguments(self) -> str:
        """Return the structure through which passes and epilogues read the functions' operands."""
        rows, features, elements = (self._of(one) for one in (Kind.PER_ROW, Kind.PER_FEATURE, Kind.ELEMENT))
        singles, layers = self._of(Kind.PER_TENSOR), self._of(Kind.LAYER)
        values = [f"numbers<width, finishes_packs>({_member(one)} + position)" for one in elements]
        made = [f"biased(products[{at}], columns.{_member(one)})" for at, one in enumerate(layers)]
        return _ARGUMENTS.format(
            members="\n".join(f"    {_type_of(one)} {_member(one)};" for one in self.used),
            row_members=" ".join(f"accumulator_t {_member(one)};" for one in (*rows, *singles)),
            column_members=" ".join(
                [f"Numbers<width> {_member(one)};" for one in features]
                + [f"Pack<scalar_t, width> {_member(one)};" for one in layers]
            ),
            element_members=" ".join(f"Numbers<width> {_member(one)};" for one in (*elements, *layers)),
            row_values=", ".join(
                [f"accumulator_t({_member(one)}[number])" for one in rows]
                + [f"accumulator_t(*{_member(one)})" for one in singles]
            ),
            column_values=", ".join(
                [f"numbers<width>({_member(one)} + feature)" for one in features]
                + [f"bias_of_layer<width>({_member(one)}, feature)" for one in layers]
            ),
            element_values=", ".join([*values, *(f"numbers<width>({_member(one)} + position)" for one in layers)]),
            reads_elements=str(bool(elements)).lower(),
            ahead=" ".join(f"fetch_elements({_member(one)} + position, count);" for one in elements),
            joined=_JOINED.format(element_values=", ".join([*values, *made])) if layers else "",
            values=", ".join(["value", *(_value_of(one) for one in self.used)]),
        )

    def _with_batch_norm(self) -> str:
        affine = self.affine
        form = ", ".join(affine or ("accumulator_t(1)", "accumulator_t(0)"))
        constants = self._of(Kind.SCALAR, Kind.PER_TENSOR, Kind.PER_FEATURE) if affine else []
        reads = {Kind.SCALAR: "given.{0}", Kind.PER_TENSOR: "row.{0}", Kind.PER_FEATURE: "columns.{0}.of[0]"}
        text = _AFFINE.format(
            parameters=", ".join(f"accumulator_t {one.name}" for one in constants),
            body=body_of(f"{self.owner}.function", f"return {{{form}}};"),
            values=", ".join(reads[one.kind].format(_member(one)) for one in constants),
            is_affine=str(affine is not None).lower(),
        )
        entry_points = _BATCH_NORM.format(
            product_parameters=_PRODUCT_PARAMETERS, product=_PRODUCT, own=self._own_parameters, names=self._members
        )
        return f"{text}using Behind = Chain<Arguments, Norm>;\n{entry_points}"

    def _pass(self) -> str:
        own = ", bool of_batch" if self.batch_norm else ", bool whole" if self.joins else ""
        return _PASS.format(
            product_parameters=_PRODUCT_PARAMETERS,
            product=_PRODUCT,
            parameters=f"{self._norm_parameters}{own}{self._own_parameters}",
            pass_over=f"pass_over_{'columns<rows' if self.by_columns else 'elements<vectors'}_per_thread>",
            behind=self._behind("of_batch"),
            whole="whole" if self.joins else "true",
        )

    def _products(self) -> str:
        """In train mode a product of our own is not normalised yet: `whole` is false. So it is of slices, and of layers
        whose values another one's functions read."""
        has_whole, moments = self.batch_norm or self.joins, ", void* moments" if self.batch_norm else ""
        of_inputs, whole = self.inputs is not None, ", bool whole" if has_whole else ""
        weights = ["w", *(f"{_member(one)}w" for one in self._of(Kind.LAYER))]
        return _PRODUCTS.format(
            of_inputs=", long long products, long long whole_depth" if of_inputs else "",
            products=", products" if of_inputs else "",
            count="products" if of_inputs else "1",
            whole_depth="whole_depth" if of_inputs else "depth",
            parameters=f"{self._norm_parameters}{whole}{self._own_parameters}{moments}",
            behind=self._behind("false"),
            maps=", ".join(f"const __grid_constant__ TensorMap {one}" for one in weights),
            weights=", ".join(f"&{one}" for one in weights),
            of_whole="whole" if has_whole else "true",
            of_layers="whole" if self.joins else "true",
            whole="whole" if has_whole else "whole_depth == depth" if of_inputs else "true",
            fused_product=_FUSED_WITH_MOMENTS if self.batch_norm else _FUSED,
        )

    def _behind(self, of_batch: str) -> str:
        return f"Behind{{{{{self._members}}}, {{{f'{_NORM}, {of_batch}' if self.batch_norm else ''}}}}}"

    @property
    def _norm_parameters(self) -> str:
        return _NORM_PARAMETERS if self.batch_norm else ""

    @property
    def _own_parameters(self) -> str:
        return "".join(f", {_type_of(one)} {_member(one)}" for one in self.used)

    @property
    def _members(self) -> str:
        return ", ".join(_member(one) for one in self.used)

    def _of(self, *kinds: Kind) -> list[Operand]:
        return [one for one in self.used if one.kind in kinds]


def _member(operand: Operand) -> str:
    """Return an operand's name outside the functions, where the source has names of its own."""
    return f"{operand.name}_"


def _type_of(operand: Operand) -> str:
    return "accumulator_t" if operand.kind is Kind.SCALAR else "const scalar_t* __restrict__"


def _value_of(operand: Operand) -> str:
    """Return the expression by which a value of the product finds that operand's."""
    member = _member(operand)
    if operand.kind is Kind.SCALAR:
        return member
    if operand.kind is Kind.PER_FEATURE:
        return f"columns.{member}.of[i]"
    return f"elements.{member}.of[i]" if operand.kind in (Kind.ELEMENT, Kind.LAYER) else f"row.{member}"
