// The fp32 matrix product x · wᵀ by the library's half-precision products, from a high and a low part of each operand.
//
// Both operands are split in memory (parts.cuh), and torch multiplies x_low · w_high + x_high · w_low + x_high · w_high:
//
//   split_parts     the exponents of a matrix's rows, notes on those that parts cannot hold, and the parts
//   split_columns   the same of a matrix in columns, of whose rows column_magnitudes has found the largest magnitudes
//   (torch)         with one piece, one product over all three terms, the smallest first; with more, one over the two small
//                   terms and a batch over pieces of the large one, so that tensor cores, which add with truncation, make
//                   shorter sums, and the rest is added in fp32
//   repair_parts    strict fp32 into the first partial product for the rows that parts cannot hold
//   Product         through which a pass behind the product reads it: adds partial products, undoes scales, adds the bias
//
// A row of parts is [high | low], of x, or [low | high], of w, each part padded with zeros to whole pieces. Whole rows make
// the small terms, the first part of x with the second of w the large one: all operands are views, and nothing is stored
// twice. With one piece, the high parts stand once more at the end, for the large term. With `corrections` of eight bits the
// row of parts is of these, one product of twice the depth, and the high parts in fp16 stand by themselves. Without
// `corrections` there are the high parts alone, as exact as TF32, whose mantissas are as long.
//
// Tunables: `part_type` of the parts, `corrections` and their results' `correction_sums`, `pieces` of the large term
// (kernels/parts_product.py), `split_threads` of a block.
#pragma once

#include "pack.cuh"
#include "parts.cuh"
#include "repair.cuh"
#include "vector.cuh"

constexpr bool from_parts = product == product_t::parts;

using part_t = Choose<part_type == part_type_t::fp16, half_t, bfloat_t>;

// What the small terms are made of and summed in. What the parts' powers of two make of the terms' scale is undone by the
// product, each of whose factors of e4m3 it multiplies with `of_operand`, or, of whole numbers, by who reads it (`of_sum`).
constexpr bool in_e4m3 = corrections == corrections_t::e4m3, in_whole = corrections == corrections_t::int8;
using small_part_t = Choose<in_e4m3, e4m3_t, Choose<in_whole, s8_t, part_t>>;
using small_sum_t = Choose<in_e4m3, Choose<correction_sums == correction_sums_t::bf16, bfloat_t, float>,
                           Choose<in_whole, int, scalar_t>>;
constexpr float of_operand = in_e4m3 ? 0x1p-3f : 1.0f;
constexpr float of_sum = in_whole ? 1.0f / PartScale<s8_t>::of_terms : 1.0f;
static_assert(!in_e4m3 || of_operand * of_operand * PartScale<e4m3_t>::of_terms == 1.0f);
constexpr bool in_eight_bits = in_e4m3 || in_whole;

constexpr bool uncorrected = corrections == corrections_t::none;
constexpr int parts_of_row = uncorrected ? 1 : pieces == 1 ? 3 : 2;  // Of halves.
constexpr int unfit_exponent = 1 << 20;

// Four neighbouring elements of a row in parts, at place k of the row's parts; `halves` and `eights` are the row's own.
__device__ __forceinline__ void store_parts(const Pack<float, 4>& values, float factor, long long k, part_t* halves,
                                            unsigned char* eights, long long padded, bool is_weight) {
    Pack<part_t, 4> high, low;
    float high8[4], low8[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const Split<part_t> parts(values.of[i] * factor);
        high.of[i] = parts.high;
        low.of[i] = part_t(parts.rest());
        high8[i] = parts.high * PartScale<small_part_t>::of_high;
        low8[i] = parts.rest() * PartScale<small_part_t>::of_rest;
    }
    if constexpr (in_eight_bits) {
        const unsigned highs = pack4<small_part_t>(high8);
        const unsigned lows = pack4<small_part_t>(low8);
        store_whole(halves + k, high);
        *reinterpret_cast<unsigned*>(eights + (is_weight ? padded : 0) + k) = highs;
        *reinterpret_cast<unsigned*>(eights + (is_weight ? 0 : padded) + k) = lows;
    } else if constexpr (uncorrected) {
        store_whole(halves + k, high);
    } else {
        store_whole(halves + (is_weight ? padded : 0) + k, high);
        store_whole(halves + (is_weight ? 0 : padded) + k, low);
        if constexpr (parts_of_row == 3) {
            store_whole(halves + 2 * padded + k, high);
        }
    }
}

