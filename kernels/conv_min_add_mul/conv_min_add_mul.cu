// What stands around the convolution of conv_min_add_mul: y = (min(conv(x) + conv_bias, constant) + bias) * factor.
//
// transpose_input, cast_input      x in the layout and type that the convolution takes
// prepare_weight                   the weight in half precision, scaled
// transpose_output, finish         everything behind the convolution, in one pass; the first changes the layout too, and
//                                  nothing but the layout where the convolution is cuDNN's graph, which does the rest
// implicit_gemm                    the whole model in one kernel, on Hopper (implicit_gemm.cuh)
// repair                           in half precision: again, in full precision, what lay outside its range
//
// A sample's elements are a matrix, channels by pixels (NCHW) or pixels by channels (channels-last), so that a change
// of layout is a transposition, through a tile of shared memory.
//
// Half precision keeps TF32's mantissa but not its range. x is multiplied by input_scale, and each output channel's
// weight by the power of two that brings the sum of its absolute values below 1, so that no sum of products leaves the
// range unless an input does. Of each sample the largest absolute value is found in passing: where it is above
// largest_input, too small for the rounding of subnormals to be negligible, or not a number, and for channels whose
// weight cannot be scaled, `repair` computes the output from x and the weight themselves.
//
// A model of a half type is convolved in that type: nothing is scaled, and nothing lies outside the range.
#include "vector.cuh"

constexpr bool implicit = convolution == convolution_t::implicit_gemm;
constexpr bool half_graph = convolution == convolution_t::graph_fp16;
constexpr bool by_graph =  // what comes of it is finished
    half_graph || convolution == convolution_t::graph_tf32 || convolution == convolution_t::graph;
constexpr bool half_product = convolution == convolution_t::fp16;  // torch rounds what comes of it to halves
constexpr bool halves = half_product || half_graph;                // x is stored in halves
constexpr bool half_weight = halves || implicit;
constexpr bool is_half = sizeof(scalar_t) == 2;
constexpr bool scales = half_weight && !is_half;
constexpr bool channels_last = convolution_layout == convolution_layout_t::channels_last;
constexpr bool input_last = input_option == input_option_t::channels_last;
constexpr bool output_last = output_option == output_option_t::channels_last;
// A pass that the configuration does not launch is empty: it would take as long to compile as one that runs.
constexpr bool transposes_input = !implicit && channels_last != input_last;
constexpr bool casts_input = halves && channels_last == input_last;
constexpr bool transposes_output = !implicit && channels_last != output_last;
constexpr bool finishes = !implicit && channels_last == output_last;

template <bool condition, typename A, typename B> struct Choose { using type = A; };
template <typename A, typename B> struct Choose<false, A, B> { using type = B; };
using source_t = typename Choose<halves, half_t, scalar_t>::type;
using product_t = typename Choose<half_product, half_t, scalar_t>::type;
using multiplied_t = typename Choose<is_half, scalar_t, half_t>::type;  // what tensor cores are given
using weight_t = typename Choose<half_weight, multiplied_t, scalar_t>::type;

constexpr float input_scale = 64.0f;
constexpr float largest_input = 1000.0f;     // times input_scale still below 65504, the largest half
constexpr float smallest_input = 0.015625f;  // times input_scale 1, whose rounding error is that of the least half

// To the eleven bits that TF32 keeps, and a half: to nearest, and away from zero where two are as near, as cuDNN rounds the
// operands of TF32 products. Every tie that went the other way would be another value than the reference multiplies.
__device__ __forceinline__ float to_eleven_bits(float value) {
    return __uint_as_float((__float_as_uint(value) + 0x1000u) & 0xffffe000u);
}

#include "implicit_gemm.cuh"

template <typename T> __device__ constexpr int width_of(int bytes) {
    return bytes > static_cast<int>(sizeof(T)) ? bytes / static_cast<int>(sizeof(T)) : 1;
}

// Where an element stands in a dense tensor of so many channels and pixels a sample.
__device__ __forceinline__ long long offset_of(long long sample, long long channel, long long pixel,
                                               long long channels, long long pixels, bool last) {
    return last ? (sample * pixels + pixel) * channels + channel : (sample * channels + channel) * pixels + pixel;
}

