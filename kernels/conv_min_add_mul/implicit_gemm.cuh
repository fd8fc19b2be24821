// The convolution as a matrix product that is never laid out as one, on Hopper's half-precision tensor cores: filters by
// pixels, summed over the window's places and the channels.
//
// A block keeps its 128 filters in shared memory and walks down a strip of the output, 128 columns wide. The rows of x
// that the window covers stand in a ring, [channel / 8][column][channel % 8] in half precision, so that a place of the
// window is nothing but another starting address. One warpgroup fills the ring: it reads x, in either layout; of fp32 it
// notes each sample's largest magnitude, and rounds. Two multiply, half the filters each, and write finished values in x's
// type, in either layout; while the sums of one row are written, those of the next are under way.
#pragma once

#include "hopper.cuh"

constexpr int tile_filters = 128;
constexpr int tile_columns = 128;
constexpr int unit_bytes = 16;  // Eight channels of one column.
constexpr int loader_threads = 128;
constexpr int multiplier_threads = 256;
constexpr int implicit_gemm_threads = loader_threads + multiplier_threads;

#if TUNEBENCH_HOPPER

constexpr int window_height = static_cast<int>(kernel_height);
constexpr int window_width = static_cast<int>(kernel_width);
constexpr int channel_groups = static_cast<int>((in_channels + 15) / 16 * 2);  // Of eight; a product takes two.
constexpr int row_columns = tile_columns + (window_width + 1) / 2 * 2;         // An even number, for pairs.
constexpr int group_bytes = row_columns * unit_bytes;
constexpr int row_bytes = channel_groups * group_bytes;
constexpr int place_bytes = channel_groups * tile_filters * unit_bytes;
constexpr int filter_bytes = window_height * window_width * place_bytes;

constexpr int loader_registers = 104;
constexpr int multiplier_registers = 200;

using input_t = typename Choose<is_half, scalar_t, float>::type;

struct Images {
    const input_t* x;
    long long samples, height, width, filters;

    __device__ __forceinline__ long long out_height() const { return height - window_height + 1; }
    __device__ __forceinline__ long long out_width() const { return width - window_width + 1; }
    __device__ __forceinline__ long long strips_down() const { return (out_height() + strip_rows - 1) / strip_rows; }
    __device__ __forceinline__ long long strips_across() const { return (out_width() + tile_columns - 1) / tile_columns; }
    __device__ __forceinline__ long long filter_tiles() const { return (filters + tile_filters - 1) / tile_filters; }
    // Of one tile of filters: a block keeps its tile.
    __device__ __forceinline__ long long strips() const { return samples * strips_down() * strips_across(); }
};

// Where a strip begins in the output, and how many rows it has.
struct Strip {
    long long sample, row, column;
    int rows;
    __device__ __forceinline__ Strip(long long number, const Images& images) {
        column = number % images.strips_across() * tile_columns;
        row = number / images.strips_across() % images.strips_down() * strip_rows;
        sample = number / (images.strips_across() * images.strips_down());
        const long long left = images.out_height() - row;
        rows = left < strip_rows ? static_cast<int>(left) : strip_rows;
    }
};

// The ring's rows in the order they are used: where the next one stands, and the parity of its use.
struct RingRow {
    int slot = 0;
    u32 parity = 0;
    __device__ __forceinline__ void advance() {
        if (++slot == ring_rows) {
            slot = 0;
            parity ^= 1;
        }
    }
};

__device__ __forceinline__ u32 two_inputs(float first, float second) {
    first = to_eleven_bits(first * input_scale);
    second = to_eleven_bits(second * input_scale);
    u32 word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
}

__device__ __forceinline__ int size_of(float value) { return __float_as_int(value) & 0x7FFFFFFF; }

__device__ __forceinline__ uint4 rounded(const float (&v)[8], int& largest) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        largest = max(largest, size_of(v[i]));
    }
    return {two_inputs(v[0], v[1]), two_inputs(v[2], v[3]), two_inputs(v[4], v[5]), two_inputs(v[6], v[7])};
}

// Eight channels of a pair of neighbouring columns, to be rounded.
struct FloatPair {
    float left[8], right[8];

