// gemm_scale_bn: y = BatchNorm(product * scale), per feature (column), with product = x · wᵀ + bias.
//
// split_product      the product from split halves; in eval mode all that follows is in its epilogue (split_product.cuh)
// batch_statistics   mean and biased variance of product * scale over the rows (train mode)
// prepare_features   the per-feature vectors that normalise_rows reads
// normalise_rows     one pass over the product; may write over it
//
// The passes read a product that torch has made, whole or from parts (parts_product.cuh).
//
// `normalisation` says how a value is normalised: `per_element` does all of the reference's arithmetic for every
// element; `reciprocal` computes 1 / sqrt(variance + eps) once per feature; `folded` reduces everything to one
// multiply-add per element, y = product * multiplier + offset; `weight` has the multiplier in the weight and the offset
// in the bias of the product, so that nothing is left to do behind it.
#include "parts_product.cuh"
#include "split_product.cuh"
#include "vector.cuh"

constexpr bool in_weight = normalisation == normalisation_t::weight;
constexpr bool folded = normalisation == normalisation_t::folded || in_weight;
constexpr bool per_element = normalisation == normalisation_t::per_element;

using vector_t = vector_of<scalar_t, vector_width>;

constexpr int statistics_columns = 32;

// A sum whose error does not grow with the number of its terms (Kahan 1965).
struct Sum {
    accumulator_t value = 0, lost = 0;
    __device__ __forceinline__ void add(accumulator_t term) {
        const accumulator_t whole = term - lost, next = value + whole;
        lost = (next - value) - whole;
        value = next;
    }
};

// One block: 32 columns side by side, statistics_rows threads down each. Two passes, because the mean of squares minus
// the square of the mean loses the variance of a feature whose mean is large.
__device__ __forceinline__ accumulator_t sum_of_column(accumulator_t partial,
                                                       accumulator_t (*sums)[statistics_columns]) {
    sums[threadIdx.y][threadIdx.x] = partial;
    __syncthreads();
    for (int half = statistics_rows / 2; half > 0; half /= 2) {
        if (threadIdx.y < half) {
            sums[threadIdx.y][threadIdx.x] += sums[threadIdx.y + half][threadIdx.x];
        }
        __syncthreads();
    }
    const accumulator_t total = sums[0][threadIdx.x];
    __syncthreads();
    return total;
}

// `kept` of the running statistics stays, and the batch's have their shares in them (the variance an unbiased one).
// `whole` is the product; where that comes in parts it is written on the way, over one of them (each thread reads what it
// has itself written).
extern "C" __global__ void __launch_bounds__(statistics_columns * statistics_rows)
    batch_statistics(const scalar_t* first, const scalar_t* small, const int* __restrict__ x_exponents,
                     const int* __restrict__ w_exponents, const scalar_t* __restrict__ linear_bias, scalar_t* whole,
                     const scalar_t* __restrict__ scale, accumulator_t* __restrict__ mean,
                     accumulator_t* __restrict__ variance, scalar_t* __restrict__ running_mean,
                     scalar_t* __restrict__ running_variance, accumulator_t kept, accumulator_t mean_share,
                     accumulator_t variance_share, long long rows, long long features) {
    __shared__ accumulator_t sums[statistics_rows][statistics_columns];
    const long long column = static_cast<long long>(blockIdx.x) * statistics_columns + threadIdx.x;
    const bool inside = column < features;
    const accumulator_t factor = inside ? accumulator_t(scale[column]) : accumulator_t(0);
    const Product product{first, small, x_exponents, w_exponents, linear_bias, rows, features};
    const ProductColumns<1> columns(product, inside ? column : 0);

    Sum total;
    for (long long row = threadIdx.y; inside && row < rows; row += statistics_rows) {
        const long long position = row * features + column;
        const accumulator_t value = elements<1>(product, columns, row, position);
        if (product.is_partial()) {
            whole[position] = scalar_t(value);
        }
        total.add(value * factor);
    }
    const accumulator_t average = sum_of_column(total.value, sums) / static_cast<accumulator_t>(rows);

    Sum squared;
    for (long long row = threadIdx.y; inside && row < rows; row += statistics_rows) {
        const accumulator_t difference = whole[row * features + column] * factor - average;
        squared.add(difference * difference);
    }
    const accumulator_t squares = sum_of_column(squared.value, sums);
    if (inside && threadIdx.y == 0) {
        const accumulator_t biased = squares / static_cast<accumulator_t>(rows);
        mean[column] = average;
        variance[column] = biased;
        running_mean[column] = scalar_t(accumulator_t(running_mean[column]) * kept + average * mean_share);
        running_variance[column] = scalar_t(accumulator_t(running_variance[column]) * kept + biased * variance_share);
    }
}

