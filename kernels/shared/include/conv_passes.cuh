// The passes before and behind a library's convolution: changes of layout and type, and the function. Part of conv.cuh.
#pragma once

// ----------------------------------------------------------------------------------------------------- transpositions

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

// ------------------------------------------------------------------------------------------------------------ output

__device__ __forceinline__ void transpose_output_by_block(const product_t* __restrict__ product,
                                                          scalar_t* __restrict__ output, long long samples,
                                                          long long channels, long long pixels, const Epilogue& epilogue) {
    if constexpr (transposes_output) {
        const long long rows = channels_last ? pixels : channels, columns = channels_last ? channels : pixels;
        const Tiles tiles(output_tile, samples, rows, columns);
        for (long long number = blockIdx.x; number < tiles.all; number += gridDim.x) {
            const long long start = number / (tiles.across * tiles.down) * channels * pixels;
            transpose_tile<output_tile, output_block_size, output_vector_bytes>(
                product + start, output + start, rows, columns, number / tiles.across % tiles.down * output_tile,
                number % tiles.across * output_tile, [](product_t) {},
                [&epilogue, start, rows](product_t stored, long long row, long long column) {
                    const Channel channel = epilogue.of(channels_last ? column : row);
                    return epilogue.of_stored(stored, channel, epilogue.at(start + column * rows + row));
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
    } else if (channels % width == 0 && epilogue.takes_channels<width>()) {
#pragma unroll
        for (int k = 0; k < channel_tensors; ++k) {
            Pack<scalar_t, width> values{};
            if (k > 0 || epilogue.channel[0] != nullptr) {
                values = load_pack<width>(epilogue.channel[k] + first, width, true);
            }
#pragma unroll
            for (int j = 0; j < width; ++j) {
                of[j].of[k] = values.of[j];
            }
        }
        Pack<float, width> scale{};
        if constexpr (halves) {
            scale = load_pack<width>(epilogue.factors + first, width, true);
        }
#pragma unroll
        for (int j = 0; j < width; ++j) {
            of[j].scale = scale.of[j];
        }
    } else {
#pragma unroll
        for (int j = 0; j < width; ++j) {
            of[j] = epilogue.of(first);
            first = first + 1 == channels ? 0 : first + 1;
        }
    }
}

// Of neighbouring elements from `offset` on, of which `left` exist.
template <int width>
__device__ __forceinline__ void elements_at(Element (&of)[width], const Epilogue& epilogue, long long offset,
                                            long long left, bool whole) {
#pragma unroll
    for (int k = 0; k < element_tensors; ++k) {
        const auto values = load_pack<width>(epilogue.element[k] + offset, left, whole);
#pragma unroll
        for (int j = 0; j < width; ++j) {
            of[j].of[k] = values.of[j];
        }
    }
}

// The same where the layout stays; `product` and `output` may be one buffer. NCHW: a block's elements are of one
// channel of one sample. Channels-last: everything is one run of elements, whose channels repeat.
__device__ __forceinline__ void finish_by_block(const product_t* product, scalar_t* output, long long samples,
                                                long long channels, long long pixels, const Epilogue& epilogue) {
    if constexpr (finishes) {
        constexpr int width = width_of<scalar_t>(output_vector_bytes);
        constexpr long long chunk = static_cast<long long>(output_block_size) * output_items * width;
        const long long planes = channels_last ? 1 : samples * channels;
        const long long elements = channels_last ? samples * pixels * channels : pixels;
        const bool whole = takes_packs<product_t, width>(product) && takes_packs<scalar_t, width>(output) &&
                           epilogue.takes_elements<width>() && elements % width == 0;
        const bool is_short = elements < (1ll << 32);
        const long long chunks = (elements + chunk - 1) / chunk;
        for (long long number = blockIdx.x; number < planes * chunks; number += gridDim.x) {
            const long long plane = number / chunks;
#pragma unroll
            for (int k = 0; k < output_items; ++k) {
                const long long i = number % chunks * chunk + (k * output_block_size + threadIdx.x) * width;
                if (i < elements) {
                    const long long offset = plane * elements + i;
                    const auto read = load_pack<width>(product + offset, elements - i, whole);
                    Channel of[width];
                    const long long first = channels_last ? remainder_of(i, channels, is_short) : plane % channels;
                    channels_of(of, epilogue, first, channels);
                    Element at[width];
                    elements_at(at, epilogue, offset, elements - i, whole);
                    Pack<scalar_t, width> pack;
#pragma unroll
                    for (int j = 0; j < width; ++j) {
                        pack.of[j] = epilogue.of_stored(read.of[j], of[j], at[j]);
                    }
                    store_pack<width>(output + offset, pack, elements - i, whole);
                }
            }
        }
    }
}
