// The range of half precision: operands scaled into it, and what lies outside computed again. Part of conv.cuh.
//
// Half precision keeps TF32's mantissa but not its range. x is multiplied by input_scale, and each output channel's
// weight by the power of two that brings its largest value below 1; or the sum of its absolute values, where the library
// rounds the products' sums to halves, so that none leaves the range unless an input does. Of each sample the largest
// absolute value is found in passing: where it is above largest_input, too small for the rounding of subnormals to be
// negligible, or not a number, and for channels whose weight cannot be scaled, `repair` computes the output from x and
// the weight themselves.
//
// Where operands are split, a second half has what the first leaves, and together they have single precision's mantissa but
// for two bits.
//
// A model of a half type is convolved in that type: nothing is scaled, and nothing lies outside the range.
#pragma once

constexpr float input_scale = 64.0f;
constexpr float largest_input = 1000.0f;     // times input_scale still below 65504, the largest half
constexpr float smallest_input = 0.015625f;  // times input_scale 1, whose rounding error is that of the least half

// An operand that becomes a half. As cuDNN rounds for TF32: ties away from zero, and to even in transposed convolutions, as the
// conversion itself does.
__device__ __forceinline__ float to_operand(float value) { return transposed ? value : to_eleven_bits(value); }

__device__ __forceinline__ float larger_of(float largest, float value) {
    const float size = fabsf(value);
    return size > largest || size != size ? size : largest;  // a NaN stays
}

// Of the elements that a block has read, the largest absolute value: bits of floats are ordered as the floats are, and
// those of a NaN stand above infinity.
template <int threads> __device__ __forceinline__ void note_largest(float mine, unsigned* largest) {
    __shared__ unsigned of_warps[threads / 32];
    const unsigned of_warp = largest_of_lanes(__float_as_uint(mine));
    if (threadIdx.x % 32 == 0) {
        of_warps[threadIdx.x / 32] = of_warp;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        const unsigned of_block = largest_of_lanes(threadIdx.x < threads / 32 ? of_warps[threadIdx.x] : 0u);
        if (threadIdx.x == 0) {
            *largest = of_block;
        }
    }
    __syncthreads();
}

// ------------------------------------------------------------------------------------------------------------ weight

constexpr int tile_filters = 128;  // of implicit_gemm

__device__ constexpr long long rounded_up(long long number, long long to) { return (number + to - 1) / to * to; }

// What implicit_gemm has of x at each place of the window: the channels, their number rounded up to 16; where operands are
// split, the first halves of all channels, rounded up to 8, and behind them the second ones.
constexpr long long halves_of_place = rounded_up(in_channels, splits ? 8 : 16);
constexpr long long channels_of_ring = (splits ? 2 : 1) * halves_of_place;
// What a filter has there: a weight for each of these, and behind them the weights' second halves, for the first ones of x
// at least.
constexpr long long products_of_place = channels_of_ring + (splits ? rounded_up(in_channels, 16) : 0);

// Where implicit_gemm wants a weight: by tiles of 128 filters, then by eight products of the sum, then by filter. The sum
// goes over places, and at each over products.
__device__ __forceinline__ long long place_in_tile(long long filter, long long product, long long place, long long area) {
    const long long eight = (place * products_of_place + product) / 8;
    return ((filter / tile_filters * (area * products_of_place / 8) + eight) * tile_filters + filter % tile_filters) * 8 +
           product % 8;
}

__device__ constexpr long long divided_up(long long number, long long by) {
    return number > 0 ? (number + by - 1) / by : -(-number / by);
}

// Of im2col_product: channels that one copy brings, the most that waste least; filters that one begins with; and what the
// elements from one pixel to the next are a multiple of.
__device__ constexpr int channels_of_copies(long long channels) {
    int best = 64;
    for (int fewer = 32; fewer >= 16; fewer /= 2) {
        best = rounded_up(channels, fewer) < rounded_up(channels, best) ? fewer : best;
    }
    return best;
}
constexpr long long filters_of_map = 32, channels_of_pitch = 8;
// Few channels are folded: what a row of the window sees is one run of memory, where the pass in front has put zeros around
// the images' rows, and counts as the channels of one place. Runs begin and end at multiples of 16 bytes. One that would end
// between two pixels of four channels has another pixel, multiplied by zeros: only where what is not finite is repaired.
constexpr bool four_channels = in_channels <= 4 && stride_width % 2 == 0 && (scales || kernel_width % 2 == 0);
constexpr bool folds = im2col && transposes_input && !transposed && groups == 1 && dilation_width == 1 &&
                       kernel_width > 1 && in_channels <= channels_of_pitch;
