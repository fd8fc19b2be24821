// A convolution of few input channels a group, as where each channel is by itself: what memory brings is what it takes.
// Part of conv.cuh.
//
// A thread has `direct_rows` outputs below each other, so that a row of the image is read once for all of them; lanes stand
// side by side along what is contiguous in the output. Neighbouring windows meet in the first cache.
#pragma once

constexpr bool direct = convolution == convolution_t::direct;

// Adds to the outputs what one input channel gives them. `first_row` and `first_column` are of the first output's window.
__device__ __forceinline__ void add_channel(accumulator_t (&sums)[direct_rows], const scalar_t* plane, long long step,
                                            const Sides& image, const scalar_t* weight, long long weight_step,
                                            long long first_row, long long first_column) {
    constexpr int rows = (direct_rows - 1) * stride_height + span_height;
    accumulator_t weights[kernel_height][kernel_width];
#pragma unroll
    for (int place = 0; place < kernel_height * kernel_width; ++place) {
        weights[place / kernel_width][place % kernel_width] = weight[place * weight_step];
    }
#pragma unroll
    for (int row = 0; row < rows; ++row) {
        const long long down = first_row + row;
        const bool is_inside = down >= 0 && down < image.height;
#pragma unroll
        for (int column = 0; column < kernel_width; ++column) {
            const long long across = first_column + column * dilation_width;
            accumulator_t value = 0;
            if (is_inside && across >= 0 && across < image.width) {
                value = plane[(down * image.width + across) * step];
            }
#pragma unroll
            for (int output = 0; output < direct_rows; ++output) {
                const int above = row - output * stride_height;  // rows of the window above this one
                if (above >= 0 && above % dilation_height == 0 && above / dilation_height < kernel_height) {
                    sums[output] += value * weights[above / dilation_height][column];
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
        const long long all = shape.samples * filters * tiles * out.width;
        const bool is_short = all < (1ll << 32);
        const long long threads = static_cast<long long>(gridDim.x) * direct_block_size;
        for (long long i = static_cast<long long>(blockIdx.x) * direct_block_size + threadIdx.x; i < all; i += threads) {
            // From the fastest to the slowest: column, tile, channel; or channel, column, tile.
            const Division lane(i, output_last ? filters : out.width, is_short);
            const Division next(lane.quotient, output_last ? out.width : tiles, is_short);
            const Division last(next.quotient, output_last ? tiles : filters, is_short);
            const long long sample = last.quotient, column = output_last ? next.rest : lane.rest;
            const long long channel = output_last ? lane.rest : last.rest;
            const long long row = (output_last ? last.rest : next.rest) * direct_rows;

            accumulator_t sums[direct_rows] = {};
            const long long first_channel = channel / (filters / groups) * channels;
#pragma unroll 1
            for (long long k = 0; k < channels; ++k) {
                add_channel(sums, x + offset_of(sample, first_channel + k, 0, in_channels, in_pixels, input_last),
                            input_last ? in_channels : 1, shape.image,
                            weight + offset_of(channel, k, 0, channels, area, shape.weight_last),
                            shape.weight_last ? channels : 1, row * stride_height - padding_above,
                            column * stride_width - padding_before);
            }
            const Channel of_channel = epilogue.of(channel);
#pragma unroll
            for (int k = 0; k < direct_rows; ++k) {
                if (row + k < out.height) {
                    const long long offset =
                        offset_of(sample, channel, (row + k) * out.width + column, filters, pixels, output_last);
                    output[offset] = scalar_t(epilogue(sums[k], of_channel, epilogue.at(offset)));
                }
            }
        }
    }
}
