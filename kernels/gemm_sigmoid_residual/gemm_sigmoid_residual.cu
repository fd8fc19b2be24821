// gemm_sigmoid_residual: y = v + factor · sigmoid(v) with v = x · wᵀ + bias.
//
// add_sigmoid    one pass over a product that torch has made, whole or from parts (parts_product.cuh); may write over it
// split_product  the product from split halves with all of that in its epilogue (split_product.cuh)
#include "parts_product.cuh"
#include "split_product.cuh"
#include "vector.cuh"

using vector_t = vector_of<scalar_t, vector_width>;

__device__ __forceinline__ accumulator_t with_sigmoid(accumulator_t value, accumulator_t factor) {
    // exp(-v) of a large negative v is infinite, and 1 / (1 + infinity) the right 0.
    if constexpr (exponential == exponential_t::fast) {
        return value + __fdividef(factor, 1.0f + __expf(-value));
    } else {
        return value + factor / (accumulator_t(1) + exp(-value));
    }
}

// A thread does vectors_per_thread vectors, a grid's width apart. `first` (or `small`) and `output` may be one buffer, so
// none is restrict. What is left behind the last whole vector is done one by one.
extern "C" __global__ void __launch_bounds__(block_size)
    add_sigmoid(const scalar_t* first, const scalar_t* small, const int* __restrict__ x_exponents,
                const int* __restrict__ w_exponents, const scalar_t* __restrict__ bias, scalar_t* output,
                accumulator_t factor, long long rows, long long features) {
    const Product product{first, small, x_exponents, w_exponents, bias, rows, features};
    const long long count = rows * features;
    const long long vectors = count / vector_width;
    const long long width = static_cast<long long>(gridDim.x) * block_size;
    const long long thread = static_cast<long long>(blockIdx.x) * block_size + threadIdx.x;
    for (long long begin = thread; begin < vectors; begin += width * vectors_per_thread) {
#pragma unroll
        for (int k = 0; k < vectors_per_thread; ++k) {
            const long long i = begin + k * width;
            if (i < vectors) {
                auto value = elements_at<vector_width>(product, i * vector_width);
                for_each(value, [factor](accumulator_t& element, int) { element = with_sigmoid(element, factor); });
                store<false>(reinterpret_cast<vector_t*>(output) + i, converted<scalar_t, vector_width>(value));
            }
        }
    }
    const long long rest = vectors * vector_width + thread;
    if (rest < count) {
        output[rest] = scalar_t(with_sigmoid(elements_at<1>(product, rest), factor));
    }
}

struct SigmoidEpilogue {
    scalar_t* output;
    const scalar_t* bias;  // may be null
    accumulator_t factor;
    long long features;

    struct Feature {
        scalar_t* output;
        accumulator_t bias, factor;
        long long features;
        __device__ __forceinline__ void operator()(float value, long long row) const {
            output[row * features] = scalar_t(with_sigmoid(value + bias, factor));
        }
    };
    __device__ __forceinline__ Feature feature(long long index) const {
        return {output + index, bias ? accumulator_t(bias[index]) : accumulator_t(0), factor, features};
    }
};

extern "C" __global__ void __launch_bounds__(product_threads, 1) TUNEBENCH_CLUSTER(product_cluster)
    split_product(const float* __restrict__ w, const unsigned char* __restrict__ parts,
                  const int* __restrict__ x_exponents, const int* __restrict__ w_exponents, int* __restrict__ w_unfit,
                  float* __restrict__ scratch, long long x_rows, long long w_rows, long long depth,
                  const scalar_t* __restrict__ bias, scalar_t* __restrict__ output, accumulator_t factor) {
#if TUNEBENCH_HOPPER
    if constexpr (fused) {
        split_product_of_block(w, parts, x_exponents, w_exponents, w_unfit, scratch, {x_rows, w_rows, depth},
                               SigmoidEpilogue{output, bias, factor, w_rows});
    }
#endif
}

extern "C" __global__ void __launch_bounds__(repair_threads, 1)
    repair_rows(const float* __restrict__ x, const float* __restrict__ w, const int* __restrict__ x_unfit,
                const int* __restrict__ w_unfit, int* __restrict__ kept_exponents, long long x_rows, long long w_rows,
                long long depth, const scalar_t* __restrict__ bias, scalar_t* __restrict__ output, accumulator_t factor) {
    if constexpr (fused) {
        repair_rows_of_block(x, w, x_unfit, w_unfit, kept_exponents, x_rows, w_rows, depth,
                             SigmoidEpilogue{output, bias, factor, w_rows});
    }
}
