// Eight-bit numbers as types of storage: e4m3 (a sign, four bits of exponent, three of mantissa, no infinity) and whole
// numbers from -127 to 127. Both round to nearest even, and what is too large becomes the largest there is.
#pragma once

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
__device__ __forceinline__ unsigned short e4m3x2(float first, float second) {
    unsigned short pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
    return pair;
}
#endif

struct e4m3_t {
    unsigned char bits;

    e4m3_t() = default;
    __device__ __forceinline__ explicit e4m3_t(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
        bits = static_cast<unsigned char>(e4m3x2(value, 0.0f));
#else
        const unsigned whole = __float_as_uint(value);
        const unsigned size = whole & 0x7fffffffu;
        unsigned found;
        if (size > 0x7f800000u) {
            found = 0x7fu;
        } else if (size < 0x3c800000u) {  // below 2^-6: adding 2^14 leaves the rounded multiple of 2^-9 in the low bits
            found = __float_as_uint(__uint_as_float(size) + 16384.0f) - 0x46800000u;
        } else {  // half a unit in the last place, less one where the last bit kept is even
            found = min(0x7eu, ((size + 0x7ffffu + (size >> 20 & 1u)) >> 20) - 960u);
        }
        bits = static_cast<unsigned char>(found | (whole >> 24 & 0x80u));
#endif
    }
};

struct s8_t {
    signed char bits;

    s8_t() = default;
    __device__ __forceinline__ explicit s8_t(float value)
        : bits(static_cast<signed char>(fminf(fmaxf(rintf(value), -127.0f), 127.0f))) {}
};

// Four of either in a word, the first in its low bits: where memory put them together, NVRTC would write byte by byte.
template <typename T> __device__ __forceinline__ unsigned pack4(const float (&values)[4]) {
    unsigned word = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        word |= static_cast<unsigned>(static_cast<unsigned char>(T(values[i]).bits)) << 8 * i;
    }
    return word;
}
#if defined(__CUDA_ARCH__)
// Additions have many times the rate of conversions: added to 1.5 · 2^23, a number has its nearest whole one in its low bits.
template <> __device__ __forceinline__ unsigned pack4<s8_t>(const float (&values)[4]) {
    unsigned words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        words[i] = __float_as_uint(fminf(fmaxf(values[i], -127.0f), 127.0f) + 0x1.8p23f);
    }
    return __byte_perm(__byte_perm(words[0], words[1], 0x0040), __byte_perm(words[2], words[3], 0x0040), 0x5410);
}
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
template <> __device__ __forceinline__ unsigned pack4<e4m3_t>(const float (&values)[4]) {
    const unsigned short first = e4m3x2(values[0], values[1]), second = e4m3x2(values[2], values[3]);
    return first | static_cast<unsigned>(second) << 16;
}
#endif
