// Hopper's own instructions (sm_90a) under PTX's names: barriers that count bytes, copies, stores, ordering.
// Matrix products are in wgmma.cuh.
//
// Everything here is for sources that guard its use with `#if TUNEBENCH_HOPPER`: other targets have none of it.
// Instruction semantics: NVIDIA's PTX ISA manual, chapters on mbarrier and cp.async.bulk.
#pragma once

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TUNEBENCH_HOPPER 1
#define TUNEBENCH_CLUSTER(blocks) __cluster_dims__(blocks, 1, 1)
#else
#define TUNEBENCH_HOPPER 0
#define TUNEBENCH_CLUSTER(blocks)
#endif

// A tensor as the copy engine knows it: a CUtensorMap, which a launch passes as `const __grid_constant__ TensorMap`.
struct alignas(64) TensorMap {
    unsigned long long words[16];
};

#if TUNEBENCH_HOPPER

typedef unsigned int u32;
typedef unsigned long long u64;

__device__ __forceinline__ u32 shared_address(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// --- Barriers in shared memory ------------------------------------------------------------------------------------

__device__ __forceinline__ void mbarrier_init(u64* barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}

// Makes initialised barriers visible to the copy engine and to the other blocks of the cluster.
__device__ __forceinline__ void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void mbarrier_arrive(u64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrive at the barrier of the same name in another block of the cluster. What it tells of is what the warpgroup's products
// have read, of which the thread has waited for the end, so that the default scope, this block, is enough: at the scope of
// the cluster each arrival is a fence of the whole device, and each wait empties the first cache.
__device__ __forceinline__ void mbarrier_arrive_remote(u64* barrier, u32 block) {
    asm volatile(
        "{\n"
        ".reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
        "}\n" ::"r"(shared_address(barrier)),
        "r"(block)
        : "memory");
}

// Arrive, and expect that many bytes from the copy engine in this phase.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void mbarrier_wait(u64* barrier, u32 parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory");
}

// Where a ring of `slots` places is, and the parity of the place's current use.
template <int slots> struct RingPosition {
    int slot = 0;
    u32 parity = 0;
    __device__ __forceinline__ void advance() {
        if (++slot == slots) {
            slot = 0;
            parity ^= 1;
        }
    }
};

// --- Clusters -----------------------------------------------------------------------------------------------------

__device__ __forceinline__ u32 cluster_ctarank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The same in two halves, for who has no more to tell than that it is there, and barriers initialised.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// A number at the same place in the shared memory of a block of the cluster.
__device__ __forceinline__ float ld_shared_cluster(const float* address, u32 block) {
    float value;
    asm volatile(
        "{\n"
        ".reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %1, %2;\n"
        "ld.shared::cluster.f32 %0, [there];\n"
        "}\n"
        : "=f"(value)
        : "r"(shared_address(address)), "r"(block)
        : "memory");
    return value;
}

// Four numbers to the same place in the shared memory of a block of the cluster, counted by the barrier of the same place there.
__device__ __forceinline__ void st_async(float4* address, float4 value, u64* barrier, u32 block) {
    asm volatile(
        "{\n"
        ".reg .b32 there, counts;\n"
        "mapa.shared::cluster.u32 there, %0, %6;\n"
        "mapa.shared::cluster.u32 counts, %5, %6;\n"
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%1, %2, %3, %4}, [counts];\n"
        "}\n" ::"r"(shared_address(address)),
        "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(shared_address(barrier)), "r"(block)
        : "memory");
}

// --- Copies and ordering ------------------------------------------------------------------------------------------

// `bytes` (a multiple of 16, as both addresses) from global memory to the same place in the shared memory of every
// block of the cluster in `mask`, counted by the barrier of the same place there.
__device__ __forceinline__ void cp_async_bulk_multicast(void* shared, const void* global, u32 bytes, u64* barrier,
                                                     unsigned short mask) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
        ::"r"(shared_address(shared)),
        "l"(global), "r"(bytes), "r"(shared_address(barrier)), "h"(mask)
        : "memory");
}

__device__ __forceinline__ void cp_async_bulk(void* shared, const void* global, u32 bytes, u64* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(shared)),
                 "l"(global), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