// ----------------------------------------------------------------------------------------------------- transpositions

// Of the elements that a block has read, the largest absolute value: bits of floats are ordered as the floats are, and
// those of a NaN stand above infinity. The order of atomics does not change a maximum.
template <int threads> __device__ __forceinline__ void note_largest(float mine, unsigned* largest) {
    __shared__ unsigned of_block;
    if (threadIdx.x == 0) {
        of_block = 0;
    }
    __syncthreads();
    unsigned bits = __float_as_uint(mine);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        const unsigned other = __shfl_xor_sync(0xffffffffu, bits, distance);
        bits = other > bits ? other : bits;
    }
    if (threadIdx.x % 32 == 0) {
        atomicMax(&of_block, bits);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicMax(largest, of_block);
    }
    __syncthreads();
}

__device__ __forceinline__ float larger_of(float largest, float value) {
    const float size = fabsf(value);
    return size > largest || size != size ? size : largest;  // a NaN stays
}

// A tile of the matrix `from` (rows by columns) into its transpose `to`. `change` makes an element of `to` of one of
// `from` and the two indices; `look` sees every element that is read.
template <int tile, int threads, int vector_bytes, typename From, typename To, typename Look, typename Change>
__device__ __forceinline__ void transpose_tile(const From* from, To* to, long long rows, long long columns,
                                               long long first_row, long long first_column, Look look, Change change) {
    constexpr int read = width_of<From>(vector_bytes), written = width_of<To>(vector_bytes);
    // A row of cells is an odd number of words: threads side by side along either axis meet different banks.
    constexpr int padding = sizeof(From) < 4 ? 4 / sizeof(From) : 1;
    __shared__ From cells[tile][tile + padding];
    from += first_row * columns + first_column;
    to += first_column * rows + first_row;
    const int rows_left = rows - first_row < tile ? static_cast<int>(rows - first_row) : tile;
    const int columns_left = columns - first_column < tile ? static_cast<int>(columns - first_column) : tile;

    if (takes_packs<From, read>(from) && columns % read == 0) {
        constexpr int units = tile * tile / read, each = (units + threads - 1) / threads;
        Pack<From, read> packs[each];  // all in flight before the first goes to shared memory
#pragma unroll
        for (int k = 0; k < each; ++k) {
            const int unit = k * threads + threadIdx.x;
            const int row = unit / (tile / read), column = unit % (tile / read) * read;
            if (row < rows_left && column < columns_left) {
                packs[k] = *reinterpret_cast<const Pack<From, read>*>(from + row * columns + column);
            }
        }
#pragma unroll
        for (int k = 0; k < each; ++k) {
            const int unit = k * threads + threadIdx.x;
            const int row = unit / (tile / read), column = unit % (tile / read) * read;
            if (row < rows_left && column < columns_left) {
#pragma unroll
                for (int i = 0; i < read; ++i) {
                    look(packs[k].of[i]);
                    cells[row][column + i] = packs[k].of[i];
                }
            }
        }
    } else {
#pragma unroll 1
        for (int unit = threadIdx.x; unit < tile * tile; unit += threads) {
            const int row = unit / tile, column = unit % tile;
            if (row < rows_left && column < columns_left) {
                const From value = from[row * columns + column];
                look(value);
                cells[row][column] = value;
            }
        }
    }
    __syncthreads();
    if (takes_packs<To, written>(to) && rows % written == 0) {
        constexpr int units = tile * tile / written, each = (units + threads - 1) / threads;
#pragma unroll
        for (int k = 0; k < each; ++k) {
            const int unit = k * threads + threadIdx.x;
            const int column = unit / (tile / written), row = unit % (tile / written) * written;
            if (row < rows_left && column < columns_left) {
                Pack<To, written> pack;
#pragma unroll
                for (int i = 0; i < written; ++i) {
                    pack.of[i] = change(cells[row + i][column], first_row + row + i, first_column + column);
                }
                store_whole(to + column * rows + row, pack);
            }
        }
    } else {
#pragma unroll 1
        for (int unit = threadIdx.x; unit < tile * tile; unit += threads) {
            const int column = unit / tile, row = unit % tile;
            if (row < rows_left && column < columns_left) {
                to[column * rows + row] = change(cells[row][column], first_row + row, first_column + column);
            }
        }
    }
    __syncthreads();
}

