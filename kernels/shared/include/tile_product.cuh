// The same product from parts in memory: high parts in fp16, and the small terms from factors of eight bits or in fp16.
//
// x · w is x_high · w_low + x_low · w_high + x_high · w_high as in split_product.cuh. The two small terms are 2^-11 of the
// third, so that their factors need few bits; products of eight bits run at twice the rate. Both operands are split in
// memory, in every call or, of a weight that is kept, once. They are laid out tile by tile as shared memory has them, so
// that a stage of either is one bulk copy. A tile's sums begin as those of the small terms, which then become the first
// value of the large one's, so that these are truncated in a third as many additions as where all three are made together:
//
//   split_tiles     x, or x and the weight: their rows' exponents, notes on those that parts cannot hold, and the parts
//   split_product   the product, with the epilogue
//   repair_rows     strict fp32 for the rows that parts cannot hold (repair.cuh)
//
// A tile of R rows is a series of stages of R rows · 128 bytes, each [16 bytes along K][row][16 bytes] (core matrices):
// the small terms' factors, all high (x) or low (w) parts and then the others, and then the high parts in fp16, where those
// factors are not they.
#pragma once

#include "eight_product.cuh"
#include "pack.cuh"
#include "product_tiles.cuh"

constexpr bool from_tiles = fused && weight_parts != weight_parts_t::none;

// What brings high parts (below 2^11) and low parts (1/2 at most) into the range of eight bits, and what undoes it.
template <weight_parts_t> struct TileParts {
    using type = whole_t;
    static constexpr float of_high = 0x1p-4f, of_low = 0x1p8f;
};
template <> struct TileParts<weight_parts_t::e4m3> {
    using type = e4m3_t;
    static constexpr float of_high = 0x1p-3f, of_low = 0x1p9f;
};
template <> struct TileParts<weight_parts_t::fp16> {
    using type = half_t;
    static constexpr float of_high = 1.0f, of_low = 0x1p11f;
};
using tile_parts_t = TileParts<weight_parts>;
using small_t = tile_parts_t::type;
constexpr bool small_halves = weight_parts == weight_parts_t::fp16;

constexpr int line_bytes = 128;   // Of a row in a stage.
constexpr int smalls_of_line = line_bytes / sizeof(small_t);
constexpr int halves_of_line = 64;
constexpr int whole_run = 128;     // Rows are filled with zeros to a multiple of so many elements.
constexpr int run_of_thread = 16;  // Elements that a thread splits at once.
using Run = Pack<float, 4>[run_of_thread / 4];
constexpr int tile_rows_of_block = split_threads == 512 ? 4 : 2;  // Of 1024, registers do not hold four.

__device__ __forceinline__ long long whole_runs(long long depth) { return (depth + whole_run - 1) / whole_run; }


// Where a row's parts lie: the addresses of its first bytes in the first stage of each kind.
struct TileRow {
    unsigned char *highs, *lows, *halves;
    long long stage_bytes, column_bytes;

    __device__ __forceinline__ TileRow(float* parts, long long row, int tile_rows, long long depth, bool is_weight) {
        const long long stages = whole_runs(depth) * (whole_run / smalls_of_line);  // Of either small term's factors.
        stage_bytes = static_cast<long long>(tile_rows) * line_bytes;
        column_bytes = static_cast<long long>(tile_rows) * core_bytes;
        unsigned char* const tile = reinterpret_cast<unsigned char*>(parts) +
                                    row / tile_rows * (4 * whole_runs(depth)) * stage_bytes + row % tile_rows * core_bytes;
        highs = tile + (is_weight ? stages : 0) * stage_bytes;
        lows = tile + (is_weight ? 0 : stages) * stage_bytes;
        halves = small_halves ? highs : tile + 2 * stages * stage_bytes;
    }

    __device__ __forceinline__ void store_halves(const Pack<half_t, 8> (&values)[run_of_thread / 8],
                                                 unsigned char* first, long long k) const {
        unsigned char* const target = first + k / halves_of_line * stage_bytes + k % halves_of_line / 8 * column_bytes;
        store_whole(reinterpret_cast<half_t*>(target), values[0]);
        store_whole(reinterpret_cast<half_t*>(target + column_bytes), values[1]);
    }

