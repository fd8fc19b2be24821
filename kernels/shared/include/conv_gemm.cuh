// The convolution as a matrix product that is never laid out as one, on Hopper's half-precision tensor cores: filters by
// pixels, summed over the window's places and the channels.
//
// A block keeps its 128 filters in shared memory and walks down a strip of the output, 128 columns wide. The rows of x
// that the window covers stand in a ring, [channel / 8][column][channel % 8] in half precision, so that a place of the
// window is nothing but another starting address. One warpgroup fills the ring: it reads x, in either layout; of fp32 it
// notes each sample's largest magnitude, and rounds. Two multiply, half the filters each, and write finished values in x's
// type, in either layout; while the sums of one row are written, those of the next are under way. Padding is zeros in the
// ring, and dilation is other steps from place to place: the convolution's stride is 1, and it has no groups.
#pragma once

#include "hopper.cuh"

constexpr int tile_columns = 128;
constexpr int unit_bytes = 16;  // Eight channels of one column.
constexpr int loader_threads = 128;
constexpr int multiplier_threads = 256;
constexpr int implicit_gemm_threads = loader_threads + multiplier_threads;

#if TUNEBENCH_HOPPER

constexpr int window_height = static_cast<int>(kernel_height);
constexpr int window_width = static_cast<int>(kernel_width);
constexpr int span_rows = static_cast<int>(span_height), span_columns = static_cast<int>(span_width);
constexpr int row_step = static_cast<int>(dilation_height), column_step = static_cast<int>(dilation_width);
constexpr bool pads_rows = padding_height > 0, pads_columns = padding_width > 0;
// A strip's first place of the window stands `first_column` columns behind the ring's first, which is an even one of x.
constexpr int first_column = static_cast<int>(padding_before % 2), ahead = static_cast<int>(padding_before) + first_column;
constexpr int channel_groups = static_cast<int>((in_channels + 15) / 16 * 2);  // Of eight; a product takes two.
constexpr int row_columns = tile_columns + (first_column + span_columns + 1) / 2 * 2;  // An even number, for pairs.
constexpr int group_bytes = row_columns * unit_bytes;
constexpr int row_bytes = channel_groups * group_bytes;
constexpr int place_bytes = channel_groups * tile_filters * unit_bytes;
constexpr int filter_bytes = window_height * window_width * place_bytes;

constexpr int loader_registers = 104;
constexpr int multiplier_registers = 200;

using input_t = typename Choose<is_half, scalar_t, float>::type;

struct Images {
    const input_t* x;
    long long samples, height, width, filters;

    __device__ __forceinline__ long long out_height() const { return height + padding_height - (span_rows - 1); }
    __device__ __forceinline__ long long out_width() const { return width + padding_width - (span_columns - 1); }
    __device__ __forceinline__ long long strips_down() const { return (out_height() + strip_rows - 1) / strip_rows; }
    __device__ __forceinline__ long long strips_across() const { return (out_width() + tile_columns - 1) / tile_columns; }
    __device__ __forceinline__ long long filter_tiles() const { return (filters + tile_filters - 1) / tile_filters; }
    // Of one tile of filters: a block keeps its tile.
    __device__ __forceinline__ long long strips() const { return samples * strips_down() * strips_across(); }
};

// Where a strip begins in the output, and how many rows it has.
struct Strip {
    long long sample, row, column;
    int rows;
    __device__ __forceinline__ Strip(long long number, const Images& images) {
        column = number % images.strips_across() * tile_columns;
        row = number / images.strips_across() % images.strips_down() * strip_rows;
        sample = number / (images.strips_across() * images.strips_down());
        const long long left = images.out_height() - row;
        rows = left < strip_rows ? static_cast<int>(left) : strip_rows;
    }
};

// The ring's rows in the order they are used: where the next one stands, and the parity of its use.
struct RingRow {
    int slot = 0;
    u32 parity = 0;
    __device__ __forceinline__ void advance() {
        if (++slot == ring_rows) {
            slot = 0;
            parity ^= 1;
        }
    }
};

#include "conv_gemm_input.cuh"
#include "conv_gemm_output.cuh"

// The sums of one row of the output: 64 filters by 128 columns. `first` is the ring's slot of the window's first row.
__device__ __forceinline__ void multiply_row(float (&sums)[tile_columns / 2], u32 filters, u32 ring, int first) {
    using Product = WarpgroupProduct<tile_columns, multiplied_t>;
    products_begin();
    u64 filter = matrix_descriptor(filters, tile_filters * unit_bytes, 8 * unit_bytes);
    asm volatile("" : "+l"(filter));  // else all of its sums are kept in registers from row to row
    // Not unrolled over the window's rows: one is enough to keep the tensor cores busy, and each further one is as much
    // again to compile at each of this function's places.
#pragma unroll 1
    for (int down = 0; down < window_height; ++down) {
        const int place = first + down * row_step;
        const int slot = place < ring_rows ? place : place - ring_rows;
        const u64 row = matrix_descriptor(ring + slot * row_bytes, group_bytes, 8 * unit_bytes);
#pragma unroll
        for (int across = 0; across < window_width; ++across) {
#pragma unroll
            for (int group = 0; group < channel_groups; group += 2) {
                // Both addresses are in units of 16 bytes.
                const int weights = (down * window_width + across) * (place_bytes / 16) + group * tile_filters;
                const int columns = group * row_columns + first_column + across * column_step;
                Product::run(sums, filter + weights, row + columns, down + across + group > 0);
            }
        }
        products_commit();
    }
}