struct Tiles {
    long long across, down, all;

    __device__ __forceinline__ Tiles(int tile, long long samples, long long rows, long long columns)
        : across((columns + tile - 1) / tile), down((rows + tile - 1) / tile), all(samples * across * down) {}
};

// ------------------------------------------------------------------------------------------------------------- input

__device__ __forceinline__ source_t to_source(scalar_t value) {
    if constexpr (halves) {
        return source_t(to_eleven_bits(static_cast<float>(value) * input_scale));
    } else {
        return source_t(value);
    }
}

extern "C" __global__ void __launch_bounds__(input_block_size)
    transpose_input(const scalar_t* __restrict__ x, source_t* __restrict__ to, unsigned* largest, long long samples,
                    long long channels, long long pixels) {
    if constexpr (transposes_input) {
        const long long rows = channels_last ? channels : pixels, columns = channels_last ? pixels : channels;
        const Tiles tiles(input_tile, samples, rows, columns);
        for (long long number = blockIdx.x; number < tiles.all; number += gridDim.x) {
            const long long sample = number / (tiles.across * tiles.down);
            const long long row = number / tiles.across % tiles.down * input_tile;
            const long long column = number % tiles.across * input_tile;
            const long long start = sample * channels * pixels;
            float mine = 0;
            transpose_tile<input_tile, input_block_size, input_vector_bytes>(
                x + start, to + start, rows, columns, row, column,
                [&mine](scalar_t value) { mine = halves ? larger_of(mine, static_cast<float>(value)) : mine; },
                [](scalar_t value, long long, long long) { return to_source(value); });
            if constexpr (halves) {
                note_largest<input_block_size>(mine, largest + sample);
            }
        }
    }
}

// x in its own layout, to half precision. A block's elements are of one sample.
extern "C" __global__ void __launch_bounds__(input_block_size)
    cast_input(const scalar_t* __restrict__ x, source_t* __restrict__ to, unsigned* largest, long long samples,
               long long elements) {
    if constexpr (casts_input) {
        constexpr int width = width_of<scalar_t>(input_vector_bytes);
        constexpr long long chunk = static_cast<long long>(input_block_size) * input_items * width;
        const bool whole = takes_packs<scalar_t, width>(x) && takes_packs<source_t, width>(to) && elements % width == 0;
        const long long chunks = (elements + chunk - 1) / chunk;
        for (long long number = blockIdx.x; number < samples * chunks; number += gridDim.x) {
            const long long sample = number / chunks;
            float mine = 0;
#pragma unroll
            for (int k = 0; k < input_items; ++k) {
                const long long i = number % chunks * chunk + (k * input_block_size + threadIdx.x) * width;
                if (i < elements) {
                    const auto read = load_pack<width>(x + sample * elements + i, elements - i, whole);
                    Pack<source_t, width> pack;
#pragma unroll
                    for (int j = 0; j < width; ++j) {
                        mine = larger_of(mine, static_cast<float>(read.of[j]));
                        pack.of[j] = to_source(read.of[j]);
                    }
                    store_pack<width>(to + sample * elements + i, pack, elements - i, whole);
                }
            }
            note_largest<input_block_size>(mine, largest + sample);
        }
    }
}

// ------------------------------------------------------------------------------------------------------------ weight

constexpr int weight_threads = 128;

// Where implicit_gemm wants a weight: by tiles of 128 filters, then by eight products of the sum, then by filter. The sum
// goes over places, and at each over channels, whose number is rounded up to 16.
__device__ __forceinline__ long long place_in_tile(long long filter, long long channel, long long place,
                                                   long long channels, long long area) {
    const long long padded = (channels + 15) / 16 * 16;
    const long long eight = (place * padded + channel) / 8;
    return ((filter / tile_filters * (area * padded / 8) + eight) * tile_filters + filter % tile_filters) * 8 +
           channel % 8;
}

