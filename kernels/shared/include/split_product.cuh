// The fp32 matrix product y = x · wᵀ on Hopper's half-precision tensor cores, as accurate as a strict fp32 product.
//
// Each operand is split into two halves (parts.cuh), which together hold 22 bits of its mantissa; x · w is then
// x_high · w_high + x_high · w_low + x_low · w_high (Ootomo and Yokota, "Recovering single precision accuracy from Tensor
// Cores", 2022). Tensor cores add with truncation, which would be the largest error left: every so often the sums are
// therefore taken out of them and added in fp32.
//
//   row_exponents    the exponent that brings each row of a matrix into range
//   split_rows       x, once per call: its exponents and its parts, laid out tile by tile as the product reads them
//   split_product    the product; w is read as it is and split on the way into shared memory, or, with `weight_parts`, read
//                    in parts from memory (tile_product.cuh)
//   repair_rows      strict fp32 for the rows that halves cannot hold (repair.cuh)
//
// Of w its rows' exponents are kept between calls, a guess that every call verifies. The product notes each row of w that
// does not fit its exponent, or holds an infinity or a NaN, and `repair_rows` computes what depends on such a row again in
// strict fp32 and corrects the exponent. So no change of w, however it is made, can go unseen.
//
// Sizes are tunables (kernels/split_product.py, kernels/products.py): `product_columns` rows of x in a tile,
// `product_stages` tiles of both operands in flight, `product_cluster` blocks that share a tile of x, `sum_stages` stages
// (of 32 along K) between sums in fp32 (0: none), and `split_threads` a block of the smaller kernels.
#pragma once

#include "parts.cuh"
#include "product_tiles.cuh"
#include "repair.cuh"
#include "tile_product.cuh"

constexpr int tile_depth = 32;          // Along K, of one stage.

extern "C" __global__ void __launch_bounds__(split_threads)
    row_exponents(const float* __restrict__ matrix, int* __restrict__ exponents, long long rows, long long depth) {
    begin_launch();
    for (long long row = blockIdx.x; fused && row < rows; row += gridDim.x) {
        const bool vectors = reads_as_vectors(matrix, depth);
        const int mine = largest_of_row(matrix + row * depth, depth, vectors, threadIdx.x, split_threads);
        const float largest = largest_of_warps<split_threads, split_threads>(mine);
        if (threadIdx.x == 0) {
            exponents[row] = exponent_for(largest);
        }
    }
}

#if TUNEBENCH_HOPPER

__device__ __forceinline__ u32 larger_halves(u32 a, u32 b) {
    u32 word;
    asm("{\n.reg .b32 m;\nabs.f16x2 m, %2;\nmax.NaN.f16x2 %0, %1, m;\n}" : "=r"(word) : "r"(a), "r"(b));
    return word;
}

constexpr int part_bytes = product_columns * tile_depth * 2;  // Of x, one part of one stage.

