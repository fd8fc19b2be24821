// Hopper's matrix products of a warpgroup, four warps (wgmma of the PTX ISA manual). As hopper.cuh, under `#if TUNEBENCH_HOPPER`.
#pragma once

#include "eight.cuh"
#include "hopper.cuh"

#if TUNEBENCH_HOPPER

// An operand in shared memory without swizzle: 8 rows of 16 bytes along K (8 halves) lie together as a core matrix of
// 128 bytes; `along_k` and `along_rows` are the bytes from one core matrix to the next in either direction.
__device__ __forceinline__ u64 wgmma_descriptor(u32 address, u32 along_k, u32 along_rows) {
    return static_cast<u64>((address & 0x3FFFF) >> 4) | static_cast<u64>(along_k >> 4) << 16 |
           static_cast<u64>(along_rows >> 4) << 32;
}

// One whose rows of 128 bytes (or 64, or 32) lie one after the other, swizzled as the copy engine's CU_TENSOR_MAP_SWIZZLE_128B
// (64B, 32B); the first is at a multiple of eight rows, and the next 32 bytes along K begin 32 further.
template <int row_bytes = 128> __device__ __forceinline__ u64 wgmma_swizzled(u32 address) {
    constexpr u64 mode = row_bytes == 128 ? 1 : row_bytes == 64 ? 2 : 3;
    return wgmma_descriptor(address, 16, 8 * row_bytes) | mode << 62;
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int pending> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// d (64 x columns) = a (64 x 32 bytes) · b (columns x 32 bytes)ᵀ, plus d where `accumulate`. `a` is a descriptor, or, of half
// types, lies in registers, two halves each: rows lane / 4 of each warp's 16 and columns 2 · (lane % 4), the same
// 8 rows below, then both 8 columns further. Sums are fp32 (of e4m3 the tensor cores keep some 14 bits), those of whole
// numbers int.
//
// Of row 16 · warp + lane / 4 (+ 8) a thread holds the columns 8 · j + 2 · (lane % 4) (+ 1), as
// d[4 · j + 2 · (8 rows below) + (next column)].
template <int columns, typename T> struct Wgmma;

// The numbers of d's registers in PTX, and the operands that they stand for, ten at a time; `t` are the tens.
#define TUNEBENCH_PTX_10(t) \
    "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9, "
#define TUNEBENCH_PTX_60 \
    TUNEBENCH_PTX_10() TUNEBENCH_PTX_10(1) TUNEBENCH_PTX_10(2) TUNEBENCH_PTX_10(3) TUNEBENCH_PTX_10(4) TUNEBENCH_PTX_10(5)
#define TUNEBENCH_PTX_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define TUNEBENCH_PTX_16 TUNEBENCH_PTX_10() "%10, %11, %12, %13, %14, %15"
#define TUNEBENCH_PTX_32 TUNEBENCH_PTX_10() TUNEBENCH_PTX_10(1) TUNEBENCH_PTX_10(2) "%30, %31"
#define TUNEBENCH_PTX_64 TUNEBENCH_PTX_60 "%60, %61, %62, %63"
#define TUNEBENCH_PTX_80 TUNEBENCH_PTX_60 TUNEBENCH_PTX_10(6) "%70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define TUNEBENCH_PTX_96 \
    TUNEBENCH_PTX_60 TUNEBENCH_PTX_10(6) TUNEBENCH_PTX_10(7) TUNEBENCH_PTX_10(8) "%90, %91, %92, %93, %94, %95"
#define TUNEBENCH_PTX_128 \
    TUNEBENCH_PTX_60 TUNEBENCH_PTX_10(6) TUNEBENCH_PTX_10(7) TUNEBENCH_PTX_10(8) TUNEBENCH_PTX_10(9) TUNEBENCH_PTX_10(10) \
    TUNEBENCH_PTX_10(11) "%120, %121, %122, %123, %124, %125, %126, %127"
#define TUNEBENCH_D_FOUR(in, t, a, b, c, e) in(d[t##a]), in(d[t##b]), in(d[t##c]), in(d[t##e])
#define TUNEBENCH_D_EIGHT(in, t) TUNEBENCH_D_FOUR(in, t, 0, 1, 2, 3), TUNEBENCH_D_FOUR(in, t, 4, 5, 6, 7)
#define TUNEBENCH_D_10(in, t) TUNEBENCH_D_EIGHT(in, t), in(d[t##8]), in(d[t##9])
#define TUNEBENCH_D_8(in) TUNEBENCH_D_EIGHT(in, )
#define TUNEBENCH_D_16(in) TUNEBENCH_D_10(in, ), TUNEBENCH_D_FOUR(in, 1, 0, 1, 2, 3), in(d[14]), in(d[15])
#define TUNEBENCH_D_32(in) \
    TUNEBENCH_D_10(in, ), TUNEBENCH_D_10(in, 1), TUNEBENCH_D_10(in, 2), in(d[30]), in(d[31])
#define TUNEBENCH_D_60(in) \
    TUNEBENCH_D_10(in, ), TUNEBENCH_D_10(in, 1), TUNEBENCH_D_10(in, 2), TUNEBENCH_D_10(in, 3), TUNEBENCH_D_10(in, 4), \
        TUNEBENCH_D_10(in, 5)
#define TUNEBENCH_D_64(in) TUNEBENCH_D_60(in), TUNEBENCH_D_FOUR(in, 6, 0, 1, 2, 3)
#define TUNEBENCH_D_80(in) TUNEBENCH_D_60(in), TUNEBENCH_D_10(in, 6), TUNEBENCH_D_10(in, 7)
#define TUNEBENCH_D_96(in) \
    TUNEBENCH_D_80(in), TUNEBENCH_D_10(in, 8), TUNEBENCH_D_FOUR(in, 9, 0, 1, 2, 3), in(d[94]), in(d[95])
#define TUNEBENCH_D_128(in) \
    TUNEBENCH_D_60(in), TUNEBENCH_D_10(in, 6), TUNEBENCH_D_10(in, 7), TUNEBENCH_D_10(in, 8), TUNEBENCH_D_10(in, 9), \
        TUNEBENCH_D_10(in, 10), TUNEBENCH_D_10(in, 11), TUNEBENCH_D_FOUR(in, 12, 0, 1, 2, 3), TUNEBENCH_D_FOUR(in, 12, 4, 5, 6, 7)

// `registers` of d, each constrained as `in`; `factors` and `accumulates` are the numbers of the operands behind them.
#define TUNEBENCH_WGMMA(registers, in, instruction, factors, accumulates, end, ...) \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " accumulates ", 0;\nwgmma.mma_async.sync.aligned." instruction \
                 " {" TUNEBENCH_PTX_##registers "}, " factors ", p" end ";\n}\n" \
                 : TUNEBENCH_D_##registers(in) \
                 : __VA_ARGS__, "r"(static_cast<int>(accumulate)))
