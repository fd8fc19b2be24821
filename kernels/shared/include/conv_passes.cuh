// The passes before and behind a library's convolution: changes of layout and type, and the function. Part of conv.cuh.
#pragma once

// ----------------------------------------------------------------------------------------------------- transpositions

// What of a matrix lies in a tile: rows and columns that exist, and the elements from one row of the matrix to the next.
struct TileOfMatrix {
    int rows, columns;
    long long pitch;
};

// From memory to a tile's cells, so many neighbours at once; a few accesses are in flight before the first goes to cells.
template <int width, int tile, int threads, typename From, typename Cells, typename Look>
__device__ __forceinline__ void read_tile(const From* from, const TileOfMatrix& matrix, Cells& cells, Look look) {
    constexpr int units = tile * tile / width, flying = units < 8 * threads ? (units + threads - 1) / threads : 8;
#pragma unroll 1
    for (int first = threadIdx.x; first < units; first += flying * threads) {
        Pack<From, width> packs[flying];
#pragma unroll
        for (int k = 0; k < flying; ++k) {
            const int unit = first + k * threads, row = unit / (tile / width), column = unit % (tile / width) * width;
            if (row < matrix.rows && column < matrix.columns) {
                packs[k] = *reinterpret_cast<const Pack<From, width>*>(from + row * matrix.pitch + column);
            }
        }
#pragma unroll
        for (int k = 0; k < flying; ++k) {
            const int unit = first + k * threads, row = unit / (tile / width), column = unit % (tile / width) * width;
            if (row < matrix.rows && column < matrix.columns) {
#pragma unroll
                for (int i = 0; i < width; ++i) {
                    look(packs[k].of[i]);
                    cells[row][column + i] = packs[k].of[i];
                }
            }
        }
    }
}

// From cells to the transposed matrix, whose rows are their columns; `change` makes an element of a cell and where it stands.
template <int width, int tile, int threads, typename To, typename Cells, typename Change>
__device__ __forceinline__ void write_tile(To* to, const TileOfMatrix& matrix, const Cells& cells, Change change) {
#pragma unroll 2
    for (int unit = threadIdx.x; unit < tile * tile / width; unit += threads) {
        const int column = unit / (tile / width), row = unit % (tile / width) * width;
        if (row < matrix.columns && column < matrix.rows) {
            Pack<To, width> pack;
#pragma unroll
            for (int i = 0; i < width; ++i) {
                pack.of[i] = change(cells[row + i][column], row + i, column);
            }
            store_whole(to + column * matrix.pitch + row, pack);
        }
    }
}

// A tile of the matrix `from` (rows by columns) into its transposes in `to`, one for each of `changes`, side by side: their
// rows are `pitch` elements long, with zeros behind those that `from` has. A change makes an element of `to` of one of `from`
// and the two indices; `look` sees all that is read.
template <int tile, int threads, int vector_bytes, typename From, typename To, typename Look, typename... Changes>
__device__ __forceinline__ void transpose_tile(const From* from, To* to, long long rows, long long columns, long long pitch,
                                               long long first_row, long long first_column, Look look, Changes... changes) {
    constexpr int read = width_of<From>(vector_bytes), written = width_of<To>(vector_bytes);
    // A row of cells is an odd number of words: threads side by side along either axis meet different banks.
    constexpr int padding = sizeof(From) < 4 ? 4 / sizeof(From) : 1;
    __shared__ From cells[tile][tile + padding];
    from += first_row * columns + first_column;
    constexpr int transposes = sizeof...(changes);
    to += first_column * transposes * pitch + first_row;
    const int rows_left = static_cast<int>(min(rows - first_row, static_cast<long long>(tile)));
    const int columns_left = static_cast<int>(min(columns - first_column, static_cast<long long>(tile)));
    const int written_left = static_cast<int>(min(pitch - first_row, static_cast<long long>(tile)));
    const TileOfMatrix source{rows_left, columns_left, columns}, target{columns_left, written_left, transposes * pitch};
    if (takes_packs<From, read>(from) && columns % read == 0) {
        read_tile<read, tile, threads>(from, source, cells, look);
    } else {
        read_tile<1, tile, threads>(from, source, cells, look);
    }
    __syncthreads();
    const auto write = [&](auto change) {
        const auto changed = [&](From value, int row, int column) {
            return row < rows_left ? change(value, first_row + row, first_column + column) : To(0.0f);
        };
        if (takes_packs<To, written>(to) && pitch % written == 0) {
            write_tile<written, tile, threads>(to, target, cells, changed);
        } else {
            write_tile<1, tile, threads>(to, target, cells, changed);
        }
        to += pitch;
    };
    (write(changes), ...);
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
        return source_t(to_operand(static_cast<float>(value) * input_scale));
    } else {
        return source_t(value);
    }
}

