// The rule by which numbers are split into parts of fewer bits, which all products of parts share.
//
// A row of a matrix is multiplied by the power of two that brings it into the range of half precision. Each of its values v is
// then high + rest, where high is v in a type of fewer bits; where these are 11, |rest| is at most 2^-11 of |v| for the first
// 11 bits (TF32), and half of that for the nearest ones. A rest is kept in a type of its own, which may take a power of two.
#pragma once

#include "bfloat.cuh"
#include "eight.cuh"
#include "half.cuh"
#include "warp.cuh"

template <bool condition, typename A, typename B> struct ChosenType { using type = A; };
template <typename A, typename B> struct ChosenType<false, A, B> { using type = B; };
template <bool condition, typename A, typename B> using Choose = typename ChosenType<condition, A, B>::type;

// Two of a half type in a word, the first in its low bits.
template <typename T> __device__ __forceinline__ unsigned pack2(float first, float second) {
    return T(first).bits | static_cast<unsigned>(T(second).bits) << 16;
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
template <> __device__ __forceinline__ unsigned pack2<half_t>(float first, float second) {
    unsigned word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
}
template <> __device__ __forceinline__ unsigned pack2<bfloat_t>(float first, float second) {
    unsigned word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
}
#endif

template <typename T> struct Split {
    float value;
    T high;
    __device__ __forceinline__ explicit Split(float value) : value(value), high(value) {}
    __device__ __forceinline__ float rest() const { return value - high; }
};

// The first 11 bits of a number of fp32: one of TF32, which has all of fp32's range.
struct tf32_t {
    float value;
    __device__ __forceinline__ explicit tf32_t(float whole) {
        value = __uint_as_float(__float_as_uint(whole) & 0xffffe000u);  // nvcc compiles initialisers for the host too
    }
    __device__ __forceinline__ operator float() const { return value; }
};

// To the nearest 11 bits, and away from zero where two are as near, as cuDNN rounds the operands of TF32 products.
__device__ __forceinline__ float to_eleven_bits(float value) {
    return tf32_t(__uint_as_float(__float_as_uint(value) + 0x1000u));
}

// The powers of two that bring high parts (below 2^11) and rests (1/2 at most) into the range of a type (eight bits: 448 and
// 127) but for a rounding, so that the small terms high · rest and rest · high have one scale, `of_terms`.
template <int high, int rest> struct PowersOfTwo {
    static constexpr float of_high = high < 0 ? 1.0f / (1 << -high) : 1 << high, of_rest = 1 << rest;
    static constexpr float of_terms = of_high * of_rest;
};
template <typename T> struct PartScale : PowersOfTwo<0, 0> {};
template <> struct PartScale<half_t> : PowersOfTwo<0, 11> {};
template <> struct PartScale<e4m3_t> : PowersOfTwo<-3, 9> {};
template <> struct PartScale<s8_t> : PowersOfTwo<-4, 8> {};

#ifdef __CUDA_ARCH__
// Two values in halves: a word of high parts, and one of rests.
struct SplitHalves {
    unsigned high, rest;
    __device__ __forceinline__ SplitHalves(float first, float second) : high(pack2<half_t>(first, second)) {
        rest = pack2<half_t>(first - first_half(high), second - second_half(high));
    }
    static __device__ __forceinline__ float first_half(unsigned word) {
        float value;
        asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.f32.f16 %0, low;\n}" : "=f"(value) : "r"(word));
        return value;
    }
    static __device__ __forceinline__ float second_half(unsigned word) {
        float value;
        asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.f32.f16 %0, high;\n}" : "=f"(value) : "r"(word));
        return value;
    }
};
#endif

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

// Whether halves with rests in eight bits do: a row that no exponent brings into range may be larger than 2^11.
__device__ __forceinline__ bool fits_eights(float largest, int exponent) {
    return fits(largest, exponent) && largest < 2048.0f;
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
    largest = largest_of_lanes(largest);
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