// One block splits eight neighbouring rows of x. Tile (t, k) of x holds rows product_columns · t … and columns 32 · k …,
// first the high parts, then the low, each as [column / 8][row][column % 8]; the last tiles are filled with zeros.
__device__ __forceinline__ void split_rows_of_block(const float* __restrict__ x, unsigned char* __restrict__ parts,
                                                   int* __restrict__ exponents, int* __restrict__ unfit,
                                                   const int* __restrict__ kept_exponents,
                                                   int* __restrict__ w_exponents, long long rows, long long depth,
                                                   long long w_rows) {
    constexpr int rows_of_block = 8;
    constexpr int threads_of_row = split_threads / rows_of_block;
    __shared__ int exponent_of_row[rows_of_block];
    const long long first = static_cast<long long>(blockIdx.x) * rows_of_block;
    const bool vectors = reads_as_vectors(x, depth);

    // Every call works on a snapshot of what is kept of w.
    for (long long i = static_cast<long long>(blockIdx.x) * split_threads + threadIdx.x; i < w_rows;
         i += static_cast<long long>(gridDim.x) * split_threads) {
        w_exponents[i] = kept_exponents[i];
    }

    {
        const int thread = threadIdx.x % threads_of_row;
        const long long row = first + threadIdx.x / threads_of_row;
        const int mine = row < rows ? largest_of_row(x + row * depth, depth, vectors, thread, threads_of_row) : 0;
        const float largest = largest_of_warps<split_threads, threads_of_row>(mine);
        const int exponent = exponent_for(largest);
        if (thread == 0) {
            exponent_of_row[threadIdx.x / threads_of_row] = exponent;
            if (row < rows) {
                exponents[row] = exponent;
                unfit[row] = !fits(scaled(largest, exponent), exponent);
            }
        }
        __syncthreads();
    }

    // A warp reads 128 bytes of each of the eight rows and writes 128 bytes of each of four columns of core matrices.
    const long long row = first + threadIdx.x % rows_of_block;
    const bool inside = row < rows;
    const float* source = x + (inside ? row : 0) * depth;
    const float factor = power_of_two(exponent_of_row[threadIdx.x % rows_of_block]);
    const long long stages = (depth + tile_depth - 1) / tile_depth;
    unsigned char* target = parts + row / product_columns * stages * (2 * part_bytes) + row % product_columns * core_bytes;
#pragma unroll 2
    for (long long piece = threadIdx.x / rows_of_block; piece < stages * (tile_depth / 8); piece += threads_of_row) {
        const long long k = piece * 8;
        float v[8];
        if (inside && vectors && k + 8 <= depth) {
            const float4 a = reinterpret_cast<const float4*>(source + k)[0];
            const float4 b = reinterpret_cast<const float4*>(source + k)[1];
            v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
            v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
        } else {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                v[i] = inside && k + i < depth ? source[k + i] : 0.0f;
            }
        }
        const SplitHalves p0(v[0] * factor, v[1] * factor), p1(v[2] * factor, v[3] * factor);
        const SplitHalves p2(v[4] * factor, v[5] * factor), p3(v[6] * factor, v[7] * factor);
        unsigned char* place = target + piece / (tile_depth / 8) * (2 * part_bytes) +
                               piece % (tile_depth / 8) * (product_columns * core_bytes);
        *reinterpret_cast<uint4*>(place) = {p0.high, p1.high, p2.high, p3.high};
        *reinterpret_cast<uint4*>(place + part_bytes) = {p0.rest, p1.rest, p2.rest, p3.rest};
    }
}

// --- The product ----------------------------------------------------------------------------------------------------

// In shared memory a stage is a tile of w as it is, fp32, its rows 32 bytes apart (a warp that reads pairs of four columns
// and eight rows then meets every bank once), and a tile of x as split_rows has laid it out.
constexpr int w_pitch = tile_depth * 4 + 32;
constexpr int w_stage_bytes = product_rows * w_pitch;
constexpr int stage_bytes = w_stage_bytes + 2 * part_bytes;
constexpr int product_shared_bytes = product_stages * (stage_bytes + 2 * 8);

__device__ __forceinline__ long long stages_of(const ProductShape& shape) {
    return (shape.depth + tile_depth - 1) / tile_depth;
}

__device__ __forceinline__ void produce(unsigned char* shared, u64* full, u64* empty, const float* __restrict__ w,
                                        const unsigned char* __restrict__ parts, const ProductShape& shape, u32 rank) {
    const int thread = threadIdx.x;
    const int row_in_tile = thread / 8;
    const int column_in_stage = thread % 8 * 4;
    const bool vectors = reads_as_vectors(w, shape.depth);
    const long long stages = stages_of(shape);
    const u32 place = shared_address(shared) + row_in_tile * w_pitch + column_in_stage * 4;
    Position position;
    for (long long number = blockIdx.x; number < shape.tiles(); number += gridDim.x) {
        const Tile tile(number, shape, rank);
        const long long first = tile.w_first + row_in_tile;
        const float* w_source = w + first * shape.depth + column_in_stage;
        const unsigned char* x_source = parts + tile.x_tile * stages * (2 * part_bytes);
        for (long long stage = 0; stage < stages; ++stage) {
            mbarrier_wait(empty + position.slot, position.parity ^ 1);
            if (thread == 0) {
                mbarrier_arrive_expect_tx(full + position.slot, 2 * part_bytes);
                unsigned char* target = shared + position.slot * stage_bytes + w_stage_bytes;
                bring_x<2 * part_bytes>(target, x_source, full + position.slot, rank);
            }
            u32 target = place + position.slot * stage_bytes;
            const float* source = w_source + stage * tile_depth;
            const long long columns = shape.depth - stage * tile_depth - column_in_stage;
            // Not unrolled: eight addresses are more than this branch's registers hold.
#pragma unroll 1
            for (int below = 0; below < product_rows; below += 16) {
                const bool inside = first + below < shape.w_rows;
                if (vectors) {
                    cp_async_16(target, inside && columns > 0 ? source : w, inside && columns > 0);
                } else {
                    for (int i = 0; i < 4; ++i) {
                        cp_async_4(target + 4 * i, inside && columns > i ? source + i : w, inside && columns > i);
                    }
                }
                source += 16 * shape.depth;
                target += 16 * w_pitch;
            }
            cp_async_mbarrier_arrive(full + position.slot);
            x_source += 2 * part_bytes;
            position.advance();
        }
    }
}

