// C = A * s over n elements, any n, any alignment.
//
// A block covers a tile of block_size * items_per_thread vectors of vector_width elements; a thread's vectors lie
// block_size apart, so that each load of a warp is one contiguous piece. With a one-shot grid a block does one tile;
// with a stride grid the blocks that fit the device (times `waves`) walk over all tiles.
#include "vector.cuh"

using vector_t = vector_of<scalar_t, vector_width>;

constexpr bool stream_loads = load_hint == load_hint_t::streaming;
constexpr bool stream_stores = store_hint == store_hint_t::streaming;
constexpr long long tile_vectors = static_cast<long long>(block_size) * items_per_thread;
// `unroll` keeps all of a thread's loads in flight before its first store.
constexpr int items_at_once = unroll ? items_per_thread : 1;

__device__ __forceinline__ vector_t scaled(vector_t value, accumulator_t s) {
    for_each(value, [s](scalar_t& element, int) { element = scalar_t(element * s); });
    return value;
}

template <bool whole>
__device__ __forceinline__ void scale_items(const vector_t* a, vector_t* c, accumulator_t s, long long first,
                                            long long vectors) {
#pragma unroll 1
    for (int item = 0; item < items_per_thread; item += items_at_once) {
        vector_t values[items_at_once];
#pragma unroll
        for (int k = 0; k < items_at_once; ++k) {
            const long long i = first + static_cast<long long>(item + k) * block_size;
            if (whole || i < vectors) {
                values[k] = load<stream_loads>(a + i);
            }
        }
#pragma unroll
        for (int k = 0; k < items_at_once; ++k) {
            const long long i = first + static_cast<long long>(item + k) * block_size;
            if (whole || i < vectors) {
                store<stream_stores>(c + i, scaled(values[k], s));
            }
        }
    }
}

__device__ __forceinline__ void scale_tile(const vector_t* a, vector_t* c, accumulator_t s, long long tile,
                                           long long vectors) {
    if (tile + tile_vectors <= vectors) {
        scale_items<true>(a, c, s, tile + threadIdx.x, vectors);
    } else {
        scale_items<false>(a, c, s, tile + threadIdx.x, vectors);
    }
}

// Everything where a pointer is not aligned for vectors: element by element, all blocks in stride.
__device__ __forceinline__ void scale_elements(const scalar_t* a, scalar_t* c, accumulator_t s, long long n) {
    const long long threads = static_cast<long long>(gridDim.x) * block_size;
    for (long long i = blockIdx.x * static_cast<long long>(block_size) + threadIdx.x; i < n; i += threads) {
        c[i] = scalar_t(a[i] * s);
    }
}

extern "C" __global__ void __launch_bounds__(block_size)
    scalar_mul(const scalar_t* __restrict__ a, scalar_t* __restrict__ c, accumulator_t s, long long n) {
    if (!is_aligned(a, sizeof(vector_t)) || !is_aligned(c, sizeof(vector_t))) {
        scale_elements(a, c, s, n);
        return;
    }
    const vector_t* from = reinterpret_cast<const vector_t*>(a);
    vector_t* to = reinterpret_cast<vector_t*>(c);
    const long long vectors = n / vector_width;
    if constexpr (grid == grid_t::stride) {
        for (long long tile = blockIdx.x * tile_vectors; tile < vectors; tile += gridDim.x * tile_vectors) {
            scale_tile(from, to, s, tile, vectors);
        }
    } else {
        scale_tile(from, to, s, blockIdx.x * tile_vectors, vectors);
    }
    // The fewer than vector_width elements that no vector covers.
    if (blockIdx.x == gridDim.x - 1 && threadIdx.x < n % vector_width) {
        const long long i = vectors * vector_width + threadIdx.x;
        c[i] = scalar_t(a[i] * s);
    }
}