#define TUNEBENCH_WGMMA_OF_DESCRIPTORS(columns, registers, sum, in, types, factors, accumulates, end) \
    using sum_t = sum; \
    static __device__ __forceinline__ void run(sum (&d)[registers], u64 a, u64 b, bool accumulate) { \
        TUNEBENCH_WGMMA(registers, in, "m64n" #columns types, factors, accumulates, end, "l"(a), "l"(b)); \
    }
#define TUNEBENCH_WGMMA_OF_REGISTERS(columns, registers, types, factors, accumulates) \
    static __device__ __forceinline__ void run(float (&d)[registers], const u32 (&a)[4], u64 b, bool accumulate) { \
        TUNEBENCH_WGMMA(registers, "+f", "m64n" #columns types, factors, accumulates, ", 1, 1, 0", "r"(a[0]), "r"(a[1]), \
                        "r"(a[2]), "r"(a[3]), "l"(b)); \
    }
#define TUNEBENCH_WGMMA_128(sum, in, types, end) \
    TUNEBENCH_WGMMA_OF_DESCRIPTORS(128, 64, sum, in, types, "%64, %65", "%66", end)
#define TUNEBENCH_WGMMA_256(sum, in, types, end) \
    TUNEBENCH_WGMMA_OF_DESCRIPTORS(256, 128, sum, in, types, "%128, %129", "%130", end)

#define TUNEBENCH_WGMMA_OF_HALVES(columns, registers, factors, accumulates) \
    template <> struct Wgmma<columns, half_t> { \
        TUNEBENCH_WGMMA_OF_DESCRIPTORS(columns, registers, float, "+f", "k16.f32.f16.f16", factors, accumulates, \
                                       ", 1, 1, 0, 0") \
    }; \
    template <> struct Wgmma<columns, bfloat_t> { \
        TUNEBENCH_WGMMA_OF_DESCRIPTORS(columns, registers, float, "+f", "k16.f32.bf16.bf16", factors, accumulates, \
                                       ", 1, 1, 0, 0") \
    };
TUNEBENCH_WGMMA_OF_HALVES(16, 8, "%8, %9", "%10")
TUNEBENCH_WGMMA_OF_HALVES(32, 16, "%16, %17", "%18")
TUNEBENCH_WGMMA_OF_HALVES(64, 32, "%32, %33", "%34")
TUNEBENCH_WGMMA_OF_HALVES(160, 80, "%80, %81", "%82")
TUNEBENCH_WGMMA_OF_HALVES(192, 96, "%96, %97", "%98")

template <> struct Wgmma<128, half_t> {
    TUNEBENCH_WGMMA_128(float, "+f", "k16.f32.f16.f16", ", 1, 1, 0, 0")
    TUNEBENCH_WGMMA_OF_REGISTERS(128, 64, "k16.f32.f16.f16", "{%64, %65, %66, %67}, %68", "%69")
};
template <> struct Wgmma<128, bfloat_t> {
    TUNEBENCH_WGMMA_128(float, "+f", "k16.f32.bf16.bf16", ", 1, 1, 0, 0")
    TUNEBENCH_WGMMA_OF_REGISTERS(128, 64, "k16.f32.bf16.bf16", "{%64, %65, %66, %67}, %68", "%69")
};
template <> struct Wgmma<256, half_t> {
    TUNEBENCH_WGMMA_256(float, "+f", "k16.f32.f16.f16", ", 1, 1, 0, 0")
    TUNEBENCH_WGMMA_OF_REGISTERS(256, 128, "k16.f32.f16.f16", "{%128, %129, %130, %131}, %132", "%133")
};
template <> struct Wgmma<256, bfloat_t> { TUNEBENCH_WGMMA_256(float, "+f", "k16.f32.bf16.bf16", ", 1, 1, 0, 0") };
template <> struct Wgmma<128, e4m3_t> { TUNEBENCH_WGMMA_128(float, "+f", "k32.f32.e4m3.e4m3", ", 1, 1") };
template <> struct Wgmma<256, e4m3_t> { TUNEBENCH_WGMMA_256(float, "+f", "k32.f32.e4m3.e4m3", ", 1, 1") };
template <> struct Wgmma<128, s8_t> { TUNEBENCH_WGMMA_128(int, "+r", "k32.s32.s8.s8", "") };
template <> struct Wgmma<256, s8_t> { TUNEBENCH_WGMMA_256(int, "+r", "k32.s32.s8.s8", "") };

#endif  // TUNEBENCH_HOPPER