    // Where both columns are in the image, all eight channels exist, and vectors are aligned.
    __device__ __forceinline__ void read(const float* source, long long pixels) {
        if constexpr (input_last) {
#pragma unroll
            for (int i = 0; i < 8; i += 4) {
                *reinterpret_cast<float4*>(left + i) = __ldcs(reinterpret_cast<const float4*>(source + i));
                *reinterpret_cast<float4*>(right + i) = __ldcs(reinterpret_cast<const float4*>(source + in_channels + i));
            }
        } else {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const float2 both = __ldcs(reinterpret_cast<const float2*>(source));
                left[i] = both.x;
                right[i] = both.y;
                source += pixels;
            }
        }
    }

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            left[i] = right[i] = 0.0f;
        }
    }

    __device__ __forceinline__ void set(int channel, float of_left, float of_right) {
        left[channel] = of_left;
        right[channel] = of_right;
    }

    __device__ __forceinline__ void write_to(unsigned char* target, int& largest) const {
        *reinterpret_cast<uint4*>(target) = rounded(left, largest);
        *reinterpret_cast<uint4*>(target + unit_bytes) = rounded(right, largest);
    }
};

// The same of a half type, which is multiplied as it is: two neighbours in memory share a word, the first in its low bits.
template <typename T> struct HalfPair {
    u32 words[8];

    __device__ __forceinline__ void read(const T* source, long long pixels) {
        if constexpr (input_last) {
            *reinterpret_cast<uint4*>(words) = __ldcs(reinterpret_cast<const uint4*>(source));
            *reinterpret_cast<uint4*>(words + 4) = __ldcs(reinterpret_cast<const uint4*>(source + in_channels));
        } else {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                words[i] = __ldcs(reinterpret_cast<const u32*>(source));
                source += pixels;
            }
        }
    }

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            words[i] = 0;
        }
    }

    __device__ __forceinline__ void set(int channel, T left, T right) {
        if constexpr (input_last) {
            const int place = channel % 2 * 16;
            words[channel / 2] |= static_cast<u32>(left.bits) << place;
            words[4 + channel / 2] |= static_cast<u32>(right.bits) << place;
        } else {
            words[channel] = left.bits | static_cast<u32>(right.bits) << 16;
        }
    }

    __device__ __forceinline__ void write_to(unsigned char* target, int&) const {
        uint4 left, right;
        if constexpr (input_last) {
            left = {words[0], words[1], words[2], words[3]};
            right = {words[4], words[5], words[6], words[7]};
        } else {
            left = {low(0), low(2), low(4), low(6)};
            right = {high(0), high(2), high(4), high(6)};
        }
        *reinterpret_cast<uint4*>(target) = left;
        *reinterpret_cast<uint4*>(target + unit_bytes) = right;
    }

private:
    __device__ __forceinline__ u32 low(int i) const { return __byte_perm(words[i], words[i + 1], 0x5410); }
    __device__ __forceinline__ u32 high(int i) const { return __byte_perm(words[i], words[i + 1], 0x7632); }
};

using pair_t = typename Choose<is_half, HalfPair<scalar_t>, FloatPair>::type;

// What one row of the ring is made of: eight channels by two columns, as many pairs of columns as the image has. What lies
// beyond it reaches only sums that nobody writes.
struct Units {
    int pairs;
    __device__ __forceinline__ explicit Units(long long columns_left)
        : pairs(columns_left < row_columns ? static_cast<int>(columns_left + 1) / 2 : row_columns / 2) {}
    __device__ __forceinline__ int count() const { return pairs * channel_groups; }
    // Neighbouring threads read neighbouring memory.
    __device__ __forceinline__ int group(int unit) const {
        return input_last ? unit % channel_groups : unit / pairs;
    }
    __device__ __forceinline__ int pair(int unit) const {
        return input_last ? unit / channel_groups : unit % pairs;
    }
};

