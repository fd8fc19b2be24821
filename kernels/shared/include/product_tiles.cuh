// What the two products of our own have in common: tiles, the pipeline's places, sums outside the tensor cores, the epilogue.
//
// Of a block's threads the first 128 bring tiles to shared memory, and two warpgroups multiply 64 rows of w each with all
// rows of x in the tile.
#pragma once

#include "early_launches.cuh"
#include "input_matrices.cuh"
#include "wgmma.cuh"

constexpr bool fused = product == product_t::fused && sizeof(scalar_t) == 4;
constexpr bool fused_halves = product == product_t::fused && sizeof(scalar_t) == 2;  // half_product.cuh
constexpr bool rounds_rows = fused && weight_parts == weight_parts_t::halves;  // half_product.cuh too
constexpr bool finishes_packs = fused_halves || rounds_rows;
constexpr bool from_tiles = fused && !rounds_rows && weight_parts != weight_parts_t::none;
constexpr bool splits_beside = from_tiles && weight_split == weight_split_t::beside;

constexpr int core_bytes = 16;     // One row of a core matrix.
constexpr int product_rows = 128;  // Rows of w in a tile.
constexpr int producer_threads = 128;
constexpr int consumer_threads = 256;
constexpr int product_threads = producer_threads + consumer_threads;
constexpr unsigned short whole_cluster = (1 << product_cluster) - 1;  // A bit for each of its blocks.

// Of one product; of two inputs (input_matrices.cuh) there may be several, one behind the other.
struct ProductShape {
    long long x_rows, w_rows, depth;
    long long products = 1;
    __device__ __forceinline__ long long x_tiles() const { return (x_rows + product_columns - 1) / product_columns; }
    __device__ __forceinline__ long long w_tiles() const { return (w_rows + product_rows - 1) / product_rows; }
    // Of the cluster: its blocks work on neighbouring tiles of w and one tile of x.
    __device__ __forceinline__ long long tiles_of_one() const {
        constexpr int rows_of_cluster = product_rows * product_cluster;
        return (w_rows + rows_of_cluster - 1) / rows_of_cluster * product_cluster * x_tiles();
    }
    __device__ __forceinline__ long long tiles() const {
        return of_inputs ? tiles_of_one() * products : tiles_of_one();
    }
};

// What a block works on: a product, the number of a tile of its x, and the first row of a tile of its w.
struct Tile {
    long long product = 0, x_tile, w_first;
    __device__ __forceinline__ Tile(long long number, const ProductShape& shape, unsigned rank) {
        if constexpr (of_inputs) {
            product = number / shape.tiles_of_one();
            number %= shape.tiles_of_one();
        }
        const long long group = number / product_cluster;
        x_tile = group % shape.x_tiles();
        w_first = (group / shape.x_tiles() * product_cluster + rank) * product_rows;
    }
    // Rows of x and of w in the products before this one.
    __device__ __forceinline__ long long x_before(const ProductShape& shape) const { return product * shape.x_rows; }
    __device__ __forceinline__ long long w_before(const ProductShape& shape) const { return product * shape.w_rows; }

    // Whether nothing is kept of it, nor of the tiles of the cluster's other blocks.
    __device__ __forceinline__ bool is_left_out(const ProductShape& shape) const {
        constexpr int rows_of_cluster = product_rows * product_cluster;
        const long long x_begin = x_tile * product_columns, w_begin = w_first / rows_of_cluster * rows_of_cluster;
        return has_triangle && !is_kept(keeps_upper ? x_begin : x_begin + product_columns - 1,
                                        keeps_upper ? w_begin + rows_of_cluster - 1 : w_begin);
    }
};

// What undoes a row's scale, in two halves.
struct ScaleBack {
    float one, other;
    ScaleBack() = default;
    __device__ __forceinline__ explicit ScaleBack(int exponent)
        : one(power_of_two(-(exponent / 2))), other(power_of_two(exponent / 2 - exponent)) {}
    __device__ __forceinline__ float of(float value, const ScaleBack& also) const {
        return value * (one * also.one) * (other * also.other);
    }
};

