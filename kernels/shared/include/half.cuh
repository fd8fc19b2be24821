// IEEE half precision as a type of storage, without CUDA's headers: conversions alone, rounding to nearest even.
#pragma once

// Widens by itself wherever a float is expected, and is narrowed to only where the source says so.
struct half_t {
    unsigned short bits;

    half_t() = default;
    __device__ __forceinline__ explicit half_t(float value) {
#ifdef __CUDA_ARCH__
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
        const unsigned whole = __float_as_uint(value);
        const unsigned size = whole & 0x7fffffffu;
        unsigned half;
        if (size >= 0x47800000u) {  // 65536 and more are infinity; a NaN stays one
            half = size > 0x7f800000u ? 0x7e00u : 0x7c00u;
        } else if (size < 0x38800000u) {  // subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits
            half = __float_as_uint(__uint_as_float(size) + 0.5f) - 0x3f000000u;
        } else {  // half a unit in the last place, less one where the last bit kept is even; the carry may reach infinity
            half = (size + 0xc8000fffu + (size >> 13 & 1u)) >> 13;
        }
        bits = static_cast<unsigned short>(half | (whole >> 16 & 0x8000u));
#endif
    }

    __device__ __forceinline__ operator float() const {
#ifdef __CUDA_ARCH__
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
        return value;
#else
        const unsigned size = bits & 0x7fffu;
        const unsigned sign = (bits & 0x8000u) << 16;
        if (size >= 0x7c00u) {
            return __uint_as_float(sign | 0x7f800000u | (size & 0x3ffu) << 13);
        }
        if (size < 0x400u) {
            return __uint_as_float(sign | __float_as_uint(size * 5.9604644775390625e-8f));  // multiples of 2^-24
        }
        return __uint_as_float(sign | ((size << 13) + 0x38000000u));
#endif
    }
};