// `x` is the row's first channel and column. A number of units is under way before `wait` lets the first be written.
template <class Wait>
__device__ __forceinline__ void load_row_in_pairs(unsigned char* shared, const input_t* x, long long pixels,
                                                  const Units& units, int thread, int& largest, Wait wait) {
    constexpr int in_flight = 4;
    for (int first = thread; first < units.count(); first += in_flight * loader_threads) {
        pair_t flying[in_flight];
        unsigned char* target[in_flight];
#pragma unroll
        for (int k = 0; k < in_flight; ++k) {
            const int unit = first + k * loader_threads;
            const int group = units.group(unit), pair = units.pair(unit);
            target[k] = shared + group * group_bytes + pair * 2 * unit_bytes;
            if (unit < units.count()) {
                const long long offset = input_last ? 2 * pair * in_channels + group * 8 : group * 8 * pixels + 2 * pair;
                flying[k].read(x + offset, pixels);
            }
        }
        wait();
#pragma unroll
        for (int k = 0; k < in_flight; ++k) {
            if (first + k * loader_threads < units.count()) {
                flying[k].write_to(target[k], largest);
            }
        }
    }
}

// Whatever the sizes and the alignment.
template <class Wait>
__device__ __forceinline__ void load_row_one_by_one(unsigned char* shared, const input_t* x, long long channel_step,
                                                    long long column_step, long long columns_left, const Units& units,
                                                    int thread, int& largest, Wait wait) {
    wait();
#pragma unroll 1
    for (int unit = thread; unit < units.count(); unit += loader_threads) {
        const int group = units.group(unit), pair = units.pair(unit);
        pair_t p;
        p.clear();
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (group * 8 + i < in_channels) {
                const input_t* source = x + (group * 8 + i) * channel_step + 2 * pair * column_step;
                p.set(i, source[0], 2 * pair + 1 < columns_left ? source[column_step] : input_t(0));
            }
        }
        p.write_to(shared + group * group_bytes + pair * 2 * unit_bytes, largest);
    }
}

template <class Wait>
__device__ __forceinline__ void load_row(unsigned char* shared, const Images& images, long long sample, long long row,
                                         long long column, int thread, int& largest, Wait wait) {
    const long long pixels = images.height * images.width, columns_left = images.width - column;
    const long long channel_step = input_last ? 1 : pixels, column_step = input_last ? in_channels : 1;
    const input_t* x = images.x + sample * in_channels * pixels + (row * images.width + column) * column_step;
    const bool whole = in_channels % 8 == 0 && images.width % 2 == 0 && reinterpret_cast<u64>(images.x) % 16 == 0;
    const Units units(columns_left);
    if (whole) {
        load_row_in_pairs(shared, x, pixels, units, thread, largest, wait);
    } else {
        load_row_one_by_one(shared, x, channel_step, column_step, columns_left, units, thread, largest, wait);
    }
}

__device__ __forceinline__ void load(unsigned char* ring, u64* full, u64* empty, const Images& images,
                                     unsigned* __restrict__ largest_of_sample, long long first, long long step) {
    const int thread = threadIdx.x;
    RingRow next;
    for (long long number = first; number < images.strips(); number += step) {
        const Strip strip(number, images);
        int largest = 0;
        for (int row = 0; row < strip.rows + window_height - 1; ++row) {
            const auto wait = [&] { barrier_wait(empty + next.slot, next.parity ^ 1); };
            unsigned char* target = ring + next.slot * row_bytes;
            load_row(target, images, strip.sample, strip.row + row, strip.column, thread, largest, wait);
            wait();  // A thread that had nothing to load must not run ahead of the ring either.
            publish_to_tensor_cores();
            __syncwarp();
            if (thread % 32 == 0) {
                barrier_arrive(full + next.slot);
            }
            next.advance();
        }
        if constexpr (scales) {
            for (int distance = 16; distance > 0; distance /= 2) {
                largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, distance));
            }
            if (thread % 32 == 0) {
                atomicMax(largest_of_sample + strip.sample, static_cast<unsigned>(largest));
            }
        }
    }
}

