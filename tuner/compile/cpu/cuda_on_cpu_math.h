// CUDA's arithmetic functions for cuda_on_cpu.h.
//
// All are functions of their own rather than <cmath>'s: that header costs more than a kernel, and glibc's `fminf` and
// `expf` are calls that keep a loop from being vectorised. What is not written out here goes to the C library.

#pragma once

// A source that includes <cmath> or <math.h> keeps these functions, whose names would clash with theirs.
#define _GLIBCXX_CMATH 1
#define _GLIBCXX_MATH_H 1
#define _MATH_H 1

#define INFINITY (__builtin_inff())
#define NAN (__builtin_nanf(""))

// ----------------------------------------------------------------------------------------------------- bits and casts

namespace tunebench {

template <class To, class From> __forceinline__ To bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

}  // namespace tunebench

static inline int __float_as_int(float x) { return tunebench::bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return tunebench::bits<unsigned>(x); }
static inline float __int_as_float(int x) { return tunebench::bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return tunebench::bits<float>(x); }
static inline long long __double_as_longlong(double x) { return tunebench::bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return tunebench::bits<double>(x); }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
static inline unsigned __umulhi(unsigned x, unsigned y) { return (1ull * x * y) >> 32; }
static inline int __mulhi(int x, int y) { return (1ll * x * y) >> 32; }
static inline int __mul24(int x, int y) { return ((x << 8) >> 8) * ((y << 8) >> 8); }
static inline unsigned __brev(unsigned x) {
    x = (x >> 1 & 0x55555555) | (x & 0x55555555) << 1;
    x = (x >> 2 & 0x33333333) | (x & 0x33333333) << 2;
    x = (x >> 4 & 0x0f0f0f0f) | (x & 0x0f0f0f0f) << 4;
    return __builtin_bswap32(x);
}

// ----------------------------------------------------------------------------------------- one name, several types

