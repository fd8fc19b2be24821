// The product of few rows on tensor cores, which multiply TF32: up to 64 rows of x while the weight is read once.
//
// fp32 is the sum of two numbers of TF32 to 2^-21 of it (parts.cuh), and since TF32 has all of fp32's range no row has to be
// scaled. `stream_corrections` says whether the two small terms are of TF32 or of bf16; with none, operands are rounded to
// TF32. A warp owns 16 features or a few times that, and reads their rows of w in the order in which mma.sync takes them: a
// lane has four neighbouring elements of each of two rows. Sums leave the tensor cores every 16 elements of the depth and
// are added in fp32, so that the truncation of tensor cores does not grow with the depth.
//
// `stream_unroll` steps of w are under way together, of x one.
#pragma once

#include "mma.cuh"
#include "stream_parts.cuh"
#include "vector.cuh"

constexpr int stream_tile = 16;                                                  // Features that are multiplied at once.
constexpr int stream_step = 16;                                                  // Of the depth.
constexpr int stream_tiles = stream_features < stream_tile ? 1 : stream_features / stream_tile;
constexpr int stream_x_rows = 8;                                                 // Rows of x that are multiplied at once.
constexpr int stream_x_tiles = stream_rows < stream_x_rows ? 1 : stream_rows / stream_x_rows;

constexpr bool coarse = stream_corrections == stream_corrections_t::bf16;
constexpr bool corrected = stream_corrections != stream_corrections_t::none;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
// The tile of w times that of x, of which a lane has two neighbours of each row from number `at` on.
__device__ __forceinline__ void multiply_tf32(float (&sums)[4], const float (&w)[8], const float (&x)[4], int at) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(__float_as_uint(w[at])), "r"(__float_as_uint(w[at + 4])), "r"(__float_as_uint(w[at + 1])),
          "r"(__float_as_uint(w[at + 5])), "r"(__float_as_uint(x[at])), "r"(__float_as_uint(x[at + 1])));
}
#elif defined(__CUDA_ARCH__)
__device__ __forceinline__ void multiply_tf32(float (&)[4], const float (&)[8], const float (&)[4], int) { __trap(); }
#endif

// To the nearest number of TF32; a NaN of any bits stays one.
__device__ __forceinline__ float nearest_tf32(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return __uint_as_float(bits);
#else
    return value != value ? value : to_eleven_bits(value);
#endif
}

// What a lane has of a tile, as sums of a number of TF32 and what that leaves; for the small terms in TF32, or in pairs
// of bf16, which are multiplied at twice the rate.
template <int count> struct SplitTile {
    float large[count], small[count];
    unsigned large_pairs[count / 2], small_pairs[count / 2];

    __device__ __forceinline__ void set(int i, float high, float rest) {
        large[i] = high;
        small[i] = coarse || !corrected ? rest : tf32_t(rest);
    }
    __device__ __forceinline__ void split(int i, float value) {
        if constexpr (corrected) {
            const Split<tf32_t> parts(value);
            set(i, parts.high, parts.rest());
        } else {
            set(i, nearest_tf32(value), 0.0f);
        }
    }
    // When all are set.
    __device__ __forceinline__ void pair() {
#pragma unroll
        for (int i = 0; coarse && i < count / 2; ++i) {
            large_pairs[i] = pack2<bfloat_t>(large[2 * i], large[2 * i + 1]);
            small_pairs[i] = pack2<bfloat_t>(small[2 * i], small[2 * i + 1]);
        }
    }
};
using TileOfW = SplitTile<8>;  // Four neighbours of each of two rows of w.
using TileOfX = SplitTile<4>;  // Four neighbours of a row of x.

__device__ __forceinline__ TileOfX tile_of_x(float4 four) {
    TileOfX tile;
    for_each(four, [&tile](float& value, int i) { tile.split(i, value); });
    tile.pair();
    return tile;
}

// The products of a tile of w with eight rows of x are so many instructions, the small terms first.
constexpr int stream_products = !corrected ? 2 : coarse ? 4 : 6;