constexpr long long channels_of_pixel =  // In x.
    folds && four_channels ? 4 : rounded_up(in_channels, channels_of_pitch);
constexpr long long channels_of_window =
    folds ? rounded_up(kernel_width * channels_of_pixel, channels_of_pitch) : in_channels / groups;
constexpr int copied_channels = channels_of_copies(channels_of_window);
constexpr long long channels_of_place = rounded_up(channels_of_window, copied_channels);  // In a filter's row.
// Of a transposed convolution, outputs that are neighbours along the width may be columns of one product: each filter has as
// many rows as the stride, over all pixels that any of these outputs sees, with zeros for those that it does not.
constexpr int column_run = 8;  // A thread's neighbouring columns.
constexpr bool phases_are_columns = im2col && transposed && phase_columns && stride_width > 1 && stride_width <= column_run &&
                                    (!output_last || column_run % stride_width == 0);
constexpr long long columns_of_filter = phases_are_columns ? stride_width : 1;
// The first pixel that a place of the window's row sees, of the outputs of its phase.
__device__ constexpr long long pixel_seen(long long place) {
    return divided_up(padding_before - place * dilation_width, stride_width);
}
constexpr long long first_pixel = pixel_seen(kernel_width - 1);
constexpr long long places_of_row =  // Of the window's.
    folds ? 1 : phases_are_columns ? pixel_seen(0) - first_pixel + 1 : kernel_width;
constexpr int parts = splits ? 2 : 1;
constexpr int weight_exponent = splits ? 8 : 0;  // Of what the largest weight is below: the second halves are no subnormals.

// Where im2col_product wants a weight: by filters, the number of a group's rows rounded up, then by the places of the window,
// then by channels, rounded up to whole copies; where operands are split, what the first halves leave stands behind these.
__device__ __forceinline__ long long row_of_filter(long long filter, long long filters) {
    const long long of_group = filters / groups;
    return filter / of_group * rounded_up(of_group * columns_of_filter, filters_of_map) + filter % of_group * columns_of_filter;
}
__device__ __forceinline__ long long place_in_row(long long row, long long channel, long long place) {
    const long long across = place % kernel_width;
    long long of_row = folds ? 0 : across;
    if constexpr (phases_are_columns) {
        const long long seen = pixel_seen(across);
        row += seen * stride_width - padding_before + across * dilation_width;  // its phase
        of_row = seen - first_pixel;
    }
    const long long of_window = (row * kernel_depth * kernel_height + place / kernel_width) * places_of_row + of_row;
    return of_window * parts * channels_of_place + (folds ? across * channels_of_pixel : 0) + channel;
}

// All threads of a block: `see` has so many elements of a filter, from one on, in the order of memory. What is not transposed
// is one run of it.
template <int threads, class See>
__device__ __forceinline__ void visit_filter(const scalar_t* __restrict__ weight, long long filter, long long filters,
                                             bool weight_last, int begin, int count, const See& see) {
    constexpr int channels = in_channels / groups, area = kernel_depth * kernel_height * kernel_width;
    constexpr int width = !transposed && channels * area % 4 == 0 ? 4 : 1;
    const bool whole = takes_packs<scalar_t, width>(weight);
#pragma unroll 8
    for (int i = threadIdx.x * width; i < count; i += threads * width) {
        const int at = begin + i;
        if constexpr (transposed) {
            const int channel = weight_last ? at % channels : at / area, place = weight_last ? at / channels : at % area;
            see(i, static_cast<float>(weight[weight_offset(filter, channel, place, filters, channels, area, weight_last)]));
        } else {
            const auto pack = load_pack<width>(weight + filter * (channels * area) + at, width, whole);
#pragma unroll
            for (int j = 0; j < width; ++j) {
                see(i + j, static_cast<float>(pack.of[j]));
            }
        }
    }
}

