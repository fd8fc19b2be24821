// The power of two that brings a row of a matrix into the range of half precision, and whether halves then hold the row.
#pragma once

// A row whose largest magnitude is m has the exponent e that brings m · 2^e into [2^10, 2^11): far from the largest
// half (2^16), so that a row may grow a little, and low parts stay clear of underflow.
constexpr int exponent_target = 10;
constexpr int exponent_limit = 110;
constexpr int exponent_of_zeros = 126;  // Any number but zero shows as a half at this scale.

__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float((exponent + 127) << 23); }

// value · 2^exponent for exponents beyond what one float holds.
__device__ __forceinline__ float scaled(float value, int exponent) {
    const int half = exponent / 2;
    return value * power_of_two(half) * power_of_two(exponent - half);
}

__device__ __forceinline__ int exponent_for(float largest) {
    if (largest == 0.0f) {
        return exponent_of_zeros;
    }
    const int exponent = ((__float_as_int(largest) >> 23) & 255) - 127;
    return max(-exponent_limit, min(exponent_limit, exponent_target - exponent));
}

// Whether halves hold a row whose largest scaled magnitude is `largest` (NaN where any element is).
__device__ __forceinline__ bool fits(float largest, int exponent) {
    return exponent == exponent_of_zeros ? largest == 0.0f : largest >= 1.0f && largest < 65520.0f;
}

// Magnitudes are compared as integers: their order is that of the bits, with NaN above infinity above all numbers.
__device__ __forceinline__ int abs_bits(float value) { return __float_as_int(value) & 0x7FFFFFFF; }

// The largest magnitude of a row among `threads` threads, of which this is number `thread`; of a part of the block if
// `threads` is less than the block, which must be a whole number of warps.
__device__ __forceinline__ int largest_of_row(const float* __restrict__ row, long long depth, bool vectors, int thread,
                                              int threads) {
    int largest = 0;
    if (vectors) {
#pragma unroll 4
        for (long long k = thread; k < depth / 4; k += threads) {
            const float4 v = reinterpret_cast<const float4*>(row)[k];
            largest = max(max(largest, max(abs_bits(v.x), abs_bits(v.y))), max(abs_bits(v.z), abs_bits(v.w)));
        }
    } else {
        for (long long k = thread; k < depth; k += threads) {
            largest = max(largest, abs_bits(row[k]));
        }
    }
    return largest;
}

// The largest of a whole number of warps, for each of them; the block's other warps may do the same beside them.
template <int block_threads, int threads> __device__ __forceinline__ float largest_of_warps(int largest) {
    __shared__ int warps[block_threads / 32];
    for (int distance = 16; distance > 0; distance /= 2) {
        largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, distance));
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        warps[threadIdx.x / 32] = largest;
    }
    __syncthreads();
    const int first = threadIdx.x / threads * (threads / 32);
    for (int warp = 0; warp < threads / 32; ++warp) {
        largest = max(largest, warps[first + warp]);
    }
    return __int_as_float(largest);
}

__device__ __forceinline__ bool reads_as_vectors(const float* matrix, long long depth) {
    return reinterpret_cast<unsigned long long>(matrix) % 16 == 0 && depth % 4 == 0;
}