#ifdef __CUDA_ARCH__
__device__ __forceinline__ void add_product(float (&sums)[4], const TileOfW& w, const TileOfX& x, int number) {
    if (coarse && number < 2) {
        const auto& pairs = number == 0 ? w.small_pairs : w.large_pairs;
        const unsigned rows_of_halves[4] = {pairs[0], pairs[2], pairs[1], pairs[3]};
        multiply_tiles<bfloat_t>(sums, rows_of_halves, number == 0 ? x.large_pairs : x.small_pairs);
        return;
    }
    const int at = number % 2 * 2;
    const bool small = corrected && number < 4 && !coarse;
    multiply_tf32(sums, small && number < 2 ? w.small : w.large, small && number >= 2 ? x.small : x.large, at);
}
#else
// Without tensor cores the lanes show each other what they have, and multiply it in fp32.
__device__ __forceinline__ void add_shown(float (&sums)[4], const TileOfW& w, const TileOfX& x) {
    __shared__ float shown[stream_threads][12];
    const int lane = threadIdx.x % 32;
    float(*const warp)[12] = shown + (threadIdx.x - lane);
    for (int i = 0; i < 8; ++i) {
        warp[lane][i] = w.large[i] + w.small[i];
    }
    for (int i = 0; i < 4; ++i) {
        warp[lane][8 + i] = x.large[i] + x.small[i];
    }
    __syncwarp();
    for (int i = 0; i < 4; ++i) {
        const float(*const of_w)[12] = warp + lane / 4 * 4;
        const float(*const of_x)[12] = warp + (lane % 4 * 2 + i % 2) * 4;
        for (int k = 0; k < stream_step; ++k) {
            sums[i] += of_w[k / 4][i / 2 * 4 + k % 4] * of_x[k / 4][8 + k % 4];
        }
    }
    __syncwarp();
}
#endif

// Two rows of w as they are, from this lane's elements on.
struct WholeTile {
    using Read = Pack<float4, 2>;
    const float* rows[2];
    __device__ __forceinline__ Read read(long long step) const {
        Read found;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            found.of[i] = load<true>(reinterpret_cast<const float4*>(rows[i] + step * stream_step));
        }
        return found;
    }
    static __device__ __forceinline__ TileOfW split(Read read) {
        TileOfW tile;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            for_each(read.of[half], [&](float& value, int i) { tile.split(4 * half + i, value); });
        }
        tile.pair();
        return tile;
    }
};

// The same of a weight in parts, or of their halves alone, whose elements are in TF32 as they are.
struct TileInParts {
    struct Read {
        Pack<half_t, 8> high;
        uint2 low;
    };
    const half_t* highs;
    const signed char* lows;
    __device__ __forceinline__ Read read(long long step) const {
        const long long place = step * (stream_tile * stream_step);
        return {load<true>(reinterpret_cast<const Pack<half_t, 8>*>(highs + place)), rests_at(lows, place)};
    }
    static __device__ __forceinline__ TileOfW split(const Read& read) {
        TileOfW tile;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            tile.set(i, read.high.of[i], rest_of(read.low, i));
        }
        tile.pair();
        return tile;
    }
};

// This lane's row of each tile of x, from its elements on; behind the last row that there is, an earlier one again, of
// which nothing is written.
struct LaneOfX {
    const float* first;
    long long next_tile;
    int tiles;  // In which this lane's row exists.
    __device__ __forceinline__ void read(float4 (&found)[stream_x_tiles], long long step) const {
        const float* from = first + step * stream_step;
#pragma unroll
        for (int i = 0; i < stream_x_tiles; ++i) {
            found[i] = *reinterpret_cast<const float4*>(from);
            from += i + 1 < tiles ? next_tile : 0;
        }
    }
};

using SumsOfTiles = float[stream_tiles][stream_x_tiles][4];

// So many products are under way at a time, none of which waits for another; more would not fit the registers.
constexpr int stream_at_a_time = coarse || !corrected ? 4 : 2;
constexpr int stream_wide = stream_tiles < stream_at_a_time ? stream_at_a_time / stream_tiles : 1;
constexpr int stream_abreast = stream_x_tiles < stream_wide ? stream_x_tiles : stream_wide;

__device__ __forceinline__ void add_step(SumsOfTiles& sums, const TileOfW (&w)[stream_tiles],
                                         const float4 (&x)[stream_x_tiles]) {
#pragma unroll
    for (int first = 0; first < stream_x_tiles; first += stream_abreast) {
#ifdef __CUDA_ARCH__
        TileOfX of_x[stream_abreast];
        float found[stream_abreast][stream_tiles][4] = {};
#pragma unroll
        for (int j = 0; j < stream_abreast; ++j) {
            of_x[j] = tile_of_x(x[first + j]);
        }
#pragma unroll
        for (int number = 0; number < stream_products; ++number) {
#pragma unroll
            for (int i = 0; i < stream_abreast * stream_tiles; ++i) {
                const int j = i / stream_tiles;
                add_product(found[j][i % stream_tiles], w[i % stream_tiles], of_x[j], number);
            }
        }
#pragma unroll
        for (int i = 0; i < stream_abreast * stream_tiles * 4; ++i) {
            const int j = i / 4 / stream_tiles;
            sums[i / 4 % stream_tiles][first + j][i % 4] += found[j][i / 4 % stream_tiles][i % 4];
        }
#else
        for (int i = 0; i < stream_abreast * stream_tiles; ++i) {
            const int j = first + i / stream_tiles;
            add_shown(sums[i % stream_tiles][j], w[i % stream_tiles], tile_of_x(x[j]));
        }
#endif
    }
}

