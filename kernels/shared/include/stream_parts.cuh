// The weight of a product of few rows: as it is, or kept in 3 bytes an element, or in 2.
//
// Parts (parts.cuh) are halves and rests in eight bits, which together hold 19 bits of the row's largest magnitude; a rounded
// weight is the halves alone. Rows that these cannot hold are read as they are.
#pragma once

#include "pack.cuh"
#include "parts.cuh"
#include "vector.cuh"

constexpr bool streams = product == product_t::stream && sizeof(scalar_t) == 4;  // Of halves: half_stream.cuh
constexpr int stream_threads = 256;

// Of a chunk of the depth each lane multiplies eight elements: four of each half, so that a warp reads whole lines.
constexpr int stream_run = 8;
constexpr int stream_chunk = 32 * stream_run;

// What a product of few rows multiplies: x (rows, depth) with w (features, depth); of w in parts, all of these are not null.
struct StreamOperands {
    const float* x;
    const float* w;
    const half_t* highs;
    const signed char* lows;
    const int* exponents;
    const int* unfit;
    long long rows, features, depth, chunked;
};

// Where the parts of an element of w are, in the order in which lanes read them: of a row by itself, its chunks, or, for
// tensor cores, of 16 rows together, their tiles of 16 elements of the depth.
__device__ __forceinline__ long long place_of_parts(long long row, long long k, long long chunked) {
    if constexpr (stream_unit == stream_unit_t::lanes) {
        const int in_chunk = static_cast<int>(k % stream_chunk);
        const int lane = in_chunk % (stream_chunk / 2) / 4;
        return row * chunked + k - in_chunk + lane * stream_run + in_chunk / (stream_chunk / 2) * 4 + k % 4;
    } else {
        const int lane = static_cast<int>(row % 8 * 4 + k % 16 / 4);
        return row / 16 * 16 * chunked + k / 16 * 256 + lane * 8 + row % 16 / 8 * 4 + k % 4;
    }
}

// An eight-bit part: a byte b with its sign turned, in the last bits of 2^23, is 2^23 + 128 + b.
__device__ __forceinline__ float low_part(unsigned four, int i) {
    const unsigned byte = (four ^ 0x80808080u) >> i * 8 & 0xffu;
    return (__uint_as_float(0x4b000000u | byte) - 8388736.0f) * (1.0f / PartScale<s8_t>::of_rest);
}

// Of eight neighbours, and of one of them; nothing of a weight that is rounded.
constexpr bool has_rests = stream_weight != stream_weight_t::rounded;
__device__ __forceinline__ uint2 rests_at(const signed char* lows, long long place) {
    return has_rests ? load<true>(reinterpret_cast<const uint2*>(lows + place)) : uint2{};
}
__device__ __forceinline__ float rest_of(uint2 eight, int i) {
    return has_rests ? low_part(i < 4 ? eight.x : eight.y, i % 4) : 0.0f;
}

// A weight in parts, a row to a block: of its whole chunks or steps, `chunked` elements.
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
            const float size = scaled(largest, exponent);
            exponents[row] = exponent;
            unfit[row] = !fits_eights(size, exponent);
        }
        const float power = power_of_two(exponent);
        for (long long k = threadIdx.x; k < chunked; k += stream_threads) {
            const long long place = place_of_parts(row, k, chunked);
            const Split<half_t> parts(source[k] * power);
            highs[place] = parts.high;
            if constexpr (has_rests) {
                lows[place] = s8_t(parts.rest() * PartScale<s8_t>::of_rest).bits;
            }
        }
    }
}
