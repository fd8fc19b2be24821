// The product x · wᵀ of half types on Hopper, summed in fp32, with what follows in its epilogue: of one w, or of several that
// the epilogue joins. Then a tile has as many features of each w, side by side, so that a thread has all values of a feature.
// Operands in fp32 are rounded to halves in front of it (split_tiles, `weight_parts=halves`), each row by a power of two in
// range; the epilogue undoes that, and `repair_rows` does again what halves cannot hold.
//
// The copy engine brings both operands straight from the tensors (TensorMap), 128 bytes of each row at a stage, in the order of
// the tensor cores' 128-byte swizzle. Rows of x are the tensor core's rows here and features its columns, for halves are
// written by 16 bytes of a row. So that a thread has eight neighbouring features, of each 32 rows of w the copy engine puts
// number 8 · q + 2 · i + p at 8 · i + 2 · q + p: a thread's columns 2 · q + p of four tiles of eight are then neighbours.
//
// Sizes are tunables (kernels/shared/half_product.py): `product_columns` features in a tile, `product_stages` in flight,
// `product_cluster` blocks that share a tile of w, `product_band` neighbouring clusters of rows that go over the features
// together, so that the second cache has what they read.
#pragma once

#include "pack.cuh"
#include "product_tiles.cuh"

#if TUNEBENCH_HOPPER

constexpr int column_run = 8;       // Neighbouring features of a thread,
constexpr int columns_of_map = 32;  // of so many that the copy engine orders.
using operand_t = Choose<rounds_rows, half_t, scalar_t>;
constexpr int line_depth = 128 / sizeof(operand_t);  // Along K, of one stage.
constexpr int x_stage_bytes = product_rows * 128;
constexpr int halves_stage_bytes = x_stage_bytes + product_columns * 128;

// What a block works on, of so many layers: its first row of x, and its first feature.
template <int layers> struct HalvesTile {
    static constexpr int features = product_columns / layers;
    long long row, feature;
    __device__ __forceinline__ HalvesTile(unsigned number, const ProductShape& shape, u32 rank) {
        constexpr int rows_of_cluster = product_rows * product_cluster;
        const unsigned clusters = static_cast<unsigned>((shape.x_rows + rows_of_cluster - 1) / rows_of_cluster);
        const unsigned across = static_cast<unsigned>((shape.w_rows + features - 1) / features);
        const unsigned cluster = number / product_cluster, of_band = product_band * across;
        const unsigned first = cluster / of_band * product_band;
        const unsigned high = min(clusters - first, static_cast<unsigned>(product_band));
        row = (static_cast<long long>(first + cluster % of_band % high) * product_cluster + rank) * product_rows;
        feature = static_cast<long long>(cluster % of_band / high) * features;
    }
    static __device__ __forceinline__ unsigned count(const ProductShape& shape) {
        constexpr int rows_of_cluster = product_rows * product_cluster;
        return static_cast<unsigned>((shape.x_rows + rows_of_cluster - 1) / rows_of_cluster * product_cluster *
                                     ((shape.w_rows + features - 1) / features));
    }
};

// The maps of all weights, in the order of their layers.
template <int layers> using WeightMaps = const TensorMap* const (&)[layers];

// Have the second cache fetch what the epilogue reads of some rows of a tile.
template <int layers, class Arguments>
__device__ __forceinline__ void fetch_rows_ahead(const HalvesTile<layers>& tile, int first, int end,
                                                 const ProductShape& shape, const Arguments& arguments) {
    const long long left = shape.w_rows - tile.feature;
    const int width = static_cast<int>(min(left, static_cast<long long>(tile.features)));
    for (long long row = tile.row + first; row < min(tile.row + end, shape.x_rows); ++row) {
        arguments.fetch_ahead(row * shape.w_rows + tile.feature, width);
    }
}

// One thread.
template <int layers, class Arguments>
__device__ __forceinline__ void bring_halves(unsigned char* shared, u64* full, u64* empty, const TensorMap& x,
                                             WeightMaps<layers> w, const ProductShape& shape, u32 rank,
                                             const Arguments& arguments) {
    using Tile = HalvesTile<layers>;
    constexpr int share = Tile::features / product_cluster;
    Position position;
    for (unsigned number = blockIdx.x; number < Tile::count(shape); number += gridDim.x) {
        const Tile tile(number, shape, rank);
        const int group = static_cast<int>(tile.feature + rank * share) / columns_of_map;
        for (int k = 0; k < shape.depth; k += line_depth) {
            mbarrier_wait(empty + position.slot, position.parity ^ 1);
            u64* const barrier = full + position.slot;
            unsigned char* const target = shared + position.slot * halves_stage_bytes;
            mbarrier_arrive_expect_tx(barrier, halves_stage_bytes);
            cp_async_bulk_tensor<1>(target, x, {k, static_cast<int>(tile.row), 0, 0, 0}, barrier);
#pragma unroll
            for (int layer = 0; layer < layers; ++layer) {
                unsigned char* const of_layer = target + x_stage_bytes + (layer * Tile::features + rank * share) * 128;
                cp_async_bulk_tensor<product_cluster>(of_layer, *w[layer], {k, 0, 0, 0, group}, barrier);
            }
            position.advance();
            if constexpr (Arguments::reads_elements) {
                const int stages = static_cast<int>((shape.depth + line_depth - 1) / line_depth);
                const int rows = (product_rows + stages - 1) / stages, first = k / line_depth * rows;
                fetch_rows_ahead<layers>(tile, first, min(first + rows, product_rows), shape, arguments);
            }
        }
    }
}

