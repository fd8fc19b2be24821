// The functions of the field, for the device functions that blocks are written with: on accumulator_t, with torch's
// treatment of NaN and infinities. A device function stands in this namespace, so that these come before CUDA's own.
//
// `fast_math` (a tunable; never for float64) takes CUDA's fast exponential, logarithm and division in those that need
// them, which are off by a few units in the last place more. `FAST_TANH`, of half types, takes the device's own tanh
// (tanh.approx of the PTX ISA), and sigmoids by it: off by 2^-11 of 1, in one step of the unit that takes two for the
// exponential and the division.
#pragma once

#ifndef FAST_TANH
#define FAST_TANH false
#endif

// NVRTC has no <math.h>.
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif

namespace functions {

constexpr bool is_double = sizeof(accumulator_t) == 8;
constexpr bool is_fast = fast_math && !is_double;
constexpr bool is_tanh_fast = is_fast && FAST_TANH;

#define TUNEBENCH_FUNCTION(name)                                                     \
    __device__ __forceinline__ accumulator_t name(accumulator_t x) {                 \
        return is_double ? accumulator_t(::name(double(x))) : accumulator_t(::name##f(float(x))); \
    }
TUNEBENCH_FUNCTION(sqrt)
TUNEBENCH_FUNCTION(rsqrt)
TUNEBENCH_FUNCTION(expm1)
TUNEBENCH_FUNCTION(log1p)
TUNEBENCH_FUNCTION(erf)
TUNEBENCH_FUNCTION(floor)
TUNEBENCH_FUNCTION(ceil)
TUNEBENCH_FUNCTION(trunc)
TUNEBENCH_FUNCTION(sin)
TUNEBENCH_FUNCTION(cos)
#undef TUNEBENCH_FUNCTION

__device__ __forceinline__ accumulator_t abs(accumulator_t x) {
    return is_double ? accumulator_t(::fabs(double(x))) : accumulator_t(::fabsf(float(x)));
}

__device__ __forceinline__ accumulator_t pow(accumulator_t x, accumulator_t power) {
    return is_double ? accumulator_t(::pow(double(x), double(power))) : accumulator_t(::powf(float(x), float(power)));
}

__device__ __forceinline__ accumulator_t exp(accumulator_t x) {
    if constexpr (is_fast) {
        return __expf(x);
    }
    return is_double ? accumulator_t(::exp(double(x))) : accumulator_t(::expf(float(x)));
}

__device__ __forceinline__ accumulator_t log(accumulator_t x) {
    if constexpr (is_fast) {
        return __logf(x);
    }
    return is_double ? accumulator_t(::log(double(x))) : accumulator_t(::logf(float(x)));
}

__device__ __forceinline__ accumulator_t divide(accumulator_t x, accumulator_t y) {
    if constexpr (is_fast) {
        return __fdividef(x, y);
    }
    return x / y;
}

__device__ __forceinline__ accumulator_t device_tanh(accumulator_t x) {
#ifdef __CUDA_ARCH__
    float found;
    asm("tanh.approx.f32 %0, %1;" : "=f"(found) : "f"(static_cast<float>(x)));
    return found;
#else
    return accumulator_t(::tanhf(float(x)));
#endif
}

// 1 - 2 / (e^2x + 1) is off by some 1e-7 of 1, however small x is.
__device__ __forceinline__ accumulator_t tanh(accumulator_t x) {
    if constexpr (is_tanh_fast) {
        return device_tanh(x);
    } else if constexpr (is_fast) {
        return 1 - __fdividef(2.0f, __expf(2 * x) + 1);
    }
    return is_double ? accumulator_t(::tanh(double(x))) : accumulator_t(::tanhf(float(x)));
}

// A NaN stays one, as in torch; CUDA's own functions drop it.
__device__ __forceinline__ accumulator_t max(accumulator_t x, accumulator_t y) { return x > y || x != x ? x : y; }
__device__ __forceinline__ accumulator_t min(accumulator_t x, accumulator_t y) { return x < y || x != x ? x : y; }
__device__ __forceinline__ accumulator_t clamp(accumulator_t x, accumulator_t low, accumulator_t high) {
    return min(max(x, low), high);
}

__device__ __forceinline__ accumulator_t square(accumulator_t x) { return x * x; }
__device__ __forceinline__ accumulator_t sign(accumulator_t x) {
    return x > 0 ? accumulator_t(1) : x < 0 ? accumulator_t(-1) : accumulator_t(0);
}
// For logsumexp: the shift of a row whose maximum is no number.
__device__ __forceinline__ accumulator_t zero_if_infinite(accumulator_t x) {
    return abs(x) == accumulator_t(INFINITY) ? accumulator_t(0) : x;
}

// e^-x of a large negative x is infinite, and 1 / infinity the right 0.
__device__ __forceinline__ accumulator_t sigmoid(accumulator_t x) {
    if constexpr (is_tanh_fast) {
        return accumulator_t(0.5) + accumulator_t(0.5) * device_tanh(accumulator_t(0.5) * x);
    }
    return divide(1, 1 + exp(-x));
}
__device__ __forceinline__ accumulator_t silu(accumulator_t x) {
    if constexpr (is_tanh_fast) {
        return accumulator_t(0.5) * x + accumulator_t(0.5) * x * device_tanh(accumulator_t(0.5) * x);
    }
    return divide(x, 1 + exp(-x));
}
__device__ __forceinline__ accumulator_t swish(accumulator_t x) { return silu(x); }
__device__ __forceinline__ accumulator_t softplus(accumulator_t x, accumulator_t beta = 1, accumulator_t threshold = 20) {
    if (x * beta > threshold) {
        return x;
    }
    return (is_fast ? log(1 + exp(x * beta)) : log1p(exp(x * beta))) / beta;
}
__device__ __forceinline__ accumulator_t logsigmoid(accumulator_t x) {
    const accumulator_t e = exp(-abs(x));
    return min(x, 0) - (is_fast ? log(1 + e) : log1p(e));
}
// x tanh(log(1 + e^x)); with e^x (e^x + 2) = p, that is x p / (p + 2). There the fast division is off by two units in the last
// place, since p + 2 is neither small nor large.
__device__ __forceinline__ accumulator_t mish(accumulator_t x) {
    const accumulator_t e = exp(x), p = e * (e + 2);
    return x > 20 ? x : x * (is_double ? p / (p + 2) : accumulator_t(__fdividef(p, p + 2)));
}
__device__ __forceinline__ accumulator_t gelu(accumulator_t x) {
    return x * accumulator_t(0.5) * (1 + erf(x * accumulator_t(0.70710678118654752440)));
}
__device__ __forceinline__ accumulator_t gelu_tanh(accumulator_t x) {
    const accumulator_t inner = accumulator_t(0.79788456080286535588) * (x + accumulator_t(0.044715) * x * x * x);
    return accumulator_t(0.5) * x * (1 + tanh(inner));
}

__device__ __forceinline__ accumulator_t relu(accumulator_t x) { return x < 0 ? accumulator_t(0) : x; }
__device__ __forceinline__ accumulator_t relu6(accumulator_t x) { return clamp(x, 0, 6); }
__device__ __forceinline__ accumulator_t leaky_relu(accumulator_t x, accumulator_t slope = accumulator_t(0.01)) {
    return x > 0 ? x : x * slope;
}
__device__ __forceinline__ accumulator_t elu(accumulator_t x, accumulator_t alpha = 1) {
    return x > 0 ? x : alpha * expm1(x);
}
__device__ __forceinline__ accumulator_t celu(accumulator_t x, accumulator_t alpha = 1) {
    return x > 0 ? x : alpha * expm1(x / alpha);
}
__device__ __forceinline__ accumulator_t selu(accumulator_t x) {
    return accumulator_t(1.0507009873554804934193349852946) * elu(x, accumulator_t(1.6732632423543772848170429916717));
}
__device__ __forceinline__ accumulator_t hardtanh(accumulator_t x, accumulator_t low = -1, accumulator_t high = 1) {
    return clamp(x, low, high);
}
__device__ __forceinline__ accumulator_t hardsigmoid(accumulator_t x) { return clamp(x + 3, 0, 6) * accumulator_t(1.0 / 6); }
__device__ __forceinline__ accumulator_t hardswish(accumulator_t x) { return x * hardsigmoid(x); }
__device__ __forceinline__ accumulator_t softsign(accumulator_t x) { return x / (1 + abs(x)); }
__device__ __forceinline__ accumulator_t tanhshrink(accumulator_t x) { return x - tanh(x); }
__device__ __forceinline__ accumulator_t hardshrink(accumulator_t x, accumulator_t size = accumulator_t(0.5)) {
    return x >= -size && x <= size ? accumulator_t(0) : x;
}
__device__ __forceinline__ accumulator_t softshrink(accumulator_t x, accumulator_t size = accumulator_t(0.5)) {
    return x > size ? x - size : x < -size ? x + size : x * 0;
}

}  // namespace functions
