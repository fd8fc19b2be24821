// bfloat16 as a type of storage, without CUDA's headers: conversions alone, rounding to nearest even.
#pragma once

// Widens by itself wherever a float is expected, and is narrowed to only where the source says so.
struct bfloat_t {
    unsigned short bits;

    bfloat_t() = default;
    __device__ __forceinline__ explicit bfloat_t(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
        const unsigned whole = __float_as_uint(value);
        const bool is_nan = (whole & 0x7fffffffu) > 0x7f800000u;
        bits = static_cast<unsigned short>(is_nan ? 0x7fffu : (whole + 0x7fffu + (whole >> 16 & 1u)) >> 16);
#endif
    }

    __device__ __forceinline__ operator float() const { return __uint_as_float(static_cast<unsigned>(bits) << 16); }
};
