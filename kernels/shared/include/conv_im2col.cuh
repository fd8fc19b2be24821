// The product of windows and filters whose windows the copy engine lays out as the rows of a matrix (its im2col mode), on
// Hopper: any stride, dilation and groups, two sides or three, transposed ones too. Part of conv.cuh.
//
// The images are there in a half type, channels-last. A tile is 128 pixels of the output by `product_columns` filters of a
// group, summed over the places of the window, and at each over the channels; a stage of the pipeline has 64 products of that
// sum, in copies of so many channels as the group's are a multiple of, or twice as many, of which zeros multiply half. Outside
// of the images the copy engine finds zeros, and behind the last channel, which is what fills the last stage up. One warp
// brings, two warpgroups multiply 64 pixels each.
//
// Few channels are folded: the places of a row of the window and their channels count as the channels of one place.
//
// Operands that are split have two halves each, and the sum three products: of the first halves, and of either first with the
// other's second.
//
// A transposed convolution is several, one for each place of an output within a stride (its phase): of the window's places
// some are its own, and it goes over the images in steps of 1. No zeros are multiplied.
//
// phase_columns     the phases of the width are columns of one product instead (conv_half.cuh): it writes neighbours together,
//                   reads images once for all of them, and multiplies some zeros
// product_cluster   blocks that have neighbouring pixels and share what they read of the filters
// product_slices    blocks that have a part of the sum each, where tiles are few; each finishes a part of the filters, until
//                   there are none left
#pragma once

#include "wgmma.cuh"

constexpr int im2col_multipliers = 256;
constexpr int im2col_threads = im2col_multipliers + 32;
constexpr int im2col_blocks = product_columns <= 64 ? 3 : product_columns <= 128 ? 2 : 1;  // Of a multiprocessor.
constexpr int im2col_cluster = im2col ? product_cluster * product_slices : 1;
constexpr int finished_columns = (product_columns / filters_of_map + product_slices - 1) / product_slices * filters_of_map;

constexpr int tile_pixels = 128;
constexpr int copies_of_stage = 64 / copied_channels;
constexpr int copied_bytes = copied_channels * 2;  // Of one row.
constexpr int terms = splits ? 3 : 1;
constexpr long long phases_along = phases_are_columns ? 1 : stride_width;  // The width.
constexpr long long phases = transposed ? stride_depth * stride_height * phases_along : 1;
constexpr int channel_copies = static_cast<int>(channels_of_place) / copied_channels * terms;  // At a place of the window.
constexpr int window_stage_bytes = tile_pixels * 128, im2col_stage_bytes = window_stage_bytes + product_columns * 128;

constexpr long long common_divisor(long long a, long long b) { return b == 0 ? a : common_divisor(b, a % b); }

// The places of the window along a side that the outputs of a phase have.
template <long long kernel, long long stride, long long padding, long long dilation> struct Places {
    static constexpr int step = transposed ? static_cast<int>(stride / common_divisor(stride, dilation)) : 1;
    // From one tile's pixel to the next in the image, and from a pixel's number to the first that any window sees.
    static constexpr int stride_of_pixels = transposed ? 1 : static_cast<int>(stride);
    static constexpr int lowest =
        static_cast<int>(transposed ? divided_up(padding / 2 - (kernel - 1) * dilation, stride) : -(padding / 2));
    int phase;
    int first = 0, count = static_cast<int>(kernel);

    __device__ __forceinline__ explicit Places(int phase) : phase(phase) {
        if constexpr (transposed) {
            while (first < step && seen(first) % stride != 0) {
                ++first;
            }
            count = first < step && first < kernel ? (static_cast<int>(kernel) - first + step - 1) / step : 0;
        }
    }
    __device__ __forceinline__ int place(int number) const { return first + number * step; }
    __device__ __forceinline__ unsigned short offset(int number) const {
        const long long along = place(number) * dilation;
        return static_cast<unsigned short>(transposed ? seen(place(number)) / stride - lowest : along);
    }

  private:
    __device__ __forceinline__ long long seen(int place) const { return phase + padding / 2 - place * dilation; }
};
using PlacesOfDepth = Places<kernel_depth, stride_depth, padding_depth, dilation_depth>;
using PlacesOfHeight = Places<kernel_height, stride_height, padding_height, dilation_height>;
// The same where the phases are columns.
struct PlacesOfColumns {
    static constexpr int stride_of_pixels = 1, lowest = static_cast<int>(first_pixel), count = static_cast<int>(places_of_row);

