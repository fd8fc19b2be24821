// What CUDA C++ has built in, for g++: an ordinary .cu file, included after this header, runs on the CPU.
//
// A block's threads are a plain loop that g++ may vectorise, blocks are spread over OpenMP threads, and `__shared__`
// variables are thread-local, since a block stays on one OpenMP thread. A CUDA thread that has to wait for others of
// its block gets a stack of its own at that moment (cuda_on_cpu_fibers.h). Arithmetic is IEEE; products and sums
// contract as nvcc's do. `__CUDA_ARCH__` stays undefined.
//
// It includes next to nothing: every variant is compiled once, and the standard C++ headers would double the time.

#pragma once

#define __global__ inline __attribute__((always_inline))
#define __device__
#define __host__
#define __constant__
#define __shared__ thread_local
#define __managed__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __builtin_align__(bytes) __align__(bytes)

using size_t = decltype(sizeof 0);

extern "C" int printf(const char* format, ...);

// ---------------------------------------------------------------------------------------------------- vector types

#define TUNEBENCH_VECTORS(scalar, name, alignment1, alignment2, alignment4)                                     \
    struct name##1 { scalar x; };                                                                               \
    struct __align__(alignment2) name##2 { scalar x, y; };                                                      \
    struct name##3 { scalar x, y, z; };                                                                         \
    struct __align__(alignment4) name##4 { scalar x, y, z, w; };                                                \
    static inline constexpr name##1 make_##name##1(scalar x) { return {x}; }                                    \
    static inline constexpr name##2 make_##name##2(scalar x, scalar y) { return {x, y}; }                       \
    static inline constexpr name##3 make_##name##3(scalar x, scalar y, scalar z) { return {x, y, z}; }          \
    static inline constexpr name##4 make_##name##4(scalar x, scalar y, scalar z, scalar w) { return {x, y, z, w}; }

TUNEBENCH_VECTORS(signed char, char, 1, 2, 4)
TUNEBENCH_VECTORS(unsigned char, uchar, 1, 2, 4)
TUNEBENCH_VECTORS(short, short, 2, 4, 8)
TUNEBENCH_VECTORS(unsigned short, ushort, 2, 4, 8)
TUNEBENCH_VECTORS(int, int, 4, 8, 16)
TUNEBENCH_VECTORS(unsigned, uint, 4, 8, 16)
TUNEBENCH_VECTORS(long, long, 8, 16, 16)
TUNEBENCH_VECTORS(unsigned long, ulong, 8, 16, 16)
TUNEBENCH_VECTORS(long long, longlong, 8, 16, 16)
TUNEBENCH_VECTORS(unsigned long long, ulonglong, 8, 16, 16)
TUNEBENCH_VECTORS(float, float, 4, 8, 16)
TUNEBENCH_VECTORS(double, double, 8, 16, 16)
#undef TUNEBENCH_VECTORS

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 extents) : x(extents.x), y(extents.y), z(extents.z) {}
    constexpr operator uint3() const { return {x, y, z}; }
};

// ----------------------------------------------------------------------------------------- where a thread finds itself

// Nothing takes these variables' addresses, so g++ keeps them in registers wherever a kernel is inlined into its loop.
static thread_local uint3 threadIdx, blockIdx;
static thread_local uint3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace tunebench {

template <class T> struct Exactly { using type = T; };
template <class T> using exactly = typename Exactly<T>::type;  // a parameter that takes no part in deduction

static thread_local void* dynamic_shared;

// An `extern __shared__` array outside functions is a pointer that each OpenMP thread sets before it runs blocks.
struct SharedArray {
    void (*bind)();
    const SharedArray* next;
    SharedArray(void (*bind)());
};
static const SharedArray* shared_arrays = nullptr;
inline SharedArray::SharedArray(void (*bind)()) : bind(bind), next(shared_arrays) { shared_arrays = this; }

// Ends the launch with a message; the kernel is left where it stands.
[[noreturn]] static void fail(const char* what, const char* detail = "", const char* file = nullptr, int line = 0);

}  // namespace tunebench

static inline void __trap() { tunebench::fail("__trap() was called"); }

// <assert.h>, should a source include it, ends in the same function as the macro here.
extern "C" [[noreturn, gnu::cold, gnu::visibility("hidden")]] void __assert_fail(
    const char* condition, const char* file, unsigned line, const char*) noexcept;
#define assert(condition) \
    (__builtin_expect(!!(condition), 1) ? (void)0 : __assert_fail(#condition, __FILE__, __LINE__, __func__))

// ------------------------------------------------------------------------------------------------- loads and stores

// Cache hints mean nothing here: instructions that pass the caches by are opaque to g++, and slow a loop down instead.
template <class T> __forceinline__ T __ldg(const T* address) { return *address; }
template <class T> __forceinline__ T __ldca(const T* address) { return *address; }
template <class T> __forceinline__ T __ldcg(const T* address) { return *address; }
template <class T> __forceinline__ T __ldcs(const T* address) { return *address; }
template <class T> __forceinline__ T __ldlu(const T* address) { return *address; }
template <class T> __forceinline__ T __ldcv(const T* address) { return *const_cast<const volatile T*>(address); }
template <class T> __forceinline__ void __stwb(T* address, tunebench::exactly<T> value) { *address = value; }
template <class T> __forceinline__ void __stcg(T* address, tunebench::exactly<T> value) { *address = value; }
template <class T> __forceinline__ void __stcs(T* address, tunebench::exactly<T> value) { *address = value; }
template <class T> __forceinline__ void __stwt(T* address, tunebench::exactly<T> value) { *address = value; }

static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// ---------------------------------------------------------------------------------------------------------- atomics

namespace tunebench {

// `change` computes the new value from the old one; the comparison is of bits, so NaN does not loop for ever.
template <class T, class Change> __forceinline__ T exchange_with(T* address, Change change) {
    T old, changed;
    __atomic_load(address, &old, __ATOMIC_RELAXED);
    do {
        changed = change(old);
    } while (!__atomic_compare_exchange(address, &old, &changed, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}

}  // namespace tunebench

#define TUNEBENCH_ATOMIC(name, expression)                                                   \
    template <class T> __forceinline__ T name(T* address, tunebench::exactly<T> value) {     \
        return tunebench::exchange_with(address, [value](T old) -> T { return expression; }); \
    }                                                                                        \
    template <class T> __forceinline__ T name##_block(T* address, tunebench::exactly<T> value) { \
        return name(address, value);                                                         \
    }                                                                                        \
    template <class T> __forceinline__ T name##_system(T* address, tunebench::exactly<T> value) { \
        return name(address, value);                                                         \
    }

TUNEBENCH_ATOMIC(atomicAdd, T(old + value))
TUNEBENCH_ATOMIC(atomicSub, T(old - value))
TUNEBENCH_ATOMIC(atomicMin, value < old ? value : old)
TUNEBENCH_ATOMIC(atomicMax, old < value ? value : old)
TUNEBENCH_ATOMIC(atomicAnd, old& value)
TUNEBENCH_ATOMIC(atomicOr, old | value)
TUNEBENCH_ATOMIC(atomicXor, old ^ value)
TUNEBENCH_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
TUNEBENCH_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1)
TUNEBENCH_ATOMIC(atomicExch, (static_cast<void>(old), value))
#undef TUNEBENCH_ATOMIC

template <class T>
__forceinline__ T atomicCAS(T* address, tunebench::exactly<T> compare, tunebench::exactly<T> value) {
    __atomic_compare_exchange(address, &compare, &value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return compare;
}

#include "cuda_on_cpu_math.h"
#include "cuda_on_cpu_run.h"
