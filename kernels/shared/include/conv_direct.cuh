// A convolution of few input channels a group, as where each channel is by itself: what memory brings is what it takes.
// Part of conv.cuh.
//
// A thread has `direct_rows` outputs below each other and `direct_columns` beside each, so that what their windows have in
// common is read once; lanes stand side by side along what is contiguous in the output. Neighbouring windows meet in the
// first cache.
//
// Where a group has several filters, a thread has `direct_filters` of them, and one column: what it reads of the images counts
// for all of its filters, which shared memory has. Then arithmetic bounds it, in full precision.
#pragma once

constexpr bool direct = convolution == convolution_t::direct;

constexpr int lanes_of_warp = 32;

using DirectSums = accumulator_t[direct_rows][direct_columns];

// Torch's own kernels for channels by themselves on a GPU leave out what is beyond the image; libraries multiply a zero, of
// which a weight that is not finite makes a NaN.
#ifdef __CUDA_ARCH__
constexpr bool multiplies_zeros = in_channels > groups;
#else
constexpr bool multiplies_zeros = true;
#endif

constexpr int direct_span_rows = (direct_rows - 1) * stride_height + span_height;
constexpr int direct_span_columns = (direct_columns - 1) * stride_width + span_width;

// Numbers of 32 bits where they hold all that is counted: what memory bounds has no time for longer divisions.
struct ShortNumbers {
    using Number = unsigned;
    using Place = int;
};
struct LongNumbers {
    using Number = unsigned long long;
    using Place = long long;
};

// Adds to the outputs what one input channel gives them. `first_row` and `first_column` are of the first output's window;
// `inside` where the image has all that the windows see.
template <class Numbers, bool inside>
__device__ __forceinline__ void add_channel(DirectSums& sums, const scalar_t* plane, typename Numbers::Place step,
                                            const Sides& image, const scalar_t* weight, long long weight_step,
                                            typename Numbers::Place first_row, typename Numbers::Place first_column) {
    using Place = typename Numbers::Place;
    const auto is_within = [](Place place, long long size) {  // A negative one is large.
        return inside || static_cast<typename Numbers::Number>(place) < static_cast<typename Numbers::Number>(size);
    };
    accumulator_t weights[kernel_height][kernel_width];
#pragma unroll
    for (int place = 0; place < kernel_height * kernel_width; ++place) {
        weights[place / kernel_width][place % kernel_width] = weight[place * weight_step];
    }
    bool is_column[direct_span_columns];
#pragma unroll
    for (int column = 0; column < direct_span_columns; ++column) {
        is_column[column] = is_within(first_column + column, image.width);
    }
#pragma unroll
    for (int row = 0; row < direct_span_rows; ++row) {
        const bool is_row = is_within(first_row + row, image.height);
        const Place line = ((first_row + row) * static_cast<Place>(image.width) + first_column) * step;
#pragma unroll
        for (int column = 0; column < direct_span_columns; ++column) {
            const bool is_there = is_row && is_column[column];
            accumulator_t value = 0;
            if (is_there) {
                value = plane[line + column * step];
            }
#pragma unroll
            for (int output = 0; output < direct_rows * direct_columns; ++output) {
                // Rows of the window above this one, and columns before it.
                const int above = row - output / direct_columns * stride_height;
                const int before = column - output % direct_columns * stride_width;
                if (above >= 0 && above % dilation_height == 0 && above / dilation_height < kernel_height &&
                    before >= 0 && before % dilation_width == 0 && before / dilation_width < kernel_width &&
                    (is_there || multiplies_zeros)) {
                    sums[output / direct_columns][output % direct_columns] +=
                        value * weights[above / dilation_height][before / dilation_width];
                }
            }
        }
    }
}

