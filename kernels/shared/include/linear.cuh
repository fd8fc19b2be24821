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

#include "parts_product.cuh"
#include "split_product.cuh"
#include "stream_product.cuh"
#include "vector.cuh"

template <int width> using Numbers = Pack<accumulator_t, width>;

// Neighbouring elements as numbers to compute with, wherever they lie.
template <int width, typename T> __device__ __forceinline__ Numbers<width> numbers(const T* address) {
    Numbers<width> found;
    auto vector = load_anywhere<vector_of<T, width>>(address);
    for_each(vector, [&found](T& element, int i) { found.of[i] = accumulator_t(element); });
    return found;
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
    template <int width>
    __device__ __forceinline__ void apply(vector_of<accumulator_t, width>& values, const Columns<width>& columns,
                                          const Row& row, long long position) const {
        const auto elements = arguments.template elements<width>(position);
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
// apart. The product and `output` may be one buffer. What is left behind the last whole vector is done one by one.
template <int vectors_per_thread, class Chain>
__device__ __forceinline__ void pass_over_elements(const Product& product, scalar_t* output, const Chain& chain) {
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
                chain.template apply<vector_width>(values, {}, {}, i * vector_width);
                store<false>(reinterpret_cast<vector_t*>(output) + i, converted<scalar_t, vector_width>(values));
            }
        }
    }
    const long long rest = vectors * vector_width + thread;
    if (rest < count) {
        vector_of<accumulator_t, 1> value = elements_at<1>(product, rest);
        chain.template apply<1>(value, {}, {}, rest);
        output[rest] = scalar_t(value);
    }
}

// A pass for all others: a thread owns vector_width neighbouring columns of rows_per_thread rows. The product and `output`
// may be one buffer. The host sees to it that the features are a multiple of vector_width.
template <int rows_per_thread, class Chain>
__device__ __forceinline__ void pass_over_columns(const Product& product, scalar_t* output, const Chain& chain) {
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
                chain.template apply<vector_width>(values, columns, chain.arguments.row(row), position);
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

    struct Feature {
        Chain chain;
        typename Chain::template Columns<1> columns;
        scalar_t* output;
        accumulator_t bias;
        long long feature, features;
        bool whole;
        // The product, with its bias.
        __device__ __forceinline__ accumulator_t operator()(float value, long long row) const {
            return at(value, row, row * features);
        }
        // `place` is that of the row.
        __device__ __forceinline__ accumulator_t at(float value, long long row, long long place) const {
            const accumulator_t product = is_kept(row, feature) ? value + bias : accumulator_t(0);
            vector_of<accumulator_t, 1> found = product;
            if (whole) {
                chain.template apply<1>(found, columns, chain.arguments.row(row), place + feature);
            }
            output[place] = scalar_t(found);
            return product;
        }
    };
    __device__ __forceinline__ Feature feature(long long index) const {
        Feature found{chain};
        if (whole) {
            found.columns = chain.template columns<1>(index);
        }
        found.output = output + index;
        found.bias = bias ? accumulator_t(bias[index]) : accumulator_t(0);
        found.feature = index;
        found.features = features;
        found.whole = whole;
        return found;
    }
};