// The exponents by which rows of both operands were brought in range, none of half types.
struct RowScales {
    const int *x, *w;
    __device__ __forceinline__ ScaleBits of_row(long long row, const ProductShape& shape) const {
        return ScaleBits(rounds_rows && row < shape.x_rows ? x[row] : 0);
    }
    __device__ __forceinline__ Pack<int, column_run> of_features(long long first, const ProductShape& shape) const {
        const long long left = rounds_rows ? shape.w_rows - first : 0;
        return load_pack<column_run>(w + first, 0, left > 0);
    }
};

// A warpgroup's values of a tile to the epilogue; `row` of x is the thread's first, the other 8 below. Of the tile's features
// each lane has what is to be known of eight, `mine`.
template <int layers, class Features>
__device__ __forceinline__ void finish_halves(const float (&sum)[product_columns / 2], long long row,
                                              const HalvesTile<layers>& tile, const ProductShape& shape,
                                              const Features& mine, const RowScales& scales) {
    using Values = Pack<float, column_run>;
    const ScaleBits of_rows[2] = {scales.of_row(row, shape), scales.of_row(row + 8, shape)};
#pragma unroll
    for (int at = 0; at < tile.features; at += columns_of_map) {
        const Features finish = mine.of_lane(at / column_run + threadIdx.x % 4);
        const auto exponents = scales.of_features(tile.feature + at + threadIdx.x % 4 * column_run, shape);
        Values values[2];
#pragma unroll
        for (int below = 0; below < 2; ++below) {
            Values products[layers];
#pragma unroll
            for (int i = 0; i < layers * column_run; ++i) {
                const int layer = i / column_run, column = i % column_run;
                products[layer].of[column] =
                    sum[(layer * tile.features + at) / 2 + column / 2 * 4 + 2 * below + column % 2];
                if constexpr (rounds_rows) {
                    float& product = products[layer].of[column];
                    product = ScaleBits(exponents.of[column]).undone(product, of_rows[below]);
                }
            }
            const long long there = min(row + 8 * below, shape.x_rows - 1);
            if constexpr (layers == 1) {
                values[below] = finish.finished(finish.with_bias(products[0]), there);
            } else {
                values[below] = finish.finished(finish.with_bias(products[0]), there, products + 1);
            }
        }
#pragma unroll
        for (int below = 0; below < 2; ++below) {
            if (tile.feature + at < shape.w_rows && row + 8 * below < shape.x_rows) {
                finish.write(values[below], row + 8 * below);
            }
        }
    }
}

template <int layers, class Epilogue>
__device__ __forceinline__ void multiply_halves(unsigned char* shared, u64* full, u64* empty, const ProductShape& shape,
                                                u32 rank, const Epilogue& epilogue, const RowScales& scales) {
    using Product = Wgmma<product_columns, operand_t>;
    using Tile = HalvesTile<layers>;
    const int warpgroup = threadIdx.x / 128 - 1;
    const int lane = threadIdx.x % 32;
    const int row_in_tile = threadIdx.x / 32 % 4 * 16 + warpgroup * 64 + lane / 4;
    const u32 x_base = shared_address(shared) + warpgroup * (64 * 128);
    const u32 w_base = shared_address(shared) + x_stage_bytes;
    const int stages = static_cast<int>((shape.depth + line_depth - 1) / line_depth);
    Position position;
    for (unsigned number = blockIdx.x; number < Tile::count(shape); number += gridDim.x) {
        const Tile tile(number, shape, rank);
        float sum[product_columns / 2];
        decltype(epilogue.template neighbours<column_run>(0)) mine;
        int previous = 0;
        for (int stage = 0; stage < stages; ++stage) {
            mbarrier_wait(full + position.slot, position.parity);
            wgmma_fence();
#pragma unroll
            for (int step = 0; step < 4; ++step) {
                const u32 place = position.slot * halves_stage_bytes + step * 32;
                Product::run(sum, wgmma_swizzled(x_base + place), wgmma_swizzled(w_base + place), stage > 0 || step > 0);
            }
            wgmma_commit();
            if (stage == 0) {  // It arrives while the tensor cores multiply.
                mine = epilogue.template neighbours<column_run>(tile.feature + lane * column_run);
            }
            wgmma_wait<1>();
            if (stage > 0 && lane < product_cluster) {  // All blocks may fill it again.
                mbarrier_arrive_remote(empty + previous, lane);
            }
            previous = position.slot;
            position.advance();
        }
        wgmma_wait<0>();
        if (lane < product_cluster) {
            mbarrier_arrive_remote(empty + previous, lane);
        }
        finish_halves(sum, tile.row + row_in_tile, tile, shape, mine, scales);
    }
}

template <int layers, class Epilogue>
__device__ __forceinline__ void half_product_of_block(const TensorMap& x, WeightMaps<layers> w, const ProductShape& shape,
                                                      const Epilogue& epilogue, const RowScales& scales = {}) {
    extern __shared__ __align__(1024) unsigned char swizzled[];
    u64* full = reinterpret_cast<u64*>(swizzled + product_stages * halves_stage_bytes);
    u64* empty = full + product_stages;
    const u32 rank = begin_pipeline(full, empty, 1);
    begin_launch();
    let_next_begin();
    if (threadIdx.x < producer_threads) {
        setmaxnreg_dec<producer_registers>();
        if (threadIdx.x == 0) {
            bring_halves(swizzled, full, empty, x, w, shape, rank, epilogue.chain.arguments);
        }
    } else {
        setmaxnreg_inc<consumer_registers>();
        multiply_halves<layers>(swizzled, full, empty, shape, rank, epilogue, scales);
    }
    __syncthreads();
    cluster_sync();  // A block must not end while the other still sends to it.
}

#endif  // TUNEBENCH_HOPPER
