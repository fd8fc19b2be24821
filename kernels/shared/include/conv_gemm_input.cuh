// The loader of conv_gemm.cuh: rows of x into the ring, in half precision.
#pragma once

__device__ __forceinline__ u32 two_inputs(float first, float second) {
    return pack2<half_t>(to_eleven_bits(first * input_scale), to_eleven_bits(second * input_scale));
}

// Groups of eight channels that x has: where their number is odd, the ring has one more, of zeros, unless operands are split.
constexpr int input_groups = static_cast<int>((in_channels + 7) / 8), loaded_groups = splits ? input_groups : channel_groups;
constexpr int to_second_halves = input_groups * group_bytes;

__device__ __forceinline__ void write_rounded(unsigned char* target, const float (&v)[8], int& largest) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        largest = max(largest, abs_bits(v[i]));
    }
    if constexpr (splits) {
        u32 high[4], rest[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const SplitHalves two(v[2 * i] * input_scale, v[2 * i + 1] * input_scale);
            high[i] = two.high;
            rest[i] = two.rest;
        }
        *reinterpret_cast<uint4*>(target) = {high[0], high[1], high[2], high[3]};
        *reinterpret_cast<uint4*>(target + to_second_halves) = {rest[0], rest[1], rest[2], rest[3]};
    } else {
        *reinterpret_cast<uint4*>(target) = {two_inputs(v[0], v[1]), two_inputs(v[2], v[3]), two_inputs(v[4], v[5]),
                                             two_inputs(v[6], v[7])};
    }
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

    __device__ __forceinline__ void set(int channel, float of_left, float of_right) {
        left[channel] = of_left;
        right[channel] = of_right;
    }

    __device__ __forceinline__ void write_to(unsigned char* target, int& largest) const {
        write_rounded(target, left, largest);
        write_rounded(target + unit_bytes, right, largest);
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

using pair_t = Choose<is_half, HalfPair<scalar_t>, FloatPair>;

// What one row of the ring is made of: eight channels by two columns, as many pairs of columns as the image has; what lies
// beyond it reaches only sums that nobody writes. Where columns are padded, all that the ring has.
struct Units {
    int pairs;
    int first, columns;  // of x's columns, counted as the ring's, the first and the one behind the last
    __device__ __forceinline__ Units(long long column, long long columns_left)
        : pairs(!pads_columns && columns_left < row_columns ? static_cast<int>(columns_left + 1) / 2 : row_columns / 2),
          first(static_cast<int>(-column)),
          columns(pads_columns || columns_left < row_columns ? static_cast<int>(columns_left) : row_columns) {}
    __device__ __forceinline__ int count() const { return pairs * loaded_groups; }
    __device__ __forceinline__ bool exists(int column) const {
        return column < columns && (!pads_columns || column >= first);
    }
    // The column of x that is nearest to that of a pair; both of a pair exist, or neither.
    __device__ __forceinline__ int nearest(int pair) const {
        return pads_columns ? max(min(2 * pair, columns - 2), first) : 2 * pair;
    }
    // Neighbouring threads read neighbouring memory.
    __device__ __forceinline__ int group(int unit) const {
        return input_last ? unit % loaded_groups : unit / pairs;
    }
    __device__ __forceinline__ int pair(int unit) const {
        return input_last ? unit / loaded_groups : unit % pairs;
    }
};

// `x` is the row's first channel and column. A number of units is under way before `wait` lets the first be written.
template <class Wait>
__device__ __forceinline__ void load_row_in_pairs(unsigned char* shared, const input_t* x, long long pixels,
                                                  const Units& units, int thread, int& largest, Wait wait) {
    constexpr int in_flight = splits ? 2 : 4;  // Split channels are few, and take more registers.
    for (int first = thread; first < units.count(); first += in_flight * loader_threads) {
        pair_t flying[in_flight];
        unsigned char* target[in_flight];
        bool is_padding[in_flight];
#pragma unroll
        for (int k = 0; k < in_flight; ++k) {
            const int unit = first + k * loader_threads;
            const int group = units.group(unit), pair = units.pair(unit);
            target[k] = shared + group * group_bytes + pair * 2 * unit_bytes;
            const int column = units.nearest(pair), channel = min(group, input_groups - 1) * 8;
            is_padding[k] = column != 2 * pair || group >= input_groups;
            if (unit < units.count()) {
                const long long offset = input_last ? column * in_channels + channel : channel * pixels + column;
                flying[k].read(x + offset, pixels);
            }
        }
        wait();
#pragma unroll
        for (int k = 0; k < in_flight; ++k) {
            if (first + k * loader_threads < units.count()) {
                if ((pads_columns || input_groups < loaded_groups) && is_padding[k]) {
                    flying[k] = pair_t{};
                }
                flying[k].write_to(target[k], largest);
            }
        }
    }
}

// Whatever the sizes and the alignment.
template <class Wait>
__device__ __forceinline__ void load_row_one_by_one(unsigned char* shared, const input_t* x, long long pixels,
                                                    const Units& units, int thread, int& largest, Wait wait) {
    const long long to_channel = input_last ? 1 : pixels, to_column = input_last ? in_channels : 1;
    wait();
#pragma unroll 1
    for (int unit = thread; unit < units.count(); unit += loader_threads) {
        const int group = units.group(unit), pair = units.pair(unit);
        pair_t p{};
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (group * 8 + i < in_channels) {
                const input_t* source = x + (group * 8 + i) * to_channel + 2 * pair * to_column;
                const bool left = !pads_columns || units.exists(2 * pair), right = units.exists(2 * pair + 1);
                p.set(i, left ? source[0] : input_t(0), right ? source[to_column] : input_t(0));
            }
        }
        p.write_to(shared + group * group_bytes + pair * 2 * unit_bytes, largest);
    }
}