    __device__ __forceinline__ explicit PlacesOfColumns(int) {}
    __device__ __forceinline__ int place(int number) const { return number; }
    __device__ __forceinline__ unsigned short offset(int number) const { return static_cast<unsigned short>(number); }
};
using PlacesOfWidth =
    Choose<phases_are_columns, PlacesOfColumns,
           Places<places_of_row, folds ? 1 : stride_width, folds ? 0 : padding_width, dilation_width>>;

// The sides of images, each within 32 bits.
struct Extent {
    int depth, height, width;

    __device__ __forceinline__ long long pixels() const { return static_cast<long long>(depth) * height * width; }
    // Of a pixel by its number.
    __device__ __forceinline__ Extent at(long long number) const {
        const Division row(number, width, pixels() < (1ll << 32));
        const Division plane(row.quotient, height, pixels() < (1ll << 32));
        return {static_cast<int>(plane.quotient), static_cast<int>(plane.rest), static_cast<int>(row.rest)};
    }
};

// What a block works on: pixels from a first on, of the outputs of its phase, and columns of a group, which are its filters.
struct WindowTile {
    Extent out, grid, phase;  // The sides of the output, of the outputs of a phase, and where in a stride these stand.
    long long pixels, pixel;
    int group, column;
    // `number` counts what a cluster works on at once.
    __device__ __forceinline__ WindowTile(long long number, const ShapeOfSides& shape, unsigned rank) : phase{0, 0, 0} {
        const Sides sides = output_of(shape);
        out = {static_cast<int>(sides.depth), static_cast<int>(sides.height), static_cast<int>(sides.width)};
        grid = out;
        if constexpr (transposed) {
            grid = {static_cast<int>(divided_up(out.depth, stride_depth)),
                    static_cast<int>(divided_up(out.height, stride_height)),
                    static_cast<int>(divided_up(out.width, stride_width))};
        }
        pixels = shape.samples * grid.pixels();
        if constexpr (phases > 1) {  // Neighbours in time, as their outputs are in memory.
            phase = Extent{stride_depth, stride_height, phases_along}.at(number % phases);
            number /= phases;
        }
        const long long column_tiles = tiles_of_columns(shape), across = tiles_across();
        column = static_cast<int>(number % column_tiles) * product_columns;
        number /= column_tiles;
        pixel = (number % across * product_cluster + rank % product_cluster) * tile_pixels;
        group = static_cast<int>(number / across);
    }
    __device__ __forceinline__ long long count(const ShapeOfSides& shape) const {
        return phases * groups * tiles_across() * tiles_of_columns(shape);
    }
    __device__ __forceinline__ Division sample_of(long long number) const {
        return Division(number, grid.pixels(), pixels < (1ll << 32));
    }
    // Where in the output one of a sample's pixels stands; not within it where the last stride is no whole one.
    __device__ __forceinline__ Extent at(long long number) const {
        const Extent in_grid = grid.at(number);
        if constexpr (transposed) {
            return {static_cast<int>(in_grid.depth * stride_depth) + phase.depth,
                    static_cast<int>(in_grid.height * stride_height) + phase.height,
                    static_cast<int>(in_grid.width * stride_width) + phase.width};
        }
        return in_grid;
    }

  private:
    __device__ __forceinline__ long long tiles_across() const {
        return divided_up(pixels, tile_pixels * product_cluster);
    }
    static __device__ __forceinline__ long long tiles_of_columns(const ShapeOfSides& shape) {
        return divided_up(shape.out_channels / groups * columns_of_filter, product_columns);
    }
};

#include "conv_im2col_output.cuh"

#if TUNEBENCH_HOPPER

// The stages of the sum that a block has.
struct StagesOfSum {
    int from, to;
    __device__ __forceinline__ StagesOfSum(int places, u32 slice) {
        const int stages = (places * channel_copies + copies_of_stage - 1) / copies_of_stage;
        from = stages * static_cast<int>(slice) / product_slices;
        to = stages * static_cast<int>(slice + 1) / product_slices;
    }
};

using Im2colPosition = RingPosition<product_stages>;