// A map's box from five coordinates on, the first along rows, zeros where the tensor has ended. With several `blocks` it goes to
// the same place in the shared memory of all in the cluster, counted by the barrier of the same place there.
template <int blocks>
__device__ __forceinline__ void cp_async_bulk_tensor(void* shared, const TensorMap& map, const int (&from)[5],
                                                     u64* barrier) {
    if constexpr (blocks == 1) {
        asm volatile(
            "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, %6}], "
            "[%7];" ::"r"(shared_address(shared)),
            "l"(&map), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]), "r"(from[4]), "r"(shared_address(barrier))
            : "memory");
    } else {
        asm volatile(
            "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, "
            "%3, %4, %5, %6}], [%7], %8;" ::"r"(shared_address(shared)),
            "l"(&map), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]), "r"(from[4]), "r"(shared_address(barrier)),
            "h"(static_cast<unsigned short>((1 << blocks) - 1))
            : "memory");
    }
}

// What windows over images see at a place of theirs, pixel after pixel, each a row of channels: from the coordinates (channel,
// column, row, depth, sample) of the first, `offset` (columns, rows, depth) further. With two sides there is no depth.
template <int sides>
__device__ __forceinline__ void cp_async_bulk_tensor_im2col(void* shared, const TensorMap& map, const int (&from)[5],
                                                            const unsigned short (&offset)[3], u64* barrier) {
    if constexpr (sides == 2) {
        asm volatile(
            "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
            "[%6], {%7, %8};" ::"r"(shared_address(shared)),
            "l"(&map), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[4]), "r"(shared_address(barrier)), "h"(offset[0]),
            "h"(offset[1])
            : "memory");
    } else {
        asm volatile(
            "cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, "
            "%6}], [%7], {%8, %9, %10};" ::"r"(shared_address(shared)),
            "l"(&map), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]), "r"(from[4]), "r"(shared_address(barrier)),
            "h"(offset[0]), "h"(offset[1]), "h"(offset[2])
            : "memory");
    }
}

// 16 (or 4) bytes from global to shared memory without a register, zeros where `present` is false; both addresses aligned
// to as many bytes.
__device__ __forceinline__ void cp_async_16(u32 shared, const void* global, bool present) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(present ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void cp_async_4(u32 shared, const void* global, bool present) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global), "r"(present ? 4 : 0)
                 : "memory");
}

// Arrive once all copies that this thread has asked for until now are done.
__device__ __forceinline__ void cp_async_mbarrier_arrive(u64* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// What this thread has asked for since the last time is a group; wait until no more than so many groups are on their way.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int pending> __device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// Orders ordinary accesses to global memory, this thread's and those it knows of, before later reads by bulk copies.
__device__ __forceinline__ void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// What was written before the value was is there for who has read the value.
__device__ __forceinline__ u32 ld_acquire(const u32* address) {
    u32 value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(__cvta_generic_to_global(address)) : "memory");
    return value;
}

// Orders this thread's ordinary writes to shared memory before later reads by the tensor cores.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Add to memory without waiting for the sum; 16-byte address.
__device__ __forceinline__ void red_add(float4* address, float4 value) {
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(address)),
                 "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
                 : "memory");
}

// The block's numbered barriers: wait for the rest of `threads`, or count as arrived without waiting.
__device__ __forceinline__ void bar_sync(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void bar_arrive(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

template <int registers> __device__ __forceinline__ void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers> __device__ __forceinline__ void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

// --- Stores by the copy engine, from shared to global memory, while the threads go on --------------------------------

// `bytes` (a multiple of 16, as both addresses) from shared to global memory, as one of this thread's stores under way. What
// the block has written to shared memory is published first (fence_proxy_async).
template <bool streaming> __device__ __forceinline__ void cp_async_bulk_to_global(void* global, u32 shared, u32 bytes) {
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
// `bytes` (a multiple of 16, as the address) of global memory into the second cache.
__device__ __forceinline__ void cp_async_bulk_prefetch(const void* global, u32 bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(global)), "r"(bytes));
}

__device__ __forceinline__ void cp_async_bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ __forceinline__ void cp_async_bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void cp_async_bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

#endif  // TUNEBENCH_HOPPER
