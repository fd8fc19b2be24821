// The tensor core's instruction of one warp (mma.sync) for half types, whose sums are fp32.
#pragma once

#include "pack.cuh"

// Adds the product of (16, 16) and (16, 8). A lane has of each row `lane / 4` of a half of the first, and of the second,
// two neighbours of either half of the depth; and of the sums two neighbours of two rows (PTX ISA, mma.m16n8k16).
template <typename T>
__device__ __forceinline__ void multiply_tiles(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if constexpr (is_same<T, bfloat_t>) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
#else
    const int lane = threadIdx.x % 32;
    const auto dot = [](unsigned x, unsigned y) {
        const auto first = reinterpret_cast<const T*>(&x), second = reinterpret_cast<const T*>(&y);
        return float(first[0]) * float(second[0]) + float(first[1]) * float(second[1]);
    };
    for (int other = 0; other < 4; ++other) {
        for (int i = 0; i < 4; ++i) {
            for (int column = 0; column < 2; ++column) {
                const unsigned x = __shfl_sync(~0u, a[i], lane / 4 * 4 + other);
                const unsigned w = __shfl_sync(~0u, b[i / 2], (lane % 4 * 2 + column) * 4 + other);
                sums[i % 2 * 2 + column] += dot(x, w);
            }
        }
    }
#endif
}
