// Rows of a weight that are split beside the product (`weight_split=beside`), while its first tiles multiply.
//
// split_tiles leaves alone the rows that no block's first tile needs. Of a block's producers one thread brings tiles; the
// other warps split those rows, four at a time, taking the next from a counter of the whole grid, so that no block waits for
// one that is not there yet. They use exponents guessed from earlier calls, so that a row is read once; each guess is
// verified, and what depends on a row whose guess is off is repaired with the rest (repair.cuh).
#pragma once

#include "tile_parts.cuh"

constexpr int late_group = 4;                                      // Rows that a warp splits side by side.
constexpr int late_slots = 4;                                      // Steps in flight, of
constexpr int late_row_bytes = whole_run * 4;                      // so much of each row.
constexpr int late_step_bytes = late_group * late_row_bytes;

struct LateRows {
    const float* w;    // Rows begin at multiples of 16 bytes.
    unsigned* counts;  // Groups that a warp has taken; then, for each tile of w, those that are ready.
    long long first;   // A whole number of tiles.
};

#if TUNEBENCH_HOPPER

// One thread: wait until bulk copies may read a tile of w.
__device__ __forceinline__ void wait_for_rows(const LateRows& late, long long w_tile) {
    if (w_tile * product_rows >= late.first) {
        while (ld_acquire(late.counts + 1 + w_tile) < product_rows / late_group) {
            __nanosleep(100);
        }
        fence_proxy_async_global();
    }
}

// All warps of a block's producers but the first. Of each row the lanes bring 512 bytes a step, and each splits 64 bytes of
// one row; the 16-byte words of a row are swapped so that eight lanes that read meet every bank once.
__device__ __forceinline__ void split_late_rows(unsigned char* staged, const LateRows& late, float* parts,
                                                const int* __restrict__ exponents, int* __restrict__ unfit,
                                                const ProductShape& shape) {
    const int lane = threadIdx.x % 32;
    const int row_of_lane = lane % late_group;
    const int run_of_lane = lane / late_group;
    const long long w_tiles = (shape.w_rows + product_rows - 1) / product_rows;
    const long long groups = (w_tiles * product_rows - late.first) / late_group;
    const int steps = static_cast<int>(whole_runs(shape.depth));
    staged += (threadIdx.x / 32 - 1) * (late_slots * late_step_bytes);
    while (groups > 0) {
        unsigned group = 0;
        if (lane == 0) {
            group = atomicAdd(late.counts, 1u);
        }
        group = __shfl_sync(0xFFFFFFFFu, group, 0);
        if (group >= groups) {
            return;
        }
        const long long first = late.first + static_cast<long long>(group) * late_group;
        const float* const source = late.w + first * shape.depth + lane * 4;
        const auto bring = [&](int step) {
            const long long k = static_cast<long long>(step) * whole_run;
            const u32 slot = shared_address(staged) + step % late_slots * late_step_bytes;
#pragma unroll
            for (int i = 0; i < late_group; ++i) {
                const bool inside = k + lane * 4 < shape.depth && first + i < shape.w_rows;
                cp_async_16(slot + i * late_row_bytes + (lane ^ i) * 16, source + i * shape.depth + k, inside);
            }
            cp_async_commit();
        };
        const long long row = first + row_of_lane;
        const int exponent = row < shape.w_rows ? exponents[row] : 0;
        const float power = power_of_two(exponent);
        const TileRow target(parts, row, product_rows, shape.depth, true);
        int largest = 0;
#pragma unroll 1
        for (int step = 0; step < late_slots - 1; ++step) {
            bring(step);
        }
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            cp_async_wait<late_slots - 2>();
            __syncwarp();
            bring(step + late_slots - 1);
            const unsigned char* const words = staged + step % late_slots * late_step_bytes + row_of_lane * late_row_bytes;
            Run values;
#pragma unroll
            for (int i = 0; i < run_of_thread / 4; ++i) {
                const int word = (run_of_lane * (run_of_thread / 4) + i) ^ row_of_lane;
                values[i] = *reinterpret_cast<const Pack<float, 4>*>(words + word * 16);
            }
            largest = largest_of(values, largest);
            target.store(values, power, static_cast<long long>(step) * whole_run + run_of_lane * run_of_thread);
        }
        largest = largest_of_lanes<late_group, 16>(largest);
        if (lane < late_group && row < shape.w_rows) {
            const float found = __int_as_float(largest);
            unfit[row] = exponent != exponent_for(found) || !fits_eights(scaled(found, exponent), exponent);
        }
        fence_proxy_async_global();
        __threadfence();
        __syncwarp();
        if (lane == 0) {
            atomicAdd(late.counts + 1 + first / product_rows, 1u);
        }
    }
}

#endif  // TUNEBENCH_HOPPER