// A warp's 16 rows and 16 columns of a tile of w, split, in the registers that a warpgroup's product takes them from.
struct Fragment {
    u32 high[4], low[4];

    // `source` is this thread's first pair; `largest` collects the magnitudes of its two rows.
    __device__ __forceinline__ void load(const unsigned char* source, const float (&factors)[2], u32 (&largest)[2]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 pair = *reinterpret_cast<const float2*>(source + i % 2 * 8 * w_pitch + i / 2 * 8 * 4);
            const SplitHalves parts(pair.x * factors[i % 2], pair.y * factors[i % 2]);
            high[i] = parts.high;
            low[i] = parts.rest;
            largest[i % 2] = larger_halves(largest[i % 2], parts.high);
        }
    }
};

// The three products of the parts over one stage.
__device__ __forceinline__ void multiply(float (&sum)[product_columns / 2], const Fragment (&w)[2], u32 x_high,
                                         bool accumulate) {
    constexpr int x_column_bytes = product_columns * core_bytes;
    using Product = Wgmma<product_columns, half_t>;
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 2; ++step) {
        const u32 address = x_high + step * 2 * x_column_bytes;
        const u64 high = wgmma_descriptor(address, x_column_bytes, 8 * core_bytes);
        const u64 low = wgmma_descriptor(address + part_bytes, x_column_bytes, 8 * core_bytes);
        Product::run(sum, w[step].low, high, accumulate || step > 0);
        Product::run(sum, w[step].high, low, true);
        Product::run(sum, w[step].high, high, true);
    }
    wgmma_commit();
}

// `epilogue.feature(row of w)` gives what is called with each value of that row and its row of x, and writes.
template <class Epilogue>
__device__ __forceinline__ void consume(unsigned char* shared, u64* full, u64* empty, const ProductShape& shape,
                                        const int* __restrict__ x_exponents, const int* __restrict__ w_exponents,
                                        int* __restrict__ w_unfit, const Sums& sums, u32 rank,
                                        const Epilogue& epilogue) {
    const int warpgroup = threadIdx.x / 128 - 1;
    const int lane = threadIdx.x % 32;
    const int row_in_tile = threadIdx.x / 32 % 4 * 16 + warpgroup * 64 + lane / 4;
    const u32 x_base = shared_address(shared) + w_stage_bytes;
    const unsigned char* w_base = shared + row_in_tile * w_pitch + lane % 4 * 8;
    const int stages = static_cast<int>(stages_of(shape));
    // Warpgroups add in different stages: their memory traffic spreads out, and while one adds, another multiplies.
    const int first_sum = sum_stages > 0 ? 1 + (blockIdx.x + warpgroup * (sum_stages / 2)) % sum_stages : 0;
    Position position;
    for (long long number = blockIdx.x; number < shape.tiles(); number += gridDim.x) {
        const Tile tile(number, shape, rank);
        const long long row = tile.w_first + row_in_tile;
        float factors[2];
        u32 largest[2] = {0, 0};
#pragma unroll
        for (int below = 0; below < 2; ++below) {
            factors[below] = row + 8 * below < shape.w_rows ? power_of_two(w_exponents[row + 8 * below]) : 0.0f;
        }
        float sum[product_columns / 2];
        Fragment even[2], odd[2];
        const auto split = [&](Fragment (&w)[2]) {
            mbarrier_wait(full + position.slot, position.parity);
            w[0].load(w_base + position.slot * stage_bytes, factors, largest);
            w[1].load(w_base + position.slot * stage_bytes + 16 * 4, factors, largest);
        };
        int previous = 0;
        // Multiplies a stage that is split already and splits the next while it multiplies.
        const auto advance = [&](int stage, Fragment (&w)[2], Fragment (&next)[2]) {
            const bool adds = sum_stages > 0 && stage >= first_sum && (stage - first_sum) % sum_stages == 0;
            const bool begins = stage == 0 || adds;
            if (adds) {
                wgmma_wait<0>();
                sums.add(sum, stage == first_sum);
            }
            multiply(sum, w, x_base + position.slot * stage_bytes, !begins);
            wgmma_wait<1>();
            if (stage > 0 && lane < product_cluster) {
                mbarrier_arrive_remote(empty + previous, lane);
            }
            previous = position.slot;
            position.advance();
            if (stage + 1 < stages) {
                split(next);
            }
        };
        split(even);
        for (int stage = 0; stage < stages; stage += 2) {
            advance(stage, even, odd);
            if (stage + 1 < stages) {
                advance(stage + 1, odd, even);
            }
        }
        wgmma_wait<0>();
        if (lane < product_cluster) {
            mbarrier_arrive_remote(empty + previous, lane);
        }
        if (sum_stages > 0 && stages > first_sum) {
            sums.add_to(sum);
        }
        int exponents[2];
#pragma unroll
        for (int below = 0; below < 2; ++below) {
            const long long w_row = row + 8 * below;
            int most = max(abs_bits(SplitHalves::first_half(largest[below])),
                           abs_bits(SplitHalves::second_half(largest[below])));
            most = largest_of_lanes<1, 2>(most);
            const bool exists = w_row < shape.w_rows;
            exponents[below] = exists ? w_exponents[w_row] : 0;
            if (exists && tile.x_tile == 0 && lane % 4 == 0) {
                w_unfit[w_row] = !fits(__int_as_float(most), exponents[below]);
            }
        }
        finish_tile(sum, tile, row, exponents, x_exponents, shape, epilogue);
    }
}