// All sums but those of the row that was begun last are done.
__device__ __forceinline__ void wait_for_all_but_one_row() { products_wait<(window_height < 7 ? window_height : 7)>(); }

__device__ __forceinline__ void multiply(unsigned char* shared, unsigned char* ring_memory,
                                         unsigned char* staging_memory, u64* full, u64* empty, const Images& images,
                                         long long filter_tile, scalar_t* __restrict__ output, long long first,
                                         long long step, const Epilogue& epilogue) {
    const int warpgroup = threadIdx.x / 128 - 1;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - loader_threads / 32;
    const long long first_filter = filter_tile * tile_filters + warp * 16;
    float* const staging = reinterpret_cast<float*>(staging_memory) + warp * staging_elements;
    const u32 filters = shared_address(shared) + warpgroup * 64 * unit_bytes;
    const u32 ring = shared_address(ring_memory);
    RingRow next;   // the row of x to wait for
    RingRow oldest; // the window's first
    float even[tile_columns / 2], odd[tile_columns / 2];
    const auto let_go = [&] {
        if (lane == 0) {
            barrier_arrive(empty + oldest.slot);
        }
        oldest.advance();
    };
    for (long long number = first; number < images.strips(); number += step) {
        const Strip strip(number, images);
        const auto wait = [&] {
            barrier_wait(full + next.slot, next.parity);
            next.advance();
        };
        for (int row = 0; row < span_rows - 1; ++row) {
            wait();
        }
        int window = oldest.slot;
        const auto begin = [&](float (&sums)[tile_columns / 2]) {
            wait();
            multiply_row(sums, filters, ring, window);
            window = window + 1 == ring_rows ? 0 : window + 1;
        };
        const auto write = [&](int row, const float (&sums)[tile_columns / 2]) {
            let_go();
            const RowOfWarp part(images, strip, row, first_filter);
            if constexpr (output_last) {
                write_pixels(sums, part, output, staging, epilogue);
            } else {
                write_planes(sums, part, output, staging, epilogue);
            }
        };
        // Two steps written out, and not one with conditions: the compiler must see that no sums under way are read.
        int row = 0;
        begin(even);
        while (true) {
            if (row + 1 == strip.rows) {
                products_wait<0>();
                write(row++, even);
                break;
            }
            begin(odd);
            wait_for_all_but_one_row();
            write(row++, even);
            if (row + 1 == strip.rows) {
                products_wait<0>();
                write(row++, odd);
                break;
            }
            begin(even);
            wait_for_all_but_one_row();
            write(row++, odd);
        }
        for (int row = 0; row < span_rows - 1; ++row) {
            let_go();
        }
    }
}

// A block's tile of filters is blockIdx.y; its strips are blockIdx.x and every gridDim.x further.
__device__ __forceinline__ void multiply_strips(const Images& images, const void* __restrict__ filters,
                                                       unsigned* __restrict__ largest, scalar_t* __restrict__ output,
                                                       const Epilogue& epilogue) {
    extern __shared__ __align__(128) unsigned char shared[];
    unsigned char* ring = shared + filter_bytes;
    unsigned char* staging = ring + ring_rows * row_bytes;
    u64* full = reinterpret_cast<u64*>(staging + staging_bytes);
    u64* empty = full + ring_rows;
    u64* filters_there = empty + ring_rows;
    if (threadIdx.x == 0) {
        for (int i = 0; i < ring_rows; ++i) {
            barrier_init(full + i, loader_threads / 32);
            barrier_init(empty + i, multiplier_threads / 32);
        }
        barrier_init(filters_there, 1);
        barrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x < loader_threads) {
        fewer_registers<loader_registers>();
        if (threadIdx.x == 0) {
            barrier_arrive_expecting(filters_there, filter_bytes);
            const unsigned char* source = static_cast<const unsigned char*>(filters) + blockIdx.y * filter_bytes;
            bulk_copy(shared, source, filter_bytes, filters_there);
        }
        load(ring, full, empty, images, largest, blockIdx.x, gridDim.x);
    } else {
        more_registers<multiplier_registers>();
        barrier_wait(filters_there, 0);
        multiply(shared, ring, staging, full, empty, images, blockIdx.y, output, blockIdx.x, gridDim.x, epilogue);
    }
}

#endif  // TUNEBENCH_HOPPER

__device__ __forceinline__ void implicit_gemm_by_block(const scalar_t* __restrict__ x,
                                                       const weight_t* __restrict__ filters,
                                                       scalar_t* __restrict__ output, unsigned* __restrict__ largest,
                                                       long long samples, long long out_channels, long long height,
                                                       long long width, const Epilogue& epilogue) {
#if TUNEBENCH_HOPPER
    if constexpr (implicit) {
        const Images images{reinterpret_cast<const input_t*>(x), samples, height, width, out_channels};
        multiply_strips(images, filters, largest, output, epilogue);
    }
#endif
}
