// Attention in fp32, softmax(q kᵀ · scale) v, without the matrix of scores in memory: a block has some queries, and goes over
// the keys in tiles with a running maximum and sum of each query (Dao et al., FlashAttention, 2022).
//
// Both products are of bf16 by tensor cores. A number of fp32 is the sum of a few of bf16, whose range is the same: of two, to
// 2^-17 of it, of three exactly. The products of parts that matter are added, in fp32: three with two parts, six with three.
// Sums over keys leave the tensor cores after every tile, so that their truncation does not grow with the number of keys.
//
// Shared memory has the pairs of neighbours that a lane multiplies in one step side by side.
//
// A query whose output is smaller than what bf16 splits is computed once more in fp32 alone. An infinity has no second part
// and makes NaN of all that it meets, as in PyTorch's kernel for GPUs, which splits numbers too. A CPU has no such products:
// there a thread has some queries, in fp32, unless `tiles_on_cpu` asks for the tiles.
#pragma once

#include "mma.cuh"
#include "parts.cuh"
#include "warp.cuh"

constexpr int attention_threads = 32 * warps;
constexpr int rows_of_warp = 16 * row_tiles, block_rows = warps * rows_of_warp;
constexpr int depth = (size + 15) / 16 * 16, depth_steps = depth / 16;
constexpr int key_tiles = tile_keys / 8, value_tiles = (size + 7) / 8, value_parts = 2;
// Words from line to line: lanes read from all banks.
constexpr int key_step = depth / 2 + (depth % 32 == 0 ? 8 : 0), value_step = tile_keys / 2 + 8;
static_assert(size % 4 == 0, "rows are read in packs of four");

constexpr float least_of_parts = 1e-30f;  // Of values that two numbers of bf16 hold to 2^-17.
__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }
// 2^x to 2^-22 of it, or zero where it is no normal number.
__device__ __forceinline__ float power(float x) {
#ifdef __CUDA_ARCH__
    float value;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
    return value;
#else
    return exp2f(x);
#endif
}

// Where a head's matrix begins, and how far apart its rows are.
struct Rows {
    const float* begin;
    long long step;
    __device__ __forceinline__ Rows(const float* tensor, long long batch_step, long long head_step, long long row_step,
                                    int batch, int head)
        : begin(tensor + batch * batch_step + head * head_step), step(row_step) {}
    __device__ __forceinline__ const float* row(int number) const { return begin + number * step; }
    // Neighbours; zeros behind the last one, and of rows that there are not.
    template <int width> __device__ __forceinline__ Pack<float, width> some(int number, int count, int place) const {
        if (number >= count || place >= size) {
            return {};
        }
        return *reinterpret_cast<const Pack<float, width>*>(row(number) + place);
    }
};

// Two numbers as sums of bf16: a word for the pair of each part.
template <int parts> __device__ __forceinline__ void split_pair(float first, float second, unsigned (&words)[parts]) {
#pragma unroll
    for (int part = 0; part < parts; ++part) {
        words[part] = pack2<bfloat_t>(first, second);
        first -= __uint_as_float(words[part] << 16);
        second -= __uint_as_float(words[part] & 0xffff0000u);
    }
}

// Where shared memory has a pair of neighbours: of the eight of a step, a lane multiplies number `i` and number `i` + 4.
__device__ __forceinline__ int place_of(int pair) { return pair / 8 * 8 + pair % 4 * 2 + pair / 4 % 2; }

// A tile of keys on its way from memory to shared memory.
struct KeyTile {
    static constexpr int packs = tile_keys * depth / 4, own = (packs + attention_threads - 1) / attention_threads;
    Pack<float, 4> of[own];

    static __device__ __forceinline__ int pack(int i) { return threadIdx.x + i * attention_threads; }
    __device__ __forceinline__ void bring(const Rows& keys, int first, int count) {
#pragma unroll
        for (int i = 0; i < own; ++i) {
            of[i] = keys.some<4>(first + pack(i) / (depth / 4), count, pack(i) % (depth / 4) * 4);
        }
    }
    __device__ __forceinline__ void put(unsigned* shared) const {
#pragma unroll
        for (int i = 0; i < own; ++i) {
            if (pack(i) < packs) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    unsigned pair[score_parts];
                    split_pair(of[i].of[2 * half], of[i].of[2 * half + 1], pair);
                    const int place = pack(i) / (depth / 4) * key_step + place_of(pack(i) % (depth / 4) * 2 + half);
#pragma unroll
                    for (int part = 0; part < score_parts; ++part) {
                        shared[part * tile_keys * key_step + place] = pair[part];
                    }
                }
            }
        }
    }
};

// Values lie transposed: a row for each of a value's elements, in which neighbours are of neighbouring keys.
struct ValueTile {
    static constexpr int pairs = tile_keys / 2, units = pairs * value_tiles * 2;
    static constexpr int own = (units + attention_threads - 1) / attention_threads;
    static constexpr int words = 8 * value_tiles * value_step;  // Of a part.
    Pack<float, 4> of[own][2];