template <class Numbers>
__device__ __forceinline__ void direct_outputs(const scalar_t* __restrict__ x, const scalar_t* __restrict__ weight,
                                               scalar_t* __restrict__ output, const ShapeOfSides& shape, const Sides& out,
                                               const Epilogue& epilogue) {
    using Number = typename Numbers::Number;
    using Place = typename Numbers::Place;
    constexpr long long channels = in_channels / groups, area = kernel_height * kernel_width;
    const long long pixels = out.pixels(), in_pixels = shape.image.pixels();
    const Number filters = static_cast<Number>(shape.out_channels), of_group = filters / static_cast<Number>(groups);
    const Number tiles = static_cast<Number>((out.height + direct_rows - 1) / direct_rows);
    const Number across = static_cast<Number>((out.width + direct_columns - 1) / direct_columns);
    const long long all = shape.samples * shape.out_channels * tiles * across;
    // Of shorter rows each warp has the ends of some: its lanes would go both ways, one after the other.
    const bool has_inner_warps = output_last || across >= lanes_of_warp;
    const long long threads = static_cast<long long>(gridDim.x) * direct_block_size;
    for (long long i = static_cast<long long>(blockIdx.x) * direct_block_size + threadIdx.x; i < all; i += threads) {
        // From the fastest to the slowest: columns, rows, channel; or channel, columns, rows.
        const Number number = static_cast<Number>(i), fast = output_last ? filters : across;
        const Number middle = output_last ? across : tiles, slow = output_last ? tiles : filters;
        const Number in_fast = number % fast, in_middle = number / fast % middle, above = number / fast / middle;
        const Number in_slow = above % slow;
        const long long sample = above / slow;
        const Number channel = output_last ? in_fast : in_slow;
        const Place column = static_cast<Place>((output_last ? in_middle : in_fast) * direct_columns);
        const Place row = static_cast<Place>((output_last ? in_slow : in_middle) * direct_rows);

        DirectSums sums = {};
        const long long first_channel = channel / of_group * channels;
        const Place first_row = row * static_cast<Place>(stride_height) - static_cast<Place>(padding_above);
        const Place first_column = column * static_cast<Place>(stride_width) - static_cast<Place>(padding_before);
        const bool is_inside = has_inner_warps && first_row >= 0 && first_row + direct_span_rows <= shape.image.height &&
                               first_column >= 0 && first_column + direct_span_columns <= shape.image.width;
#pragma unroll 1
        for (long long k = 0; k < channels; ++k) {
            const scalar_t* const plane = x + offset_of(sample, first_channel + k, 0, in_channels, in_pixels, input_last);
            const scalar_t* const window = weight + offset_of(channel, k, 0, channels, area, shape.weight_last);
            const Place step = static_cast<Place>(input_last ? in_channels : 1);
            const long long weight_step = shape.weight_last ? channels : 1;
            if (is_inside) {
                add_channel<Numbers, true>(sums, plane, step, shape.image, window, weight_step, first_row, first_column);
            } else {
                add_channel<Numbers, false>(sums, plane, step, shape.image, window, weight_step, first_row, first_column);
            }
        }
        const Channel of_channel = epilogue.of(channel);
        const long long apart = output_last ? shape.out_channels : 1;
        const long long begin = offset_of(sample, channel, row * out.width + column, filters, pixels, output_last);
        const int rows_left = static_cast<int>(out.height - row), left = static_cast<int>(out.width - column);
#pragma unroll
        for (int k = 0; k < direct_rows; ++k) {
            if (k < rows_left) {
                const long long first = begin + k * out.width * apart;
                Pack<scalar_t, direct_columns> found{};
#pragma unroll
                for (int j = 0; j < direct_columns; ++j) {
                    if (j < left) {
                        const long long offset = first + j * apart;
                        found.of[j] = scalar_t(epilogue(sums[k][j], of_channel, epilogue.at(offset)));
                        if (output_last || direct_columns == 1) {
                            output[offset] = found.of[j];
                        }
                    }
                }
                if constexpr (!output_last && direct_columns > 1) {
                    const bool whole = left >= direct_columns && takes_packs<scalar_t, direct_columns>(output + first);
                    store_pack(output + first, found, left, whole);
                }
            }
        }
    }
}

// -------------------------------------------------------------------------------------------------------- several filters

constexpr bool direct_shares = direct && direct_filters > 1;
constexpr int window_elements = direct_shares ? in_channels / groups * kernel_depth * kernel_height * kernel_width : 1;
// So much is unrolled that a thread has several reads under way, and instructions stay in their cache.
constexpr int columns_at_once = kernel_height * direct_rows * direct_filters <= 512 ? kernel_width : 1;

using FilterSums = accumulator_t[direct_rows][direct_filters];
using FilterWeights = Pack<accumulator_t, direct_filters>;  // Of one place of the window.

// The filters of a block, which begin with `first` and are so many, by channels and places.
__device__ __forceinline__ void hold_filters(FilterWeights* held, const scalar_t* __restrict__ weight,
                                             const ShapeOfSides& shape, long long first, long long count) {
    constexpr long long channels = in_channels / groups, area = kernel_depth * kernel_height * kernel_width;
    for (int i = threadIdx.x; i < window_elements * direct_filters; i += direct_block_size) {
        const int filter = i % direct_filters, element = i / direct_filters;
        accumulator_t value = 0;
        if (filter < count) {
            value = weight[weight_offset(first + filter, element / area, element % area, shape.out_channels, channels, area,
                                         shape.weight_last)];
        }
        held[element].of[filter] = value;
    }
    __syncthreads();
}

// Adds to the outputs what one plane of an input channel gives them; where there is none, zeros, as libraries multiply.
template <class Numbers>
__device__ __forceinline__ void add_plane(FilterSums& sums, const scalar_t* plane, typename Numbers::Place step,
                                          const Sides& image, bool is_plane, const FilterWeights* held,
                                          typename Numbers::Place first_row, typename Numbers::Place first_column) {
    using Place = typename Numbers::Place;
    const Place height = static_cast<Place>(image.height), width = static_cast<Place>(image.width);
    constexpr bool pads = padding_depth > 0 || padding_height > 0 || padding_width > 0;
#pragma unroll(columns_at_once)
    for (int across = 0; across < kernel_width; ++across) {
        const Place column = first_column + across * static_cast<Place>(dilation_width);
        const bool is_column = is_plane && column >= 0 && column < width;
        accumulator_t values[direct_span_rows];
#pragma unroll
        for (int k = 0; k < direct_span_rows; ++k) {
            const Place row = first_row + k;
            if constexpr (pads) {
                values[k] = 0;
                if (is_column && row >= 0 && row < height) {
                    values[k] = plane[(row * width + column) * step];
                }
            } else {  // What is behind the last row reaches only outputs that nobody writes.
                values[k] = plane[((row < height ? row : height - 1) * width + column) * step];
            }
        }
#pragma unroll
        for (int below = 0; below < kernel_height; ++below) {
            const FilterWeights weights = held[below * kernel_width + across];
#pragma unroll
            for (int k = 0; k < direct_rows; ++k) {
#pragma unroll
                for (int filter = 0; filter < direct_filters; ++filter) {
                    sums[k][filter] += values[k * stride_height + below * dilation_height] * weights.of[filter];
                }
            }
        }
    }
}