// One block a row. `factors` (may be null) multiplies each row before it is split. `padded` is the length of one part.
// `eights` and `scale`, what a product of them takes as its operand's, are null where the small terms are of halves.
// A row that the block's registers hold is read once.
extern "C" __global__ void __launch_bounds__(split_threads)
    split_parts(const float* __restrict__ matrix, const float* __restrict__ factors, part_t* __restrict__ halves,
                unsigned char* __restrict__ eights, int* __restrict__ exponents, int* __restrict__ unfit,
                float* __restrict__ scale, long long rows, long long depth, long long padded, int is_weight) {
    constexpr long long step = split_threads * 4;
    constexpr int held_fours = 8192 / step;
    const bool vectors = reads_as_vectors(matrix, depth);
    for (long long row = blockIdx.x; from_parts && row < rows; row += gridDim.x) {
        const float* source = matrix + row * depth;
        const float factor = factors ? factors[row] : 1.0f;
        const long long first = threadIdx.x * 4;
        const bool holds = vectors && padded <= held_fours * step;
        Pack<float, 4> held[held_fours];
        int mine = 0;
        if (holds) {
#pragma unroll
            for (int i = 0; i < held_fours; ++i) {
                const long long k = first + i * step;
                held[i] = load_pack<4>(source + k, 0, k < depth);  // Whole fours: where vectors are read, it is a multiple.
            }
#pragma unroll
            for (int i = 0; i < 4 * held_fours; ++i) {
                mine = max(mine, abs_bits(held[i / 4].of[i % 4]));
            }
        } else {
            mine = largest_of_row(source, depth, vectors, threadIdx.x, split_threads);
        }
        // Rounding keeps the order: of the rounded products of a row with its factor, this is the largest.
        const float largest = largest_of_warps<split_threads, split_threads>(mine) * __int_as_float(abs_bits(factor));
        const int exponent = exponent_for(largest);
        if (threadIdx.x == 0) {
            const float size = scaled(largest, exponent);
            const bool fit = in_eight_bits ? fits_eights(size, exponent) : fits(size, exponent);
            exponents[row] = fit ? exponent : unfit_exponent;
            unfit[row] = !fit;
            if constexpr (in_eight_bits) {
                *scale = of_operand;
            }
        }
        const float power = power_of_two(exponent);
        part_t* const row_halves = halves + row * (in_eight_bits ? padded : parts_of_row * padded);
        unsigned char* const row_eights = eights + row * (2 * padded);
        const auto store = [&](Pack<float, 4> values, long long k) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                values.of[i] *= factor;
            }
            store_parts(values, power, k, row_halves, row_eights, padded, is_weight != 0);
        };
        if (holds) {
#pragma unroll
            for (int i = 0; i < held_fours; ++i) {
                const long long k = first + i * step;
                if (k < padded) {
                    store(held[i], k);
                }
            }
        } else {
            for (long long k = first; k < padded; k += step) {
                store(load_pack<4>(source + k, depth - k, vectors && k + 4 <= depth), k);
            }
        }
    }
}

// The largest magnitudes of the rows of a matrix in columns, as integers, of a chunk of the depth for each block across.
extern "C" __global__ void __launch_bounds__(split_threads)
    column_magnitudes(const float* __restrict__ matrix, int* __restrict__ magnitudes, long long rows, long long depth,
                      long long chunk) {
    if constexpr (from_parts && of_inputs) {
        constexpr int lanes = 32;
        __shared__ int of_warps[split_threads / lanes][lanes];
        const long long row = static_cast<long long>(blockIdx.x) * lanes + threadIdx.x % lanes;
        const long long begin = blockIdx.y * chunk, end = min(begin + chunk, depth);
        int largest = 0;
#pragma unroll 4
        for (long long k = begin + threadIdx.x / lanes; k < end; k += split_threads / lanes) {
            largest = max(largest, row < rows ? abs_bits(matrix[k * rows + row]) : 0);
        }
        of_warps[threadIdx.x / lanes][threadIdx.x % lanes] = largest;
        __syncthreads();
        if (threadIdx.x < lanes && row < rows) {
            for (int warp = 0; warp < split_threads / lanes; ++warp) {
                largest = max(largest, of_warps[warp][threadIdx.x]);
            }
            magnitudes[blockIdx.y * rows + row] = largest;
        }
    }
}

