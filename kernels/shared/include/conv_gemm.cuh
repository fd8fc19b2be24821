// The convolution as a matrix product that is never laid out as one, on Hopper's half-precision tensor cores: filters by
// pixels, summed over the window's places and the channels.
//
// A block keeps its 128 filters, in shared memory or some of them in registers, and walks down strips of the output, 128
// columns wide. The rows of x that the window covers stand in a ring, [channel / 8][column][channel % 8] in half precision,
// so that a place of the window is nothing but another starting address. One warpgroup fills the ring: it reads x, in
// either layout; of fp32 it notes each sample's largest magnitude, and rounds. Two multiply, half the filters each, and
// write finished values in x's type, in either layout, in one of two ways:
//
// writes=threads  while a warpgroup writes the sums of one row, those of the next are under way
// writes=bulk     while one warpgroup leaves a row to the copy engine, the other multiplies (conv_gemm_bulk.cuh)
//
// Padding is zeros in the ring, and dilation is other steps from place to place: the convolution's stride is 1, and it has
// no groups.
#pragma once

#include "wgmma.cuh"

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
constexpr int channel_groups = static_cast<int>(channels_of_ring / 8);  // A product takes two of them,
constexpr int products_across = static_cast<int>(products_of_place / 16);  // and a place so many products.
constexpr int row_columns = tile_columns + (first_column + span_columns + 1) / 2 * 2;  // An even number, for pairs.
constexpr int group_bytes = row_columns * unit_bytes;
constexpr int row_bytes = channel_groups * group_bytes;
constexpr int place_bytes = 2 * products_across * tile_filters * unit_bytes;
constexpr int filter_bytes = window_height * window_width * place_bytes;
constexpr bool in_bulk = writes == writes_t::bulk;
constexpr int held_steps = register_rows * window_width * products_across;  // Products with filters in registers,
constexpr int held_bytes = register_rows * window_width * place_bytes;       // and these filters.
constexpr int shared_filter_bytes = filter_bytes - held_bytes;

constexpr int loader_registers = 104;
constexpr int multiplier_registers = 200;

using input_t = Choose<is_half, scalar_t, float>;

struct Images {
    const input_t* x;
    long long samples, height, width, filters;

    __device__ __forceinline__ long long out_height() const { return height + padding_height - (span_rows - 1); }
    __device__ __forceinline__ long long out_width() const { return width + padding_width - (span_columns - 1); }
    __device__ __forceinline__ long long strips_across() const { return (out_width() + tile_columns - 1) / tile_columns; }
};

// Where a strip begins in the output, and how many rows it has.
struct Strip {
    long long sample, row, column;
    int rows;
};

// The strips of a block: as even a share as there is of all rows of its tile of filters, cut where an image ends.
struct Strips {
    const Images& images;
    long long next, end;  // rows of all images, one behind another

    __device__ __forceinline__ explicit Strips(const Images& images) : images(images) {
        const long long all = images.samples * images.strips_across() * images.out_height();
        next = all * blockIdx.x / gridDim.x;
        end = all * (blockIdx.x + 1) / gridDim.x;
    }

    // The next one, where there is one more.
    __device__ __forceinline__ bool take(Strip& strip) {
        if (next >= end) {
            return false;
        }
        const long long across = images.strips_across(), height = images.out_height();
        strip.row = next % height;
        strip.column = next / height % across * tile_columns;
        strip.sample = next / (height * across);
        const long long below = height - strip.row;
        strip.rows = static_cast<int>(end - next < below ? end - next : below);
        next += strip.rows;
        return true;
    }
};

using RingRow = RingPosition<ring_rows>;

#include "conv_gemm_input.cuh"
#include "conv_gemm_output.cuh"

// Filters of the window's first rows in the tensor core's arrangement (wgmma.cuh): a warp's 16 of the 64 that begin at
// `filters` in memory. Where none are held, nothing is read.
struct HeldFilters {
    u32 of[at_least_one(held_steps)][4];

    __device__ __forceinline__ explicit HeldFilters(const unsigned char* filters) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        const unsigned char* mine = filters + (warp * 16 + lane / 4) * unit_bytes + lane % 4 * 4;
        asm volatile("" : "+l"(mine));  // else each of the addresses is one of its own
#pragma unroll
        for (int step = 0; step < held_steps; ++step) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int unit = (2 * step + i / 2) * tile_filters + i % 2 * 8;
                of[step][i] = __ldg(reinterpret_cast<const u32*>(mine + unit * unit_bytes));
                asm volatile("" : "+r"(of[step][i]));  // else it may be read again for every row
            }
        }
    }
};

