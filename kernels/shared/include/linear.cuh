// What stands behind the product of a linear layer, x · wᵀ + bias: functions of a value, as a pass or as an epilogue.
//
// The product is torch's own, whole or from parts (parts_product.cuh), and one pass over it does what follows; or it is
// made from split halves with all of that in its epilogue (split_product.cuh). The same `Chain` of functions is used in all
// three. It is made of
//
//   Arguments   the block's function and what it takes beside a value: numbers, tensors with a value for each feature
//               (column), for each row, and for each element; and a second function, which stands behind the norm
//   Norm        what stands between the two: nothing (`NoNorm`), or a batch normalisation (linear_batch_norm.cuh)
//
// kernels/blocks/linear.py writes Arguments and the entry points, whose parameters are those of the function.
#pragma once

#include "half_product.cuh"
#include "half_stream.cuh"
#include "parts_product.cuh"
#include "split_product.cuh"
#include "stream_product.cuh"
#include "vector.cuh"

template <int width> using Numbers = Pack<accumulator_t, width>;

// Neighbouring elements as numbers to compute with, wherever they lie unless they are known to be aligned: a branch at each
// load has it wait for the one before.
template <int width, bool is_aligned = false, typename T>
__device__ __forceinline__ Numbers<width> numbers(const T* address) {
    using vector_t = vector_of<T, width>;
    Numbers<width> found;
    auto vector = is_aligned ? load<false>(reinterpret_cast<const vector_t*>(address)) : load_anywhere<vector_t>(address);
    for_each(vector, [&found](T& element, int i) { found.of[i] = accumulator_t(element); });
    return found;
}

// Have the second cache fetch elements that are read soon, of a whole number of 16 bytes.
template <typename T> __device__ __forceinline__ void fetch_elements(const T* address, int count) {
#if TUNEBENCH_HOPPER
    cp_async_bulk_prefetch(address, count * sizeof(T));
#endif
}

// What a layer adds, where its product is made by the kernel that joins it with another one's (half_product.cuh).
template <int width> __device__ __forceinline__ Pack<scalar_t, width> bias_of_layer(const scalar_t* bias, long long feature) {
    if (fused_halves && bias) {
        return load_pack<width>(bias + feature, width, takes_packs<scalar_t, width>(bias + feature));
    }
    return {};
}
template <typename V, int width>
__device__ __forceinline__ V biased(V product, const Pack<scalar_t, width>& bias) {
    for_each(product, [&](accumulator_t& value, int i) { value = value + accumulator_t(bias.of[i]); });
    return product;
}

struct NoNorm {
    template <int width> struct Columns {};
    template <int width> __device__ __forceinline__ Columns<width> columns(long long) const { return {}; }
    template <int width, typename Function>
    __device__ __forceinline__ accumulator_t operator()(accumulator_t value, const Columns<width>&, int,
                                                        Function function) const {
        return function(value);
    }
};

template <class Arguments, class Norm = NoNorm> struct Chain {
    using Row = typename Arguments::Row;
    Arguments arguments;
    Norm norm;

    // What neighbouring columns need, in registers for all rows that a thread has of them.
    template <int width> struct Columns {
        typename Arguments::template Columns<width> arguments;
        typename Norm::template Columns<width> norm;
    };
    template <int width> __device__ __forceinline__ Columns<width> columns(long long feature) const {
        return {arguments.template columns<width>(feature), norm.template columns<width>(feature)};
    }

    // The values of `width` neighbouring elements of the product, the first of which is number `position` of them all.
    // `products` are those of other layers (half_product.cuh), where they are not in memory.
    template <int width, class... Products>
    __device__ __forceinline__ void apply(vector_of<accumulator_t, width>& values, const Columns<width>& columns,
                                          const Row& row, long long position, const Products*... products) const {
        const auto elements = arguments.template elements<width>(position, columns.arguments, products...);
        for_each(values, [&](accumulator_t& value, int i) {
            const accumulator_t normalised =
                norm.template operator()<width>(value, columns.norm, i, [&](accumulator_t given) {
                    return arguments.template before<width>(given, columns.arguments, row, elements, i);
                });
            value = arguments.template behind<width>(normalised, columns.arguments, row, elements, i);
        });
    }
};

// A pass for functions that ask neither for features nor for rows: a thread does vectors_per_thread vectors, a grid's width
// apart. The product and `output` may be one buffer. What is left behind the last whole vector is done one by one. Where not
// `whole`, the product alone is written.
template <int vectors_per_thread, class Chain>
__device__ __forceinline__ void pass_over_elements(const Product& product, scalar_t* output, const Chain& chain,
                                                   bool whole) {
    using vector_t = vector_of<scalar_t, vector_width>;
    const long long count = product.rows * product.features;
    const long long vectors = count / vector_width;
    const long long width = static_cast<long long>(gridDim.x) * block_size;
    const long long thread = static_cast<long long>(blockIdx.x) * block_size + threadIdx.x;
    for (long long begin = thread; begin < vectors; begin += width * vectors_per_thread) {
#pragma unroll
        for (int k = 0; k < vectors_per_thread; ++k) {
            const long long i = begin + k * width;
            if (i < vectors) {
                auto values = elements_at<vector_width>(product, i * vector_width);
                if (whole) {
                    chain.template apply<vector_width>(values, {}, {}, i * vector_width);
                }
                store<false>(reinterpret_cast<vector_t*>(output) + i, converted<scalar_t, vector_width>(values));
            }
        }
    }
    const long long rest = vectors * vector_width + thread;
    if (rest < count) {
        vector_of<accumulator_t, 1> value = elements_at<1>(product, rest);
        if (whole) {
            chain.template apply<1>(value, {}, {}, rest);
        }
        output[rest] = scalar_t(value);
    }
}

