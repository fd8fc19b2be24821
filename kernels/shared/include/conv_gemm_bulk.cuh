// The other way to write in conv_gemm.cuh, and to multiply with it (writes=bulk): by the copy engine, for NCHW.
//
// The tensor cores read both operands from shared memory, which leaves little of what it can deliver for anything else.
// Filters of the window's first rows that stand in registers (register_rows) are read once a kernel, and leave room for a
// whole row of finished values. The copy engine takes them from there while the warpgroup multiplies again. One set of
// sums is enough: one warpgroup multiplies while the other finishes, in turns where `turns` says so; else they tend to do
// the same at the same time.
#pragma once

// A warp's own piece of shared memory: 16 filters by 128 columns, in the output's type. A row begins where its place in
// memory says, to 16 bytes; what is left of a pitch beyond that keeps lanes in different banks.
constexpr int bulk_bytes = 16;
constexpr int bulk_pitch = (tile_columns + 8) * static_cast<int>(sizeof(scalar_t));
constexpr int bulk_staging_bytes = multiplier_threads / 32 * 16 * bulk_pitch;

// Elements that no copy of 16 bytes covers, `width` at once.
template <int width> __device__ __forceinline__ void store_rest(scalar_t* target, const scalar_t* staged, int elements) {
#pragma unroll 1
    for (int i = 0; i < elements; i += width) {
        using vector_t = vector_of<scalar_t, width>;
        *reinterpret_cast<vector_t*>(target + i) = *reinterpret_cast<const vector_t*>(staged + i);
    }
}

// A row of 16 filters, finished, to shared memory, and on its way from there.
__device__ __forceinline__ void store_planes(float (&sums)[tile_columns / 2], const RowOfWarp& part,
                                             const Channel (&channels)[2], scalar_t* __restrict__ output,
                                             unsigned char* staging, const Epilogue& epilogue) {
    if constexpr (splits) {
        if (part.filters <= 0) {
            return;
        }
    }
    constexpr int size = static_cast<int>(sizeof(scalar_t));
    const int lane = threadIdx.x % 32;
    const long long pixels = part.pixels();
    const bool pairs = part.images.out_width() % 2 == 0 && reinterpret_cast<u64>(output) % (2 * size) == 0;
    scalar_t* const first = output + (part.sample * part.images.filters + part.first_filter) * pixels + part.pixel;
    // Where a filter's row begins in shared memory.
    const auto place_of = [&](int filter) {
        return staging + filter * bulk_pitch + reinterpret_cast<u64>(first + filter * pixels) % bulk_bytes;
    };
    if (lane == 0) {
        cp_async_bulk_wait_read();  // of the row before
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < tile_columns / 2; ++i) {
        const int below = i / 2 % 2, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        sums[i] = part.finished(epilogue, sums[i], channels[below], 8 * below + lane / 4, column);
    }
    scalar_t* const places[2] = {reinterpret_cast<scalar_t*>(place_of(lane / 4)) + lane % 4 * 2,
                                 reinterpret_cast<scalar_t*>(place_of(lane / 4 + 8)) + lane % 4 * 2};
    if (pairs) {
#pragma unroll
        for (int i = 0; i < tile_columns / 2; i += 2) {
            *reinterpret_cast<vector_of<scalar_t, 2>*>(places[i / 2 % 2] + i / 4 * 8) =
                converted<scalar_t, 2>(float2{sums[i], sums[i + 1]});
        }
    } else {
#pragma unroll
        for (int i = 0; i < tile_columns / 2; ++i) {
            places[i / 2 % 2][i / 4 * 8 + i % 2] = scalar_t(sums[i]);
        }
    }
    fence_proxy_async();  // and to the copy engine
    __syncwarp();
    // The engine copies what begins and ends at 16 bytes, threads the elements around it.
    struct Copy {
        u64 begin;
        u32 staged, bytes;
    };
    const auto copy_of = [&](int filter) {
        constexpr u64 mask = ~static_cast<u64>(bulk_bytes - 1);
        const u64 start = reinterpret_cast<u64>(first + filter * pixels);
        const u64 begin = (start + bulk_bytes - 1) & mask, end = (start + part.columns * size) & mask;
        const u32 staged = shared_address(staging) + filter * bulk_pitch + static_cast<u32>(begin - (start & mask));
        return Copy{begin, staged, static_cast<u32>(end - begin)};
    };
    const auto run = [](const Copy& copy) {
        constexpr bool streaming = store_hint == store_hint_t::streaming;
        cp_async_bulk_to_global<streaming>(reinterpret_cast<void*>(copy.begin), copy.staged, copy.bytes);
    };
    const bool copies = part.columns * size >= 2 * bulk_bytes;  // Fewer columns may hold no 16 bytes.
    if (copies && lane == 0) {
        if (part.filters == 16 && 2 * pixels * size % bulk_bytes == 0) {
            // Rows of every second filter begin alike. No branch stands in between, and little arithmetic: the warp would
            // wait until the engine has taken the last addresses.
            Copy copy[2] = {copy_of(0), copy_of(1)};
#pragma unroll
            for (int filter = 0; filter < 16; ++filter) {
                run(copy[filter % 2]);
                copy[filter % 2].begin += 2 * pixels * size;
                copy[filter % 2].staged += 2 * bulk_pitch;
            }
        } else {
#pragma unroll 1
            for (int filter = 0; filter < part.filters; ++filter) {
                run(copy_of(filter));
            }
        }
        cp_async_bulk_commit();
    }
    if (lane < part.filters) {
        scalar_t* const target = first + lane * pixels;
        const scalar_t* const staged = reinterpret_cast<const scalar_t*>(place_of(lane));
        const int head = copies ? static_cast<int>(-reinterpret_cast<u64>(target) % bulk_bytes) / size : part.columns;
        const int tail = copies ? (part.columns - head) % (bulk_bytes / size) : 0;
        const int last = part.columns - tail;
        if (pairs) {
            store_rest<2>(target, staged, head);
            store_rest<2>(target + last, staged + last, tail);
        } else {
            store_rest<1>(target, staged, head);
            store_rest<1>(target + last, staged + last, tail);
        }
    }
}