    // Elements k to k + 15 of the row, times `power`.
    __device__ __forceinline__ void store(const Run& values, float power, long long k) const {
        Pack<half_t, 8> high[run_of_thread / 8];
        if constexpr (small_halves) {
            Pack<half_t, 8> low[run_of_thread / 8];
#pragma unroll
            for (int i = 0; i < run_of_thread; ++i) {
                const float value = values[i / 4].of[i % 4] * power;
                const half_t half(value);
                high[i / 8].of[i % 8] = half;
                low[i / 8].of[i % 8] = half_t((value - half) * tile_parts_t::of_low);
            }
            store_halves(low, lows, k);
        } else {
            uint4 highs8, lows8;
            unsigned* const high_words[4] = {&highs8.x, &highs8.y, &highs8.z, &highs8.w};
            unsigned* const low_words[4] = {&lows8.x, &lows8.y, &lows8.z, &lows8.w};
#pragma unroll
            for (int i = 0; i < run_of_thread; i += 4) {
                float high8[4], low8[4];
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const float value = values[i / 4].of[j] * power;
                    const half_t half(value);
                    high[i / 8].of[i % 8 + j] = half;
                    high8[j] = half * tile_parts_t::of_high;
                    low8[j] = (value - half) * tile_parts_t::of_low;
                }
                *high_words[i / 4] = four_of<small_t>(high8);
                *low_words[i / 4] = four_of<small_t>(low8);
            }
            const long long place = k / smalls_of_line * stage_bytes + k % smalls_of_line / 16 * column_bytes;
            *reinterpret_cast<uint4*>(highs + place) = highs8;
            *reinterpret_cast<uint4*>(lows + place) = lows8;
        }
        store_halves(high, halves, k);
    }
};

__device__ __forceinline__ int largest_of(const Run& values, int largest) {
#pragma unroll
    for (int i = 0; i < run_of_thread; ++i) {
        largest = max(largest, magnitude(values[i / 4].of[i % 4]));
    }
    return largest;
}

// The largest magnitude of a row, from what each of its threads has found. Once in a kernel.
__device__ __forceinline__ float largest_of_row_threads(int mine) {
    __shared__ int largest[tile_rows_of_block][split_threads / 32];
    const int row = threadIdx.x % tile_rows_of_block;
#pragma unroll
    for (int distance = 16; distance >= tile_rows_of_block; distance /= 2) {
        mine = max(mine, __shfl_xor_sync(0xFFFFFFFFu, mine, distance));
    }
    if (threadIdx.x % 32 < tile_rows_of_block) {
        largest[row][threadIdx.x / 32] = mine;
    }
    __syncthreads();
    for (int warp = 0; warp < split_threads / 32; ++warp) {
        mine = max(mine, largest[row][warp]);
    }
    return __int_as_float(mine);
}

// Both matrices of a call, x in the first `x_blocks` blocks; or x alone, where the grid ends there. One block splits two or
// four neighbouring rows, so that it writes whole sectors of 32 bytes; rows beyond the matrix are zeros. A row that the
// registers hold is read once.
extern "C" __global__ void __launch_bounds__(split_threads, split_threads < 512 ? 2 : 1)
    split_tiles(const float* __restrict__ x, float* __restrict__ x_parts, int* __restrict__ x_exponents,
                int* __restrict__ x_unfit, long long x_rows, long long x_blocks, const float* __restrict__ w,
                float* __restrict__ w_parts, int* __restrict__ w_exponents, int* __restrict__ w_unfit, long long w_rows,
                long long depth) {
    if constexpr (!from_tiles) {
        return;
    }
    constexpr int threads_of_row = split_threads / tile_rows_of_block;
    constexpr int held_runs = 8192 / (threads_of_row * run_of_thread);
    const bool is_weight = blockIdx.x >= x_blocks;
    const long long block = static_cast<long long>(blockIdx.x) - (is_weight ? x_blocks : 0);
    const long long row = block * tile_rows_of_block + threadIdx.x % tile_rows_of_block;
    const int thread = threadIdx.x / tile_rows_of_block;
    const bool inside = row < (is_weight ? w_rows : x_rows);
    const float* const matrix = is_weight ? w : x;
    const float* const source = matrix + (inside ? row : 0) * depth;
    const bool vectors = reads_as_vectors(matrix, depth);
    const long long runs = whole_runs(depth) * (whole_run / run_of_thread);
    const bool holds = runs <= held_runs * threads_of_row;
    const auto read = [&](Run& values, long long run) {
#pragma unroll
        for (int i = 0; i < run_of_thread / 4; ++i) {
            const long long k = run * run_of_thread + 4 * i;
            values[i] = load_pack<4>(source + k, inside ? depth - k : 0, inside && vectors && k + 4 <= depth);
        }
    };
    Run held[held_runs];
    int mine = 0;
    if (holds) {
#pragma unroll
        for (int i = 0; i < held_runs; ++i) {
            read(held[i], thread + i * threads_of_row);
        }
#pragma unroll
        for (int i = 0; i < held_runs; ++i) {
            mine = largest_of(held[i], mine);
        }
    } else {
        for (long long run = thread; run < runs; run += threads_of_row) {
            read(held[0], run);
            mine = largest_of(held[0], mine);
        }
    }
    const float largest = largest_of_row_threads(mine);
    const int exponent = exponent_for(largest);
    if (thread == 0 && inside) {
        // A row that no exponent brings into range may be larger than 2^11, which eight bits do not hold.
        const float size = scaled(largest, exponent);
        (is_weight ? w_exponents : x_exponents)[row] = exponent;
        (is_weight ? w_unfit : x_unfit)[row] = !(fits(size, exponent) && size < 2048.0f);
    }
    const float power = power_of_two(exponent);
    const TileRow target(is_weight ? w_parts : x_parts, row, is_weight ? product_rows : product_columns, depth, is_weight);
    if (holds) {
#pragma unroll
        for (int i = 0; i < held_runs; ++i) {
            if (thread + i * threads_of_row < runs) {
                target.store(held[i], power, static_cast<long long>(thread + i * threads_of_row) * run_of_thread);
            }
        }
    } else {
        for (long long run = thread; run < runs; run += threads_of_row) {
            read(held[0], run);
            target.store(held[0], power, run * run_of_thread);
        }
    }
}