// A pass for all others: a thread owns vector_width neighbouring columns of rows_per_thread rows. The product and `output`
// may be one buffer. The host sees to it that the features are a multiple of vector_width.
template <int rows_per_thread, class Chain>
__device__ __forceinline__ void pass_over_columns(const Product& product, scalar_t* output, const Chain& chain,
                                                  bool whole) {
    using vector_t = vector_of<scalar_t, vector_width>;
    const long long column = (static_cast<long long>(blockIdx.x) * block_size + threadIdx.x) * vector_width;
    if (column >= product.features) {
        return;
    }
    const ProductColumns<vector_width> product_columns(product, column);
    const auto columns = chain.template columns<vector_width>(column);
    for (long long begin = static_cast<long long>(blockIdx.y) * rows_per_thread; begin < product.rows;
         begin += static_cast<long long>(gridDim.y) * rows_per_thread) {
#pragma unroll
        for (int k = 0; k < rows_per_thread; ++k) {
            const long long row = begin + k;
            if (row < product.rows) {
                const long long position = row * product.features + column;
                auto values = elements<vector_width>(product, product_columns, row, position);
                if (whole) {
                    chain.template apply<vector_width>(values, columns, chain.arguments.row(row), position);
                }
                // As an array of vectors: of `output + position` NVRTC does not see the alignment,
                // and stores element by element.
                store<false>(reinterpret_cast<vector_t*>(output) + position / vector_width,
                             converted<scalar_t, vector_width>(values));
            }
        }
    }
}

// The same behind a value of the fused product. Where not `whole`, the product alone is written, with its bias: what
// follows needs all of it.
template <class Chain> struct ProductEpilogue {
    Chain chain;
    const scalar_t* bias;  // may be null
    scalar_t* output;
    long long features;
    bool whole;
    static constexpr bool takes_moments = false;

    // Neighbouring ones, of which each row's values are given, and written, together.
    template <int width> struct Features {
        using Values = vector_of<accumulator_t, width>;
        Chain chain;
        typename Chain::template Columns<width> columns;
        scalar_t* output;
        Pack<scalar_t, width> bias;
        long long feature, features;
        bool whole;
        __device__ __forceinline__ Values with_bias(Values product) const { return biased(product, bias); }
        // `place` is that of the row's first element.
        template <class... Products>
        __device__ __forceinline__ Values finished(Values product, long long row, long long place,
                                                   const Products*... products) const {
            if (whole) {
                chain.template apply<width>(product, columns, chain.arguments.row(row), place + feature, products...);
            }
            return product;
        }
        template <class... Products>
        __device__ __forceinline__ Values finished(Values product, long long row, const Products*... products) const {
            return finished(product, row, row * features, products...);
        }
        __device__ __forceinline__ void write(Values values, long long row) const { put(values, row * features); }
        __device__ __forceinline__ void put(Values values, long long place) const {
            store<false>(reinterpret_cast<vector_of<scalar_t, width>*>(output + place),
                         converted<scalar_t, width>(values));
        }
        // The product, with its bias.
        __device__ __forceinline__ Values at(Values value, long long row, long long place) const {
            const Values product = is_kept(row, feature) ? with_bias(value) : Values{};
            put(finished(product, row, place), place);
            return product;
        }
        __device__ __forceinline__ Values operator()(Values value, long long row) const {
            return at(value, row, row * features);
        }
        // Those of another lane of the warp, where each has the ones behind those of the lane before.
        __device__ __forceinline__ Features of_lane(int lane) const {
            Features found = *this;
            const long long further = (lane - static_cast<int>(threadIdx.x % 32)) * width;
            found.columns = from_lane(columns, lane);
            found.bias = from_lane(bias, lane);
            found.output += further;
            found.feature = min(feature + further, features - width);  // What reads elements there finds some.
            return found;
        }
    };
    // Behind the last, those stand for what would be there, and no values come for them.
    template <int width> __device__ __forceinline__ Features<width> neighbours(long long index) const {
        Features<width> found{chain};
        const long long there = width == 1 ? index : min(index, features - width);
        if (whole) {
            found.columns = chain.template columns<width>(there);
        }
        found.output = output + index;
        if constexpr (width == 1) {
            found.bias.of[0] = bias ? bias[there] : scalar_t(0);
        } else if (bias) {
            found.bias = load_pack<width>(bias + there, width, takes_packs<scalar_t, width>(bias + there));
        }
        found.feature = index;
        found.features = features;
        found.whole = whole;
        return found;
    }
    __device__ __forceinline__ Features<1> feature(long long index) const { return neighbours<1>(index); }
};