// One thread: the stages of a tile.
__device__ __forceinline__ void bring_windows(unsigned char* shared, u64* full, u64* empty, Im2colPosition& position,
                                              const TensorMap& x, const TensorMap& filters, const WindowTile& tile,
                                              const ShapeOfSides& shape, u32 rank) {
    const long long columns_of_group = shape.out_channels / groups * columns_of_filter;
    // Where the second halves begin.
    const int second = static_cast<int>(folds ? folded_columns(shape.image.width) * channels_of_pixel : channels_of_pixel);
    const PlacesOfDepth depth(tile.phase.depth);
    const PlacesOfHeight height(tile.phase.height);
    const PlacesOfWidth width(tile.phase.width);
    const int places = depth.count * height.count * width.count;
    const StagesOfSum stages(places, rank / product_cluster);
    const Division sample = tile.sample_of(tile.pixel);
    const Extent first = tile.grid.at(sample.rest);
    int from[5] = {0, first.width * PlacesOfWidth::stride_of_pixels + PlacesOfWidth::lowest,
                   first.height * PlacesOfHeight::stride_of_pixels + PlacesOfHeight::lowest,
                   first.depth * PlacesOfDepth::stride_of_pixels + PlacesOfDepth::lowest, static_cast<int>(sample.quotient)};
    constexpr int share = product_columns / product_cluster;
    const int own_row = static_cast<int>(rank % product_cluster) * share;
    const int filter_group =
        static_cast<int>((tile.group * rounded_up(columns_of_group, filters_of_map) + tile.column + own_row) / filters_of_map);
    for (int stage = stages.from; stage < stages.to; ++stage) {
        mbarrier_wait(empty + position.slot, position.parity ^ 1);
        u64* const barrier = full + position.slot;
        unsigned char* const target = shared + position.slot * im2col_stage_bytes;
        mbarrier_arrive_expect_tx(barrier, im2col_stage_bytes);
#pragma unroll
        for (int copy = 0; copy < copies_of_stage; ++copy) {
            const int product = stage * copies_of_stage + copy, place = product / channel_copies;
            const int channel = product % channel_copies / terms * copied_channels, term = product % terms;
            int line = static_cast<int>(kernel_depth * kernel_height * places_of_row * parts * channels_of_place);
            unsigned short offset[3] = {0, 0, 0};
            from[0] = (parts - 1) * second + static_cast<int>(folds ? channels_of_window : channels_of_pixel);  // zeros
            if (place < places) {
                const int of_width = place % width.count, of_height = place / width.count % height.count;
                const int of_depth = place / (width.count * height.count);
                offset[0] = width.offset(of_width);
                offset[1] = height.offset(of_height);
                offset[2] = depth.offset(of_depth);
                const int row = depth.place(of_depth) * static_cast<int>(kernel_height) + height.place(of_height);
                const int of_window = row * static_cast<int>(places_of_row) + width.place(of_width);
                line = (of_window * parts + (term == 1)) * static_cast<int>(channels_of_place) + channel;
                from[0] = (term == 2) * second + static_cast<int>(tile.group * (in_channels / groups)) + channel;
            }
            cp_async_bulk_tensor_im2col<sides>(target + copy * tile_pixels * copied_bytes, x, from, offset, barrier);
            unsigned char* const of_filters = target + window_stage_bytes + (copy * product_columns + own_row) * copied_bytes;
            cp_async_bulk_tensor<product_cluster>(of_filters, filters, {line, 0, 0, 0, filter_group}, barrier);
        }
        position.advance();
    }
}

// The sums of all slices, of this block's part of the columns; false where it has none. All multipliers; the block's other
// warp meets them in `cluster_sync`, here and once more before the block ends.
__device__ __forceinline__ bool add_slices(const float (&sum)[product_columns / 2], unsigned char* shared, u32 slice,
                                           float (&mine)[finished_columns / 2]) {
    float* const parts = reinterpret_cast<float*>(shared) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < product_columns / 2; ++i) {
        parts[i * im2col_multipliers] = sum[i];
    }
    cluster_sync();
    constexpr int own = finished_columns / 2;
    if (slice * finished_columns >= product_columns) {
        return false;
    }
#pragma unroll
    for (int i = 0; i < own; ++i) {
        const float* const part = parts + (slice * own + i) * im2col_multipliers;
        mine[i] = ld_shared_cluster(part, 0);
#pragma unroll
        for (u32 other = 1; other < product_slices; ++other) {
            mine[i] += ld_shared_cluster(part, other);
        }
    }
    return true;
}