template <class Epilogue>
__device__ __forceinline__ void split_product_of_block(const float* __restrict__ w,
                                                       const unsigned char* __restrict__ parts,
                                                       const int* __restrict__ x_exponents,
                                                       const int* __restrict__ w_exponents, int* __restrict__ w_unfit,
                                                       float* __restrict__ scratch, const ProductShape& shape,
                                                       const LateRows& late, const Epilogue& epilogue) {
    extern __shared__ __align__(128) unsigned char shared[];
    u64* full = reinterpret_cast<u64*>(shared + product_stages * (from_tiles ? lines_bytes : stage_bytes));
    u64* empty = full + product_stages;
    const u32 rank = begin_pipeline(full, empty, from_tiles ? 1 : producer_threads + 1);
    begin_launch();
    let_next_begin();
    if (threadIdx.x < producer_threads) {
        setmaxnreg_dec<producer_registers>();
        if constexpr (!from_tiles) {
            produce(shared, full, empty, w, parts, shape, rank);
        } else if (threadIdx.x == 0) {
            bring_tiles(shared, full, empty, reinterpret_cast<const unsigned char*>(w), parts, shape, rank, late);
        } else if (splits_beside && threadIdx.x >= 32) {
            unsigned char* const staged = reinterpret_cast<unsigned char*>(empty + product_stages);
            split_late_rows(staged, late, const_cast<float*>(w), w_exponents, w_unfit, shape);
        }
    } else {
        setmaxnreg_inc<consumer_registers>();
        const Sums sums = sums_of_thread(scratch);
        if constexpr (from_tiles) {
            multiply_tiles(shared, full, empty, shape, x_exponents, w_exponents, sums, epilogue);
        } else {
            consume(shared, full, empty, shape, x_exponents, w_exponents, w_unfit, sums, rank, epilogue);
        }
    }
    if constexpr (from_tiles) {
        __syncthreads();
    }
    cluster_sync();  // A block must not end while the other still sends to it.
}

#endif  // TUNEBENCH_HOPPER

extern "C" __global__ void __launch_bounds__(split_threads)
    split_rows(const float* __restrict__ x, unsigned char* __restrict__ parts, int* __restrict__ exponents,
               int* __restrict__ unfit, const int* __restrict__ kept_exponents, int* __restrict__ w_exponents,
               long long rows, long long depth, long long w_rows) {
#if TUNEBENCH_HOPPER
    if constexpr (fused) {
        begin_launch();
        let_next_begin();
        split_rows_of_block(x, parts, exponents, unfit, kept_exponents, w_exponents, rows, depth, w_rows);
    }
#endif
}
