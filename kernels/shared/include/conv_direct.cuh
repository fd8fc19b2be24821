// A convolution of few input channels a group, as where each channel is by itself: what memory brings is what it takes.
// Part of conv.cuh.
//
// A thread has `direct_rows` outputs below each other and `direct_columns` beside each, so that what their windows have in
// common is read once; lanes stand side by side along what is contiguous in the output. Neighbouring windows meet in the
// first cache.
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

// Adds to the outputs what one input channel gives them. `first_row` and `first_column` are of the first output's window;
// `inside` where the image has all that the windows see.
template <bool inside>
__device__ __forceinline__ void add_channel(DirectSums& sums, const scalar_t* plane, long long step, const Sides& image,
                                            const scalar_t* weight, long long weight_step, long long first_row,
                                            long long first_column) {
    accumulator_t weights[kernel_height][kernel_width];
#pragma unroll
    for (int place = 0; place < kernel_height * kernel_width; ++place) {
        weights[place / kernel_width][place % kernel_width] = weight[place * weight_step];
    }
#pragma unroll
    for (int row = 0; row < direct_span_rows; ++row) {
        const long long down = first_row + row;
        const bool is_row = inside || (down >= 0 && down < image.height);
#pragma unroll
        for (int column = 0; column < direct_span_columns; ++column) {
            const long long across = first_column + column;
            const bool is_there = inside || (is_row && across >= 0 && across < image.width);
            accumulator_t value = 0;
            if (is_there) {
                value = plane[(down * image.width + across) * step];
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

__device__ __forceinline__ void direct_by_block(const scalar_t* __restrict__ x, const scalar_t* __restrict__ weight,
                                                scalar_t* __restrict__ output, const ShapeOfSides& shape,
                                                const Epilogue& epilogue) {
    if constexpr (direct) {
        constexpr long long channels = in_channels / groups, area = kernel_height * kernel_width;
        const Sides out = output_of(shape);
        const long long filters = shape.out_channels, pixels = out.pixels(), in_pixels = shape.image.pixels();
        const long long tiles = (out.height + direct_rows - 1) / direct_rows;
        const long long across = (out.width + direct_columns - 1) / direct_columns;
        const long long all = shape.samples * filters * tiles * across;
        const bool is_short = all < (1ll << 32);
        // Of shorter rows each warp has the ends of some: its lanes would go both ways, one after the other.
        const bool has_inner_warps = output_last || across >= lanes_of_warp;
        const long long threads = static_cast<long long>(gridDim.x) * direct_block_size;
        for (long long i = static_cast<long long>(blockIdx.x) * direct_block_size + threadIdx.x; i < all; i += threads) {
            // From the fastest to the slowest: columns, rows, channel; or channel, columns, rows.
            const Division lane(i, output_last ? filters : across, is_short);
            const Division next(lane.quotient, output_last ? across : tiles, is_short);
            const Division last(next.quotient, output_last ? tiles : filters, is_short);
            const long long sample = last.quotient, column = (output_last ? next.rest : lane.rest) * direct_columns;
            const long long channel = output_last ? lane.rest : last.rest;
            const long long row = (output_last ? last.rest : next.rest) * direct_rows;

            DirectSums sums = {};
            const long long first_channel = channel / (filters / groups) * channels;
            const long long first_row = row * stride_height - padding_above;
            const long long first_column = column * stride_width - padding_before;
            const bool is_inside = has_inner_warps && first_row >= 0 && first_row + direct_span_rows <= shape.image.height &&
                                   first_column >= 0 && first_column + direct_span_columns <= shape.image.width;
#pragma unroll 1
            for (long long k = 0; k < channels; ++k) {
                const scalar_t* const plane =
                    x + offset_of(sample, first_channel + k, 0, in_channels, in_pixels, input_last);
                const scalar_t* const window = weight + offset_of(channel, k, 0, channels, area, shape.weight_last);
                const long long step = input_last ? in_channels : 1, weight_step = shape.weight_last ? channels : 1;
                if (is_inside) {
                    add_channel<true>(sums, plane, step, shape.image, window, weight_step, first_row, first_column);
                } else {
                    add_channel<false>(sums, plane, step, shape.image, window, weight_step, first_row, first_column);
                }
            }
            const Channel of_channel = epilogue.of(channel);
#pragma unroll
            for (int k = 0; k < direct_rows; ++k) {
                if (row + k < out.height) {
                    const long long first =
                        offset_of(sample, channel, (row + k) * out.width + column, filters, pixels, output_last);
                    const long long apart = output_last ? filters : 1, left = out.width - column;
                    Pack<scalar_t, direct_columns> found{};
#pragma unroll
                    for (int j = 0; j < direct_columns; ++j) {
                        if (j < left) {
                            const long long offset = first + j * apart;
                            found.of[j] = scalar_t(epilogue(sums[k][j], of_channel, epilogue.at(offset)));
                            if (output_last) {
                                output[offset] = found.of[j];
                            }
                        }
                    }
                    if (!output_last) {
                        const bool whole = left >= direct_columns && takes_packs<scalar_t, direct_columns>(output + first);
                        store_pack(output + first, found, left, whole);
                    }
                }
            }
        }
    }
}
