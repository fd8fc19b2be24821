// Convolutions of images with any number of sides, transposed ones too: where the window of an output element lies. Part of
// conv.cuh. What the kernels for images with two sides have of it stands with them.
#pragma once

// A number's quotient and remainder; quicker where both have 32 bits.
struct Division {
    long long quotient, rest;
    __device__ __forceinline__ Division(long long number, long long by, bool is_short)
        : quotient(is_short ? static_cast<unsigned>(number) / static_cast<unsigned>(by) : number / by),
          rest(number - quotient * by) {}
};

// Where a weight has what an output channel multiplies an input channel of its group by, at one place of the window.
__device__ __forceinline__ long long weight_offset(long long out_channel, long long channel, long long place,
                                                   long long out_channels, long long channels, long long area, bool last) {
    if constexpr (transposed) {
        const long long of_group = out_channels / groups, group = out_channel / of_group;
        return offset_of(group * channels + channel, out_channel % of_group, place, of_group, area, last);
    } else {
        return offset_of(out_channel, channel, place, channels, area, last);
    }
}

struct Sides {
    long long depth, height, width;

    __device__ __forceinline__ long long pixels() const { return depth * height * width; }
};

struct ShapeOfSides {
    long long samples, out_channels;
    Sides image;
    bool weight_last;
};

__device__ __forceinline__ Sides output_of(const ShapeOfSides& shape) {
    return {out_side(shape.image.depth, kernel_depth, stride_depth, padding_depth, dilation_depth, output_padding_depth),
            out_height_of(shape.image.height), out_width_of(shape.image.width)};
}

// Where along a side the window of an output element has an element of the image; below 0 where it has none there.
__device__ __forceinline__ long long seen_at(long long out, long long step, long long size, long long stride,
                                             long long padding, long long dilation) {
    long long at = out * stride - padding / 2 + step * dilation;
    if constexpr (transposed) {
        const long long behind = out + padding / 2 - step * dilation;
        at = behind % stride == 0 ? behind / stride : -1;
    }
    return at < size ? at : -1;
}

// One output element before the bias, from x and the weight as they are.
__device__ __noinline__ accumulator_t convolved(const scalar_t* x, const scalar_t* weight, const ShapeOfSides& shape,
                                                long long sample, long long out_channel, const Sides& out) {
    constexpr long long area = kernel_depth * kernel_height * kernel_width, channels = in_channels / groups;
    const long long first_channel = groups == 1 ? 0 : out_channel / (shape.out_channels / groups) * channels;
    const auto [depth, height, width] = shape.image;
    const long long pixels = shape.image.pixels();
    accumulator_t sum = 0;
    for (long long place = 0; place < area; ++place) {
        const long long in = seen_at(out.depth, place / (kernel_height * kernel_width), depth, stride_depth, padding_depth,
                                     dilation_depth);
        const long long down = seen_at(out.height, place / kernel_width % kernel_height, height, stride_height,
                                       padding_height, dilation_height);
        const long long across =
            seen_at(out.width, place % kernel_width, width, stride_width, padding_width, dilation_width);
        const bool beyond = in < 0 || down < 0 || across < 0;
        if (beyond && !has_padding) {
            continue;
        }
        const long long pixel = beyond ? 0 : (in * height + down) * width + across;
        const scalar_t* values = x + offset_of(sample, first_channel, pixel, in_channels, pixels, input_last);
        const auto weights = [&](long long channel) {
            return weight + weight_offset(out_channel, channel, place, shape.out_channels, channels, area,
                                          shape.weight_last);
        };
        const long long value_step = input_last ? 1 : pixels, weight_step = weights(1) - weights(0);
#pragma unroll 1
        for (long long channel = 0; channel < channels; ++channel) {
            sum += (beyond ? scalar_t(0.0f) : values[channel * value_step]) * weights(0)[channel * weight_step];
        }
    }
    return sum;
}

__device__ __forceinline__ accumulator_t convolved_at(const scalar_t* x, const scalar_t* weight, const ShapeOfSides& shape,
                                                       const Sides& out, long long sample, long long channel,
                                                       long long pixel) {
    const Sides at{pixel / (out.height * out.width), pixel / out.width % out.height, pixel % out.width};
    return convolved(x, weight, shape, sample, channel, at);
}
