// The product x · wᵀ of half types on Hopper, summed in fp32, with what follows in its epilogue: of one w, or of several that
// the epilogue joins. Then a tile has as many features of each w, side by side, so that a thread has all values of a feature.
//
// The copy engine brings both operands straight from the tensors (TensorMap), 128 bytes of each row at a stage, in the order of
// the tensor cores' 128-byte swizzle. Rows of x are the tensor core's rows here and features its columns, for halves are
// written by 16 bytes of a row. So that a thread has eight neighbouring features, of each 32 rows of w the copy engine puts
// number 8 · q + 2 · i + p at 8 · i + 2 · q + p: a thread's columns 2 · q + p of four tiles of eight are then neighbours.
//
// The two warpgroups multiply one tile together, 64 rows each; or, in `pingpong` (CUTLASS's name), each has tiles of its own,
// and one multiplies while the other finishes what it has.
//
// Sizes are tunables (kernels/shared/half_product.py): `product_columns` features in a tile, `product_stages` in flight,
// `product_cluster` blocks that share a tile of w, `product_band` neighbouring clusters of rows that go over the features
// together, so that the second cache has what they read; `product_schedule` is what the warpgroups share.
#pragma once

#include "pack.cuh"
#include "product_tiles.cuh"

#if TUNEBENCH_HOPPER

constexpr int column_run = 8;       // Neighbouring features of a thread,
constexpr int columns_of_map = 32;  // of so many that the copy engine orders.
constexpr int line_depth = 128 / sizeof(scalar_t);  // Along K, of one stage.
constexpr int x_stage_bytes = product_rows * 128;
constexpr int halves_stage_bytes = x_stage_bytes + product_columns * 128;
constexpr bool takes_turns = product_schedule == product_schedule_t::pingpong;
constexpr int tiles_under_way = takes_turns ? 2 : 1;
constexpr int row_parts = takes_turns ? 2 : 1;  // Of 64 rows, that a warpgroup has of a tile.

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

// One thread.
template <int layers, class Epilogue>
__device__ __forceinline__ void bring_halves(unsigned char* shared, u64* full, u64* empty, const TensorMap& x,
                                             WeightMaps<layers> w, const ProductShape& shape, u32 rank,
                                             const Epilogue& epilogue) {
    using Tile = HalvesTile<layers>;
    constexpr int share = Tile::features / product_cluster;
    const int stages = static_cast<int>((shape.depth + line_depth - 1) / line_depth);
    const int rows_at_once = (product_rows + stages - 1) / stages;
    Position position;
    for (unsigned number = blockIdx.x; number < Tile::count(shape); number += gridDim.x) {
        const Tile tile(number, shape, rank);
        const int group = static_cast<int>(tile.feature + rank * share) / columns_of_map;
        const int width = static_cast<int>(min(shape.w_rows - tile.feature, static_cast<long long>(Tile::features)));
        long long row = tile.row;
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
            // What the epilogue reads is in the second cache by then.
            for (int i = 0; i < rows_at_once && row < min(tile.row + product_rows, shape.x_rows); ++i, ++row) {
                epilogue.chain.arguments.ahead(row * shape.w_rows + tile.feature, width);
            }
        }
    }
}

// A warpgroup's values of a tile to the epilogue; `row` of x is the thread's first, others are 8, 64 and 72 below. Of the
// tile's features each lane has what is to be known of eight, `mine`; in turns nobody waits for what is read here instead.
template <int layers, class Epilogue, class Features>
__device__ __forceinline__ void finish_halves(const float (&sum)[row_parts][product_columns / 2], long long row,
                                              const HalvesTile<layers>& tile, const ProductShape& shape,
                                              const Epilogue& epilogue, const Features& mine) {
    using Values = Pack<float, column_run>;
#pragma unroll
    for (int at = 0; at < tile.features; at += columns_of_map) {
        const int run = at / column_run + threadIdx.x % 4;
        const Features finish =
            takes_turns ? epilogue.template neighbours<column_run>(tile.feature + run * column_run) : mine.of_lane(run);
#pragma unroll
        for (int part = 0; part < row_parts; ++part) {
            const long long first = row + 64 * part;
            Values values[2];
#pragma unroll
            for (int below = 0; below < 2; ++below) {
                Values products[layers];
#pragma unroll
                for (int i = 0; i < layers * column_run; ++i) {
                    const int layer = i / column_run, column = i % column_run;
                    products[layer].of[column] =
                        sum[part][(layer * tile.features + at) / 2 + column / 2 * 4 + 2 * below + column % 2];
                }
                const long long there = min(first + 8 * below, shape.x_rows - 1);
                if constexpr (layers == 1) {
                    values[below] = finish.finished(finish.with_bias(products[0]), there);
                } else {
                    values[below] = finish.finished(finish.with_bias(products[0]), there, products + 1);
                }
            }
#pragma unroll
            for (int below = 0; below < 2; ++below) {
                if (tile.feature + at < shape.w_rows && first + 8 * below < shape.x_rows) {
                    finish.write(values[below], first + 8 * below);
                }
            }
        }
    }
}

