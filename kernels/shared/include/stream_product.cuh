// The fp32 product x · wᵀ of few rows of x: a pass over the weight at the rate of memory.
//
// A warp owns stream_features rows of w and multiplies them with all rows of x, each lane its share of the depth: every
// element of w is read once, and those of x come from the cache. stream_split warps share the depth, and their sums are
// joined in a fixed order. Everything is fp32.
//
// Of a weight that is kept (`stream_weight`), the pass may read 3 bytes an element instead of 4: each row, scaled by a power
// of two, as halves and what these leave, in whole numbers of eight bits, which together hold 19 bits of the row's
// largest magnitude. Rows that these cannot hold are read as they are.
//
// Sizes are tunables (kernels/shared/stream_product.py): `stream_rows` of x at once, `stream_features`, `stream_split`,
// and `stream_unroll` steps of the loop whose reads are under way together.
#pragma once

#include "eight.cuh"
#include "pack.cuh"
#include "row_scale.cuh"
#include "vector.cuh"

constexpr bool streams = product == product_t::stream;
constexpr int stream_threads = 256;

// Of a chunk of the depth each lane multiplies eight elements: four of each half, so that a warp reads whole lines.
constexpr int stream_run = 8;
constexpr int stream_chunk = 32 * stream_run;

// A weight in 3 bytes an element, a row to a block: of its whole chunks, `chunked` elements of either part, in the order
// in which the lanes multiply them.
extern "C" __global__ void __launch_bounds__(stream_threads)
    split_stream(const float* __restrict__ w, half_t* __restrict__ highs, signed char* __restrict__ lows,
                 int* __restrict__ exponents, int* __restrict__ unfit, long long rows, long long depth,
                 long long chunked) {
    for (long long row = blockIdx.x; streams && row < rows; row += gridDim.x) {
        const float* const source = w + row * depth;
        const int mine = largest_of_row(source, depth, reads_as_vectors(w, depth), threadIdx.x, stream_threads);
        const float largest = largest_of_warps<stream_threads, stream_threads>(mine);
        const int exponent = exponent_for(largest);
        if (threadIdx.x == 0) {
            // A row that no exponent brings into range may be larger than 2^11, whose low parts eight bits do not hold.
            const float size = scaled(largest, exponent);
            exponents[row] = exponent;
            unfit[row] = !(fits(size, exponent) && size < 2048.0f);
        }
        const float power = power_of_two(exponent);
        for (long long place = threadIdx.x; place < chunked; place += stream_threads) {
            const int lane = place % stream_chunk / stream_run;
            const int element = place % stream_run;
            const long long k = place / stream_chunk * stream_chunk + element / 4 * (stream_chunk / 2) + lane * 4 +
                                element % 4;
            const float value = source[k] * power;
            const half_t high(value);
            highs[row * chunked + place] = high;
            lows[row * chunked + place] = whole_t((value - high) * 256.0f).bits;
        }
    }
}

// This lane's elements of a chunk of a row of w.
struct WholeWeight {
    const float* row;
    __device__ __forceinline__ void read(float (&values)[stream_run], long long chunk, int lane) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const long long k = chunk * stream_chunk + half * (stream_chunk / 2) + lane * 4;
            float4 four = load<true>(reinterpret_cast<const float4*>(row + k));
            for_each(four, [&values, half](float& element, int i) { values[4 * half + i] = element; });
        }
    }
};
struct WeightInParts {
    const half_t* highs;
    const signed char* lows;
    __device__ __forceinline__ void read(float (&values)[stream_run], long long chunk, int lane) const {
        const long long place = chunk * stream_chunk + lane * stream_run;
        const auto high = load<true>(reinterpret_cast<const Pack<half_t, stream_run>*>(highs + place));
        const uint2 low = load<true>(reinterpret_cast<const uint2*>(lows + place));
#pragma unroll
        for (int i = 0; i < stream_run; ++i) {
            // A byte b with its sign turned, in the last bits of 2^23, is 2^23 + 128 + b.
            const unsigned byte = ((i < 4 ? low.x : low.y) ^ 0x80808080u) >> i % 4 * 8 & 0xffu;
            const float whole = __uint_as_float(0x4b000000u | byte) - 8388736.0f;
            values[i] = high.of[i] + whole * 0x1p-8f;
        }
    }
};

// The rows of x that are multiplied at once; behind the last that there is, that one again, of which nothing is written. They
// are walked through, since so many addresses would take the registers of the sums.
struct RowsOfX {
    const float* first;
    long long depth;
    int count;
    __device__ __forceinline__ long long step(int row) const { return row + 1 < count ? depth : 0; }
};

