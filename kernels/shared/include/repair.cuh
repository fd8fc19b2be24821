// Strict fp32 for what depends on rows of x or w that half-precision parts cannot hold.
#pragma once

#include "input_matrices.cuh"

constexpr int repair_threads = 256;

// Everything that depends on a row noted as unfit, again in strict fp32, tile by tile of 64 · 64; and, where exponents are
// kept, those of such rows of w for later calls. 256 threads; does nothing but read the notes where all rows fit.
template <class Epilogue>
__device__ __forceinline__ void repair_rows_of_block(const float* __restrict__ x, const float* __restrict__ w,
                                                     const int* __restrict__ x_unfit, const int* __restrict__ w_unfit,
                                                     int* __restrict__ kept_exponents, const LyingX& x_lying,
                                                     const LyingW& w_lying, long long products,
                                                     const Epilogue& epilogue) {
    constexpr int threads = repair_threads;
    constexpr int edge = 64;
    constexpr int step = 16;
    const long long x_rows = x_lying.rows, w_rows = w_lying.rows, depth = x_lying.depth;
    bool any_of_mine = false;
    for (long long i = threadIdx.x; i < x_rows * products; i += threads) {
        any_of_mine |= x_unfit[i] != 0;
    }
    for (long long i = threadIdx.x; i < w_rows * products; i += threads) {
        any_of_mine |= w_unfit[i] != 0;
    }
    if (!__syncthreads_or(any_of_mine)) {
        return;
    }
    for (long long row = blockIdx.x; kept_exponents && row < w_rows; row += gridDim.x) {
        if (w_unfit[row]) {
            const int mine = largest_of_row(w + row * depth, depth, reads_as_vectors(w, depth), threadIdx.x, threads);
            const float largest = largest_of_warps<threads, threads>(mine);
            if (threadIdx.x == 0) {
                kept_exponents[row] = exponent_for(largest);
            }
        }
    }
    __shared__ float x_tile[step][edge + 1];
    __shared__ float w_tile[step][edge + 1];
    const long long x_tiles = (x_rows + edge - 1) / edge;
    const long long w_tiles = (w_rows + edge - 1) / edge;
    const int across = threadIdx.x % 16;
    const int down = threadIdx.x / 16;
    for (long long tile = blockIdx.x; tile < x_tiles * w_tiles * products; tile += gridDim.x) {
        const long long product = of_inputs ? tile / (x_tiles * w_tiles) : 0;
        const long long x_first = tile % x_tiles * edge;
        const long long w_first = (tile / x_tiles - product * w_tiles) * edge;
        const int* const x_notes = x_unfit + product * x_rows;
        const int* const w_notes = w_unfit + product * w_rows;
        const float* const x_matrix = x + x_lying.first(product);
        const float* const w_matrix = w + w_lying.first(product);
        const int mine = threadIdx.x % edge;
        const bool unfit = threadIdx.x < edge ? x_first + mine < x_rows && x_notes[x_first + mine]
                                              : w_first + mine < w_rows && w_notes[w_first + mine];
        if (!__syncthreads_or(unfit)) {
            continue;
        }
        float sums[4][4] = {};
        const long long own_depth = x_lying.depth_of(product);
        for (long long first = 0; first < own_depth; first += step) {
            __syncthreads();
            for (int i = threadIdx.x; i < edge * step; i += threads) {
                const int k = i % step;
                const int r = i / step;
                const bool inside = first + k < own_depth;
                x_tile[k][r] = inside && x_first + r < x_rows ? x_matrix[x_lying.place(x_first + r, first + k)] : 0.0f;
                w_tile[k][r] = inside && w_first + r < w_rows ? w_matrix[w_lying.place(w_first + r, first + k)] : 0.0f;
            }
            __syncthreads();
            // This rarely runs and is compiled with every product: it is kept short.
#pragma unroll 4
            for (int k = 0; k < step; ++k) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        sums[i][j] += x_tile[k][down + 16 * i] * w_tile[k][across + 16 * j];
                    }
                }
            }
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const long long w_row = w_first + across + 16 * j;
            if (w_row < w_rows) {
                const auto finish = epilogue.feature(w_row);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const long long x_row = x_first + down + 16 * i;
                    if (x_row < x_rows && (x_notes[x_row] || w_notes[w_row])) {
                        finish(sums[i][j], product * x_rows + x_row);
                    }
                }
            }
        }
    }
}
