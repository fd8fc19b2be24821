// Products x · wᵀ of matrices in half types, of any sizes, by the tensor core's instruction of one warp (mma.sync): for
// operands whose rows no copy engine reads, and for stacks of small ones. Sums are made in fp32.
//
// A block makes a tile of `tile_rows` by 16 `warps` features of one of the products. Each warp has all rows of 16
// features. Stages of 32 elements of the depth go through shared memory, the next of them from memory meanwhile.
//
// `x_in_columns` and `w_in_columns` say which operands lie as (depth, rows); where neighbours in memory come in eights they
// are read so.
#pragma once

#include "mma.cuh"
#include "pack.cuh"

constexpr int stage_depth = 32;
constexpr int features_of_warp = 16;
constexpr int product_threads = 32 * warps;
constexpr int apart = 8;  // Halves between what lies side by side in shared memory: a warp's lanes read from all banks.

// An operand's lines, rows of x or features, of which a tile has `lines`; each has `depth` elements.
template <int size, int depth, int lines, bool in_columns> struct Lines {
    static constexpr int width = (in_columns ? size : depth) % 8 == 0 ? 8 : 1;
    static constexpr int packs = lines * stage_depth / width;
    static constexpr int own = (packs + product_threads - 1) / product_threads;
    // In shared memory as in memory.
    static constexpr int line_step = in_columns ? 1 : stage_depth + apart, depth_step = in_columns ? lines + apart : 1;
    static constexpr int halves = in_columns ? stage_depth * depth_step : lines * line_step;
    using Part = Pack<scalar_t, width>;

    const scalar_t* matrix;
    int first;
    Part parts[own];

    static __device__ __forceinline__ int line(int pack) {
        return in_columns ? pack % (lines / width) * width : pack / (stage_depth / width);
    }
    static __device__ __forceinline__ int place(int pack) {
        return in_columns ? pack / (lines / width) : pack % (stage_depth / width) * width;
    }
    // From memory; zeros behind the last line and behind the depth.
    __device__ __forceinline__ void bring(int start) {
#pragma unroll
        for (int i = 0; i < own; ++i) {
            const int pack = threadIdx.x + i * product_threads, at = first + line(pack), k = start + place(pack);
            parts[i] = Part{};
            if (pack < packs && at < size && k < depth) {
                const scalar_t* const address = matrix + (in_columns ? k * size + at : at * depth + k);
                if constexpr (width == 1) {
                    parts[i].of[0] = *address;
                } else {
                    parts[i] = load<false>(reinterpret_cast<const Part*>(address));
                }
            }
        }
    }
    __device__ __forceinline__ void put(scalar_t* shared) const {
#pragma unroll
        for (int i = 0; i < own; ++i) {
            const int pack = threadIdx.x + i * product_threads;
            if (pack < packs) {
                scalar_t* const address = shared + line(pack) * line_step + place(pack) * depth_step;
                if constexpr (width == 1) {
                    *address = parts[i].of[0];
                } else {
                    using Word = Access<Part>;  // a store with a cache hint is of global memory alone
                    *reinterpret_cast<typename Word::type*>(address) = Word::to(parts[i]);
                }
            }
        }
    }
    // Two neighbours of the depth.
    static __device__ __forceinline__ unsigned pair(const scalar_t* shared, int line, int place) {
        const scalar_t* const address = shared + line * line_step + place * depth_step;
        if constexpr (in_columns) {
            return address[0].bits | unsigned(address[depth_step].bits) << 16;
        } else {
            return *reinterpret_cast<const unsigned*>(address);
        }
    }
};

extern "C" __global__ void __launch_bounds__(product_threads, 512 / product_threads)
    warp_product(const scalar_t* __restrict__ x, const scalar_t* __restrict__ w, scalar_t* __restrict__ y,
                 long long x_stride, long long w_stride) {
    constexpr int features = out_features, depth = in_features, tile_features = features_of_warp * warps;
    constexpr int tiles = (features + tile_features - 1) / tile_features, row_tiles = tile_rows / 16;
    constexpr int bands = (rows + tile_rows - 1) / tile_rows;  // of the rows of one product
    using OfX = Lines<rows, depth, tile_rows, x_in_columns>;
    using OfW = Lines<features, depth, tile_features, w_in_columns>;
    __shared__ alignas(16) scalar_t x_stage[OfX::halves], w_stage[OfW::halves];
    const long long product = blockIdx.x / tiles / bands;
    const int first_row = bands == 1 ? 0 : blockIdx.x / tiles % bands * tile_rows;
    const int first_feature = tiles == 1 ? 0 : blockIdx.x % tiles * tile_features;
    OfX of_x{x + product * x_stride, first_row};
    OfW of_w{w + product * w_stride, first_feature};
    const int warp = threadIdx.x / 32, line = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
    float sums[row_tiles][2][4] = {};
    of_x.bring(0);
    of_w.bring(0);
    for (int start = 0; start < depth; start += stage_depth) {
        __syncthreads();
        of_x.put(x_stage);
        of_w.put(w_stage);
        __syncthreads();
        if (start + stage_depth < depth) {
            of_x.bring(start + stage_depth);
            of_w.bring(start + stage_depth);
        }
#pragma unroll
        for (int k = 0; k < stage_depth; k += 16) {
            unsigned b[2][2];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                b[i / 2][i % 2] = OfW::pair(w_stage, warp * features_of_warp + i / 2 * 8 + line, k + i % 2 * 8 + pair);
            }
#pragma unroll
            for (int tile = 0; tile < row_tiles; ++tile) {
                unsigned a[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    a[i] = OfX::pair(x_stage, tile * 16 + i % 2 * 8 + line, k + i / 2 * 8 + pair);
                }
                multiply_tiles<scalar_t>(sums[tile][0], a, b[0]);
                multiply_tiles<scalar_t>(sums[tile][1], a, b[1]);
            }
        }
    }
    scalar_t* const own = y + product * rows * features;
#pragma unroll
    for (int tile = 0; tile < row_tiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int row = first_row + tile * 16 + i / 2 % 2 * 8 + line;
            const int feature = first_feature + warp * features_of_warp + i / 4 * 8 + pair + i % 2;
            if (row < rows && feature < features) {
                own[(long long)(row)*features + feature] = scalar_t(sums[tile][i / 4][i % 4]);
            }
        }
    }
}