// The sums of one row of the output: 64 filters by 128 columns. `first` is the ring's slot of the window's first row.
__device__ __forceinline__ void multiply_row(float (&sums)[tile_columns / 2], u32 filters, u32 ring, int first) {
    using Product = WarpgroupProduct<tile_columns, multiplied_t>;
    products_begin();
    u64 filter = matrix_descriptor(filters, tile_filters * unit_bytes, 8 * unit_bytes);
    asm volatile("" : "+l"(filter));  // else all of its sums are kept in registers from row to row
    // Not unrolled over the window's rows: one is enough to keep the tensor cores busy, and each further one is as much
    // again to compile at each of this function's places.
#pragma unroll 1
    for (int down = 0; down < window_height; ++down) {
        const int slot = first + down < ring_rows ? first + down : first + down - ring_rows;
        const u64 row = matrix_descriptor(ring + slot * row_bytes, group_bytes, 8 * unit_bytes);
#pragma unroll
        for (int across = 0; across < window_width; ++across) {
#pragma unroll
            for (int group = 0; group < channel_groups; group += 2) {
                // Both addresses are in units of 16 bytes.
                const int place = (down * window_width + across) * (place_bytes / 16) + group * tile_filters;
                Product::run(sums, filter + place, row + group * row_columns + across, down + across + group > 0);
            }
        }
        products_commit();
    }
}

// All sums but those of the row that was begun last are done.
__device__ __forceinline__ void wait_for_all_but_one_row() { products_wait<(window_height < 7 ? window_height : 7)>(); }


// Finished values, on their way from the tensor cores' arrangement to rows of neighbouring memory: a warp's own piece of
// shared memory, 8 filters by 32 columns, or 16 columns by 16 filters where the filters are neighbours in the output.
constexpr int staged_columns = 32;
constexpr int staged_pitch = staged_columns + 8;  // of 8 filters; the extra elements keep lanes in different banks
constexpr int staged_filters = 16;
constexpr int staged_filters_pitch = staged_filters + 4;
constexpr int staging_elements = 8 * staged_pitch;
static_assert(staging_elements == 16 * staged_filters_pitch);
constexpr int staging_bytes = multiplier_threads / 32 * staging_elements * 4;

// A warp's part of one row of the output: 16 filters from `first_filter` on by 128 columns, of which so many exist.
struct RowOfWarp {
    const Images& images;
    long long sample, pixel, first_filter;  // `pixel` is that of the first column
    int filters, columns;

    __device__ __forceinline__ RowOfWarp(const Images& images, const Strip& strip, int row, long long first_filter)
        : images(images),
          sample(strip.sample),
          pixel((strip.row + row) * images.out_width() + strip.column),
          first_filter(first_filter),
          filters(at_most(images.filters - first_filter, 16)),
          columns(at_most(images.out_width() - strip.column, tile_columns)) {}

    __device__ __forceinline__ long long pixels() const { return images.out_height() * images.out_width(); }

    // What the epilogue needs of a filter; of the last one in place of those that do not exist.
    template <class Epilogue> __device__ __forceinline__ auto channel(const Epilogue& epilogue, int filter) const {
        const long long number = first_filter + filter;
        return epilogue.of(number < images.filters ? number : images.filters - 1);
    }

private:
    static __device__ __forceinline__ int at_most(long long left, int most) {
        return left < most ? static_cast<int>(left) : most;
    }
};

// `width` neighbouring elements.
template <int width> __device__ __forceinline__ void store_output(scalar_t* target, vector_of<float, width> value) {
    auto* const place = reinterpret_cast<vector_of<scalar_t, width>*>(target);
    if constexpr (is_half || store_hint == store_hint_t::streaming) {
        store<store_hint == store_hint_t::streaming>(place, converted<scalar_t, width>(value));
    } else {
        *place = converted<scalar_t, width>(value);
    }
}

__device__ __forceinline__ void store_some(scalar_t* target, float value, bool exists) {
    if (exists) {
        *target = scalar_t(value);
    }
}