// One block an output channel. `factors` undo both scales; NaN where the channel has to be repaired. `largest` starts
// at zero here. Where nothing is scaled, both are null.
extern "C" __global__ void __launch_bounds__(weight_threads)
    prepare_weight(const scalar_t* __restrict__ weight, weight_t* __restrict__ to, float* __restrict__ factors,
                   unsigned* __restrict__ largest, long long samples, long long channels, long long area,
                   int weight_channels_last) {
    if constexpr (half_weight) {
        __shared__ float of_warps[weight_threads / 32];
        const long long elements = channels * area, start = blockIdx.x * elements;
        float sum = 0;
        for (long long i = threadIdx.x; i < elements; i += weight_threads) {
            sum += fabsf(static_cast<float>(weight[start + i]));
        }
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, distance);
        }
        if (threadIdx.x % 32 == 0) {
            of_warps[threadIdx.x / 32] = sum;
        }
        __syncthreads();
        sum = 0;
        for (int warp = 0; warp < weight_threads / 32; ++warp) {
            sum += of_warps[warp];
        }
        // 2^exponent is the least power of two above the sum.
        const int exponent = static_cast<int>(__float_as_uint(sum) >> 23) - 126;
        const bool fits = exponent > -100 && exponent < 100;
        const float scale = scales && fits ? __uint_as_float(static_cast<unsigned>(127 - exponent) << 23) : 1.0f;
        for (long long i = threadIdx.x; i < elements; i += weight_threads) {
            const long long channel = weight_channels_last ? i % channels : i / area;
            const long long place = weight_channels_last ? i / channels : i % area;
            const long long target = implicit
                                         ? place_in_tile(blockIdx.x, channel, place, channels, area)
                                         : offset_of(blockIdx.x, channel, place, channels, area, channels_last);
            const float value = static_cast<float>(weight[start + i]) * scale;
            to[target] = weight_t(scales ? to_eleven_bits(value) : value);
        }
        if (scales && threadIdx.x == 0) {
            factors[blockIdx.x] = fits || sum == 0.0f ? 1.0f / (scale * input_scale) : __uint_as_float(0x7fc00000u);
        }
        for (long long i = static_cast<long long>(blockIdx.x) * weight_threads + threadIdx.x; scales && i < samples;
             i += static_cast<long long>(gridDim.x) * weight_threads) {
            largest[i] = 0;
        }
    }
}

// ------------------------------------------------------------------------------------------------------------ output

// What is added and multiplied behind the convolution, for one output channel.
struct Channel {
    accumulator_t conv_bias, bias, scale;
};

struct Epilogue {
    const scalar_t* conv_bias;
    const scalar_t* bias;
    const float* factors;
    accumulator_t constant, factor;

    __device__ __forceinline__ Channel of(long long channel) const {
        return {conv_bias[channel], bias[channel], scales ? accumulator_t(factors[channel]) : accumulator_t(1)};
    }

    // torch.min's answer is NaN where either is.
    __device__ __forceinline__ accumulator_t operator()(accumulator_t sum, const Channel& channel) const {
        const accumulator_t value = sum + channel.conv_bias;
        const accumulator_t least = constant < value || constant != constant ? constant : value;
        return (least + channel.bias) * factor;
    }

    __device__ __forceinline__ scalar_t of_stored(product_t stored, const Channel& channel) const {
        const accumulator_t value = stored;
        return scalar_t(by_graph ? value : (*this)(halves ? value * channel.scale : value, channel));
    }
};

extern "C" __global__ void __launch_bounds__(output_block_size)
    transpose_output(const product_t* __restrict__ product, scalar_t* __restrict__ output,
                     const scalar_t* __restrict__ conv_bias, const scalar_t* __restrict__ bias,
                     const float* __restrict__ factors, accumulator_t constant, accumulator_t factor, long long samples,
                     long long channels, long long pixels) {
    if constexpr (transposes_output) {
        const Epilogue epilogue{conv_bias, bias, factors, constant, factor};
        const long long rows = channels_last ? pixels : channels, columns = channels_last ? channels : pixels;
        const Tiles tiles(output_tile, samples, rows, columns);
        for (long long number = blockIdx.x; number < tiles.all; number += gridDim.x) {
            const long long start = number / (tiles.across * tiles.down) * channels * pixels;
            transpose_tile<output_tile, output_block_size, output_vector_bytes>(
                product + start, output + start, rows, columns, number / tiles.across % tiles.down * output_tile,
                number % tiles.across * output_tile, [](product_t) {},
                [&epilogue](product_t stored, long long row, long long column) {
                    return epilogue.of_stored(stored, epilogue.of(channels_last ? column : row));
                });
        }
    }
}