// What the first half leaves.
__device__ __forceinline__ source_t to_second_half(scalar_t value) {
    return source_t(static_cast<float>(value) * input_scale - static_cast<float>(to_source(value)));
}

// Blocks from `block` of `blocks` on: x in the convolution's layout. Of each tile the largest value, where halves are made.
__device__ __forceinline__ void transpose_input(const scalar_t* __restrict__ x, source_t* __restrict__ to,
                                                unsigned* __restrict__ largest, long long samples, long long channels,
                                                long long pixels, long long block, long long blocks) {
    const long long rows = channels_last ? channels : pixels, columns = channels_last ? pixels : channels;
    const long long pitch = im2col ? channels_of_pixel : rows;
    const Tiles tiles(input_tile, samples, rows, columns);
    for (long long number = block; number < tiles.all; number += blocks) {
        const long long sample = number / (tiles.across * tiles.down);
        const long long row = number / tiles.across % tiles.down * input_tile;
        const long long column = number % tiles.across * input_tile;
        float mine = 0;
        const auto look = [&mine](scalar_t value) { mine = halves ? larger_of(mine, static_cast<float>(value)) : mine; };
        const auto first = [](scalar_t value, long long, long long) { return to_source(value); };
        const auto second = [](scalar_t value, long long, long long) { return to_second_half(value); };
        const auto transpose = [&](auto... changes) {
            transpose_tile<input_tile, input_block_size, input_vector_bytes>(
                x + sample * rows * columns, to + sample * parts * pitch * columns, rows, columns, pitch, row, column, look,
                changes...);
        };
        if constexpr (splits) {
            transpose(first, second);
        } else {
            transpose(first);
        }
        if constexpr (halves) {
            note_largest<input_block_size>(mine, largest + number);
        }
    }
}

// Places of an image's row with the zeros around it, which the last run is within; pairs, so that rows of four channels begin
// at multiples of 16 bytes.
__device__ __forceinline__ long long folded_columns(long long width) {
    return rounded_up(width + padding_width + kernel_width % 2, 2);
}

constexpr int folded_pixels = 4;  // Of a thread.