    static __device__ __forceinline__ int unit(int i) { return threadIdx.x + i * attention_threads; }
    __device__ __forceinline__ void bring(const Rows& values, int first, int count) {
#pragma unroll
        for (int i = 0; i < own; ++i) {
#pragma unroll
            for (int key = 0; key < 2; ++key) {
                of[i][key] = values.some<4>(first + unit(i) % pairs * 2 + key, count, unit(i) / pairs * 4);
            }
        }
    }
    __device__ __forceinline__ void put(unsigned* shared) const {
#pragma unroll
        for (int i = 0; i < own; ++i) {
            if (unit(i) < units) {
#pragma unroll
                for (int element = 0; element < 4; ++element) {
                    unsigned words_of_pair[value_parts];
                    split_pair(of[i][0].of[element], of[i][1].of[element], words_of_pair);
                    const int place = (unit(i) / pairs * 4 + element) * value_step + place_of(unit(i) % pairs);
#pragma unroll
                    for (int part = 0; part < value_parts; ++part) {
                        shared[part * words + place] = words_of_pair[part];
                    }
                }
            }
        }
    }
};

__device__ __forceinline__ void read_pairs(const unsigned* shared, unsigned (&pairs)[2]) {
    const uint2 both = *reinterpret_cast<const uint2*>(shared);
    pairs[0] = both.x;
    pairs[1] = both.y;
}

// Computes one query in fp32, by one thread, which keeps its sums in memory: registers are the tiles'.
__device__ __forceinline__ void attend_exactly(const float* query, const Rows& keys, const Rows& values, float* output,
                                               int count, float factor) {
    const auto score = [&](int key) {
        const float* const row = keys.row(key);
        float sum = 0.0f;
#pragma unroll 1
        for (int i = 0; i < size; ++i) {
            sum += query[i] * factor * row[i];
        }
        return sum;
    };
    float top = -infinity(), total = 0.0f, sums[size] = {};
    for (int key = 0; key < count; ++key) {
        const float one = score(key);
        top = one > top || one != one ? one : top;
    }
    for (int key = 0; key < count; ++key) {
        const float* const row = values.row(key);
        const float beside = score(key) - top;  // The compiler may have added up the largest one in another order.
        const float weight = power(beside > 0.0f ? 0.0f : beside);
        total += weight;
#pragma unroll 1
        for (int i = 0; i < size; ++i) {
            sums[i] += weight * row[i];
        }
    }
#pragma unroll 1
    for (int i = 0; i < size; ++i) {
        output[i] = sums[i] / total;
    }
}

// `factor`: of scores, as exponents of two. The output has the strides of its batch, heads and rows as the others do.
extern "C" __global__ void __launch_bounds__(attention_threads)
    attention(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v,
              float* __restrict__ output, int queries, int count, int heads, float factor, long long q_batch,
              long long q_head, long long q_row, long long k_batch, long long k_head, long long k_row, long long v_batch,
              long long v_head, long long v_row, long long o_batch, long long o_head, long long o_row) {
    __shared__ alignas(16) unsigned key_stage[score_parts * tile_keys * key_step];
    __shared__ alignas(16) unsigned value_stage[value_parts * ValueTile::words];
    const int blocks = (queries + block_rows - 1) / block_rows;
    const int head = blockIdx.x / blocks % heads, batch = blockIdx.x / blocks / heads;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, line = lane / 4, pair = lane % 4 * 2;
    const int first_row = blockIdx.x % blocks * block_rows + warp * rows_of_warp;
    const Rows queries_of(q, q_batch, q_head, q_row, batch, head), keys(k, k_batch, k_head, k_row, batch, head),
        values(v, v_batch, v_head, v_row, batch, head);
    float* const of_head = output + batch * o_batch + head * o_head;
#if !defined(__CUDA_ARCH__) && !defined(tiles_on_cpu)
    if (lane < rows_of_warp && first_row + lane < queries) {
        const int row = first_row + lane;
        attend_exactly(queries_of.row(row), keys, values, of_head + row * o_row, count, factor);
    }
    return;
#endif
    unsigned query[row_tiles][depth_steps][4][score_parts];
#pragma unroll
    for (int tile = 0; tile < row_tiles; ++tile) {
#pragma unroll
        for (int step = 0; step < depth_steps; ++step) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = first_row + tile * 16 + i % 2 * 8 + line, place = step * 16 + i / 2 * 8 + pair;
                const auto two = queries_of.some<2>(row, queries, place);
                split_pair(two.of[0] * factor, two.of[1] * factor, query[tile][step][i]);
            }
        }
    }
    float sums[row_tiles][value_tiles][4] = {}, top[row_tiles][2], total[row_tiles][2] = {};