// The same powers of two as bits, which add up as the exponents do.
struct ScaleBits {
    int one, other;
    __device__ __forceinline__ explicit ScaleBits(int exponent)
        : one((exponent >> 1) << 23), other((exponent - (exponent >> 1)) << 23) {}
    __device__ __forceinline__ float undone(float value, const ScaleBits& also) const {
        constexpr int bits_of_one = 127 << 23;
        return value * __int_as_float(bits_of_one - one - also.one) * __int_as_float(bits_of_one - other - also.other);
    }
};

// A consumer's values of a whole tile of two inputs, their scales undone, to the epilogue, as below: where the output is
// large beside the inputs most of the time goes here, so that places are counted up.
template <class Epilogue>
__device__ __forceinline__ void finish_whole_tile(float (&sum)[product_columns / 2], long long row,
                                                  const int (&exponents)[2], const int* __restrict__ x_exponents,
                                                  long long x_row, long long features, const Epilogue& epilogue) {
    constexpr int batch = 4;  // Pairs of rows of x whose exponents are read at once.
    const decltype(epilogue.feature(row)) finish[2] = {epilogue.feature(row), epilogue.feature(row + 8)};
    const ScaleBits of_features[2] = {ScaleBits(exponents[0]), ScaleBits(exponents[1])};
    long long place = x_row * features;
#pragma unroll
    for (int begin = 0; begin < product_columns / 8; begin += batch) {
        int x_exponent[2 * batch];
#pragma unroll
        for (int j = 0; j < 2 * batch; ++j) {
            x_exponent[j] = x_exponents[x_row + j / 2 * 8 + j % 2];
        }
#pragma unroll
        for (int j = 0; j < 2 * batch; ++j) {
            const ScaleBits of_row(x_exponent[j]);
#pragma unroll
            for (int below = 0; below < 2; ++below) {
                float& value = sum[(begin + j / 2) * 4 + 2 * below + j % 2];
                const float product = finish[below].at(of_features[below].undone(value, of_row),
                                                       x_row + j / 2 * 8 + j % 2, place + j % 2 * features);
                if constexpr (Epilogue::takes_moments) {
                    value = product;
                }
            }
            place += j % 2 * 8 * features;
        }
        x_row += 8 * batch;
    }
}

// A consumer's values of a tile, their scales undone, to the epilogue; `row` of w is its first, the other 8 below, and
// `exponents` are theirs. Both rows of w beside each other: what depends on the row of x alone is there once for the two.
// An epilogue that takes moments gets the product's values of the tile once more, in the place of the sums.
template <class Epilogue>
__device__ __forceinline__ void finish_tile(float (&sum)[product_columns / 2], const Tile& tile, long long row,
                                            const int (&exponents)[2], const int* __restrict__ x_exponents,
                                            const ProductShape& shape, const Epilogue& epilogue) {
    const int lane = threadIdx.x % 32;
    const bool exists[2] = {row < shape.w_rows, row + 8 < shape.w_rows};
    if constexpr (of_inputs) {
        const long long x_first = tile.x_tile * product_columns;
        if (x_first + product_columns <= shape.x_rows && tile.w_first + product_rows <= shape.w_rows) {
            const long long x_row = tile.x_before(shape) + x_first + lane % 4 * 2;
            finish_whole_tile(sum, row, exponents, x_exponents, x_row, shape.w_rows, epilogue);
            if constexpr (Epilogue::takes_moments) {
                epilogue.take_moments(sum, tile, row, exists, shape.x_rows);
            }
            return;
        }
    }
    const decltype(epilogue.feature(row)) finish[2] = {epilogue.feature(exists[0] ? row : 0),
                                                       epilogue.feature(exists[1] ? row + 8 : 0)};
    // A sum of two exponents is beyond one float's: half of each goes into either of two factors.
    ScaleBack of_features[2];
#pragma unroll
    for (int below = 0; below < 2; ++below) {
        of_features[below] = ScaleBack(exponents[below]);
    }
    constexpr int batch = 8;  // Rows of x whose exponents are read at once.
    const long long first = tile.x_tile * product_columns + lane % 4 * 2;
    const long long before = tile.x_before(shape);
#pragma unroll
    for (int begin = 0; begin < product_columns / 4; begin += batch) {
        int x_exponent[batch];
#pragma unroll
        for (int j = 0; j < batch; ++j) {
            const long long x_row = first + (begin + j) / 2 * 8 + j % 2;
            x_exponent[j] = x_row < shape.x_rows ? x_exponents[before + x_row] : 0;
        }
#pragma unroll
        for (int j = 0; j < batch; ++j) {
            const long long x_row = first + (begin + j) / 2 * 8 + j % 2;
            if (x_row < shape.x_rows) {
                const ScaleBack of_row(x_exponent[j]);
#pragma unroll
                for (int below = 0; below < 2; ++below) {
                    if (exists[below]) {
                        float& value = sum[(begin + j) / 2 * 4 + 2 * below + j % 2];
                        const float product = finish[below](of_features[below].of(value, of_row), before + x_row);
                        if constexpr (Epilogue::takes_moments) {
                            value = product;
                        }
                    }
                }
            }
        }
    }
    if constexpr (Epilogue::takes_moments) {
        epilogue.take_moments(sum, tile, row, exists, shape.x_rows);
    }
}