template <int layers, class Epilogue>
__device__ __forceinline__ void multiply_halves(unsigned char* shared, u64* full, u64* empty, const ProductShape& shape,
                                                u32 rank, const Epilogue& epilogue) {
    using Product = Wgmma<product_columns, scalar_t>;
    using Tile = HalvesTile<layers>;
    const int warpgroup = threadIdx.x / 128 - 1;
    const int lane = threadIdx.x % 32;
    const int first_row = takes_turns ? 0 : warpgroup * 64;
    const int row_in_tile = threadIdx.x / 32 % 4 * 16 + first_row + lane / 4;
    const u32 x_base = shared_address(shared) + first_row * 128;
    const u32 w_base = shared_address(shared) + x_stage_bytes;
    const int stages = static_cast<int>((shape.depth + line_depth - 1) / line_depth);
    Position position;
    unsigned first_tile = blockIdx.x;
    // Parities tell a stage from the one before in its place, and no more: a warpgroup begins where the other has all it needs.
    const int my_turn = 1 + warpgroup, others_turn = 2 - warpgroup;
    if (takes_turns && warpgroup == 1) {
        first_tile += gridDim.x;
        position.advance(stages);
        bar_arrive(others_turn, consumer_threads);
    }
    for (unsigned number = first_tile; number < Tile::count(shape); number += tiles_under_way * gridDim.x) {
        const Tile tile(number, shape, rank);
        float sum[row_parts][product_columns / 2];
        decltype(epilogue.template neighbours<column_run>(0)) mine;
        int previous = 0;
        if constexpr (takes_turns) {
            bar_sync(my_turn, consumer_threads);
        }
        for (int stage = 0; stage < stages; ++stage) {
            mbarrier_wait(full + position.slot, position.parity);
            wgmma_fence();
#pragma unroll
            for (int step = 0; step < 4; ++step) {
                const u32 place = position.slot * halves_stage_bytes + step * 32;
#pragma unroll
                for (int part = 0; part < row_parts; ++part) {
                    Product::run(sum[part], wgmma_swizzled(x_base + part * (64 * 128) + place),
                                 wgmma_swizzled(w_base + place), stage > 0 || step > 0);
                }
            }
            wgmma_commit();
            if (stage == 0 && !takes_turns) {  // It arrives while the tensor cores multiply.
                mine = epilogue.template neighbours<column_run>(tile.feature + lane * column_run);
            }
            wgmma_wait<1>();
            if (stage > 0 && lane < product_cluster) {  // All blocks may fill it again.
                mbarrier_arrive_remote(empty + previous, lane);
            }
            previous = position.slot;
            position.advance();
        }
        if constexpr (takes_turns) {
            bar_arrive(others_turn, consumer_threads);
        }
        wgmma_wait<0>();
        if (lane < product_cluster) {
            mbarrier_arrive_remote(empty + previous, lane);
        }
        if constexpr (takes_turns) {
            position.advance(stages);  // Those of the other's tile.
        }
        finish_halves(sum, tile.row + row_in_tile, tile, shape, epilogue, mine);
    }
}

template <int layers, class Epilogue>
__device__ __forceinline__ void half_product_of_block(const TensorMap& x, WeightMaps<layers> w, const ProductShape& shape,
                                                      const Epilogue& epilogue) {
    extern __shared__ __align__(1024) unsigned char swizzled[];
    u64* full = reinterpret_cast<u64*>(swizzled + product_stages * halves_stage_bytes);
    u64* empty = full + product_stages;
    const u32 rank = begin_pipeline(full, empty, 1, consumer_threads / tiles_under_way);
    begin_launch();
    let_next_begin();
    if (threadIdx.x < producer_threads) {
        setmaxnreg_dec<producer_registers>();
        if (threadIdx.x == 0) {
            bring_halves(swizzled, full, empty, x, w, shape, rank, epilogue);
        }
    } else {
        setmaxnreg_inc<consumer_registers>();
        multiply_halves<layers>(swizzled, full, empty, shape, rank, epilogue);
    }
    __syncthreads();
    cluster_sync();  // A block must not end while the other still sends to it.
}

#endif  // TUNEBENCH_HOPPER