#pragma unroll
    for (int i = 0; i < 2 * row_tiles; ++i) {
        top[i / 2][i % 2] = -infinity();
    }
    KeyTile key_tile;
    ValueTile value_tile;
    key_tile.bring(keys, 0, count);
    for (int first = 0; first < count; first += tile_keys) {
        key_tile.put(key_stage);
        __syncthreads();  // All have read the values of the tile before, and may read the keys of this one.
        value_tile.bring(values, first, count);
        float scores[row_tiles][key_tiles][4] = {};
#pragma unroll
        for (int n = 0; n < key_tiles; ++n) {
#pragma unroll
            for (int step = 0; step < depth_steps; ++step) {
                unsigned parts[score_parts][2];
#pragma unroll
                for (int part = 0; part < score_parts; ++part) {
                    read_pairs(key_stage + (part * tile_keys + n * 8 + line) * key_step + step * 8 + pair, parts[part]);
                }
#pragma unroll
                for (int tile = 0; tile < row_tiles; ++tile) {
#pragma unroll
                    for (int part = 0; part < score_parts; ++part) {
                        const auto& own = query[tile][step];
                        const unsigned a[4] = {own[0][part], own[1][part], own[2][part], own[3][part]};
#pragma unroll
                        for (int other = 0; other + part < score_parts; ++other) {
                            multiply_tiles<bfloat_t>(scores[tile][n], a, parts[other]);
                        }
                    }
                }
            }
        }
        if (first + tile_keys > count) {
#pragma unroll
            for (int i = 0; i < row_tiles * key_tiles * 4; ++i) {
                if (first + i / 4 % key_tiles * 8 + pair + i % 2 >= count) {
                    scores[i / (4 * key_tiles)][i / 4 % key_tiles][i % 4] = -infinity();
                }
            }
        }
        float decay[row_tiles][2];
        unsigned weights[row_tiles][key_tiles][2][value_parts];
#pragma unroll
        for (int tile = 0; tile < row_tiles; ++tile) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float largest = top[tile][half];
#pragma unroll
                for (int n = 0; n < key_tiles; ++n) {
                    largest = fmaxf(largest, fmaxf(scores[tile][n][2 * half], scores[tile][n][2 * half + 1]));
                }
                largest = largest_of_lanes<2, 1>(largest);
                decay[tile][half] = power(top[tile][half] - largest);
                top[tile][half] = largest;
                float sum = 0.0f;
#pragma unroll
                for (int n = 0; n < key_tiles; ++n) {
                    const float one = power(scores[tile][n][2 * half] - largest);
                    const float next = power(scores[tile][n][2 * half + 1] - largest);
                    sum += one + next;
                    split_pair(one, next, weights[tile][n][half]);
                }
                total[tile][half] = total[tile][half] * decay[tile][half] + sum;
            }
        }
        value_tile.put(value_stage);
        __syncthreads();  // All have read the keys, and may read the values.
        if (first + tile_keys < count) {
            key_tile.bring(keys, first + tile_keys, count);
        }
#pragma unroll
        for (int n = 0; n < value_tiles; ++n) {
            float fresh[row_tiles][4] = {};
#pragma unroll
            for (int step = 0; step < tile_keys / 16; ++step) {
                unsigned parts[value_parts][2];
#pragma unroll
                for (int part = 0; part < value_parts; ++part) {
                    const int at = part * ValueTile::words + (n * 8 + line) * value_step + step * 8 + pair;
                    read_pairs(value_stage + at, parts[part]);
                }
#pragma unroll
                for (int tile = 0; tile < row_tiles; ++tile) {
#pragma unroll
                    for (int part = 0; part < value_parts; ++part) {
                        const auto& own = weights[tile];
                        const unsigned a[4] = {own[2 * step][0][part], own[2 * step][1][part], own[2 * step + 1][0][part],
                                               own[2 * step + 1][1][part]};
#pragma unroll
                        for (int other = 0; other + part < value_parts; ++other) {
                            multiply_tiles<bfloat_t>(fresh[tile], a, parts[other]);
                        }
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < 4 * row_tiles; ++i) {
                float& sum = sums[i / 4][n][i % 4];
                sum = sum * decay[i / 4][i / 2 % 2] + fresh[i / 4][i % 4];
            }
        }
    }
#pragma unroll
    for (int tile = 0; tile < row_tiles; ++tile) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float whole = sum_of_lanes<2, 1>(total[tile][half]);
            const int row = first_row + tile * 16 + half * 8 + line;
            float largest = 0.0f;
#pragma unroll
            for (int n = 0; n < value_tiles; ++n) {
                const Pack<float, 2> two{sums[tile][n][2 * half] / whole, sums[tile][n][2 * half + 1] / whole};
                largest = fmaxf(largest, fmaxf(fabsf(two.of[0]), fabsf(two.of[1])));
                if (row < queries && n * 8 + pair < size) {
                    *reinterpret_cast<Pack<float, 2>*>(of_head + row * o_row + n * 8 + pair) = two;
                }
            }
            // Quads have a row each, whose first lane computes it again behind the stores of all.
            __syncwarp();
            const unsigned tiny = __ballot_sync(0xFFFFFFFFu, largest > 0.0f && largest < least_of_parts);
            if (tiny >> 4 * line & 15u && pair == 0 && row < queries) {
                attend_exactly(queries_of.row(row), keys, values, of_head + row * o_row, count, factor);
            }
        }
    }
}
