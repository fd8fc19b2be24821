// The same product from parts in memory: high parts in fp16, and the small terms from factors of eight bits or in fp16.
//
// The two small terms are 2^-11 of the third, so that their factors need few bits; products of eight bits run at twice the
// rate. Both operands are split in memory (split_tiles), in every call or, of a weight that is kept, once. They are laid out
// tile by tile as shared memory has them, so that a stage of either is one bulk copy. A tile's sums begin as those of the
// small terms, which then become the first value of the large one's, so that these are truncated in a third as many
// additions as where all three are made together. Operands that are rounded to fp16 (`weight_parts=rounded`) have no small
// terms: as exact as TF32, whose mantissas are as long, at twice its rate.
#pragma once

#include "late_rows.cuh"
#include "tile_parts.cuh"

#if TUNEBENCH_HOPPER

constexpr int w_line_bytes = product_rows * line_bytes;     // A stage of w,
constexpr int x_line_bytes = product_columns * line_bytes;  // and one of x.
constexpr int lines_bytes = w_line_bytes + x_line_bytes;

// One thread.
__device__ __forceinline__ void bring_tiles(unsigned char* shared, u64* full, u64* empty, const unsigned char* w,
                                            const unsigned char* x, const ProductShape& shape, u32 rank,
                                            const LateRows& late) {
    constexpr int turns = small_halves ? 2 : 1;
    const long long stages_of_tile = stages_of_run * whole_runs(shape.depth);
    const long long w_tiles = shape.w_tiles();
    Position position;
    for (long long number = blockIdx.x; number < shape.tiles(); number += gridDim.x) {
        const Tile tile(number, shape, rank);
        if (tile.is_left_out(shape)) {
            continue;
        }
        // The last block of a cluster may have no tile of w: it multiplies another, and nothing of that is written.
        const long long w_tile = min(tile.w_first / product_rows, w_tiles - 1);
        if constexpr (splits_beside) {
            wait_for_rows(late, w_tile);
        }
        const unsigned char* w_source = w + (tile.product * w_tiles + w_tile) * stages_of_tile * w_line_bytes;
        const unsigned char* x_source =
            x + (tile.product * shape.x_tiles() + tile.x_tile) * stages_of_tile * x_line_bytes;
#pragma unroll 1
        for (int turn = 0; turn < turns; ++turn) {
            long long stages = turn == 0 ? stages_of_tile : stages_of_tile / 2;
            if constexpr (of_inputs) {
                stages -= turn + 1 == turns ? 2 * whole_runs(shape.depth) - stages_of_halves(shape.depth) : 0;
            }
            for (long long stage = 0; stage < stages; ++stage) {
                mbarrier_wait(empty + position.slot, position.parity ^ 1);
                u64* const barrier = full + position.slot;
                unsigned char* const target = shared + position.slot * lines_bytes;
                mbarrier_arrive_expect_tx(barrier, lines_bytes);
                cp_async_bulk(target, w_source, w_line_bytes, barrier);
                bring_x<x_line_bytes>(target + w_line_bytes, x_source, barrier, rank);
                w_source += w_line_bytes;
                x_source += x_line_bytes;
                position.advance();
            }
            // The high parts again: of the weight the second half, of x the first.
            w_source -= stages_of_tile / 2 * w_line_bytes;
            x_source -= stages_of_tile * x_line_bytes;
        }
    }
}