// Means and variances, which are accumulator_t where a batch's and scalar_t where the module's own.
template <int width>
__device__ __forceinline__ vector_of<accumulator_t, width> statistics(const void* vector, long long first,
                                                                      bool of_batch) {
    if constexpr (sizeof(scalar_t) != sizeof(accumulator_t)) {
        if (!of_batch) {
            using vector_t = vector_of<scalar_t, width>;
            return converted<accumulator_t, width>(
                load_anywhere<vector_t>(static_cast<const scalar_t*>(vector) + first));
        }
    }
    return load_anywhere<vector_of<accumulator_t, width>>(static_cast<const accumulator_t*>(vector) + first);
}

// multiplier and offset where folded; else multiplier is 1 / sqrt(variance + eps) and offset is not written.
// `linear_bias`, which may be null, is that of a product with the multiplier in its weight, and goes into the offset.
extern "C" __global__ void
    prepare_features(const scalar_t* __restrict__ scale, const void* __restrict__ mean,
                     const void* __restrict__ variance, const scalar_t* __restrict__ weight,
                     const scalar_t* __restrict__ bias, const scalar_t* __restrict__ linear_bias, accumulator_t eps,
                     accumulator_t* __restrict__ multiplier, accumulator_t* __restrict__ offset, long long features,
                     int of_batch) {
    const long long column = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (column >= features) {
        return;
    }
    const accumulator_t reciprocal = accumulator_t(1) / sqrt(statistics<1>(variance, column, of_batch != 0) + eps);
    if (folded) {
        multiplier[column] = scale[column] * reciprocal * weight[column];
        const accumulator_t constant = linear_bias ? linear_bias[column] * scale[column] : accumulator_t(0);
        const accumulator_t average = statistics<1>(mean, column, of_batch != 0);
        offset[column] = bias[column] + (constant - average) * reciprocal * weight[column];
    } else {
        multiplier[column] = reciprocal;
    }
}

struct Features {
    const scalar_t* scale;
    const void* mean;
    const void* variance;
    const scalar_t* weight;
    const scalar_t* bias;
    const accumulator_t* multiplier;
    const accumulator_t* offset;
    bool of_batch;
};

// The constants of `width` neighbouring columns, in registers for all rows that a thread has of them.
template <int width> struct Columns {
    using vector_t = vector_of<accumulator_t, width>;
    vector_t scale, mean, variance, weight, bias, multiplier, offset;

    Columns() = default;
    __device__ __forceinline__ Columns(const Features& features, long long first) {
        if constexpr (folded) {
            multiplier = load_anywhere<vector_t>(features.multiplier + first);
            offset = load_anywhere<vector_t>(features.offset + first);
        } else {
            scale = held(features.scale + first);
            mean = statistics<width>(features.mean, first, features.of_batch);
            weight = held(features.weight + first);
            bias = held(features.bias + first);
            if constexpr (per_element) {
                variance = statistics<width>(features.variance, first, features.of_batch);
            } else {
                multiplier = load_anywhere<vector_t>(features.multiplier + first);
            }
        }
    }

private:
    static __device__ __forceinline__ vector_t held(const scalar_t* vector) {
        return converted<accumulator_t, width>(load_anywhere<vector_of<scalar_t, width>>(vector));
    }
};

template <typename V> __device__ __forceinline__ accumulator_t element_of(V value, int position) {
    accumulator_t found = 0;
    for_each(value, [&found, position](accumulator_t& element, int i) { found = i == position ? element : found; });
    return found;
}

template <int width>
__device__ __forceinline__ accumulator_t normalised(accumulator_t value, const Columns<width>& columns, int i, accumulator_t eps) {
    if constexpr (folded) {
        return value * element_of(columns.multiplier, i) + element_of(columns.offset, i);
    } else if constexpr (per_element) {
        const accumulator_t centred = value * element_of(columns.scale, i) - element_of(columns.mean, i);
        const accumulator_t deviation = sqrt(element_of(columns.variance, i) + eps);
        return centred / deviation * element_of(columns.weight, i) + element_of(columns.bias, i);
    } else {
        const accumulator_t centred = value * element_of(columns.scale, i) - element_of(columns.mean, i);
        return centred * element_of(columns.multiplier, i) * element_of(columns.weight, i) +
               element_of(columns.bias, i);
    }
}