#if TUNEBENCH_HOPPER

constexpr int w_line_bytes = product_rows * line_bytes;     // A stage of w,
constexpr int x_line_bytes = product_columns * line_bytes;  // and one of x.
constexpr int lines_bytes = w_line_bytes + x_line_bytes;

// One thread. Each of two blocks fetches half of a stage of x and sends it to both.
__device__ __forceinline__ void bring_tiles(unsigned char* shared, u64* full, u64* empty, const unsigned char* w,
                                            const unsigned char* x, const ProductShape& shape, u32 rank) {
    const long long stages_of_tile = 4 * whole_runs(shape.depth);
    const long long w_tiles = (shape.w_rows + product_rows - 1) / product_rows;
    Position position;
    for (long long number = blockIdx.x; number < shape.tiles(); number += gridDim.x) {
        const Tile tile(number, shape, rank);
        // The last block of a cluster may have no tile of w: it multiplies another, and nothing of that is written.
        const long long w_tile = min(tile.w_first / product_rows, w_tiles - 1);
        const unsigned char* w_source = w + w_tile * stages_of_tile * w_line_bytes;
        const unsigned char* x_source = x + tile.x_tile * stages_of_tile * x_line_bytes;
#pragma unroll 1
        for (int turn = 0; turn < (small_halves ? 2 : 1); ++turn) {
            const long long stages = turn == 0 ? stages_of_tile : stages_of_tile / 2;
            for (long long stage = 0; stage < stages; ++stage) {
                barrier_wait(empty + position.slot, position.parity ^ 1);
                u64* const barrier = full + position.slot;
                unsigned char* const target = shared + position.slot * lines_bytes;
                barrier_arrive_expecting(barrier, lines_bytes);
                bulk_copy(target, w_source, w_line_bytes, barrier);
                if constexpr (product_cluster == 1) {
                    bulk_copy(target + w_line_bytes, x_source, x_line_bytes, barrier);
                } else {
                    constexpr int part = x_line_bytes / 2;
                    bulk_copy_to_cluster(target + w_line_bytes + rank * part, x_source + rank * part, part, barrier, 3);
                }
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

template <typename T> struct SmallProduct : ProductOfEights<product_columns, T> {};
template <> struct SmallProduct<half_t> : WarpgroupProduct<product_columns> { using sum_t = float; };

template <class Epilogue>
__device__ __forceinline__ void multiply_tiles(unsigned char* shared, u64* full, u64* empty, const ProductShape& shape,
                                               const int* __restrict__ x_exponents,
                                               const int* __restrict__ w_exponents, const Sums& sums,
                                               const Epilogue& epilogue) {
    using Smalls = SmallProduct<small_t>;
    using Halves = WarpgroupProduct<product_columns>;
    constexpr int steps = line_bytes / 32;  // Products of 32 bytes along K.
    constexpr int sum_lines = sum_stages / 2;  // sum_stages are of 32 along K, lines of halves are of 64.
    const int warpgroup = threadIdx.x / 128 - 1;
    const int lane = threadIdx.x % 32;
    const int row_in_tile = threadIdx.x / 32 % 4 * 16 + warpgroup * 64 + lane / 4;
    const u32 w_base = shared_address(shared) + warpgroup * (64 * core_bytes);
    const u32 x_base = shared_address(shared) + w_line_bytes;
    const int halves = static_cast<int>(2 * whole_runs(shape.depth));
    const int smalls = small_halves ? 2 * halves : halves;  // Of both terms.
    const int first_sum = sum_lines > 0 ? 1 + (blockIdx.x + warpgroup * (sum_lines / 2)) % sum_lines : 0;
    Position position;
    int previous = -1;
    const auto w_operand = [&](int step) {
        constexpr int column = product_rows * core_bytes;
        return matrix_descriptor(w_base + position.slot * lines_bytes + step * 2 * column, column, 8 * core_bytes);
    };
    const auto x_operand = [&](int step) {
        constexpr int column = product_columns * core_bytes;
        return matrix_descriptor(x_base + position.slot * lines_bytes + step * 2 * column, column, 8 * core_bytes);
    };
    const auto release_previous = [&] {  // Both blocks may fill it again.
        if (previous >= 0 && lane < product_cluster) {
            barrier_arrive_at(empty + previous, lane);
        }
        previous = -1;
    };
    const auto advance = [&] {
        release_previous();
        previous = position.slot;
        position.advance();
    };
    for (long long number = blockIdx.x; number < shape.tiles(); number += gridDim.x) {
        const Tile tile(number, shape, product_cluster == 1 ? 0 : rank_in_cluster());
        // One array of registers, for there are not enough for two.
        union {
            float sum[product_columns / 2];
            typename Smalls::sum_t small[product_columns / 2];
        };
        for (int stage = 0; stage < smalls; ++stage) {
            barrier_wait(full + position.slot, position.parity);
            products_begin();
#pragma unroll
            for (int step = 0; step < steps; ++step) {
                Smalls::run(small, w_operand(step), x_operand(step), stage > 0 || step > 0);
            }
            products_commit();
            products_wait<1>();
            advance();
        }
        products_wait<0>();
#pragma unroll
        for (int i = 0; i < product_columns / 2; ++i) {
            sum[i] = static_cast<float>(small[i]) * (1.0f / (tile_parts_t::of_high * tile_parts_t::of_low));
        }
        for (int stage = 0; stage < halves; ++stage) {
            const bool adds = sum_lines > 0 && stage >= first_sum && (stage - first_sum) % sum_lines == 0;
            if (adds) {
                products_wait<0>();
                sums.add(sum, stage == first_sum);
            }
            barrier_wait(full + position.slot, position.parity);
            products_begin();
#pragma unroll
            for (int step = 0; step < steps; ++step) {
                Halves::run(sum, w_operand(step), x_operand(step), !adds || step > 0);
            }
            products_commit();
            products_wait<1>();
            advance();
        }
        products_wait<0>();
        release_previous();
        if (sum_lines > 0 && halves > first_sum) {
            sums.add_to(sum);
        }
        const long long row = tile.w_first + row_in_tile;
        const int exponents[2] = {row < shape.w_rows ? w_exponents[row] : 0,
                                  row + 8 < shape.w_rows ? w_exponents[row + 8] : 0};
        finish_tile(sum, tile, row, exponents, x_exponents, shape, epilogue);
    }
}

template <class Epilogue>
__device__ __forceinline__ void tile_product_of_block(const unsigned char* w, const unsigned char* x,
                                                      const int* __restrict__ x_exponents,
                                                      const int* __restrict__ w_exponents, float* __restrict__ scratch,
                                                      const ProductShape& shape, const Epilogue& epilogue) {
    extern __shared__ __align__(128) unsigned char shared[];
    u64* full = reinterpret_cast<u64*>(shared + product_stages * lines_bytes);
    u64* empty = full + product_stages;
    const u32 rank = begin_pipeline(full, empty, 1);
    if (threadIdx.x < producer_threads) {
        fewer_registers<producer_registers>();
        if (threadIdx.x == 0) {
            bring_tiles(shared, full, empty, w, x, shape, rank);
        }
    } else {
        more_registers<consumer_registers>();
        multiply_tiles(shared, full, empty, shape, x_exponents, w_exponents, sums_of_thread(scratch), epilogue);
    }
    __syncthreads();
    cluster_sync();  // A block must not end while the other still sends to it.
}

#endif  // TUNEBENCH_HOPPER