#define TUNEBENCH_C_FUNCTION(name)                                                  \
    static inline float name##f(float x) { return __builtin_##name##f(x); }         \
    static inline double name(double x) { return __builtin_##name(x); }             \
    static inline float name(float x) { return name##f(x); }
#define TUNEBENCH_C_FUNCTION2(name)                                                       \
    static inline float name##f(float x, float y) { return __builtin_##name##f(x, y); }   \
    static inline double name(double x, double y) { return __builtin_##name(x, y); }      \
    static inline float name(float x, float y) { return name##f(x, y); }

TUNEBENCH_C_FUNCTION(sqrt)
TUNEBENCH_C_FUNCTION(cbrt)
TUNEBENCH_C_FUNCTION(exp2)
TUNEBENCH_C_FUNCTION(exp10)
TUNEBENCH_C_FUNCTION(expm1)
TUNEBENCH_C_FUNCTION(log)
TUNEBENCH_C_FUNCTION(log2)
TUNEBENCH_C_FUNCTION(log10)
TUNEBENCH_C_FUNCTION(log1p)
TUNEBENCH_C_FUNCTION(sin)
TUNEBENCH_C_FUNCTION(cos)
TUNEBENCH_C_FUNCTION(tan)
TUNEBENCH_C_FUNCTION(asin)
TUNEBENCH_C_FUNCTION(acos)
TUNEBENCH_C_FUNCTION(atan)
TUNEBENCH_C_FUNCTION(sinh)
TUNEBENCH_C_FUNCTION(cosh)
TUNEBENCH_C_FUNCTION(asinh)
TUNEBENCH_C_FUNCTION(acosh)
TUNEBENCH_C_FUNCTION(atanh)
TUNEBENCH_C_FUNCTION(erf)
TUNEBENCH_C_FUNCTION(erfc)
TUNEBENCH_C_FUNCTION(tgamma)
TUNEBENCH_C_FUNCTION(lgamma)
TUNEBENCH_C_FUNCTION(floor)
TUNEBENCH_C_FUNCTION(ceil)
TUNEBENCH_C_FUNCTION(trunc)
TUNEBENCH_C_FUNCTION(round)
TUNEBENCH_C_FUNCTION(rint)
TUNEBENCH_C_FUNCTION(nearbyint)
TUNEBENCH_C_FUNCTION(fabs)
TUNEBENCH_C_FUNCTION2(pow)
TUNEBENCH_C_FUNCTION2(atan2)
TUNEBENCH_C_FUNCTION2(hypot)
TUNEBENCH_C_FUNCTION2(fmod)
TUNEBENCH_C_FUNCTION2(copysign)
#undef TUNEBENCH_C_FUNCTION
#undef TUNEBENCH_C_FUNCTION2

static inline float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
static inline double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
static inline float fma(float x, float y, float z) { return fmaf(x, y, z); }
static inline float ldexpf(float x, int power) { return __builtin_ldexpf(x, power); }
static inline double ldexp(double x, int power) { return __builtin_ldexp(x, power); }

#define TUNEBENCH_CLASSIFY(T)                                        \
    static inline bool isnan(T x) { return x != x; }                 \
    static inline bool isinf(T x) { return __builtin_isinf(x); }     \
    static inline bool isfinite(T x) { return __builtin_isfinite(x); } \
    static inline bool signbit(T x) { return __builtin_signbit(x); }
TUNEBENCH_CLASSIFY(float)
TUNEBENCH_CLASSIFY(double)
#undef TUNEBENCH_CLASSIFY

// A NaN loses against a number, as in CUDA; of two zeros either may come back, which C allows as well.
#define TUNEBENCH_FLOATING_MINIMUM(T, minimum, maximum)                            \
    static inline T minimum(T x, T y) { return x < y || y != y ? x : y; }          \
    static inline T maximum(T x, T y) { return x > y || y != y ? x : y; }
TUNEBENCH_FLOATING_MINIMUM(float, fminf, fmaxf)
TUNEBENCH_FLOATING_MINIMUM(float, fmin, fmax)
TUNEBENCH_FLOATING_MINIMUM(float, min, max)
TUNEBENCH_FLOATING_MINIMUM(double, fmin, fmax)
TUNEBENCH_FLOATING_MINIMUM(double, min, max)
#undef TUNEBENCH_FLOATING_MINIMUM

#define TUNEBENCH_MINIMUM(Result, T, U)                               \
    static inline constexpr Result min(T first, U second) {           \
        const Result x = first, y = second;                           \
        return x < y ? x : y;                                         \
    }                                                                 \
    static inline constexpr Result max(T first, U second) {           \
        const Result x = first, y = second;                           \
        return x < y ? y : x;                                         \
    }
#define TUNEBENCH_INTEGER_MINIMUM(T)                                  \
    TUNEBENCH_MINIMUM(T, T, T)                                        \
    TUNEBENCH_MINIMUM(unsigned T, unsigned T, unsigned T)             \
    TUNEBENCH_MINIMUM(unsigned T, T, unsigned T)                      \
    TUNEBENCH_MINIMUM(unsigned T, unsigned T, T)
TUNEBENCH_INTEGER_MINIMUM(int)
TUNEBENCH_INTEGER_MINIMUM(long)
TUNEBENCH_INTEGER_MINIMUM(long long)
#undef TUNEBENCH_INTEGER_MINIMUM
#undef TUNEBENCH_MINIMUM
static inline double min(float x, double y) { return min(double(x), y); }
static inline double min(double x, float y) { return min(x, double(y)); }
static inline double max(float x, double y) { return max(double(x), y); }
static inline double max(double x, float y) { return max(x, double(y)); }

extern "C" int abs(int x) noexcept;  // as <stdlib.h> declares it, which takes no overloads beside it
namespace tunebench::absolute {
static inline constexpr long abs(long x) { return x < 0 ? -x : x; }
static inline constexpr long long abs(long long x) { return x < 0 ? -x : x; }
static inline float abs(float x) { return __builtin_fabsf(x); }
static inline double abs(double x) { return __builtin_fabs(x); }
}  // namespace tunebench::absolute
using namespace tunebench::absolute;

// -------------------------------------------------------------------------------------- exp and tanh, fit for vectors

// e^x to within 1.1 units in the last place, subnormal results included: e^x = 2^n * e^r with |r| <= ln(2)/2, ln(2) in
// two parts so that r is exact enough, and 2^n in two factors so that neither leaves the range.
static inline float expf(float x) {
    x = x < -104.0f ? -104.0f : x;  // beyond these it is 0 or infinity anyway; a NaN passes both comparisons
    x = x > 89.0f ? 89.0f : x;
    constexpr float to_integer = 12582912.0f;  // 1.5 * 2^23: adding it leaves the rounded integer in the low bits
    const float shifted = __builtin_fmaf(x, 1.44269504f, to_integer);
    const float n = shifted - to_integer;
    float r = __builtin_fmaf(n, -0.693359375f, x);
    r = __builtin_fmaf(n, 2.12194440e-4f, r);
    float p = 1.98412698e-4f;
    p = __builtin_fmaf(p, r, 1.38888889e-3f);
    p = __builtin_fmaf(p, r, 8.33333333e-3f);
    p = __builtin_fmaf(p, r, 4.16666667e-2f);
    p = __builtin_fmaf(p, r, 1.66666667e-1f);
    p = __builtin_fmaf(p, r, 0.5f);
    p = __builtin_fmaf(p, r, 1.0f);
    p = __builtin_fmaf(p, r, 1.0f);
    const int power = __float_as_int(shifted) - __float_as_int(to_integer);
    const int half = power >> 1;
    return p * __int_as_float((half + 127) << 23) * __int_as_float((power - half + 127) << 23);
}
static inline double exp(double x) { return __builtin_exp(x); }
static inline float exp(float x) { return expf(x); }

// tanh(x) to within 2 units in the last place: its series where |x| is small, else by way of e^(2|x|).
static inline float tanhf(float x) {
    const float size = __builtin_fabsf(x);
    const float square = x * x;
    float p = -8.8632355e-3f;
    p = __builtin_fmaf(p, square, 2.1869488e-2f);
    p = __builtin_fmaf(p, square, -5.3968254e-2f);
    p = __builtin_fmaf(p, square, 1.3333333e-1f);
    p = __builtin_fmaf(p, square, -3.3333333e-1f);
    const float small = __builtin_fmaf(p * square, x, x);
    const float large = 1.0f - 2.0f / (expf(2.0f * size) + 1.0f);
    return __builtin_copysignf(size < 0.35f ? small : large, x);
}
static inline double tanh(double x) { return __builtin_tanh(x); }
static inline float tanh(float x) { return tanhf(x); }

// ------------------------------------------------------------------------------------------------------- intrinsics

namespace tunebench {

// Keeps a product or a sum from being contracted with what comes next, for the functions whose name promises a rounding
// of its own. A loop with it is not vectorised; what g++ has for the purpose gets lost when a loop is.
template <class T> __forceinline__ T rounded(T x) {
#if defined(__x86_64__)
    asm("" : "+x"(x));
#elif defined(__aarch64__)
    asm("" : "+w"(x));
#else
    asm("" : "+m"(x));
#endif
    return x;
}

}  // namespace tunebench

static inline float __fadd_rn(float x, float y) { return tunebench::rounded(x + y); }
static inline float __fsub_rn(float x, float y) { return tunebench::rounded(x - y); }
static inline float __fmul_rn(float x, float y) { return tunebench::rounded(x * y); }
static inline float __fdiv_rn(float x, float y) { return x / y; }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __frsqrt_rn(float x) { return float(1.0 / sqrt(double(x))); }
static inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
static inline double __dadd_rn(double x, double y) { return tunebench::rounded(x + y); }
static inline double __dsub_rn(double x, double y) { return tunebench::rounded(x - y); }
static inline double __dmul_rn(double x, double y) { return tunebench::rounded(x * y); }
static inline double __ddiv_rn(double x, double y) { return x / y; }
static inline double __drcp_rn(double x) { return 1.0 / x; }
static inline double __dsqrt_rn(double x) { return sqrt(x); }
static inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }

static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float rsqrt(float x) { return rsqrtf(x); }
static inline float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }
static inline float fdividef(float x, float y) { return x / y; }
static inline float __fdividef(float x, float y) { return x / y; }
static inline float __expf(float x) { return expf(x); }
static inline float __exp10f(float x) { return exp10f(x); }
static inline float __logf(float x) { return logf(x); }
static inline float __log2f(float x) { return log2f(x); }
static inline float __log10f(float x) { return log10f(x); }
static inline float __powf(float x, float y) { return powf(x, y); }
static inline float __sinf(float x) { return sinf(x); }
static inline float __cosf(float x) { return cosf(x); }
static inline float __tanf(float x) { return tanf(x); }
static inline void sincosf(float x, float* sine, float* cosine) { *sine = sinf(x), *cosine = cosf(x); }
static inline void __sincosf(float x, float* sine, float* cosine) { sincosf(x, sine, cosine); }

static inline float __int2float_rn(int x) { return float(x); }
static inline float __uint2float_rn(unsigned x) { return float(x); }
static inline float __double2float_rn(double x) { return float(x); }
static inline int __float2int_rn(float x) { return int(rintf(x)); }
static inline int __float2int_rz(float x) { return int(x); }
static inline int __float2int_rd(float x) { return int(floorf(x)); }
static inline int __float2int_ru(float x) { return int(ceilf(x)); }
