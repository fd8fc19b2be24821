// IEEE half precision as a type of storage, without CUDA's headers: conversions alone, rounding to nearest even.
#pragma once

struct half_t {
    unsigned short bits;
};

__device__ __forceinline__ half_t to_half(float value) {
    half_t result;
#ifdef __CUDA_ARCH__
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
#else
    const unsigned bits = __float_as_uint(value);
    const unsigned size = bits & 0x7fffffffu;
    unsigned half;
    if (size >= 0x47800000u) {  // 65536 and more are infinity; a NaN stays one
        half = size > 0x7f800000u ? 0x7e00u : 0x7c00u;
    } else if (size < 0x38800000u) {  // subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits
        half = __float_as_uint(__uint_as_float(size) + 0.5f) - 0x3f000000u;
    } else {  // half a unit in the last place, less one where the last bit kept is even; the carry may reach infinity
        half = (size + 0xc8000fffu + (size >> 13 & 1u)) >> 13;
    }
    result.bits = static_cast<unsigned short>(half | (bits >> 16 & 0x8000u));
#endif
    return result;
}

__device__ __forceinline__ float from_half(half_t value) {
#ifdef __CUDA_ARCH__
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
    return result;
#else
    const unsigned size = value.bits & 0x7fffu;
    const unsigned sign = (value.bits & 0x8000u) << 16;
    if (size >= 0x7c00u) {
        return __uint_as_float(sign | 0x7f800000u | (size & 0x3ffu) << 13);
    }
    if (size < 0x400u) {
        return __uint_as_float(sign | __float_as_uint(size * 5.9604644775390625e-8f));  // multiples of 2^-24
    }
    return __uint_as_float(sign | ((size << 13) + 0x38000000u));
#endif
}

// The same names for a type that needs no conversion, so that templates take either.
template <typename T> struct Stored {
    static __device__ __forceinline__ T from(T value) { return value; }
    static __device__ __forceinline__ T to(T value) { return value; }
};
template <> struct Stored<half_t> {
    static __device__ __forceinline__ half_t from(float value) { return to_half(value); }
    static __device__ __forceinline__ float to(half_t value) { return from_half(value); }
};