// A thread owns vector_width neighbouring columns of rows_per_thread rows. `first` (or `small`) and `output` may be one
// buffer, so none is restrict. The host sees to it that features is a multiple of vector_width.
extern "C" __global__ void __launch_bounds__(block_size)
    normalise_rows(const scalar_t* first, const scalar_t* small, const int* __restrict__ x_exponents,
                   const int* __restrict__ w_exponents, const scalar_t* __restrict__ linear_bias, scalar_t* output,
                   const scalar_t* __restrict__ scale, const void* __restrict__ mean,
                   const void* __restrict__ variance, const scalar_t* __restrict__ weight,
                   const scalar_t* __restrict__ bias, const accumulator_t* __restrict__ multiplier,
                   const accumulator_t* __restrict__ offset, accumulator_t eps, long long rows, long long features,
                   int of_batch) {
    const long long column = (static_cast<long long>(blockIdx.x) * block_size + threadIdx.x) * vector_width;
    if (column >= features) {
        return;
    }
    const Product product{first, small, x_exponents, w_exponents, linear_bias, rows, features};
    const ProductColumns<vector_width> product_columns(product, column);
    Columns<vector_width> columns;
    if constexpr (!in_weight) {
        columns = Columns<vector_width>({scale, mean, variance, weight, bias, multiplier, offset, of_batch != 0},
                                        column);
    }
    for (long long begin = static_cast<long long>(blockIdx.y) * rows_per_thread; begin < rows;
         begin += static_cast<long long>(gridDim.y) * rows_per_thread) {
#pragma unroll
        for (int k = 0; k < rows_per_thread; ++k) {
            const long long row = begin + k;
            if (row < rows) {
                const long long position = row * features + column;
                auto value = elements<vector_width>(product, product_columns, row, position);
                if constexpr (!in_weight) {
                    for_each(value, [&columns, eps](accumulator_t& element, int i) {
                        element = normalised(element, columns, i, eps);
                    });
                }
                // As an array of vectors: of `output + position` NVRTC does not see the alignment,
                // and stores element by element.
                store<false>(reinterpret_cast<vector_t*>(output) + position / vector_width,
                             converted<scalar_t, vector_width>(value));
            }
        }
    }
}

// In eval mode the running statistics are there before the product is; `normalises` is false in train mode, where the
// product alone is written and none of the vectors is there.
struct NormalisingEpilogue {
    Features features;
    const scalar_t* linear_bias;  // may be null
    scalar_t* output;
    accumulator_t eps;
    long long count;
    bool normalises;

    struct Feature {
        Columns<1> columns;
        scalar_t* output;
        accumulator_t linear_bias, eps;
        long long count;
        bool normalises;
        __device__ __forceinline__ void operator()(float value, long long row) const {
            const accumulator_t whole = value + linear_bias;
            output[row * count] = scalar_t(normalises ? normalised(whole, columns, 0, eps) : whole);
        }
    };
    __device__ __forceinline__ Feature feature(long long index) const {
        Feature found;
        if (normalises) {
            found.columns = Columns<1>(features, index);
        }
        found.output = output + index;
        found.linear_bias = linear_bias ? accumulator_t(linear_bias[index]) : accumulator_t(0);
        found.eps = eps;
        found.count = count;
        found.normalises = normalises;
        return found;
    }
};

extern "C" __global__ void __launch_bounds__(product_threads, 1) TUNEBENCH_CLUSTER(product_cluster)
    split_product(const float* __restrict__ w, const unsigned char* __restrict__ parts,
                  const int* __restrict__ x_exponents, const int* __restrict__ w_exponents, int* __restrict__ w_unfit,
                  float* __restrict__ scratch, long long x_rows, long long w_rows, long long depth,
                  const scalar_t* __restrict__ linear_bias, scalar_t* __restrict__ output,
                  const scalar_t* __restrict__ scale, const void* __restrict__ mean,
                  const void* __restrict__ variance, const scalar_t* __restrict__ weight,
                  const scalar_t* __restrict__ bias, const accumulator_t* __restrict__ multiplier,
                  const accumulator_t* __restrict__ offset, accumulator_t eps, int normalises) {
#if TUNEBENCH_HOPPER
    if constexpr (fused) {
        const Features features{scale, mean, variance, weight, bias, multiplier, offset, false};
        split_product_of_block(w, parts, x_exponents, w_exponents, w_unfit, scratch, {x_rows, w_rows, depth},
                               NormalisingEpilogue{features, linear_bias, output, eps, w_rows, normalises != 0});
    }
#endif
}

extern "C" __global__ void __launch_bounds__(repair_threads, 1)
    repair_rows(const float* __restrict__ x, const float* __restrict__ w, const int* __restrict__ x_unfit,
                const int* __restrict__ w_unfit, int* __restrict__ kept_exponents, long long x_rows, long long w_rows,
                long long depth, const scalar_t* __restrict__ linear_bias, scalar_t* __restrict__ output,
                const scalar_t* __restrict__ scale, const void* __restrict__ mean,
                const void* __restrict__ variance, const scalar_t* __restrict__ weight,
                const scalar_t* __restrict__ bias, const accumulator_t* __restrict__ multiplier,
                const accumulator_t* __restrict__ offset, accumulator_t eps, int normalises) {
    if constexpr (fused) {
        const Features features{scale, mean, variance, weight, bias, multiplier, offset, false};
        repair_rows_of_block(x, w, x_unfit, w_unfit, kept_exponents, x_rows, w_rows, depth,
                             NormalisingEpilogue{features, linear_bias, output, eps, w_rows, normalises != 0});
    }
}
