// What the product of conv_im2col.cuh makes of its sums: the convolution with what is behind it, in memory.
#pragma once

// Where a pixel's outputs stand, by its number in the grid of a tile.
struct PlaceOfPixel {
    bool exists;
    long long sample, pixel;
    int outputs_left;  // Along the width.

    __device__ __forceinline__ PlaceOfPixel(const WindowTile& tile, long long number) : exists(number < tile.pixels) {
        const Division of_grid = tile.sample_of(number);
        const Extent at = tile.at(of_grid.rest);
        if constexpr (transposed) {
            exists = exists && at.depth < tile.out.depth && at.height < tile.out.height && at.width < tile.out.width;
        }
        sample = of_grid.quotient;
        pixel = (static_cast<long long>(at.depth) * tile.out.height + at.height) * tile.out.width + at.width;
        outputs_left = columns_of_filter == 1 ? 1 : tile.out.width - at.width;
    }
};

// A warp has 16 pixels. Of each 32 columns a thread has eight neighbours, at two pixels, its first and the one 8 below: filters,
// each at as many outputs along the width as it has columns.
constexpr int warp_pixels = 16;

// To channels-last outputs, whose neighbours in memory a thread has.
template <int columns>
__device__ __forceinline__ void finish_pixels(const float (&sum)[columns / 2], const WindowTile& tile, long long first_column,
                                              const Channel* of_columns, scalar_t* __restrict__ output,
                                              const ShapeOfSides& shape, const Epilogue& epilogue) {
    constexpr int along = columns_of_filter, of_pack = column_run / along;
    const long long filters = shape.out_channels, filters_of_group = filters / groups, pixels = tile.out.pixels();
    const long long first = tile.pixel + threadIdx.x / 32 * warp_pixels + threadIdx.x % 32 / 4;
    const bool elements_are_whole = epilogue.takes_elements<of_pack>();
#pragma unroll
    for (int below = 0; below < 2; ++below) {
        const PlaceOfPixel at(tile, first + 8 * below);
        if (!at.exists) {
            continue;
        }
#pragma unroll
        for (int begin = 0; begin < columns; begin += filters_of_map) {
            if (first_column + begin >= filters_of_group * along) {
                break;
            }
            const int column = begin + threadIdx.x % 4 * column_run;
            const long long filter = (first_column + column) / along, filters_left = filters_of_group - filter;
            const long long place =
                offset_of(at.sample, tile.group * filters_of_group + filter, at.pixel, filters, pixels, true);
            // Values that do not exist are made too, and not stored: branches would make one wait for the other.
#pragma unroll
            for (int of_outputs = 0; of_outputs < along; ++of_outputs) {
                const long long to = place + of_outputs * filters, left = of_outputs < at.outputs_left ? filters_left : 0;
                const bool whole = left >= of_pack && filters_of_group % of_pack == 0;
                Element elements[of_pack];
                elements_at(elements, epilogue, to, left, whole && elements_are_whole);
                Pack<scalar_t, of_pack> pack;
#pragma unroll
                for (int i = 0; i < of_pack; ++i) {
                    const int of_run = of_outputs + i * along;
                    const Channel& channel = of_columns[column + of_run];
                    const float value = sum[begin / 2 + of_run / 2 * 4 + 2 * below + of_run % 2];
                    pack.of[i] = scalar_t(epilogue(value * channel.scale, channel, elements[i]));
                }
                store_pack(output + to, pack, left, whole);
            }
        }
    }
}

// To planes: what a warp has of 16 columns at a time crosses shared memory, so that its lanes write neighbours, wherever
// rows begin.
constexpr int crossing_columns = 16, crossing_pixels = warp_pixels + 2;  // Two more, so that lanes write to banks of their own.
using CrossingSums = float[im2col_multipliers / 32][crossing_columns][crossing_pixels];

