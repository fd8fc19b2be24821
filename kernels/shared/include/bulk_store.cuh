// Stores by Hopper's copy engine: from shared to global memory, while the threads go on. As hopper.cuh, under
// `#if TUNEBENCH_HOPPER`.
#pragma once

#include "hopper.cuh"

#if TUNEBENCH_HOPPER

// `bytes` (a multiple of 16, as both addresses) from shared to global memory, as one of this thread's stores under way. What
// the block has written to shared memory is published first (publish_to_tensor_cores).
template <bool streaming> __device__ __forceinline__ void bulk_store(void* global, u32 shared, u32 bytes) {
    if constexpr (streaming) {
        u64 first_to_go;
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first_to_go));
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(
                         __cvta_generic_to_global(global)),
                     "r"(shared), "r"(bytes), "l"(first_to_go)
                     : "memory");
    } else {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(global)),
                     "r"(shared), "r"(bytes)
                     : "memory");
    }
}

// Those since the last call are a group; wait until those of all groups have been read, or are in memory.
__device__ __forceinline__ void bulk_stores_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ __forceinline__ void bulk_stores_wait_until_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void bulk_stores_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

#endif  // TUNEBENCH_HOPPER
