// Matrices in parts, tile by tile as the shared memory of tile_product.cuh has them: what a row's parts are, where they lie,
// and the kernel that makes them.
//
// A tile of R rows is a series of stages of R rows · 128 bytes, each [16 bytes along K][row][16 bytes] (core matrices):
// the small terms' factors, all high (x) or low (w) parts and then the others, and then the high parts in fp16, where those
// factors are not they. Of rounded operands it has the latter alone; with `weight_parts=halves` a tile is one row, so that
// rows follow one another as half_product.cuh reads them.
#pragma once

#include "pack.cuh"
#include "product_tiles.cuh"

constexpr bool rounded = weight_parts == weight_parts_t::rounded || rounds_rows;
constexpr bool small_halves = weight_parts == weight_parts_t::fp16;
// What the small terms are made of.
using small_t = Choose<small_halves, half_t, Choose<weight_parts == weight_parts_t::e4m3, e4m3_t, s8_t>>;
using small_scale = PartScale<small_t>;

constexpr int line_bytes = 128;   // Of a row in a stage.
constexpr int smalls_of_line = line_bytes / sizeof(small_t);
constexpr int halves_of_line = 64;
constexpr int whole_run = 128;     // Rows are filled with zeros to a multiple of so many elements.
constexpr int stages_of_run = rounded ? 2 : 4;
constexpr int run_of_thread = 16;  // Elements that a thread splits at once.
using Run = Pack<float, 4>[run_of_thread / 4];
constexpr int tile_rows_of_block = of_inputs ? split_block_rows : split_threads == 512 ? 4 : 2;  // Of 1024, registers do not hold four.
constexpr int tile_columns_of_block = split_block_rows > 16 ? split_block_rows : 16;  // Of a matrix in columns: 64 bytes side by side.
constexpr int held_runs = of_inputs ? 2 : 8192 / (split_threads / tile_rows_of_block * run_of_thread);

__device__ __forceinline__ long long whole_runs(long long depth) { return (depth + whole_run - 1) / whole_run; }
// Of the large term: of two inputs, whose depth may be small, those alone in which there is something.
__device__ __forceinline__ long long stages_of_halves(long long depth) {
    return of_inputs ? (depth + halves_of_line - 1) / halves_of_line : 2 * whole_runs(depth);
}

// Where a row's parts lie: the addresses of its first bytes in the first stage of each kind.
struct TileRow {
    unsigned char *highs, *lows, *halves;
    long long stage_bytes, column_bytes;