#if TUNEBENCH_HOPPER

// 65536 registers, less what 384 threads cannot have in steps of 8.
constexpr int producer_registers = splits_beside ? 72 : 40;
constexpr int consumer_registers = splits_beside ? 216 : 232;

using Position = RingPosition<product_stages>;

// Barriers of all stages, known to the cluster; a full stage has `arrivals` of this block. The rank in the cluster.
__device__ __forceinline__ u32 begin_pipeline(u64* full, u64* empty, int arrivals) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < product_stages; ++i) {
            mbarrier_init(full + i, arrivals);
            mbarrier_init(empty + i, consumer_threads / 32 * product_cluster);
        }
        fence_mbarrier_init();
    }
    const u32 rank = product_cluster == 1 ? 0 : cluster_ctarank();
    cluster_sync();
    return rank;
}

// One thread: a stage of x. Each block of a cluster fetches its share and sends it to all.
template <int bytes>
__device__ __forceinline__ void bring_x(unsigned char* target, const unsigned char* source, u64* barrier, u32 rank) {
    if constexpr (product_cluster == 1) {
        cp_async_bulk(target, source, bytes, barrier);
    } else {
        constexpr int share = bytes / product_cluster;
        cp_async_bulk_multicast(target + rank * share, source + rank * share, share, barrier, whole_cluster);
    }
}

// What is added in fp32 outside the tensor cores, by the memory system itself: nobody waits for it. Each thread has its
// own words, laid out for whole lines; the sums' order does not depend on timing.
struct Sums {
    float4* first;
    __device__ __forceinline__ float4* word(int i) const { return first + i * consumer_threads; }

    __device__ __forceinline__ void add(const float (&sum)[product_columns / 2], bool to_nothing) const {
#pragma unroll
        for (int i = 0; i < product_columns / 8; ++i) {
            const float4 value = {sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]};
            if (to_nothing) {
                __stcg(word(i), value);
            } else {
                red_add(word(i), value);
            }
        }
    }
    __device__ __forceinline__ void add_to(float (&sum)[product_columns / 2]) const {
#pragma unroll
        for (int i = 0; i < product_columns / 8; ++i) {
            const float4 value = __ldcg(word(i));
            sum[4 * i] += value.x;
            sum[4 * i + 1] += value.y;
            sum[4 * i + 2] += value.z;
            sum[4 * i + 3] += value.w;
        }
    }
};

__device__ __forceinline__ Sums sums_of_thread(float* scratch) {
    return {reinterpret_cast<float4*>(scratch) + blockIdx.x * (consumer_threads * (product_columns / 8)) + threadIdx.x -
            producer_threads};
}

#endif  // TUNEBENCH_HOPPER