constexpr int staged_elements = 4096;  // Of a filter at once, at most: read in the order of memory, written in another.

// Of a filter whose scale is to be found first, what a thread has of it in registers: of a large one nothing is left in the
// caches when it is read again.
template <int threads> struct HeldFilter {
    static constexpr int elements = in_channels / groups * kernel_depth * kernel_height * kernel_width;
    static constexpr int packs = (elements / 4 + threads - 1) / threads, least = 8192, most_packs = 24;
    static constexpr bool is_large =
        im2col && scales && !transposed && elements % 4 == 0 && elements > least && packs <= most_packs;
    // Threads of a multiprocessor that have the registers for it, at least, and their blocks.
    static constexpr int at_once = !is_large ? 768 : 4 * packs <= 80 ? 512 : 256;
    static constexpr int blocks = at_least_one(at_once / threads);

    Pack<scalar_t, 4> of[is_large ? packs : 1];

    // `visit` has each pack that is there, with the number of its first element.
    template <class Visit> __device__ __forceinline__ void each(const Visit& visit) {
        if constexpr (is_large) {
#pragma unroll
            for (int k = 0; k < packs; ++k) {
                const int at = (k * threads + threadIdx.x) * 4;
                if (at < elements) {
                    visit(of[k], at);
                }
            }
        }
    }
};

// All threads of a block: a filter in the order of `place_in_row`. `stage` puts so many elements from one on, in the order of
// memory, where it is told.
template <int threads, class Stage>
__device__ __forceinline__ void write_row(const scalar_t* __restrict__ weight, weight_t* __restrict__ to, long long filter,
                                          long long filters, bool weight_last, float scale, const Stage& stage) {
    constexpr int channels = in_channels / groups, area = kernel_depth * kernel_height * kernel_width;
    const long long row = row_of_filter(filter, filters);
    const auto write = [&](int channel, int place, float unscaled) {
        const long long target = place_in_row(row, channel, place);
        const float value = unscaled * scale;
        to[target] = weight_t(scales ? to_operand(value) : value);
        if constexpr (splits) {
            to[target + channels_of_place] = weight_t(value - static_cast<float>(to[target]));
        }
    };
    constexpr bool is_staged = area > 1 && area <= staged_elements / 4;
    if (weight_last || !is_staged) {  // In memory by places too, or of too many.
#pragma unroll 4
        for (int i = threadIdx.x; i < channels * area; i += threads) {
            const int channel = i % channels, place = i / channels;
            write(channel, place, weight[weight_offset(filter, channel, place, filters, channels, area, weight_last)]);
        }
        return;
    }
    constexpr int most = is_staged ? staged_elements / area / 4 * 4 : 4, together = channels < most ? channels : most;
    constexpr int of_warp = 128;  // Channels of a place that a warp writes in one turn.
    __shared__ __align__(16) float staged[is_staged ? together * area : 4];
    for (int first = 0; first < channels; first += together) {
        const int here = channels - first < together ? channels - first : together;
        __syncthreads();
        stage(staged, first * area, here * area);
        __syncthreads();
        for (int turn = threadIdx.x / 32; turn < area * ((here + of_warp - 1) / of_warp); turn += threads / 32) {
            const int place = turn % area, begin = turn / area * of_warp + threadIdx.x % 32;
#pragma unroll
            for (int channel = begin; channel < begin + of_warp; channel += 32) {
                if (channel < here) {
                    write(first + channel, place, staged[channel * area + place]);
                }
            }
        }
    }
}

