// bfloat16 as a type of storage, without CUDA's headers: conversions alone, rounding to nearest even.
#pragma once

struct bfloat_t {
    unsigned short bits;
};

__device__ __forceinline__ bfloat_t to_bfloat(float value) {
    bfloat_t result;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
#else
    const unsigned bits = __float_as_uint(value);
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    result.bits = static_cast<unsigned short>(is_nan ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
#endif
    return result;
}

__device__ __forceinline__ float from_bfloat(bfloat_t value) {
    return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}