// Quicker where the numerator has 32 bits.
__device__ __forceinline__ long long remainder_of(long long i, long long channels, bool is_short) {
    return is_short ? static_cast<unsigned>(i) % static_cast<unsigned>(channels) : i % channels;
}

// The channels of neighbouring elements. Channels-last: `first` and those behind it, in as few loads as may be.
template <int width>
__device__ __forceinline__ void channels_of(Channel (&of)[width], const Epilogue& epilogue, long long first,
                                            long long channels) {
    if constexpr (!channels_last) {
        const Channel one = epilogue.of(first);
#pragma unroll
        for (int j = 0; j < width; ++j) {
            of[j] = one;
        }
    } else if (channels % width == 0 && takes_packs<scalar_t, width>(epilogue.conv_bias) &&
               takes_packs<scalar_t, width>(epilogue.bias) && takes_packs<float, width>(epilogue.factors)) {
        const auto conv_bias = load_pack<width>(epilogue.conv_bias + first, width, true);
        const auto bias = load_pack<width>(epilogue.bias + first, width, true);
        Pack<float, width> scale{};
        if constexpr (halves) {
            scale = load_pack<width>(epilogue.factors + first, width, true);
        }
#pragma unroll
        for (int j = 0; j < width; ++j) {
            of[j] = {conv_bias.of[j], bias.of[j], accumulator_t(scale.of[j])};
        }
    } else {
#pragma unroll
        for (int j = 0; j < width; ++j) {
            of[j] = epilogue.of(first);
            first = first + 1 == channels ? 0 : first + 1;
        }
    }
}

// The same where the layout stays; `product` and `output` may be one buffer. NCHW: a block's elements are of one
// channel of one sample. Channels-last: everything is one run of elements, whose channels repeat.
extern "C" __global__ void __launch_bounds__(output_block_size)
    finish(const product_t* product, scalar_t* output, const scalar_t* __restrict__ conv_bias,
           const scalar_t* __restrict__ bias, const float* __restrict__ factors, accumulator_t constant, accumulator_t factor,
           long long samples, long long channels, long long pixels) {
    if constexpr (finishes) {
        constexpr int width = width_of<scalar_t>(output_vector_bytes);
        constexpr long long chunk = static_cast<long long>(output_block_size) * output_items * width;
        const Epilogue epilogue{conv_bias, bias, factors, constant, factor};
        const long long planes = channels_last ? 1 : samples * channels;
        const long long elements = channels_last ? samples * pixels * channels : pixels;
        const bool whole = takes_packs<product_t, width>(product) && takes_packs<scalar_t, width>(output) &&
                           elements % width == 0;
        const bool is_short = elements < (1ll << 32);
        const long long chunks = (elements + chunk - 1) / chunk;
        for (long long number = blockIdx.x; number < planes * chunks; number += gridDim.x) {
            const long long plane = number / chunks;
#pragma unroll
            for (int k = 0; k < output_items; ++k) {
                const long long i = number % chunks * chunk + (k * output_block_size + threadIdx.x) * width;
                if (i < elements) {
                    const auto read = load_pack<width>(product + plane * elements + i, elements - i, whole);
                    Channel of[width];
                    const long long first = channels_last ? remainder_of(i, channels, is_short) : plane % channels;
                    channels_of(of, epilogue, first, channels);
                    Pack<scalar_t, width> pack;
#pragma unroll
                    for (int j = 0; j < width; ++j) {
                        pack.of[j] = epilogue.of_stored(read.of[j], of[j]);
                    }
                    store_pack<width>(output + plane * elements + i, pack, elements - i, whole);
                }
            }
        }
    }
}