// The whole of a warpgroup's work.
__device__ __forceinline__ void multiply_in_turns(const unsigned char* filters_in_memory, unsigned char* shared,
                                                  unsigned char* ring_memory, unsigned char* staging_memory, u64* full,
                                                  u64* empty, const Images& images, long long filter_tile,
                                                  scalar_t* __restrict__ output, const Epilogue& epilogue) {
    constexpr int first_turn = 1;  // of the block's barriers, 0 being __syncthreads'
    const int lane = threadIdx.x % 32;
    // The same for all lanes, as the compiler is to know: addresses of the copy engine are in the warp's own registers.
    const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0) - loader_threads / 32;
    const int warpgroup = warp / 4;
    const long long first_filter = filter_tile * tile_filters + warp * 16;
    unsigned char* const staging = staging_memory + warp * (16 * bulk_pitch);
    const u32 filters = shared_address(shared) + warpgroup * 64 * unit_bytes;
    const u32 ring = shared_address(ring_memory);
    const HeldFilters held(filters_in_memory + warpgroup * 64 * unit_bytes);
    Channel channels[2];
#pragma unroll
    for (int below = 0; below < 2; ++below) {
        const long long number = first_filter + 8 * below + lane / 4;
        channels[below] = epilogue.of(number < images.filters ? number : images.filters - 1);
    }
    if (turns && warpgroup == 1) {
        bar_arrive(first_turn, multiplier_threads);
    }
    RingRow next;   // the row of x to wait for
    RingRow oldest; // the window's first
    const auto wait = [&] {
        mbarrier_wait(full + next.slot, next.parity);
        next.advance();
    };
    const auto let_go = [&] {
        if (lane == 0) {
            mbarrier_arrive(empty + oldest.slot);
        }
        oldest.advance();
    };
    float sums[tile_columns / 2];
    Strip strip;
    for (Strips strips(images); strips.take(strip);) {
        for (int row = 0; row < span_rows - 1; ++row) {
            wait();
        }
        for (int row = 0; row < strip.rows; ++row) {
            wait();
            if (turns) {
                bar_sync(first_turn + warpgroup, multiplier_threads);
            }
            multiply_row(sums, held, filters, ring, oldest.slot);
            if (turns) {
                bar_arrive(first_turn + 1 - warpgroup, multiplier_threads);
            }
            wgmma_wait<0>();
            let_go();
            store_planes(sums, RowOfWarp(images, strip, row, first_filter), channels, output, staging, epilogue);
        }
        for (int row = 0; row < span_rows - 1; ++row) {
            let_go();
        }
    }
    cp_async_bulk_wait();
}
