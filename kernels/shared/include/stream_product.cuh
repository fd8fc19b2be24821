// The fp32 product x · wᵀ of few rows of x: a pass over the weight at the rate of memory, with what follows in its epilogue.
//
// A warp owns stream_features rows of w and multiplies them with all rows of x: every element of w is read once, and those
// of x come from the cache. stream_split warps share the depth, and their sums are joined in a fixed order. `stream_unit`
// says what multiplies: the `lanes`, in fp32, each its share of the depth, or `tensor_cores` (stream_tiles.cuh). The
// weight may be kept in 3 bytes an element, or rounded, in 2 (stream_parts.cuh).
//
// Sizes are tunables (kernels/shared/stream_product.py): `stream_rows` of x at once, `stream_features`, `stream_split`,
// and `stream_unroll` steps of the loop whose reads are under way together.
#pragma once

#include "stream_parts.cuh"
#include "stream_tiles.cuh"
#include "vector.cuh"

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
        const uint2 low = rests_at(lows, place);
#pragma unroll
        for (int i = 0; i < stream_run; ++i) {
            values[i] = high.of[i] + rest_of(low, i);
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

template <class Epilogue>
__device__ __forceinline__ void stream_lanes_of_block(const StreamOperands& given, const Epilogue& epilogue) {
    const auto [x, w, highs, lows, exponents, unfit, rows, features, depth, chunked] = given;
    constexpr int warps = stream_threads / 32;
    constexpr bool in_parts = stream_weight != stream_weight_t::whole;
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
        const float sum = sum_of_lanes(sums[i / stream_rows][i % stream_rows]);
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
            float sum = 0.0f;
            for (int other = 0; other < stream_split; ++other) {
                sum += of_warps[warp + other][i];
            }
            epilogue.feature(feature)(sum, row);
        }
    }
}

template <class Epilogue>
__device__ __forceinline__ void stream_product_of_block(const StreamOperands& given, const Epilogue& epilogue) {
    if constexpr (stream_unit == stream_unit_t::lanes) {
        stream_lanes_of_block(given, epilogue);
    } else {
        stream_tiles_of_block(given, epilogue);
    }
}