// Filters far apart in memory, columns side by side.
template <class Epilogue>
__device__ __forceinline__ void write_planes(const float (&sums)[tile_columns / 2], const RowOfWarp& part,
                                             scalar_t* __restrict__ output, float* staging, const Epilogue& epilogue) {
    const int lane = threadIdx.x % 32, column = lane % 16 * 2;
    const long long pixels = part.pixels();
    const bool pairs = part.images.out_width() % 2 == 0 && reinterpret_cast<u64>(output) % (2 * sizeof(scalar_t)) == 0;
    scalar_t* plane = output + (part.sample * part.images.filters + part.first_filter + lane / 16) * pixels + part.pixel;
    plane += column;
    float* const place = staging + lane / 4 * staged_pitch + lane % 4 * 2;
    const float* const staged = staging + lane / 16 * staged_pitch + column;
#pragma unroll
    for (int below = 0; below < 2; ++below) {
        const auto channel = part.channel(epilogue, 8 * below + lane / 4);
#pragma unroll
        for (int first = 0; first < tile_columns; first += staged_columns) {
#pragma unroll
            for (int j = 0; j < staged_columns / 8; ++j) {
                const float* const both = sums + 4 * (first / 8 + j) + 2 * below;
                *reinterpret_cast<float2*>(place + 8 * j) = {epilogue(both[0] * channel.scale, channel),
                                                             epilogue(both[1] * channel.scale, channel)};
            }
            __syncwarp();
            scalar_t* target = plane + first;
            if (pairs) {
#pragma unroll
                for (int j = 0; j < 8; j += 2) {
                    const float2 both = *reinterpret_cast<const float2*>(staged + j * staged_pitch);
                    if (8 * below + j + lane / 16 < part.filters && first + column < part.columns) {
                        store_output<2>(target, both);
                    }
                    target += 2 * pixels;
                }
            } else {
#pragma unroll 1
                for (int j = 0; j < 8; j += 2) {
                    const bool exists = 8 * below + j + lane / 16 < part.filters;
                    const float* const both = staged + j * staged_pitch;
                    store_some(target, both[0], exists && first + column < part.columns);
                    store_some(target + 1, both[1], exists && first + column + 1 < part.columns);
                    target += 2 * pixels;
                }
            }
            __syncwarp();
        }
        plane += 8 * pixels;
    }
}

// Columns far apart in memory, filters side by side.
template <class Epilogue>
__device__ __forceinline__ void write_pixels(const float (&sums)[tile_columns / 2], const RowOfWarp& part,
                                             scalar_t* __restrict__ output, float* staging, const Epilogue& epilogue) {
    const int lane = threadIdx.x % 32, filter = lane % 4 * 4;
    const long long filters = part.images.filters;
    const bool fours = filters % 4 == 0 && reinterpret_cast<u64>(output) % (4 * sizeof(scalar_t)) == 0;
    const auto above = part.channel(epilogue, lane / 4), below = part.channel(epilogue, lane / 4 + 8);
    scalar_t* target = output + (part.sample * part.pixels() + part.pixel + lane / 4) * filters + part.first_filter + filter;
    float* const place = staging + lane % 4 * 2 * staged_filters_pitch + lane / 4;
    const float* const staged = staging + lane / 4 * staged_filters_pitch + filter;
#pragma unroll
    for (int first = 0; first < tile_columns; first += 16) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const float* const four = sums + 4 * (first / 8 + j);
            float* const left = place + 8 * j * staged_filters_pitch;
            left[0] = epilogue(four[0] * above.scale, above);
            left[8] = epilogue(four[2] * below.scale, below);
            left[staged_filters_pitch] = epilogue(four[1] * above.scale, above);
            left[staged_filters_pitch + 8] = epilogue(four[3] * below.scale, below);
        }
        __syncwarp();
        if (fours) {
#pragma unroll
            for (int j = 0; j < 16; j += 8) {
                const float4 four = *reinterpret_cast<const float4*>(staged + j * staged_filters_pitch);
                if (first + j + lane / 4 < part.columns && filter < part.filters) {
                    store_output<4>(target, four);
                }
                target += 8 * filters;
            }
        } else {
#pragma unroll 1
            for (int j = 0; j < 16; j += 8) {
                for (int i = 0; i < 4; ++i) {
                    const bool exists = first + j + lane / 4 < part.columns && filter + i < part.filters;
                    store_some(target + i, staged[j * staged_filters_pitch + i], exists);
                }
                target += 8 * filters;
            }
        }
        __syncwarp();
    }
}