// The sums of one row of the output: 64 filters by 128 columns. Filters that are not held are in shared memory from
// `filters` on; `first` is the ring's slot of the window's first row.
__device__ __forceinline__ void multiply_row(float (&sums)[tile_columns / 2], const HeldFilters& held, u32 filters,
                                             u32 ring, int first) {
    using Product = Wgmma<tile_columns, multiplied_t>;
    const auto row_of = [&](int down) {
        const int place = first + down * row_step;
        const int slot = place < ring_rows ? place : place - ring_rows;
        return wgmma_descriptor(ring + slot * row_bytes, group_bytes, 8 * unit_bytes);
    };
    const auto group_of = [](int product) { return 2 * product % channel_groups; };
    wgmma_fence();
#pragma unroll
    for (int down = 0; down < register_rows; ++down) {
        const u64 row = row_of(down);
#pragma unroll
        for (int across = 0; across < window_width; ++across) {
#pragma unroll
            for (int product = 0; product < products_across; ++product) {
                const int columns = group_of(product) * row_columns + first_column + across * column_step;
                Product::run(sums, held.of[(down * window_width + across) * products_across + product], row + columns,
                             down + across + product > 0);
            }
        }
    }
    u64 filter = wgmma_descriptor(filters, tile_filters * unit_bytes, 8 * unit_bytes);
    asm volatile("" : "+l"(filter));  // else all of its sums are kept in registers from row to row
    // Not unrolled over the window's rows: one is enough to keep the tensor cores busy, and each further one is as much
    // again to compile at each of this function's places.
#pragma unroll 1
    for (int down = register_rows; down < window_height; ++down) {
        const u64 row = row_of(down);
#pragma unroll
        for (int across = 0; across < window_width; ++across) {
#pragma unroll
            for (int product = 0; product < products_across; ++product) {
                // Both addresses are in units of 16 bytes.
                const int weights = across * (place_bytes / 16) + 2 * product * tile_filters;
                const int columns = group_of(product) * row_columns + first_column + across * column_step;
                Product::run(sums, filter + weights, row + columns, down + across + product > 0);
            }
        }
        filter += window_width * (place_bytes / 16);
        wgmma_commit();
    }
    if (register_rows == window_height) {
        wgmma_commit();
    }
}

// All sums but those of the row that was begun last are done, where no filters are held.
__device__ __forceinline__ void wait_for_all_but_one_row() { wgmma_wait<(window_height < 7 ? window_height : 7)>(); }

__device__ __forceinline__ void multiply(unsigned char* shared, unsigned char* ring_memory,
                                         unsigned char* staging_memory, u64* full, u64* empty, const Images& images,
                                         long long filter_tile, scalar_t* __restrict__ output,
                                         const Epilogue& epilogue) {
    const int warpgroup = threadIdx.x / 128 - 1;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - loader_threads / 32;
    const long long first_filter = filter_tile * tile_filters + warp * 16;
    float* const staging = reinterpret_cast<float*>(staging_memory) + warp * staging_elements;
    const u32 filters = shared_address(shared) + warpgroup * 64 * unit_bytes;
    const u32 ring = shared_address(ring_memory);
    const HeldFilters held(nullptr);
    RingRow next;   // the row of x to wait for
    RingRow oldest; // the window's first
    float even[tile_columns / 2], odd[tile_columns / 2];
    const auto let_go = [&] {
        if (lane == 0) {
            mbarrier_arrive(empty + oldest.slot);
        }
        oldest.advance();
    };
    Strip strip;
    for (Strips strips(images); strips.take(strip);) {
        const auto wait = [&] {
            mbarrier_wait(full + next.slot, next.parity);
            next.advance();
        };
        for (int row = 0; row < span_rows - 1; ++row) {
            wait();
        }
        int window = oldest.slot;
        const auto begin = [&](float (&sums)[tile_columns / 2]) {
            wait();
            multiply_row(sums, held, filters, ring, window);
            window = window + 1 == ring_rows ? 0 : window + 1;
        };
        const auto write = [&](int row, const float (&sums)[tile_columns / 2]) {
            let_go();
            const RowOfWarp part(images, strip, row, first_filter);
            if constexpr (splits) {  // As few channels mostly make fewer filters than a tile has.
                if (part.filters <= 0) {
                    return;
                }
            }
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
                wgmma_wait<0>();
                write(row++, even);
                break;
            }
            begin(odd);
            wait_for_all_but_one_row();
            write(row++, even);
            if (row + 1 == strip.rows) {
                wgmma_wait<0>();
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

#include "conv_gemm_bulk.cuh"

// A block's tile of filters is blockIdx.y; its strips are blockIdx.x and every gridDim.x further.
__device__ __forceinline__ void multiply_strips(const Images& images, const void* __restrict__ filters,
                                                       unsigned* __restrict__ largest, scalar_t* __restrict__ output,
                                                       const Epilogue& epilogue) {
    extern __shared__ __align__(128) unsigned char shared[];
    unsigned char* ring = shared + shared_filter_bytes;
    unsigned char* staging = ring + ring_rows * row_bytes;
    u64* full = reinterpret_cast<u64*>(staging + (in_bulk ? bulk_staging_bytes : staging_bytes));
    u64* empty = full + ring_rows;
    u64* filters_there = empty + ring_rows;
    if (threadIdx.x == 0) {
        for (int i = 0; i < ring_rows; ++i) {
            mbarrier_init(full + i, loader_threads / 32);
            mbarrier_init(empty + i, multiplier_threads / 32);
        }
        mbarrier_init(filters_there, 1);
        fence_mbarrier_init();
    }
    __syncthreads();
    const unsigned char* const tile = static_cast<const unsigned char*>(filters) + blockIdx.y * filter_bytes;
    if (threadIdx.x < loader_threads) {
        setmaxnreg_dec<loader_registers>();
        if (shared_filter_bytes > 0 && threadIdx.x == 0) {
            mbarrier_arrive_expect_tx(filters_there, shared_filter_bytes);
            cp_async_bulk(shared, tile + held_bytes, shared_filter_bytes, filters_there);
        }
        load(ring, full, empty, images, largest);
    } else {
        setmaxnreg_inc<multiplier_registers>();
        if (shared_filter_bytes > 0) {
            mbarrier_wait(filters_there, 0);
        }
        if constexpr (in_bulk) {
            multiply_in_turns(tile, shared, ring, staging, full, empty, images, blockIdx.y, output, epilogue);
        } else {
            multiply(shared, ring, staging, full, empty, images, blockIdx.y, output, epilogue);
        }
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
        begin_launch();
        let_next_begin();
        const Images images{reinterpret_cast<const input_t*>(x), samples, height, width, out_channels};
        multiply_strips(images, filters, largest, output, epilogue);
    }
#endif
}