// One block an output channel. `factors` undo both scales; NaN where the channel has to be repaired. Null where nothing is
// scaled.
template <int threads>
__device__ __forceinline__ void prepare_weight(const scalar_t* __restrict__ weight, weight_t* __restrict__ to,
                                               float* __restrict__ factors, long long filters, bool weight_last) {
    if constexpr (half_weight) {
        constexpr int channels = in_channels / groups, area = kernel_depth * kernel_height * kernel_width;
        __shared__ float of_warps[threads / 32];
        const int elements = channels * area;
        const long long filter = blockIdx.x;
        const auto read = [&](int channel, int place) {
            return static_cast<float>(weight[weight_offset(filter, channel, place, filters, channels, area, weight_last)]);
        };
        // The sum of absolute values where what comes of them is rounded to halves, which it must fit; else the largest one.
        const auto join = [](float a, float b) { return half_product ? a + fabsf(b) : larger_of(a, b); };
        float size = 0;
        HeldFilter<threads> held;
        const bool is_held = held.is_large && !weight_last && takes_packs<scalar_t, 4>(weight);
        if constexpr (im2col) {
            if (is_held) {
                held.each([&](auto& pack, int at) { pack = load_pack<4>(weight + filter * elements + at, 4, true); });
                held.each([&](const auto& pack, int) {
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        size = join(size, pack.of[j]);
                    }
                });
            }
            visit_filter<threads>(weight, filter, filters, weight_last, 0, scales && !is_held ? elements : 0,
                                  [&](int, float value) { size = join(size, value); });
        } else {
            for (int i = threadIdx.x; scales && i < elements; i += threads) {
                size = join(size, weight_last ? read(i % channels, i / channels) : read(i / area, i % area));
            }
        }
        size = join_lanes<16, 1>(size, join);
        if (threadIdx.x % 32 == 0) {
            of_warps[threadIdx.x / 32] = size;
        }
        __syncthreads();
        size = 0;
        for (int warp = 0; warp < threads / 32; ++warp) {
            size = join(size, of_warps[warp]);
        }
        // 2^exponent is the least power of two above it.
        const int exponent = static_cast<int>(__float_as_uint(size) >> 23) - 126;
        const bool fits = exponent > -100 && exponent < 100;
        const float scale = scales && fits ? power_of_two(weight_exponent - exponent) : 1.0f;
        if constexpr (im2col) {
            write_row<threads>(weight, to, filter, filters, weight_last, scale, [&](float* staged, int begin, int count) {
                if (is_held) {
                    held.each([&](const auto& pack, int at) {
                        if (at >= begin && at < begin + count) {
                            *reinterpret_cast<Pack<scalar_t, 4>*>(staged + at - begin) = pack;
                        }
                    });
                    return;
                }
                visit_filter<threads>(weight, filter, filters, weight_last, begin, count,
                                      [&](int i, float value) { staged[i] = value; });
            });
        } else {
            // In the order of what is written: the filter is in the first cache.
            constexpr bool by_places = implicit || channels_last;
#pragma unroll 4
            for (int i = threadIdx.x; i < elements; i += threads) {
                const int channel = by_places ? i % channels : i / area, place = by_places ? i / channels : i % area;
                const long long target =
                    implicit ? place_in_tile(filter, channel, place, area)
                             : weight_offset(filter, channel, place, filters, channels, area, channels_last);
                const float value = read(channel, place) * scale;
                to[target] = weight_t(scales ? to_operand(value) : value);
                if constexpr (implicit && splits) {
                    to[place_in_tile(filter, halves_of_place + channel, place, area)] = to[target];
                    const weight_t rest = weight_t(value - static_cast<float>(to[target]));
                    to[place_in_tile(filter, channels_of_ring + channel, place, area)] = rest;
                    if constexpr (in_channels <= 8) {  // Two products of eight channels are one: none is left out.
                        to[place_in_tile(filter, channels_of_ring + halves_of_place + channel, place, area)] = rest;
                    }
                }
            }
        }
        if (scales && threadIdx.x == 0) {
            factors[filter] = fits || size == 0.0f ? 1.0f / (scale * input_scale) : __uint_as_float(0x7fc00000u);
        }
    }
}

// ------------------------------------------------------------------------------------------------------------ repair

constexpr int repair_threads = 256;

__device__ __forceinline__ bool in_range(unsigned largest) {
    const float size = __uint_as_float(largest);
    return size == 0.0f || (size >= smallest_input && size <= largest_input);
}

struct Shape {
    long long samples, out_channels, height, width;
    bool weight_last;
};