template <int columns>
__device__ __forceinline__ void finish_planes(const float (&sum)[columns / 2], const WindowTile& tile, long long first_column,
                                              const Channel* of_columns, CrossingSums& crossing, scalar_t* __restrict__ output,
                                              const ShapeOfSides& shape, const Epilogue& epilogue) {
    constexpr int turn = column_run / 2;  // Columns of a thread that cross at a time.
    constexpr int along = columns_of_filter;
    constexpr bool is_whole = turn % along == 0;  // Whether what crosses of a thread is all of some filters.
    // Lanes have so many columns of a pixel side by side, which are neighbours in memory where they are of one filter.
    constexpr int run = is_whole ? along : turn;
    // Registers have no room for more values at a time, but reads of memory have to be under way together.
    constexpr int at_once = element_tensors > 0 ? crossing_columns / turn : 1;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const long long filters_of_group = shape.out_channels / groups, pixels = tile.out.pixels();
    const long long first_filter = tile.group * filters_of_group + first_column / along;
    const long long columns_left = filters_of_group * along - first_column;
    const int left = columns_left < columns ? static_cast<int>(columns_left) : columns;
    auto& own = crossing[warp];
    // Of each thread's four columns a lane writes two values: of one column at two pixels, or of two columns at one.
    int column_of[2], pixel_of[2], outputs_left[2];
    scalar_t* target[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        column_of[k] = run == turn ? lane % turn : k * 2 + (run == 2 ? lane % 2 : lane / warp_pixels);
        pixel_of[k] = run == turn ? lane / turn + 8 * k : run == 2 ? lane / 2 : lane % warp_pixels;
        const PlaceOfPixel at(tile, tile.pixel + warp * warp_pixels + pixel_of[k]);
        outputs_left[k] = at.exists ? at.outputs_left : 0;
        target[k] = output + offset_of(at.sample, first_filter, at.pixel, shape.out_channels, pixels, false);
        if constexpr (is_whole) {
            outputs_left[k] -= column_of[k] % along;
            target[k] += column_of[k] / along * pixels + column_of[k] % along;
        }
    }
#pragma unroll
    for (int begin = 0; begin < columns; begin += crossing_columns) {
        const int map = begin / filters_of_map * filters_of_map, first = begin % filters_of_map / crossing_columns * turn;
        if (map >= left) {
            break;
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < turn; ++i) {
#pragma unroll
            for (int below = 0; below < 2; ++below) {
                own[lane % 4 * turn + i][lane / 4 + 8 * below] =
                    sum[map / 2 + (first + i) / 2 * 4 + 2 * below + (first + i) % 2];
            }
        }
        __syncwarp();
        // Values that do not exist are made too, and not stored: branches would make one wait for the other.
#pragma unroll(at_once)
        for (int thread = 0; thread < crossing_columns / turn; ++thread) {
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                const int of_thread = map + first + thread * column_run, of_tile = of_thread + column_of[k];
                // From the first filter on; where filters begin among a thread's columns, each column has its own place.
                const int from = is_whole ? of_thread : static_cast<int>(first_column % along) + of_tile;
                scalar_t* const to = target[k] + (from / along * pixels + from % along);
                const bool is_there = from % along < outputs_left[k] && of_tile < left;
                const Channel& channel = of_columns[of_tile];
                const Element element = is_there ? epilogue.at(to - output) : Element{};
                const float sum_there = own[thread * turn + column_of[k]][pixel_of[k]];
                const scalar_t value = scalar_t(epilogue(sum_there * channel.scale, channel, element));
                if (is_there) {
                    *to = value;
                }
            }
        }
    }
}

template <int columns>
__device__ __forceinline__ void finish_windows(const float (&sum)[columns / 2], const WindowTile& tile, long long first_column,
                                               const Channel* of_columns, CrossingSums& crossing, scalar_t* __restrict__ output,
                                               const ShapeOfSides& shape, const Epilogue& epilogue) {
    if constexpr (output_last) {
        finish_pixels<columns>(sum, tile, first_column, of_columns, output, shape, epilogue);
    } else {
        finish_planes<columns>(sum, tile, first_column, of_columns, crossing, output, shape, epilogue);
    }
}