// The products of a warp's features with the rows of x over whole steps of the depth, of which `share` is its first.
template <class Tile>
__device__ __forceinline__ void multiply_steps(SumsOfTiles& sums, const Tile (&tiles)[stream_tiles], const LaneOfX& x,
                                               int share, long long steps) {
    if (share >= steps) {
        return;
    }
    typename Tile::Read under_way[stream_unroll][stream_tiles];
    float4 next[stream_x_tiles];
    x.read(next, share);
#pragma unroll
    for (int ahead = 0; ahead < stream_unroll; ++ahead) {
#pragma unroll
        for (int i = 0; i < stream_tiles; ++i) {
            if (share + ahead * stream_split < steps) {
                under_way[ahead][i] = tiles[i].read(share + ahead * stream_split);
            }
        }
    }
#pragma unroll 1
    for (long long first = share; first < steps; first += stream_unroll * stream_split) {
#pragma unroll
        for (int ahead = 0; ahead < stream_unroll; ++ahead) {
            const long long step = first + ahead * stream_split;
            if (step < steps) {
                float4 now[stream_x_tiles];
                TileOfW w[stream_tiles];
#pragma unroll
                for (int j = 0; j < stream_x_tiles; ++j) {
                    now[j] = next[j];
                }
                if (step + stream_split < steps) {
                    x.read(next, step + stream_split);
                }
#pragma unroll
                for (int i = 0; i < stream_tiles; ++i) {
                    w[i] = Tile::split(under_way[ahead][i]);
                    if (step + stream_unroll * stream_split < steps) {
                        under_way[ahead][i] = tiles[i].read(step + stream_unroll * stream_split);
                    }
                }
                add_step(sums, w, now);
            }
        }
    }
}

// The rest of the depth, or all of it where vectors cannot be read: element by element.
__device__ __forceinline__ float4 four_of_rest(const float* row, long long k, long long depth) {
    float4 found;
    for_each(found, [&](float& value, int i) { value = k + i < depth ? row[i] : 0.0f; });
    return found;
}
__device__ __forceinline__ void multiply_rest(SumsOfTiles& sums, const WholeTile (&tiles)[stream_tiles],
                                              const LaneOfX& x, int lane, long long first, long long depth) {
#pragma unroll 1
    for (long long step = first; step * stream_step < depth; step += stream_split) {
        const long long k = step * stream_step + lane % 4 * 4;
        TileOfW w[stream_tiles];
        float4 now[stream_x_tiles];
#pragma unroll
        for (int i = 0; i < stream_tiles; ++i) {
            WholeTile::Read read;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                read.of[half] = four_of_rest(tiles[i].rows[half] + step * stream_step, k, depth);
            }
            w[i] = WholeTile::split(read);
        }
        const float* from = x.first + step * stream_step;
#pragma unroll
        for (int j = 0; j < stream_x_tiles; ++j) {
            now[j] = four_of_rest(from, k, depth);
            from += j + 1 < x.tiles ? x.next_tile : 0;
        }
        add_step(sums, w, now);
    }
}

// What has overflown or met an infinity or a NaN, again in strict fp32, by all lanes of the warp together.
__device__ __forceinline__ float strict_where(bool asked, float sum, const float* x, const float* w, long long depth,
                                              int lane) {
#pragma unroll 1
    for (unsigned left = __ballot_sync(0xFFFFFFFFu, asked); left; left &= left - 1) {
        const int asking = __ffs(static_cast<int>(left)) - 1;
        const float* const of_x = reinterpret_cast<const float*>(
            __shfl_sync(0xFFFFFFFFu, reinterpret_cast<unsigned long long>(x), asking));
        const float* const of_w = reinterpret_cast<const float*>(
            __shfl_sync(0xFFFFFFFFu, reinterpret_cast<unsigned long long>(w), asking));
        float found = 0.0f;
#pragma unroll 1
        for (long long k = lane; k < depth; k += 32) {
            found += of_x[k] * of_w[k];
        }
#pragma unroll 1
        for (int distance = 16; distance > 0; distance /= 2) {
            found += __shfl_xor_sync(0xFFFFFFFFu, found, distance);
        }
        sum = lane == asking ? found : sum;
    }
    return sum;
}