template <class Numbers>
__device__ __forceinline__ void outputs_of_filters(const scalar_t* __restrict__ x, const scalar_t* __restrict__ weight,
                                                   scalar_t* __restrict__ output, FilterWeights* held,
                                                   const ShapeOfSides& shape, const Sides& out, const Epilogue& epilogue) {
    using Number = typename Numbers::Number;
    using Place = typename Numbers::Place;
    constexpr long long channels = in_channels / groups;
    const long long of_group = shape.out_channels / groups, tiles = divided_up(of_group, direct_filters);
    const long long tile = blockIdx.x % (tiles * groups), begin = tile % tiles * direct_filters;
    const long long group = tile / tiles, first = group * of_group + begin, count = of_group - begin;
    hold_filters(held, weight, shape, first, count);

    const long long pixels = out.pixels(), in_pixels = shape.image.pixels();
    const Number across = static_cast<Number>(out.width), planes = static_cast<Number>(out.depth);
    const Number down = static_cast<Number>(divided_up(out.height, direct_rows));
    const long long all = shape.samples * planes * down * across;
    const long long blocks = gridDim.x / (tiles * groups), block = blockIdx.x / (tiles * groups);
    for (long long i = block * direct_block_size + threadIdx.x; i < all; i += blocks * direct_block_size) {
        const Number number = static_cast<Number>(i), above = number / across;
        const Place column = static_cast<Place>(number % across);
        const Place row = static_cast<Place>(above % down * direct_rows), depth = static_cast<Place>(above / down % planes);
        const long long sample = above / down / planes;
        const Place first_row = row * static_cast<Place>(stride_height) - static_cast<Place>(padding_above);
        const Place first_column = column * static_cast<Place>(stride_width) - static_cast<Place>(padding_before);
        FilterSums sums = {};
#pragma unroll 1
        for (int part = 0; part < channels * kernel_depth; ++part) {  // A plane of the window, of a channel.
            const long long channel = group * channels + part / kernel_depth;
            const long long in = depth * stride_depth - padding_depth / 2 + part % kernel_depth * dilation_depth;
            const bool is_plane = in >= 0 && in < shape.image.depth;
            const long long pixel = is_plane ? in * shape.image.height * shape.image.width : 0;
            add_plane<Numbers>(sums, x + offset_of(sample, channel, pixel, in_channels, in_pixels, input_last),
                               static_cast<Place>(input_last ? in_channels : 1), shape.image, is_plane,
                               held + part * (kernel_height * kernel_width), first_row, first_column);
        }
        const long long place = (depth * out.height + row) * out.width + column;
#pragma unroll
        for (int filter = 0; filter < direct_filters; ++filter) {
            if (filter < count) {
                const Channel of_channel = epilogue.of(first + filter);
#pragma unroll
                for (int k = 0; k < direct_rows; ++k) {
                    if (row + k < out.height) {
                        const long long offset = offset_of(sample, first + filter, place + k * out.width,
                                                           shape.out_channels, pixels, output_last);
                        output[offset] = scalar_t(epilogue(sums[k][filter], of_channel, epilogue.at(offset)));
                    }
                }
            }
        }
    }
}

__device__ __forceinline__ void direct_by_block(const scalar_t* __restrict__ x, const scalar_t* __restrict__ weight,
                                                scalar_t* __restrict__ output, const ShapeOfSides& shape,
                                                const Epilogue& epilogue) {
    if constexpr (direct) {
        const Sides out = output_of(shape);
        // What a thread's windows reach over may begin before the image, and end behind it.
        const long long most = 1ll << 30, down = (out.height + direct_rows) * stride_height + span_height;
        const long long across = (out.width + direct_columns) * stride_width + span_width;
        const bool is_short = in_channels * down * across < most && shape.samples * shape.out_channels * out.pixels() < most;
        if constexpr (direct_shares) {
            __shared__ FilterWeights held[window_elements];
            is_short ? outputs_of_filters<ShortNumbers>(x, weight, output, held, shape, out, epilogue)
                     : outputs_of_filters<LongNumbers>(x, weight, output, held, shape, out, epilogue);
        } else {
            is_short ? direct_outputs<ShortNumbers>(x, weight, output, shape, out, epilogue)
                     : direct_outputs<LongNumbers>(x, weight, output, shape, out, epilogue);
        }
    }
}