    __device__ __forceinline__ TileRow(float* parts, long long row, int tile_rows, long long depth, bool is_weight) {
        const long long stages = whole_runs(depth) * (whole_run / smalls_of_line);  // Of either small term's factors.
        stage_bytes = static_cast<long long>(tile_rows) * line_bytes;
        column_bytes = static_cast<long long>(tile_rows) * core_bytes;
        unsigned char* const tile = reinterpret_cast<unsigned char*>(parts) +
                                    row / tile_rows * (stages_of_run * whole_runs(depth)) * stage_bytes + row % tile_rows * core_bytes;
        highs = tile + (is_weight ? stages : 0) * stage_bytes;
        lows = tile + (is_weight ? 0 : stages) * stage_bytes;
        halves = rounded ? tile : small_halves ? highs : tile + 2 * stages * stage_bytes;
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
        if constexpr (rounded) {
#pragma unroll
            for (int i = 0; i < run_of_thread; ++i) {
                high[i / 8].of[i % 8] = half_t(values[i / 4].of[i % 4] * power);
            }
        } else if constexpr (small_halves) {
            Pack<half_t, 8> low[run_of_thread / 8];
#pragma unroll
            for (int i = 0; i < run_of_thread; ++i) {
                const Split<half_t> parts(values[i / 4].of[i % 4] * power);
                high[i / 8].of[i % 8] = parts.high;
                low[i / 8].of[i % 8] = half_t(parts.rest() * small_scale::of_rest);
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
                    const Split<half_t> parts(values[i / 4].of[j] * power);
                    high[i / 8].of[i % 8 + j] = parts.high;
                    high8[j] = parts.high * small_scale::of_high;
                    low8[j] = parts.rest() * small_scale::of_rest;
                }
                *high_words[i / 4] = pack4<small_t>(high8);
                *low_words[i / 4] = pack4<small_t>(low8);
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
        largest = max(largest, abs_bits(values[i / 4].of[i % 4]));
    }
    return largest;
}

// The largest magnitude of a row, from what each of its threads has found. Once in a kernel.
template <int rows_of_block> __device__ __forceinline__ float largest_of_row_threads(int mine) {
    __shared__ int largest[rows_of_block][split_threads / 32];
    const int row = threadIdx.x % rows_of_block;
    if constexpr (rows_of_block < 32) {
        mine = largest_of_lanes<16, rows_of_block>(mine);
    }
    if (threadIdx.x % 32 < rows_of_block) {
        largest[row][threadIdx.x / 32] = mine;
    }
    __syncthreads();
    for (int warp = 0; warp < split_threads / 32; ++warp) {
        mine = max(mine, largest[row][warp]);
    }
    return __int_as_float(mine);
}

// What is made of an operand.
struct PartsOfOperand {
    float* parts;
    int *exponents, *unfit;
    long long rows;
};

// Neighbouring rows of x or of w, by one block, whose lanes have them side by side: what they write is whole sectors, and of
// a matrix in columns what they read as well. Rows that registers hold are read once. Behind those of each matrix there are
// others, up to a whole tile, which are zeros.
template <bool in_columns>
__device__ __forceinline__ void split_rows_of_tiles(const float* x, const float* w,
                                                    const PartsOfOperand& of_x, const PartsOfOperand& of_w,
                                                    bool is_weight, long long block, long long depth_of_one,
                                                    long long whole_depth) {
    constexpr int rows_of_block = in_columns ? tile_columns_of_block : tile_rows_of_block;
    constexpr int threads_of_row = split_threads / rows_of_block;
    const long long place = block * rows_of_block + threadIdx.x % rows_of_block;
    const Lying<in_columns> matrices{is_weight ? of_w.rows : of_x.rows, depth_of_one, whole_depth};
    const float* const matrix = is_weight ? w : x;
    long long product = 0, row = place;
    if constexpr (of_inputs) {
        const int tile_rows = is_weight ? product_rows : product_columns;
        const long long whole = (matrices.rows + tile_rows - 1) / tile_rows * tile_rows;
        product = place / whole;
        row = place % whole;
    }
    const int thread = threadIdx.x / rows_of_block;
    const bool inside = row < matrices.rows;
    const float* const source = matrix + matrices.first(product) + matrices.place(inside ? row : 0, 0);
    const long long depth = matrices.depth_of(product);
    const bool vectors = reads_as_vectors(matrix, matrices.whole_depth);
    const long long runs = whole_runs(matrices.depth) * (whole_run / run_of_thread);
    const bool holds = runs <= held_runs * threads_of_row;
    const auto read = [&](Run& values, long long run) {
#pragma unroll
        for (int i = 0; i < run_of_thread / 4; ++i) {
            const long long k = run * run_of_thread + 4 * i;
            if constexpr (in_columns) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    values[i].of[j] = inside && k + j < depth ? source[(k + j) * matrices.rows] : 0.0f;
                }
            } else {
                values[i] = load_pack<4>(source + k, inside ? depth - k : 0, inside && vectors && k + 4 <= depth);
            }
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
    const float largest = largest_of_row_threads<rows_of_block>(mine);
    const int exponent = exponent_for(largest);
    if (thread == 0 && inside) {
        (is_weight ? of_w.exponents : of_x.exponents)[product * matrices.rows + row] = exponent;
        (is_weight ? of_w.unfit : of_x.unfit)[product * matrices.rows + row] = !fits_eights(scaled(largest, exponent), exponent);
    }
    const float power = power_of_two(exponent);
    const int rows_of_tile = rounds_rows ? 1 : is_weight ? product_rows : product_columns;
    const TileRow target(is_weight ? of_w.parts : of_x.parts, place, rows_of_tile, matrices.depth, is_weight);
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

// Both matrices of a call, x in the first `x_blocks` blocks; or x alone, where the grid ends there. Rows of w from number
// `first_late` on are left to the product (late_rows.cuh): they get the exponents that are kept, and the counts of what is
// done of them begin at nothing. `whole_depth` is of two inputs.
extern "C" __global__ void __launch_bounds__(split_threads, split_threads < 512 ? (of_inputs ? 3 : 2) : 1)
    split_tiles(const float* __restrict__ x, float* __restrict__ x_parts, int* __restrict__ x_exponents,
                int* __restrict__ x_unfit, long long x_rows, long long x_blocks, const float* __restrict__ w,
                float* __restrict__ w_parts, int* __restrict__ w_exponents, int* __restrict__ w_unfit, long long w_rows,
                long long depth, const int* __restrict__ kept_exponents, unsigned* __restrict__ late_counts,
                long long first_late, long long whole_depth) {
    if constexpr (!from_tiles && !rounds_rows) {
        return;
    }
    begin_launch();
    let_next_begin();
    if (splits_beside && late_counts) {
        const long long thread_of_grid = static_cast<long long>(blockIdx.x) * split_threads + threadIdx.x;
        const long long width = static_cast<long long>(gridDim.x) * split_threads;
        for (long long row = first_late + thread_of_grid; row < w_rows; row += width) {
            w_exponents[row] = kept_exponents[row];
        }
        for (long long i = thread_of_grid; i <= (w_rows + product_rows - 1) / product_rows; i += width) {
            late_counts[i] = 0;
        }
    }
    if constexpr (!of_inputs) {
        whole_depth = depth;
    }
    const bool is_weight = blockIdx.x >= x_blocks;
    const long long block = static_cast<long long>(blockIdx.x) - (is_weight ? x_blocks : 0);
    const PartsOfOperand of_x{x_parts, x_exponents, x_unfit, x_rows}, of_w{w_parts, w_exponents, w_unfit, w_rows};
    if constexpr (x_in_columns == w_in_columns) {
        split_rows_of_tiles<x_in_columns>(x, w, of_x, of_w, is_weight, block, depth, whole_depth);
    } else if (is_weight) {
        split_rows_of_tiles<w_in_columns>(x, w, of_x, of_w, true, block, depth, whole_depth);
    } else {
        split_rows_of_tiles<x_in_columns>(x, w, of_x, of_w, false, block, depth, whole_depth);
    }
}