// The parts of a matrix in columns, as it lies: each is (padded, rows), and they follow each other as those of a row do.
extern "C" __global__ void __launch_bounds__(split_threads)
    split_columns(const float* __restrict__ matrix, const int* __restrict__ magnitudes, part_t* __restrict__ halves,
                  int* __restrict__ exponents, int* __restrict__ unfit, long long rows, long long depth,
                  long long padded, long long chunk, int chunks, int is_weight) {
    if constexpr (from_parts && of_inputs) {
        const long long row = static_cast<long long>(blockIdx.x) * split_threads + threadIdx.x;
        if (row >= rows) {
            return;
        }
        int most = 0;
        for (int other = 0; other < chunks; ++other) {
            most = max(most, magnitudes[other * rows + row]);
        }
        const int exponent = exponent_for(__int_as_float(most));
        if (blockIdx.y == 0) {
            const bool fit = fits(scaled(__int_as_float(most), exponent), exponent);
            exponents[row] = fit ? exponent : unfit_exponent;
            unfit[row] = !fit;
        }
        const float power = power_of_two(exponent);
        const long long begin = blockIdx.y * chunk, end = min(begin + chunk, padded);
#pragma unroll 4
        for (long long k = begin; k < end; ++k) {
            const Split<part_t> parts(k < depth ? matrix[k * rows + row] * power : 0.0f);
            const part_t low(parts.rest());
            halves[((is_weight && !uncorrected ? padded : 0) + k) * rows + row] = parts.high;
            if constexpr (!uncorrected) {
                halves[((is_weight ? 0 : padded) + k) * rows + row] = low;
            }
            if constexpr (parts_of_row == 3) {
                halves[(2 * padded + k) * rows + row] = parts.high;
            }
        }
    }
}

struct RepairedProduct {
    float* product;
    const float* factors;  // may be null
    long long features;

    struct Feature {
        float* product;
        float factor;
        long long features;
        __device__ __forceinline__ void operator()(float value, long long row) const {
            product[row * features] = value * factor;
        }
    };
    __device__ __forceinline__ Feature feature(long long index) const {
        return {product + index, factors ? factors[index] : 1.0f, features};
    }
};

extern "C" __global__ void __launch_bounds__(repair_threads)
    repair_parts(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ factors,
                 const int* __restrict__ x_unfit, const int* __restrict__ w_unfit, float* __restrict__ product,
                 long long x_rows, long long w_rows, long long depth) {
    if constexpr (from_parts) {
        repair_rows_of_block(x, w, x_unfit, w_unfit, nullptr, LyingX{x_rows, depth, depth},
                             LyingW{w_rows, depth, depth}, 1, RepairedProduct{product, factors, w_rows});
    }
}

// Of the fused product, those whose sum the product is.
constexpr bool sliced = product == product_t::fused && product_slices > 1;

// What a pass reads: a product that torch has made, or, of float32, partial products from parts or of slices.
struct Product {
    const scalar_t* first;   // the product, or the first partial product of `pieces` that follow each other
    const void* small;       // the product of the small terms; null where it is in the first
    const int* x_exponents;  // null: `first` is the product itself, bias and all
    const int* w_exponents;
    const scalar_t* bias;  // may be null
    long long rows, features;

    __device__ __forceinline__ bool is_partial() const { return from_parts && x_exponents != nullptr; }

