// A function of elements, over tensors that lie alike in memory: any number of elements, any alignment.
//
// A block covers a tile of block_size * items_per_thread vectors of vector_width elements; a thread's vectors lie
// block_size apart, so that each load of a warp is one contiguous piece. With a one-shot grid a block does one tile;
// with a stride grid the blocks that fit the device (times `waves`) walk over all tiles.
#pragma once

#include "functions.cuh"
#include "vector.cuh"

namespace pointwise_block {

using vector_t = vector_of<scalar_t, vector_width>;

constexpr bool stream_loads = load_hint == load_hint_t::streaming;
constexpr bool stream_stores = store_hint == store_hint_t::streaming;
constexpr long long tile_vectors = static_cast<long long>(block_size) * items_per_thread;
// `unroll` keeps all of a thread's loads in flight before its first store.
constexpr int items_at_once = unroll ? items_per_thread : 1;

// The tensors that are read: their elements, or the vectors over them.
template <class T, int count> struct Tensors {
    const T* of[count];
};

// A tensor with one value for many elements: that of element i is (i / inner) % size.
struct Broadcast {
    const scalar_t* values;
    long long inner, size;

    __device__ __forceinline__ long long index(long long i, bool is_short) const {
        // A division of 32 bits takes a quarter of the time of one of 64.
        if (is_short) {
            return static_cast<unsigned>(i) / static_cast<unsigned>(inner) % static_cast<unsigned>(size);
        }
        return i / inner % size;
    }
    // Whether all elements of a vector have one value, or neighbours a vector of them.
    __device__ __forceinline__ bool is_even() const {
        return inner % vector_width == 0 || size == 1 ||
               (inner == 1 && size % vector_width == 0 && is_aligned(values, sizeof(vector_t)));
    }
};

template <int count> struct Broadcasts {
    Broadcast of[count];

    __device__ __forceinline__ bool are_even() const {
        bool even = true;
#pragma unroll
        for (int k = 0; k < count; ++k) {
            even = even && of[k].is_even();
        }
        return even;
    }
};
template <> struct Broadcasts<0> {
    __device__ __forceinline__ bool are_even() const { return true; }
};

// Values of the broadcast tensors for the elements of one vector.
template <int count> struct Rows {
    accumulator_t of[count][vector_width];

    template <bool even>
    __device__ __forceinline__ void read(const Broadcasts<count>& from, long long first, bool is_short) {
#pragma unroll
        for (int k = 0; k < count; ++k) {
            const Broadcast& one = from.of[k];
            if (even) {
                const scalar_t* const place = one.values + one.index(first, is_short);
                if (one.inner == 1 && one.size > 1) {
                    vector_t values = *reinterpret_cast<const vector_t*>(place);
                    for_each(values, [this, k](scalar_t& value, int e) { of[k][e] = accumulator_t(value); });
                } else {
                    const accumulator_t value = accumulator_t(*place);
#pragma unroll
                    for (int e = 0; e < vector_width; ++e) {
                        of[k][e] = value;
                    }
                }
            } else {
#pragma unroll
                for (int e = 0; e < vector_width; ++e) {
                    of[k][e] = accumulator_t(one.values[one.index(first + e, is_short)]);
                }
            }
        }
    }
};
template <> struct Rows<0> {
    accumulator_t of[1][vector_width];
    template <bool even> __device__ __forceinline__ void read(const Broadcasts<0>&, long long, bool) {}
};

template <int tensors, int broadcasts, class Function> struct Pointwise {
    Tensors<scalar_t, tensors> inputs;
    Broadcasts<broadcasts> rows;
    scalar_t* output;
    long long elements;
    Function function;

    __device__ __forceinline__ const vector_t* vectors_of(int t) const {
        return reinterpret_cast<const vector_t*>(inputs.of[t]);
    }
    __device__ __forceinline__ bool is_short() const { return elements < 1ll << 31; }

    // The result for one vector of each tensor, whose first element is number `first`.
    template <bool even>
    __device__ __forceinline__ vector_t result(vector_t (&values)[tensors], long long first) const {
        accumulator_t elements_of[vector_width][tensors];
#pragma unroll
        for (int t = 0; t < tensors; ++t) {
            for_each(values[t], [&](scalar_t& value, int e) { elements_of[e][t] = accumulator_t(value); });
        }
        Rows<broadcasts> given;
        given.template read<even>(rows, first, is_short());
        vector_t made;
        for_each(made, [&](scalar_t& value, int e) {
            accumulator_t row[broadcasts ? broadcasts : 1];
#pragma unroll
            for (int k = 0; k < broadcasts; ++k) {
                row[k] = given.of[k][e];
            }
            value = scalar_t(function(elements_of[e], row));
        });
        return made;
    }

    template <bool whole, bool even>
    __device__ __forceinline__ void items(long long first, long long vectors) const {
#pragma unroll 1
        for (int item = 0; item < items_per_thread; item += items_at_once) {
            vector_t values[items_at_once][tensors];
#pragma unroll
            for (int k = 0; k < items_at_once; ++k) {
                const long long i = first + static_cast<long long>(item + k) * block_size;
                if (whole || i < vectors) {
#pragma unroll
                    for (int t = 0; t < tensors; ++t) {
                        values[k][t] = load<stream_loads>(vectors_of(t) + i);
                    }
                }
            }
#pragma unroll
            for (int k = 0; k < items_at_once; ++k) {
                const long long i = first + static_cast<long long>(item + k) * block_size;
                if (whole || i < vectors) {
                    store<stream_stores>(reinterpret_cast<vector_t*>(output) + i,
                                         result<even>(values[k], i * vector_width));
                }
            }
        }
    }

    template <bool even> __device__ __forceinline__ void tile(long long begin, long long vectors) const {
        if (begin + tile_vectors <= vectors) {
            items<true, even>(begin + threadIdx.x, vectors);
        } else {
            items<false, even>(begin + threadIdx.x, vectors);
        }
    }

    template <bool even> __device__ __forceinline__ void tiles(long long vectors) const {
        if constexpr (grid == grid_t::stride) {
            for (long long begin = blockIdx.x * tile_vectors; begin < vectors; begin += gridDim.x * tile_vectors) {
                tile<even>(begin, vectors);
            }
        } else {
            tile<even>(blockIdx.x * tile_vectors, vectors);
        }
    }

    __device__ __forceinline__ void element(long long i) const {
        accumulator_t values[tensors], row[broadcasts ? broadcasts : 1];
#pragma unroll
        for (int t = 0; t < tensors; ++t) {
            values[t] = accumulator_t(inputs.of[t][i]);
        }
        if constexpr (broadcasts > 0) {
#pragma unroll
            for (int k = 0; k < broadcasts; ++k) {
                row[k] = accumulator_t(rows.of[k].values[rows.of[k].index(i, is_short())]);
            }
        }
        output[i] = scalar_t(function(values, row));
    }

    __device__ __forceinline__ void run() const {
        bool aligned = is_aligned(output, sizeof(vector_t));
#pragma unroll
        for (int t = 0; t < tensors; ++t) {
            aligned = aligned && is_aligned(inputs.of[t], sizeof(vector_t));
        }
        const long long thread = blockIdx.x * static_cast<long long>(block_size) + threadIdx.x;
        // Everything where a pointer is not aligned for vectors: element by element, all blocks in stride.
        if (!aligned) {
            for (long long i = thread; i < elements; i += static_cast<long long>(gridDim.x) * block_size) {
                element(i);
            }
            return;
        }
        const long long vectors = elements / vector_width;
        if (broadcasts == 0 || rows.are_even()) {
            tiles<true>(vectors);
        } else {
            tiles<false>(vectors);
        }
        // The fewer than vector_width elements that no vector covers.
        if (blockIdx.x == gridDim.x - 1 && threadIdx.x < elements % vector_width) {
            element(vectors * vector_width + threadIdx.x);
        }
    }
};

}  // namespace pointwise_block

// `function` takes an element of each tensor and of each broadcast tensor.
template <int tensors, int broadcasts, class Function>
__device__ __forceinline__ void each_element(const pointwise_block::Tensors<scalar_t, tensors>& inputs,
                                             const pointwise_block::Broadcasts<broadcasts>& rows, scalar_t* output,
                                             long long elements, Function function) {
    pointwise_block::Pointwise<tensors, broadcasts, Function>{inputs, rows, output, elements, function}.run();
}
