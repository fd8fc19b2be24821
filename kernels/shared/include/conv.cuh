// A convolution with a device function behind it. The source that includes this defines before
//
//     constexpr int channel_tensors, element_tensors, scalars;  // operands of the function, the layer's bias among the first
//     accumulator_t function(value, of_channel, of_element, of_call)
//
// where `value` is the convolution with its bias, and the others are arrays with a value for each operand; behind, it
// declares the entry points whose parameters depend on these, with the bodies that stand here:
//
// prepare                          x in the layout and type that the convolution takes; the weight in half precision, scaled
// transpose_output, finish         the bias and the function, in one pass; the first changes the layout too
// implicit_gemm                    all of it in one kernel, on Hopper (conv_gemm.cuh); of images with two sides, not transposed
// direct                           all of it in one kernel, of few channels a group (conv_direct.cuh)
// im2col_product                   the convolution and what is behind it, on Hopper, of x as `prepare` leaves it
//                                  (conv_im2col.cuh)
// repair                           in half precision: again, in full precision, what lay outside its range
//
// A sample's elements are a matrix, channels by pixels (NCHW) or pixels by channels (channels-last), so that a change
// of layout is a transposition, through a tile of shared memory.
#pragma once

#include "early_launches.cuh"
#include "parts.cuh"
#include "vector.cuh"

constexpr bool implicit = convolution == convolution_t::implicit_gemm || convolution == convolution_t::implicit_parts;
constexpr bool im2col = convolution == convolution_t::im2col || convolution == convolution_t::im2col_parts;
constexpr bool splits =  // operands into two halves each
    convolution == convolution_t::im2col_parts || convolution == convolution_t::implicit_parts;
constexpr bool has_passes = !implicit && convolution != convolution_t::direct;
constexpr bool by_library = has_passes && !im2col;
constexpr bool half_product = convolution == convolution_t::fp16;  // torch rounds what comes of it to halves
constexpr bool is_half = sizeof(scalar_t) == 2;
constexpr bool halves = half_product || (im2col && !is_half);  // x is stored in halves
constexpr bool half_weight = halves || implicit || im2col;
constexpr bool scales = half_weight && !is_half;
constexpr bool channels_last = convolution_layout == convolution_layout_t::channels_last;
constexpr bool input_last = input_option == input_option_t::channels_last;
constexpr bool output_last = output_option == output_option_t::channels_last;
// A pass that the configuration does not launch is empty: it would take as long to compile as one that runs.
constexpr bool transposes_input = has_passes && channels_last != input_last;
constexpr bool casts_input = halves && channels_last == input_last;
constexpr bool transposes_output = by_library && channels_last != output_last;
constexpr bool finishes = by_library && channels_last == output_last;

using source_t = Choose<halves, half_t, scalar_t>;
using product_t = Choose<half_product, half_t, scalar_t>;
using multiplied_t = Choose<is_half, scalar_t, half_t>;  // what tensor cores are given
using weight_t = Choose<half_weight, multiplied_t, scalar_t>;

// ----------------------------------------------------------------------------------------------------------- geometry

// Of zeros above the first row and left of the first column; where their number in all is odd, one more lies behind.
constexpr long long padding_above = padding_height / 2, padding_before = padding_width / 2;
// Zeros around an image are multiplied, as tensor cores and the libraries do: times an infinity they are no number. PyTorch's
// own kernels, for channels by themselves, leave them out.
constexpr bool has_padding = !transposed && (groups == 1 || groups < in_channels) &&
                             (padding_depth > 0 || padding_height > 0 || padding_width > 0);
// From a window's first row and column to its last.
constexpr long long span_height = (kernel_height - 1) * dilation_height + 1;
constexpr long long span_width = (kernel_width - 1) * dilation_width + 1;

// A side of the output, of the image's.
__device__ __forceinline__ long long out_side(long long size, long long kernel, long long stride, long long padding,
                                              long long dilation, long long output_padding) {
    const long long span = (kernel - 1) * dilation + 1;
    return transposed ? (size - 1) * stride - padding + span + output_padding : (size + padding - span) / stride + 1;
}
__device__ __forceinline__ long long out_height_of(long long height) {
    return out_side(height, kernel_height, stride_height, padding_height, dilation_height, output_padding_height);
}
__device__ __forceinline__ long long out_width_of(long long width) {
    return out_side(width, kernel_width, stride_width, padding_width, dilation_width, output_padding_width);
}

// Where an element stands in a dense tensor of so many channels and pixels a sample.
__device__ __forceinline__ long long offset_of(long long sample, long long channel, long long pixel,
                                               long long channels, long long pixels, bool last) {
    return last ? (sample * pixels + pixel) * channels + channel : (sample * channels + channel) * pixels + pixel;
}

template <typename T> __device__ constexpr int width_of(int bytes) {
    return bytes > static_cast<int>(sizeof(T)) ? bytes / static_cast<int>(sizeof(T)) : 1;
}

// ---------------------------------------------------------------------------------------------- behind the convolution

constexpr int at_least_one(int number) { return number > 0 ? number : 1; }  // of an array's elements

// What the function has of one output channel, the layer's bias first, and what undoes the scales of half precision.
struct Channel {
    accumulator_t of[channel_tensors];
    accumulator_t scale;
};

// What it has of one output element.
struct Element {
    accumulator_t of[at_least_one(element_tensors)];
};

struct Epilogue {
    const scalar_t* channel[channel_tensors];  // the layer's bias may be null
    const scalar_t* element[at_least_one(element_tensors)];
    const float* factors;
    accumulator_t scalar[at_least_one(scalars)];

    __device__ __forceinline__ Channel of(long long number) const {
        Channel found;
#pragma unroll
        for (int k = 0; k < channel_tensors; ++k) {
            found.of[k] = k == 0 && channel[0] == nullptr ? accumulator_t(0) : accumulator_t(channel[k][number]);
        }
        found.scale = scales ? accumulator_t(factors[number]) : accumulator_t(1);
        return found;
    }

    // Of an element that exists.
    __device__ __forceinline__ Element at(long long offset) const {
        Element found{};
#pragma unroll
        for (int k = 0; k < element_tensors; ++k) {
            found.of[k] = element[k][offset];
        }
        return found;
    }

    // Whether the tensors take packs of so many neighbouring channels, or elements.
    template <int width> __device__ __forceinline__ bool takes_channels() const {
        return all_take<width>(channel, channel_tensors, takes_packs<float, width>(factors));
    }
    template <int width> __device__ __forceinline__ bool takes_elements() const {
        return all_take<width>(element, element_tensors, true);
    }
    template <int width>
    static __device__ __forceinline__ bool all_take(const scalar_t* const* tensors, int count, bool takes) {
#pragma unroll
        for (int k = 0; k < count; ++k) {
            takes = takes && takes_packs<scalar_t, width>(tensors[k]);
        }
        return takes;
    }

    __device__ __forceinline__ accumulator_t operator()(accumulator_t sum, const Channel& channel,
                                                        const Element& element) const {
        return function(sum + channel.of[0], channel.of, element.of, scalar);
    }

    __device__ __forceinline__ scalar_t of_stored(product_t stored, const Channel& channel, const Element& element) const {
        const accumulator_t value = stored;
        return scalar_t((*this)(halves ? value * channel.scale : value, channel, element));
    }
};

#include "conv_sides.cuh"
#include "conv_half.cuh"
#include "conv_passes.cuh"
#include "conv_direct.cuh"
#include "conv_gemm.cuh"
#include "conv_im2col.cuh"