    // Neighbouring elements of the product itself, the first of which is number `position` of them all.
    template <int width> __device__ __forceinline__ vector_of<accumulator_t, width> whole(long long position) const {
        using vector_t = vector_of<scalar_t, width>;
        if constexpr (sliced) {
            vector_of<accumulator_t, width> sum{};
#pragma unroll 8
            for (int slice = 0; slice < product_slices; ++slice) {
                Pack<accumulator_t, width> next;
                auto given = load_anywhere<vector_t>(first + slice * (rows * features) + position);
                for_each(given, [&next](scalar_t& element, int i) { next.of[i] = accumulator_t(element); });
                for_each(sum, [&next](accumulator_t& element, int i) { element += next.of[i]; });
            }
            return sum;
        } else {
            return converted<accumulator_t, width>(load<false>(reinterpret_cast<const vector_t*>(first + position)));
        }
    }
    // They, where they are kept of a triangle, and else zeros.
    template <typename V> __device__ __forceinline__ V kept(V values, long long position) const {
        if constexpr (has_triangle) {
            for_each(values, [this, position](accumulator_t& element, int i) {
                element = is_kept((position + i) / features, (position + i) % features) ? element : accumulator_t(0);
            });
        }
        return values;
    }
};

// What neighbouring columns of partial products need, in registers for all rows that a thread has of them.
template <int width> struct ProductColumns {
    Pack<int, width> exponents{};
    Pack<scalar_t, width> bias{};

    __device__ __forceinline__ ProductColumns(const Product& product, long long column) {
        if (product.is_partial()) {
            const int* const from = product.w_exponents + column;
            exponents = load_pack<width>(from, width, takes_packs<int, width>(from));
            if (product.bias) {
                const scalar_t* const added = product.bias + column;
                bias = load_pack<width>(added, width, takes_packs<scalar_t, width>(added));
            }
        }
    }
};

// `width` neighbouring elements of one row of the product, the bias added. The memory may be written to afterwards.
template <int width>
__device__ __forceinline__ vector_of<accumulator_t, width> elements(const Product& product,
                                                                    const ProductColumns<width>& columns,
                                                                    long long row, long long position) {
    using vector_t = vector_of<scalar_t, width>;
    if (!product.is_partial()) {
        return product.kept(product.template whole<width>(position), position);
    }
    auto value = converted<accumulator_t, width>(load_anywhere<vector_t>(product.first + position));
    Pack<accumulator_t, width> sum{}, repaired;
    if (product.small) {
        auto small =
            load_anywhere<vector_of<small_sum_t, width>>(static_cast<const small_sum_t*>(product.small) + position);
        for_each(small, [&sum](small_sum_t& element, int i) {
            sum.of[i] = accumulator_t(element) * accumulator_t(of_sum);
        });
    }
    for_each(value, [&sum, &repaired](accumulator_t& element, int i) {
        repaired.of[i] = element;
        sum.of[i] += element;
    });
#pragma unroll
    for (int piece = 1; piece < pieces; ++piece) {
        const long long place = piece * (product.rows * product.features) + position;
        vector_t next = load_anywhere<vector_t>(product.first + place);
        for_each(next, [&sum](scalar_t& element, int i) { sum.of[i] += element; });
    }
    const int x_exponent = product.x_exponents[row];
    for_each(value, [&](accumulator_t& element, int i) {
        const int exponent = x_exponent + columns.exponents.of[i];
        element = (exponent >= unfit_exponent - exponent_limit ? repaired.of[i] : scaled(sum.of[i], -exponent)) +
                  columns.bias.of[i];
    });
    return product.kept(value, position);
}

// As `elements`, for a pass that takes the product for one row; the elements may belong to two rows or more.
template <int width>
__device__ __forceinline__ vector_of<accumulator_t, width> elements_at(const Product& product, long long position) {
    if (!product.is_partial()) {
        return product.kept(product.template whole<width>(position), position);
    }
    const long long row = position / product.features;
    const long long column = position % product.features;
    if (column + width <= product.features) {
        return elements<width>(product, ProductColumns<width>(product, column), row, position);
    }
    vector_of<accumulator_t, width> value;
    for_each(value, [&product, position](accumulator_t& element, int i) {
        element = elements_at<1>(product, position + i);
    });
    return value;
}
