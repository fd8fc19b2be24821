// The writers of conv_gemm.cuh: finished values to the output, through shared memory.
#pragma once

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
    __device__ __forceinline__ Channel channel(const Epilogue& epilogue, int filter) const {
        const long long number = first_filter + filter;
        return epilogue.of(number < images.filters ? number : images.filters - 1);
    }

    // The finished value of a filter and a column, which need not exist.
    __device__ __forceinline__ float finished(const Epilogue& epilogue, float sum, const Channel& channel, int filter,
                                              int column) const {
        Element element{};
        if (element_tensors > 0 && filter < filters && column < columns) {
            element = epilogue.at(
                offset_of(sample, first_filter + filter, pixel + column, images.filters, pixels(), output_last));
        }
        return epilogue(sum * channel.scale, channel, element);
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
                const int left = first + 8 * j + lane % 4 * 2;
                *reinterpret_cast<float2*>(place + 8 * j) = {
                    part.finished(epilogue, both[0], channel, 8 * below + lane / 4, left),
                    part.finished(epilogue, both[1], channel, 8 * below + lane / 4, left + 1)};
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
            const int filter_above = lane / 4, column = first + 8 * j + lane % 4 * 2;
            left[0] = part.finished(epilogue, four[0], above, filter_above, column);
            left[8] = part.finished(epilogue, four[2], below, filter_above + 8, column);
            left[staged_filters_pitch] = part.finished(epilogue, four[1], above, filter_above, column + 1);
            left[staged_filters_pitch + 8] = part.finished(epilogue, four[3], below, filter_above + 8, column + 1);
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