template <class Epilogue>
__device__ __forceinline__ void stream_tiles_of_block(const StreamOperands& given, const Epilogue& epilogue) {
    constexpr int warps = stream_threads / 32;
    constexpr int groups = warps / stream_split;
    constexpr int features_of_warp = stream_tiles * stream_tile;
    constexpr bool in_parts = stream_weight != stream_weight_t::whole;
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int share = warp % stream_split;
    const int row_of_lane = lane / 4;
    const long long of_block = static_cast<long long>(blockIdx.x) * (groups * features_of_warp);
    const long long first_feature = of_block + warp / stream_split * features_of_warp;
    const long long first_row = static_cast<long long>(blockIdx.y) * stream_rows;
    const long long depth = given.depth;

    const long long rows = min(given.rows - first_row, static_cast<long long>(stream_rows));
    const LaneOfX x{given.x + (first_row + min(static_cast<long long>(row_of_lane), rows - 1)) * depth + lane % 4 * 4,
                    stream_x_rows * depth, static_cast<int>((rows - row_of_lane + stream_x_rows - 1) / stream_x_rows)};
    WholeTile whole[stream_tiles];
    TileInParts parts[stream_tiles];
    bool fit = in_parts;
#pragma unroll
    for (int i = 0; i < stream_tiles; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const long long feature =
                min(first_feature + i * stream_tile + half * stream_x_rows + row_of_lane, given.features - 1);
            whole[i].rows[half] = given.w + feature * depth + lane % 4 * 4;
            if constexpr (in_parts) {
                fit = fit && !given.unfit[feature];
            }
        }
        if constexpr (in_parts) {
            const long long last = (given.features + stream_tile - 1) / stream_tile - 1;
            const long long tile = min(first_feature / stream_tile + i, last);
            const long long place = tile * stream_tile * given.chunked + lane * 8;
            parts[i] = {given.highs + place, given.lows + place};
        }
    }
    SumsOfTiles sums = {};
    long long steps = 0;
    if constexpr (in_parts) {
        // A tile of parts is read by all lanes of the warp.
        if (__all_sync(0xFFFFFFFFu, fit) && reads_as_vectors(given.x, depth)) {
            steps = depth / stream_step;
            multiply_steps(sums, parts, x, share, steps);
#pragma unroll
            for (int i = 0; i < stream_tiles; ++i) {
#pragma unroll
                for (int j = 0; j < stream_x_tiles * 4; ++j) {
                    const long long feature =
                        min(first_feature + i * stream_tile + j % 4 / 2 * stream_x_rows + row_of_lane, given.features - 1);
                    sums[i][j / 4][j % 4] = scaled(sums[i][j / 4][j % 4], -given.exponents[feature]);
                }
            }
        }
    } else if (reads_as_vectors(given.x, depth) && reads_as_vectors(given.w, depth)) {
        steps = depth / stream_step;
        multiply_steps(sums, whole, x, share, steps);
    }
    multiply_rest(sums, whole, x, lane, steps + share, depth);

    // The warps that share the depth join their sums, eight rows of x at a time.
    __shared__ float of_warps[warps][features_of_warp][stream_x_rows + 1];
#pragma unroll
    for (int j = 0; j < stream_x_tiles; ++j) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < stream_tiles * 4; ++i) {
            const int feature = i / 4 * stream_tile + i % 4 / 2 * stream_x_rows + row_of_lane;
            of_warps[warp][feature][lane % 4 * 2 + i % 2] = sums[i / 4][j][i % 4];
        }
        __syncthreads();
#pragma unroll 1
        for (int i = threadIdx.x; i < groups * features_of_warp * stream_x_rows; i += stream_threads) {
            const int place = i % (groups * features_of_warp);
            const int row_of_tile = i / (groups * features_of_warp);
            float sum = 0.0f;
#pragma unroll
            for (int other = 0; other < stream_split; ++other) {
                sum += of_warps[place / features_of_warp * stream_split + other][place % features_of_warp][row_of_tile];
            }
            const long long feature = of_block + place;
            const long long row = first_row + j * stream_x_rows + row_of_tile;
            const bool exists = feature < given.features && row < given.rows;
            // Not isfinite, which a fast arithmetic would take for granted.
            const bool finite = (__float_as_uint(sum) & 0x7f800000u) != 0x7f800000u;
            sum = strict_where(exists && !finite, sum, given.x + row * depth, given.w + feature * depth, depth, lane);
            if (exists) {
                epilogue.feature(feature)(sum, row);
            }
        }
    }
}