template <class Epilogue>
__device__ __forceinline__ void multiply(unsigned char* shared, unsigned char* ring_memory,
                                         unsigned char* staging_memory, u64* full, u64* empty, const Images& images, long long filter_tile, scalar_t* __restrict__ output,
                                         long long first, long long step, const Epilogue& epilogue) {
    const int warpgroup = threadIdx.x / 128 - 1;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - loader_threads / 32;
    const long long first_filter = filter_tile * tile_filters + warp * 16;
    float* const staging = reinterpret_cast<float*>(staging_memory) + warp * staging_elements;
    const u32 filters = shared_address(shared) + warpgroup * 64 * unit_bytes;
    const u32 ring = shared_address(ring_memory);
    RingRow next;   // the row of x to wait for
    RingRow oldest; // the window's first
    float even[tile_columns / 2], odd[tile_columns / 2];
    const auto let_go = [&] {
        if (lane == 0) {
            barrier_arrive(empty + oldest.slot);
        }
        oldest.advance();
    };
    for (long long number = first; number < images.strips(); number += step) {
        const Strip strip(number, images);
        const auto wait = [&] {
            barrier_wait(full + next.slot, next.parity);
            next.advance();
        };
        for (int row = 0; row < window_height - 1; ++row) {
            wait();
        }
        int window = oldest.slot;
        const auto begin = [&](float (&sums)[tile_columns / 2]) {
            wait();
            multiply_row(sums, filters, ring, window);
            window = window + 1 == ring_rows ? 0 : window + 1;
        };
        const auto write = [&](int row, const float (&sums)[tile_columns / 2]) {
            let_go();
            const RowOfWarp part(images, strip, row, first_filter);
            if constexpr (output_last) {
                write_pixels(sums, part, output, staging, epilogue);
            } else {
                write_planes(sums, part, output, staging, epilogue);
            }
        };
        // Two steps written out, and not one with conditions: the compiler must see that no sums under way are read.
        int row = 0;
        begin(even);
        while (true) {
            if (row + 1 == strip.rows) {
                products_wait<0>();
                write(row++, even);
                break;
            }
            begin(odd);
            wait_for_all_but_one_row();
            write(row++, even);
            if (row + 1 == strip.rows) {
                products_wait<0>();
                write(row++, odd);
                break;
            }
            begin(even);
            wait_for_all_but_one_row();
            write(row++, odd);
        }
        for (int row = 0; row < window_height - 1; ++row) {
            let_go();
        }
    }
}

// A block's tile of filters is blockIdx.y; its strips are blockIdx.x and every gridDim.x further.
template <class Epilogue>
__device__ __forceinline__ void implicit_gemm_of_block(const Images& images, const void* __restrict__ filters,
                                                       unsigned* __restrict__ largest, scalar_t* __restrict__ output,
                                                       const Epilogue& epilogue) {
    extern __shared__ __align__(128) unsigned char shared[];
    unsigned char* ring = shared + filter_bytes;
    unsigned char* staging = ring + ring_rows * row_bytes;
    u64* full = reinterpret_cast<u64*>(staging + staging_bytes);
    u64* empty = full + ring_rows;
    u64* filters_there = empty + ring_rows;
    if (threadIdx.x == 0) {
        for (int i = 0; i < ring_rows; ++i) {
            barrier_init(full + i, loader_threads / 32);
            barrier_init(empty + i, multiplier_threads / 32);
        }
        barrier_init(filters_there, 1);
        barrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x < loader_threads) {
        fewer_registers<loader_registers>();
        if (threadIdx.x == 0) {
            barrier_arrive_expecting(filters_there, filter_bytes);
            const unsigned char* source = static_cast<const unsigned char*>(filters) + blockIdx.y * filter_bytes;
            bulk_copy(shared, source, filter_bytes, filters_there);
        }
        load(ring, full, empty, images, largest, blockIdx.x, gridDim.x);
    } else {
        more_registers<multiplier_registers>();
        barrier_wait(filters_there, 0);
        multiply(shared, ring, staging, full, empty, images, blockIdx.y, output, blockIdx.x, gridDim.x, epilogue);
    }
}

#endif  // TUNEBENCH_HOPPER