// The products of a warp's rows of w with the rows of x, this lane's share of them; `weights` are the warp's rows.
template <class Weight>
__device__ __forceinline__ void multiply_streams(float (&sums)[stream_features][stream_rows],
                                                 const Weight (&weights)[stream_features],
                                                 const RowsOfX& x, int share, int lane, long long chunks) {
#pragma unroll stream_unroll
    for (long long chunk = share; chunk < chunks; chunk += stream_split) {
        float values[stream_features][stream_run];
#pragma unroll
        for (int feature = 0; feature < stream_features; ++feature) {
            weights[feature].read(values[feature], chunk, lane);
        }
        const float* from = x.first + chunk * stream_chunk + lane * 4;
#pragma unroll
        for (int row = 0; row < stream_rows; ++row) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float4 four = *reinterpret_cast<const float4*>(from + half * (stream_chunk / 2));
#pragma unroll
                for (int feature = 0; feature < stream_features; ++feature) {
                    const float(&w)[stream_run] = values[feature];
                    sums[feature][row] += w[4 * half] * four.x;
                    sums[feature][row] += w[4 * half + 1] * four.y;
                    sums[feature][row] += w[4 * half + 2] * four.z;
                    sums[feature][row] += w[4 * half + 3] * four.w;
                }
            }
            from += x.step(row);
        }
    }
}

// y (rows, features) with the bias, which may be null. Of w in parts `highs`, `lows`, `exponents` and `unfit` are not null.
extern "C" __global__ void __launch_bounds__(stream_threads)
    stream_product(const float* __restrict__ x, const float* __restrict__ w, const half_t* __restrict__ highs,
                   const signed char* __restrict__ lows, const int* __restrict__ exponents,
                   const int* __restrict__ unfit, const float* __restrict__ bias, float* __restrict__ y, long long rows,
                   long long features, long long depth, long long chunked) {
    if constexpr (!streams) {
        return;
    }
    constexpr int warps = stream_threads / 32;
    constexpr bool in_parts = stream_weight == stream_weight_t::parts;
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int share = warp % stream_split;
    const long long group = static_cast<long long>(blockIdx.x) * (warps / stream_split) + warp / stream_split;
    const long long first_feature = group * stream_features;
    const long long first_row = static_cast<long long>(blockIdx.y) * stream_rows;

    const RowsOfX rows_of_x{x + first_row * depth, depth,
                            static_cast<int>(min(rows - first_row, static_cast<long long>(stream_rows)))};
    WholeWeight whole[stream_features];
    WeightInParts parts[stream_features];
    bool fit = in_parts;
#pragma unroll
    for (int i = 0; i < stream_features; ++i) {
        const long long feature = min(first_feature + i, features - 1);
        whole[i].row = w + feature * depth;
        if constexpr (in_parts) {
            parts[i] = {highs + feature * chunked, lows + feature * chunked};
            fit = fit && !unfit[feature];
        }
    }
    float sums[stream_features][stream_rows] = {};
    // Whole chunks first, then what is left of the depth: all of it where vectors cannot be read.
    long long chunks = 0;
    if constexpr (in_parts) {
        if (fit && reads_as_vectors(x, depth)) {
            chunks = depth / stream_chunk;
            multiply_streams(sums, parts, rows_of_x, share, lane, chunks);
#pragma unroll
            for (int i = 0; i < stream_features; ++i) {
                const int exponent = exponents[min(first_feature + i, features - 1)];
#pragma unroll
                for (int row = 0; row < stream_rows; ++row) {
                    sums[i][row] = scaled(sums[i][row], -exponent);
                }
            }
        }
    } else if (reads_as_vectors(x, depth) && reads_as_vectors(w, depth)) {
        chunks = depth / stream_chunk;
        multiply_streams(sums, whole, rows_of_x, share, lane, chunks);
    }
#pragma unroll 1
    for (long long k = chunks * stream_chunk + share * 32 + lane; k < depth; k += stream_split * 32) {
        const float* from = rows_of_x.first + k;
#pragma unroll
        for (int row = 0; row < stream_rows; ++row) {
#pragma unroll
            for (int i = 0; i < stream_features; ++i) {
                sums[i][row] += whole[i].row[k] * *from;
            }
            from += rows_of_x.step(row);
        }
    }

    // The lanes' shares are joined, then those of the warps that share the depth.
    __shared__ float of_warps[warps][stream_features * stream_rows];
#pragma unroll
    for (int i = 0; i < stream_features * stream_rows; ++i) {
        float sum = sums[i / stream_rows][i % stream_rows];
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) {
            sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
        }
        if (lane == 0) {
            of_warps[warp][i] = sum;
        }
    }
    __syncthreads();
#pragma unroll 1
    for (int i = lane; share == 0 && i < stream_features * stream_rows; i += 32) {
        const long long feature = first_feature + i / stream_rows;
        const long long row = first_row + i % stream_rows;
        if (feature < features && row < rows) {
            float sum = bias ? bias[feature] : 0.0f;
            for (int other = 0; other < stream_split; ++other) {
                sum += of_warps[warp + other][i];
            }
            y[row * features + feature] = sum;
        }
    }
}