// All multipliers: a tile. `of_columns` is not read any more by whom has not come to the next one's.
__device__ __forceinline__ void multiply_windows(unsigned char* shared, u64* full, u64* empty, Im2colPosition& position,
                                                 Channel* of_columns, CrossingSums& crossing, const WindowTile& tile,
                                                 scalar_t* __restrict__ output, const ShapeOfSides& shape, u32 rank,
                                                 const Epilogue& epilogue) {
    using Product = Wgmma<product_columns, multiplied_t>;
    const long long filter = (tile.column + threadIdx.x) / columns_of_filter, filters_of_group = shape.out_channels / groups;
    if (threadIdx.x < product_columns && filter < filters_of_group) {
        of_columns[threadIdx.x] = epilogue.of(tile.group * filters_of_group + filter);
    }
    const int places = PlacesOfDepth(tile.phase.depth).count * PlacesOfHeight(tile.phase.height).count *
                       PlacesOfWidth(tile.phase.width).count;
    const StagesOfSum stages(places, rank / product_cluster);
    const u32 x_base = shared_address(shared) + threadIdx.x / 128 * (64 * copied_bytes);
    const u32 filters_base = shared_address(shared) + window_stage_bytes;
    int previous = -1;
    const auto release_previous = [&] {  // All blocks that share may fill it again.
        if (previous >= 0 && threadIdx.x % 32 < product_cluster) {
            mbarrier_arrive_remote(empty + previous, rank / product_cluster * product_cluster + threadIdx.x % 32);
        }
    };
    float sum[product_columns / 2];
    if (stages.from == stages.to) {
#pragma unroll
        for (int i = 0; i < product_columns / 2; ++i) {
            sum[i] = 0.0f;
        }
    }
    for (int stage = stages.from; stage < stages.to; ++stage) {
        mbarrier_wait(full + position.slot, position.parity);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
            constexpr int steps_of_copy = copied_channels / 16;
            const u32 place = position.slot * im2col_stage_bytes + step % steps_of_copy * 32;
            const u32 copy = step / steps_of_copy;
            Product::run(sum, wgmma_swizzled<copied_bytes>(x_base + place + copy * tile_pixels * copied_bytes),
                         wgmma_swizzled<copied_bytes>(filters_base + place + copy * product_columns * copied_bytes),
                         stage > stages.from || step > 0);
        }
        wgmma_commit();
        wgmma_wait<1>();
        release_previous();
        previous = position.slot;
        position.advance();
    }
    wgmma_wait<0>();
    release_previous();
    bar_sync(1, im2col_multipliers);  // What the filters' channels have is there, and no stage is read any more.
    if constexpr (product_slices == 1) {
        finish_windows<product_columns>(sum, tile, tile.column, of_columns, crossing, output, shape, epilogue);
    } else {
        const u32 slice = rank / product_cluster, begin = slice * finished_columns;
        float mine[finished_columns / 2];
        if (add_slices(sum, shared, slice, mine)) {
            finish_windows<finished_columns>(mine, tile, tile.column + begin, of_columns + begin, crossing, output, shape,
                                             epilogue);
        }
    }
}

#endif  // TUNEBENCH_HOPPER

__device__ __forceinline__ void im2col_by_block(const TensorMap& x, const TensorMap& filters, scalar_t* __restrict__ output,
                                                const ShapeOfSides& shape, const Epilogue& epilogue) {
#if TUNEBENCH_HOPPER
    if constexpr (im2col) {
        extern __shared__ __align__(1024) unsigned char swizzled[];
        u64* const full = reinterpret_cast<u64*>(swizzled + product_stages * im2col_stage_bytes);
        u64* const empty = full + product_stages;
        if (threadIdx.x == 0) {
            for (int i = 0; i < product_stages; ++i) {
                mbarrier_init(full + i, 1);
                mbarrier_init(empty + i, im2col_multipliers / 32 * product_cluster);
            }
            fence_mbarrier_init();
        }
        const u32 rank = im2col_cluster == 1 ? 0 : cluster_ctarank();
        cluster_sync();
        begin_launch();
        let_next_begin();
        __shared__ Channel of_columns[2][product_columns];  // Of one tile while the last is finished.
        __shared__ CrossingSums crossing;
        const long long first = blockIdx.x / im2col_cluster, clusters = gridDim.x / im2col_cluster;
        const long long tiles = WindowTile(first, shape, rank).count(shape);
        Im2colPosition position;
        if (threadIdx.x < im2col_multipliers) {
            int turn = 0;
            for (long long number = first; number < tiles; number += clusters) {
                const WindowTile tile(number, shape, rank);
                multiply_windows(swizzled, full, empty, position, of_columns[turn], crossing, tile, output, shape, rank,
                                 epilogue);
                turn ^= 1;
            }
        } else {
            for (long long number = first; threadIdx.x == im2col_multipliers && number < tiles; number += clusters) {
                const WindowTile tile(number, shape, rank);
                bring_windows(swizzled, full, empty, position, x, filters, tile, shape, rank);
            }
            __syncwarp();
            if constexpr (product_slices > 1) {
                cluster_sync();  // add_slices: there a block has one tile
            }
        }
        if constexpr (im2col_cluster > 1) {
            cluster_sync();  // A block must not end while others still send to it, or read from it.
        }
    }
#endif
}
