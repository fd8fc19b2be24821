// Launches that begin before the one in front of them in the stream has ended, where `early_launches` says so: their blocks
// take their places and prepare, and then wait for it. (Programmatic dependent launch: CUDA C++ Programming Guide; the
// instructions: griddepcontrol in the PTX ISA manual. From compute capability 9.0 on.)
//
// The host says of a launch that it may begin early (`Plan.launch`), and its entry point begins with `begin_launch`. A launch
// that is not early, or whose predecessor is anything else than a kernel, begins when all before it has ended.
#pragma once

// All threads, before the launch reads what earlier ones write, and writes what they read.
__device__ __forceinline__ void begin_launch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if constexpr (early_launches) {
        asm volatile("griddepcontrol.wait;" ::: "memory");
    }
#endif
}

// The next launch may begin once all blocks of this one are there; it waits for their ends.
__device__ __forceinline__ void let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if constexpr (early_launches) {
        if (threadIdx.x == 0) {
            asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
        }
    }
#endif
}