// Blocks from `block` of `blocks` on: images of few channels, pixel by pixel, with zeros around their rows. Where operands are
// split, behind each row stands that of the second halves.
__device__ __forceinline__ void fold_input(const scalar_t* __restrict__ x, source_t* __restrict__ to,
                                           unsigned* __restrict__ largest, long long samples, long long pixels,
                                           long long width, long long block, long long blocks) {
    using Pixel = Pack<source_t, folds ? channels_of_pixel : 1>;
    constexpr long long chunk = static_cast<long long>(input_block_size) * folded_pixels;
    const long long columns = folded_columns(width), all = pixels / width * columns, chunks = (all + chunk - 1) / chunk;
    for (long long number = block; number < samples * chunks; number += blocks) {
        const long long sample = number / chunks;
        float mine = 0;
#pragma unroll
        for (int k = 0; k < folded_pixels; ++k) {
            const long long i = number % chunks * chunk + k * input_block_size + threadIdx.x;
            if (i < all) {
                const Division row(i, columns, all < (1ll << 32));
                const long long column = row.rest - padding_before;
                const bool is_inside = column >= 0 && column < width;
                Pixel first{}, second{};
#pragma unroll
                for (int channel = 0; channel < in_channels; ++channel) {
                    const long long place = (sample * in_channels + channel) * pixels + row.quotient * width + column;
                    const scalar_t value = is_inside ? x[place] : scalar_t(0.0f);
                    mine = larger_of(mine, static_cast<float>(value));
                    first.of[channel] = to_source(value);
                    if constexpr (splits) {
                        second.of[channel] = to_second_half(value);
                    }
                }
                Pixel* const target = reinterpret_cast<Pixel*>(to) + sample * parts * all + i;
                target[(parts - 1) * row.quotient * columns] = first;
                if constexpr (splits) {
                    target[(row.quotient + 1) * columns] = second;
                }
            }
        }
        if constexpr (halves) {
            note_largest<input_block_size>(mine, largest + number);
        }
    }
}

// The same in x's own layout, to half precision. A chunk's elements are of one sample. Where they are split, x is
// channels-last, and so many channels that a pack is of one pixel.
__device__ __forceinline__ void cast_input(const scalar_t* __restrict__ x, source_t* __restrict__ to,
                                           unsigned* __restrict__ largest, long long samples, long long elements,
                                           long long block, long long blocks) {
    constexpr int width = width_of<scalar_t>(input_vector_bytes);
    constexpr long long chunk = static_cast<long long>(input_block_size) * input_items * width;
    const bool whole = takes_packs<scalar_t, width>(x) && takes_packs<source_t, width>(to) && elements % width == 0;
    const long long chunks = (elements + chunk - 1) / chunk;
    for (long long number = block; number < samples * chunks; number += blocks) {
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
                const long long at = sample * elements + i;
                source_t* const target = to + (splits ? at / in_channels * parts * in_channels + at % in_channels : at);
                store_pack<width>(target, pack, elements - i, whole);
                if constexpr (splits) {
#pragma unroll
                    for (int j = 0; j < width; ++j) {
                        pack.of[j] = to_second_half(read.of[j]);
                    }
                    store_pack<width>(target + in_channels, pack, elements - i, whole);
                }
            }
        }
        note_largest<input_block_size>(mine, largest + number);
    }
}

// The first blocks: the weight, one an output channel. The others: x. Either may be there already: no filters, or no samples.
extern "C" __global__ void __launch_bounds__(input_block_size, HeldFilter<input_block_size>::blocks)
    prepare(const scalar_t* __restrict__ weight, weight_t* __restrict__ to_weight, float* __restrict__ factors,
            long long filters, int weight_channels_last, const scalar_t* __restrict__ x, source_t* __restrict__ to_x,
            unsigned* __restrict__ largest, long long samples, long long channels, long long pixels, long long width) {
    begin_launch();
    let_next_begin();
    if (blockIdx.x < filters) {
        prepare_weight<input_block_size>(weight, to_weight, factors, filters, weight_channels_last != 0);
        if constexpr (implicit && scales) {
            for (long long i = blockIdx.x * input_block_size + threadIdx.x; i < samples; i += filters * input_block_size) {
                largest[i] = 0;  // which the kernel finds
            }
        }
    } else if constexpr (folds) {
        fold_input(x, to_x, largest, samples, pixels, width, blockIdx.x - filters, gridDim.x - filters);
    } else if constexpr (transposes_input) {
        transpose_input(x, to_x, largest, samples, channels, pixels, blockIdx.x - filters, gridDim.x - filters);
    } else if constexpr (casts_input) {
        cast_input(x, to_x, largest, samples, channels * pixels, blockIdx.x - filters, gridDim.x - filters);
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
                product + start, output + start, rows, columns, rows, number / tiles.across % tiles.down * output_tile,
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