template <class Epilogue>
__device__ __forceinline__ void multiply_tiles(unsigned char* shared, u64* full, u64* empty, const ProductShape& shape,
                                               const int* __restrict__ x_exponents,
                                               const int* __restrict__ w_exponents, const Sums& sums,
                                               const Epilogue& epilogue) {
    using Smalls = Wgmma<product_columns, small_t>;
    using Halves = Wgmma<product_columns, half_t>;
    constexpr int steps = line_bytes / 32;  // Products of 32 bytes along K.
    constexpr int sum_lines = sum_stages / 2;  // sum_stages are of 32 along K, lines of halves are of 64.
    const int warpgroup = threadIdx.x / 128 - 1;
    const int lane = threadIdx.x % 32;
    const int row_in_tile = threadIdx.x / 32 % 4 * 16 + warpgroup * 64 + lane / 4;
    const u32 w_base = shared_address(shared) + warpgroup * (64 * core_bytes);
    const u32 x_base = shared_address(shared) + w_line_bytes;
    const int whole_halves = static_cast<int>(2 * whole_runs(shape.depth));
    const int all_smalls = rounded ? 0 : small_halves ? 2 * whole_halves : whole_halves;  // Of both terms.
    const int all_halves = of_inputs ? static_cast<int>(stages_of_halves(shape.depth)) : whole_halves;
    const int first_sum = sum_lines > 0 ? 1 + (blockIdx.x + warpgroup * (sum_lines / 2)) % sum_lines : 0;
    Position position;
    int previous = -1;
    const auto w_operand = [&](int step) {
        constexpr int column = product_rows * core_bytes;
        return wgmma_descriptor(w_base + position.slot * lines_bytes + step * 2 * column, column, 8 * core_bytes);
    };
    const auto x_operand = [&](int step) {
        constexpr int column = product_columns * core_bytes;
        return wgmma_descriptor(x_base + position.slot * lines_bytes + step * 2 * column, column, 8 * core_bytes);
    };
    const auto release_previous = [&] {  // All blocks may fill it again.
        if (previous >= 0 && lane < product_cluster) {
            mbarrier_arrive_remote(empty + previous, lane);
        }
        previous = -1;
    };
    const auto advance = [&] {
        release_previous();
        previous = position.slot;
        position.advance();
    };
    for (long long number = blockIdx.x; number < shape.tiles(); number += gridDim.x) {
        const Tile tile(number, shape, product_cluster == 1 ? 0 : cluster_ctarank());
        const bool left_out = tile.is_left_out(shape);
        const int smalls = left_out ? 0 : all_smalls;
        const int halves = left_out ? 0 : all_halves;
        // One array of registers, for there are not enough for two.
        union {
            float sum[product_columns / 2];
            typename Smalls::sum_t small[product_columns / 2];
        };
        for (int stage = 0; stage < smalls; ++stage) {
            mbarrier_wait(full + position.slot, position.parity);
            wgmma_fence();
#pragma unroll
            for (int step = 0; step < steps; ++step) {
                Smalls::run(small, w_operand(step), x_operand(step), stage > 0 || step > 0);
            }
            wgmma_commit();
            wgmma_wait<1>();
            advance();
        }
        if constexpr (!rounded) {
            wgmma_wait<0>();
#pragma unroll
            for (int i = 0; i < product_columns / 2; ++i) {
                sum[i] = static_cast<float>(small[i]) * (1.0f / small_scale::of_terms);
            }
        }
        if (left_out) {
#pragma unroll
            for (int i = 0; i < product_columns / 2; ++i) {
                sum[i] = 0.0f;
            }
        }
        for (int stage = 0; stage < halves; ++stage) {
            const bool adds = sum_lines > 0 && stage >= first_sum && (stage - first_sum) % sum_lines == 0;
            const bool begins = adds || (rounded && stage == 0);
            if (adds) {
                wgmma_wait<0>();
                sums.add(sum, stage == first_sum);
            }
            mbarrier_wait(full + position.slot, position.parity);
            wgmma_fence();
#pragma unroll
            for (int step = 0; step < steps; ++step) {
                Halves::run(sum, w_operand(step), x_operand(step), !begins || step > 0);
            }
            wgmma_commit();
            wgmma_wait<1>();
            advance();
        }
        wgmma_wait<0>();
        release_previous();
        if (sum_lines > 0 && halves > first_sum) {
            sums.add_to(sum);
        }
        const long long row = tile.w_first + row_in_tile;
        const int* const own_exponents = w_exponents + tile.w_before(shape);
        const int exponents[2] = {row < shape.w_rows ? own_exponents[row] : 0,
                                  row + 8 < shape.w_rows ? own_exponents[row + 8] : 0};
        finish_tile(sum, tile, row, exponents, x_exponents, shape, epilogue);
    }
}

#endif  // TUNEBENCH_HOPPER