// One output element before the bias, from x and the weight as they are.
__device__ __noinline__ accumulator_t convolved(const scalar_t* x, const scalar_t* weight, const Shape& shape,
                                                long long sample, long long out_channel, long long row, long long column) {
    constexpr long long area = kernel_height * kernel_width, channels = in_channels / groups;
    const long long first_channel = groups == 1 ? 0 : out_channel / (shape.out_channels / groups) * channels;
    const long long pixels = shape.height * shape.width;
    accumulator_t sum = 0;
    for (long long place = 0; place < area; ++place) {
        const long long down = row * stride_height - padding_above + place / kernel_width * dilation_height;
        const long long across = column * stride_width - padding_before + place % kernel_width * dilation_width;
        const bool beyond = down < 0 || down >= shape.height || across < 0 || across >= shape.width;
        if (beyond && !has_padding) {
            continue;
        }
        const long long pixel = beyond ? 0 : down * shape.width + across;
        const scalar_t* values = x + offset_of(sample, first_channel, pixel, in_channels, pixels, input_last);
        const scalar_t* weights = weight + offset_of(out_channel, 0, place, channels, area, shape.weight_last);
        const long long value_step = input_last ? 1 : pixels, weight_step = shape.weight_last ? 1 : area;
#pragma unroll 1
        for (long long channel = 0; channel < channels; ++channel) {
            sum += (beyond ? scalar_t(0.0f) : values[channel * value_step]) * weights[channel * weight_step];
        }
    }
    return sum;
}

// An output with two sides.
struct OutputPlane {
    long long width, all;
    __device__ __forceinline__ long long pixels() const { return all; }
};

__device__ __forceinline__ OutputPlane output_of(const Shape& shape) {
    const long long width = out_width_of(shape.width);
    return {width, out_height_of(shape.height) * width};
}
__device__ __forceinline__ accumulator_t convolved_at(const scalar_t* x, const scalar_t* weight, const Shape& shape,
                                                       const OutputPlane& out, long long sample, long long channel,
                                                       long long pixel) {
    return convolved(x, weight, shape, sample, channel, pixel / out.width, pixel % out.width);
}

// The largest value of a sample, of which `words` parts have each their own. All threads of a warp.
__device__ __forceinline__ unsigned largest_of_sample(const unsigned* largest, long long sample, long long words) {
    unsigned found = 0;
    for (long long i = threadIdx.x % 32; i < words; i += 32) {
        found = max(found, largest[sample * words + i]);
    }
    return largest_of_lanes(found);
}

// Each block has neighbouring pairs of a sample and an output channel. Almost always there is nothing to do, which its threads
// find out together.
template <class AnyShape>
__device__ __forceinline__ void repair_by_block(const scalar_t* __restrict__ x, const scalar_t* __restrict__ weight,
                                                scalar_t* __restrict__ output, const unsigned* __restrict__ largest,
                                                long long words, const AnyShape& shape, const Epilogue& epilogue) {
    if constexpr (scales) {
        const auto out = output_of(shape);
        const long long pixels = out.pixels(), pairs = shape.samples * shape.out_channels;
        const long long begin = blockIdx.x * pairs / gridDim.x, end = (blockIdx.x + 1) * pairs / gridDim.x;
        const auto fits = [&](long long sample) { return in_range(largest_of_sample(largest, sample, words)); };
        const auto scales_back = [&](long long channel) { return epilogue.factors[channel] == epilogue.factors[channel]; };
        bool all_fit = true;
        for (long long sample = begin / shape.out_channels + threadIdx.x / 32; sample * shape.out_channels < end;
             sample += repair_threads / 32) {
            all_fit = fits(sample) && all_fit;
        }
        for (long long pair = begin + threadIdx.x; pair < end; pair += repair_threads) {
            all_fit = scales_back(pair % shape.out_channels) && all_fit;
        }
        if (__syncthreads_and(all_fit)) {
            return;
        }
        for (long long pair = begin; pair < end; ++pair) {
            const long long sample = pair / shape.out_channels, channel = pair % shape.out_channels;
            if (fits(sample) && scales_back(channel)) {
                continue;
            }
            for (long long pixel = threadIdx.x; pixel < pixels; pixel += repair_threads) {
                const long long offset = offset_of(sample, channel, pixel, shape.out_channels, pixels, output_last);
                const accumulator_t sum = convolved_at(x, weight, shape, out, sample, channel, pixel);
                output[offset] = scalar_t(epilogue(sum, epilogue.of(channel), epilogue.at(offset)));
            }
        }
    }
}