// A row of zeros, above or below the image.
template <class Wait>
__device__ __forceinline__ void clear_row(unsigned char* shared, const Units& units, int thread, Wait wait) {
    wait();
    for (int unit = thread; unit < units.count(); unit += loader_threads) {
        uint4* const target =
            reinterpret_cast<uint4*>(shared + units.group(unit) * group_bytes + units.pair(unit) * 2 * unit_bytes);
        target[0] = target[1] = {0, 0, 0, 0};
        if constexpr (splits) {
            target[to_second_halves / unit_bytes] = target[to_second_halves / unit_bytes + 1] = {0, 0, 0, 0};
        }
    }
}

template <class Wait>
__device__ __forceinline__ void load_row(unsigned char* shared, const Images& images, long long sample, long long row,
                                         long long column, int thread, int& largest, Wait wait) {
    const long long pixels = images.height * images.width;
    const input_t* x =
        images.x + sample * in_channels * pixels + (row * images.width + column) * (input_last ? in_channels : 1);
    const bool whole = in_channels % 8 == 0 && images.width % 2 == 0 && reinterpret_cast<u64>(images.x) % 16 == 0;
    const Units units(column, images.width - column);
    if (pads_rows && (row < 0 || row >= images.height)) {
        clear_row(shared, units, thread, wait);
    } else if (whole) {
        load_row_in_pairs(shared, x, pixels, units, thread, largest, wait);
    } else {
        load_row_one_by_one(shared, x, pixels, units, thread, largest, wait);
    }
}

__device__ __forceinline__ void load(unsigned char* ring, u64* full, u64* empty, const Images& images,
                                     unsigned* __restrict__ largest_of_sample) {
    const int thread = threadIdx.x;
    RingRow next;
    Strip strip;
    for (Strips strips(images); strips.take(strip);) {
        int largest = 0;
        for (int row = 0; row < strip.rows + span_rows - 1; ++row) {
            const auto wait = [&] { mbarrier_wait(empty + next.slot, next.parity ^ 1); };
            unsigned char* target = ring + next.slot * row_bytes;
            load_row(target, images, strip.sample, strip.row + row - padding_above, strip.column - ahead, thread, largest,
                     wait);
            wait();  // A thread that had nothing to load must not run ahead of the ring either.
            fence_proxy_async();
            __syncwarp();
            if (thread % 32 == 0) {
                mbarrier_arrive(full + next.slot);
            }
            next.advance();
        }
        if constexpr (scales) {
            largest = largest_of_lanes(largest);
            if (thread % 32 == 0) {
                atomicMax(largest_of_sample + strip.sample, static_cast<unsigned>(largest));
            }
        }
    }
}