// ------------------------------------------------------------------------------------------------------ implicit gemm

extern "C" __global__ void __launch_bounds__(implicit_gemm_threads, 1)
    implicit_gemm(const scalar_t* __restrict__ x, const weight_t* __restrict__ filters, scalar_t* __restrict__ output,
                  const scalar_t* __restrict__ conv_bias, const scalar_t* __restrict__ bias,
                  const float* __restrict__ factors, unsigned* __restrict__ largest, accumulator_t constant, accumulator_t factor,
                  long long samples, long long out_channels, long long height, long long width) {
#if TUNEBENCH_HOPPER
    if constexpr (implicit) {
        const Images images{reinterpret_cast<const input_t*>(x), samples, height, width, out_channels};
        implicit_gemm_of_block(images, filters, largest, output,
                               Epilogue{conv_bias, bias, factors, constant, factor});
    }
#endif
}

// ------------------------------------------------------------------------------------------------------------ repair

constexpr int repair_threads = 256;

__device__ __forceinline__ bool in_range(unsigned largest) {
    const float size = __uint_as_float(largest);
    return size == 0.0f || (size >= smallest_input && size <= largest_input);
}

struct Shape {
    long long samples, in_channels, out_channels, height, width, kernel_height, kernel_width;
    bool weight_last;
};

// One output element before the epilogue, from x and the weight as they are.
__device__ __noinline__ accumulator_t convolved(const scalar_t* x, const scalar_t* weight, const Shape& shape,
                                                long long sample, long long out_channel, long long row, long long column) {
    const long long area = shape.kernel_height * shape.kernel_width;
    accumulator_t sum = 0;
    for (long long down = 0; down < shape.kernel_height; ++down) {
        for (long long across = 0; across < shape.kernel_width; ++across) {
            const long long pixel = (row + down) * shape.width + column + across;
            const long long place = down * shape.kernel_width + across;
            const scalar_t* values = x + offset_of(sample, 0, pixel, shape.in_channels, shape.height * shape.width,
                                                   input_last);
            const scalar_t* weights =
                weight + offset_of(out_channel, 0, place, shape.in_channels, area, shape.weight_last);
            const long long value_step = input_last ? 1 : shape.height * shape.width;
            const long long weight_step = shape.weight_last ? 1 : area;
#pragma unroll 1
            for (long long channel = 0; channel < shape.in_channels; ++channel) {
                sum += values[channel * value_step] * weights[channel * weight_step];
            }
        }
    }
    return sum;
}

// Blocks walk over the pairs of a sample and an output channel; almost always there is nothing to do.
extern "C" __global__ void __launch_bounds__(repair_threads, 1)
    repair(const scalar_t* __restrict__ x, const scalar_t* __restrict__ weight, scalar_t* __restrict__ output,
           const scalar_t* __restrict__ conv_bias, const scalar_t* __restrict__ bias,
           const float* __restrict__ factors, const unsigned* __restrict__ largest, accumulator_t constant, accumulator_t factor,
           long long samples, long long in_channels, long long out_channels, long long height, long long width,
           long long kernel_height, long long kernel_width, int weight_last) {
    if constexpr (scales) {
        const Shape shape{samples,       in_channels,  out_channels,    height,           width,
                          kernel_height, kernel_width, weight_last != 0};
        const Epilogue epilogue{conv_bias, bias, factors, constant, factor};
        const long long out_width = width - kernel_width + 1, pixels = (height - kernel_height + 1) * out_width;
        for (long long pair = blockIdx.x; pair < samples * out_channels; pair += gridDim.x) {
            const long long sample = pair / out_channels, channel = pair % out_channels;
            if (in_range(largest[sample]) && factors[channel] == factors[channel]) {
                continue;
            }
            for (long long pixel = threadIdx.x; pixel < pixels; pixel += repair_threads) {
                const long long row = pixel / out_width, column = pixel % out_width;
                const accumulator_t sum = convolved(x, weight, shape, sample, channel, row, column);
                output[offset_of(sample, channel, pixel, out_channels, pixels, output_last)] =
                    scalar_t(epilogue(sum, epilogue.of(channel)));
            }
        }
    }
}
