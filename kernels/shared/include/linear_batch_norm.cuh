// BatchNorm1d behind a linear layer and a function: y = (f(v) - mean) / sqrt(variance + eps) · weight + bias, by feature.
//
// `normalisation` says how a value is normalised: `per_element` does all of the reference's arithmetic for every element;
// `reciprocal` computes 1 / sqrt(variance + eps) once per feature; `folded` reduces everything to one multiply-add per
// element, of the product itself where the function is affine in it, else of the function's value; `weight`, for affine
// functions, has the multiplier in the weight and the offset in the bias of the product, so that nothing is left to do;
// `in_registers` has each thread divide once for each of its features, so that nothing has to be prepared.
//
// `statistics_in` says where a batch's statistics are taken: in `memory`, of the whole product; or in the `epilogue` of the
// fused product, which takes the moments of its tile's values while they are in registers, so that what is left is to join those.
#pragma once

#include "linear.cuh"

constexpr bool in_weight = normalisation == normalisation_t::weight;
constexpr bool folded = normalisation == normalisation_t::folded || in_weight;
constexpr bool per_element = normalisation == normalisation_t::per_element;
constexpr bool in_registers = normalisation == normalisation_t::in_registers;
constexpr bool is_prepared = !per_element && !in_registers;

constexpr bool moments_in_epilogue = statistics_in == statistics_in_t::epilogue;

constexpr int statistics_columns = 32;

// A function f(v) = multiplier · v + offset of one feature; 1 and 0 of one that is not affine.
struct Affine {
    accumulator_t multiplier, offset;
};

// A sum whose error does not grow with the number of its terms (Kahan 1965).
struct CompensatedSum {
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

// Where a batch's statistics go: `kept` of the running ones stays, and the batch's have their shares in them (the variance
// an unbiased one).
struct Statistics {
    accumulator_t* mean;
    accumulator_t* variance;
    scalar_t* running_mean;
    scalar_t* running_variance;
    accumulator_t kept, mean_share, variance_share;
};

// Mean and biased variance of the function over the rows. `whole` is the product; where that comes in parts it is written
// on the way, over one of them (each thread reads what it has itself written).
template <class Arguments>
__device__ __forceinline__ void batch_statistics_of_block(const Product& product, scalar_t* whole,
                                                          const Arguments& arguments, const Statistics& written) {
    __shared__ accumulator_t sums[statistics_rows][statistics_columns];
    const long long rows = product.rows, features = product.features;
    const long long column = static_cast<long long>(blockIdx.x) * statistics_columns + threadIdx.x;
    const bool inside = column < features;
    const auto columns = arguments.template columns<1>(inside ? column : 0);
    const ProductColumns<1> product_columns(product, inside ? column : 0);
    const auto function = [&](accumulator_t value, long long row, long long position) {
        const auto elements = arguments.template elements<1>(position, columns);
        return arguments.template before<1>(value, columns, arguments.row(row), elements, 0);
    };

    CompensatedSum total;
    for (long long row = threadIdx.y; inside && row < rows; row += statistics_rows) {
        const long long position = row * features + column;
        const accumulator_t value = elements<1>(product, product_columns, row, position);
        if (product.is_partial()) {
            whole[position] = scalar_t(value);
        }
        total.add(function(value, row, position));
    }
    const accumulator_t average = sum_of_column(total.value, sums) / static_cast<accumulator_t>(rows);

    CompensatedSum squared;
    for (long long row = threadIdx.y; inside && row < rows; row += statistics_rows) {
        const long long position = row * features + column;
        const accumulator_t difference = function(whole[position], row, position) - average;
        squared.add(difference * difference);
    }
    const accumulator_t squares = sum_of_column(squared.value, sums);
    if (inside && threadIdx.y == 0) {
        const accumulator_t biased = squares / static_cast<accumulator_t>(rows);
        written.mean[column] = average;
        written.variance[column] = biased;
        scalar_t& mean = written.running_mean[column];
        scalar_t& variance = written.running_variance[column];
        mean = scalar_t(accumulator_t(mean) * written.kept + average * written.mean_share);
        variance = scalar_t(accumulator_t(variance) * written.kept + biased * written.variance_share);
    }
}

// Of the values that a tile of the fused product has of a feature: their mean, and the sum of the squares of their
// distances from it.
struct alignas(8) Moments {
    float mean, squares;
};

// Those of all tiles, [tile][feature] with `tile_rows` rows in each but the last, and notes on rows that the product has not
// got right: they are repaired in memory, behind its epilogue.
struct TileMoments {
    const Moments* moments;
    const int* x_unfit;
    const int* w_unfit;
    int tile_rows;

    // By all threads of a block: whether they tell of its columns what memory would.
    __device__ __forceinline__ bool hold(long long rows, long long column, bool inside) const {
        bool unfit = inside && w_unfit[column] != 0;
        for (long long row = threadIdx.y * statistics_columns + threadIdx.x; row < rows;
             row += statistics_rows * statistics_columns) {
            unfit |= x_unfit[row] != 0;
        }
        return !__syncthreads_or(unfit);
    }
};

// As `batch_statistics_of_block`, joined of the moments (Chan, Golub and LeVeque 1979) where these hold.
template <class Arguments>
__device__ __forceinline__ void join_moments_of_block(const Product& product, scalar_t* whole, const Arguments& arguments,
                                                      const Statistics& written, const TileMoments& of_tiles) {
    __shared__ accumulator_t sums[statistics_rows][statistics_columns];
    const long long rows = product.rows, features = product.features;
    const long long column = static_cast<long long>(blockIdx.x) * statistics_columns + threadIdx.x;
    const bool inside = column < features;
    if (!of_tiles.hold(rows, column, inside)) {
        batch_statistics_of_block(product, whole, arguments, written);
        return;
    }
    const long long tile_rows = of_tiles.tile_rows, tiles = (rows + tile_rows - 1) / tile_rows;
    const auto rows_of = [&](long long tile) {
        return static_cast<accumulator_t>(min(rows - tile * tile_rows, tile_rows));
    };
    // Of distances from the first tile's mean: where all are equal, the average is exactly they.
    const accumulator_t shift = inside ? of_tiles.moments[column].mean : 0;
    CompensatedSum beyond;
    for (long long tile = threadIdx.y; inside && tile < tiles; tile += statistics_rows) {
        beyond.add(rows_of(tile) * (of_tiles.moments[tile * features + column].mean - shift));
    }
    const accumulator_t average = shift + sum_of_column(beyond.value, sums) / static_cast<accumulator_t>(rows);
    CompensatedSum squared;
    for (long long tile = threadIdx.y; inside && tile < tiles; tile += statistics_rows) {
        const Moments found = of_tiles.moments[tile * features + column];
        const accumulator_t difference = found.mean - average;
        squared.add(found.squares + rows_of(tile) * difference * difference);
    }
    const accumulator_t biased = sum_of_column(squared.value, sums) / static_cast<accumulator_t>(rows);
    if (inside && threadIdx.y == 0) {
        written.mean[column] = average;
        written.variance[column] = biased;
        scalar_t& mean = written.running_mean[column];
        scalar_t& variance = written.running_variance[column];
        mean = scalar_t(accumulator_t(mean) * written.kept + average * written.mean_share);
        variance = scalar_t(accumulator_t(variance) * written.kept + biased * written.variance_share);
    }
}

// An epilogue of the fused product that takes moments of the function's values.
template <class Chain> struct MomentsEpilogue : ProductEpilogue<Chain> {
    Moments* moments;
    static constexpr bool takes_moments = true;

    // Of one that has nothing to normalise with yet.
    __device__ __forceinline__ MomentsEpilogue(const ProductEpilogue<Chain>& plain, void* moments)
        : ProductEpilogue<Chain>(plain), moments(static_cast<Moments*>(moments)) {
        this->whole = false;
    }

    // `values` are the product's of a thread, as `finish_tile` has them of rows `row` and `row` + 8 of w. Four neighbouring
    // lanes have all of a feature in the tile.
    __device__ __forceinline__ void take_moments(float (&values)[product_columns / 2], const Tile& tile, long long row,
                                                 const bool (&exists)[2], long long x_rows) const {
        const int lane = threadIdx.x % 32;
        const long long begin = tile.x_tile * product_columns;
        const int rows = static_cast<int>(min(x_rows - begin, static_cast<long long>(product_columns)));
        const int first = lane % 4 * 2;
        const auto& arguments = this->chain.arguments;
#pragma unroll
        for (int below = 0; below < 2; ++below) {
            const long long feature = exists[below] ? row + 8 * below : 0;
            const auto columns = arguments.template columns<1>(feature);
            const auto of_function = [&](float value, int place) {
                const auto elements = arguments.template elements<1>((begin + place) * this->features + feature, columns);
                return arguments.template before<1>(value, columns, arguments.row(begin + place), elements, 0);
            };
            // Of distances from the first value: where all are equal, the mean is exactly they.
            const float mine = first < rows ? of_function(values[2 * below], first) : 0.0f;
            const float shift = __shfl_sync(0xFFFFFFFFu, mine, lane & ~3);
            float beyond = 0.0f, squares = 0.0f;
#pragma unroll
            for (int j = 0; j < product_columns / 4; ++j) {
                const int place = first + j / 2 * 8 + j % 2;
                if (place < rows) {
                    float& value = values[j / 2 * 4 + 2 * below + j % 2];
                    value = of_function(value, place);
                    beyond += value - shift;
                }
            }
            const float mean = shift + sum_of_lanes<1, 2>(beyond) / static_cast<float>(rows);
#pragma unroll
            for (int j = 0; j < product_columns / 4; ++j) {
                const float difference = values[j / 2 * 4 + 2 * below + j % 2] - mean;
                squares += first + j / 2 * 8 + j % 2 < rows ? difference * difference : 0.0f;
            }
            squares = sum_of_lanes<1, 2>(squares);
            if (exists[below] && lane % 4 == 0) {
                moments[tile.x_tile * this->features + feature] = {mean, squares};
            }
        }
    }
};

// Means and variances, which are accumulator_t where a batch's and scalar_t where the module's own.
template <int width>
__device__ __forceinline__ Numbers<width> statistics(const void* vector, long long first, bool of_batch) {
    if constexpr (sizeof(scalar_t) != sizeof(accumulator_t)) {
        if (!of_batch) {
            return numbers<width>(static_cast<const scalar_t*>(vector) + first);
        }
    }
    return numbers<width>(static_cast<const accumulator_t*>(vector) + first);
}

// The vectors of a BatchNorm1d, and what prepare_features has made of them, as the norm of a Chain.
template <bool affine> struct BatchNorm {
    const void* mean;
    const void* variance;
    const scalar_t* weight;
    const scalar_t* bias;
    const accumulator_t* multiplier;
    const accumulator_t* offset;
    accumulator_t eps;
    bool of_batch;

    template <int width> struct Columns { Numbers<width> mean, variance, weight, bias, multiplier, offset; };

    template <int width> __device__ __forceinline__ Columns<width> columns(long long first) const {
        Columns<width> found;
        if constexpr (in_weight) {
            return found;
        } else if constexpr (folded) {
            found.multiplier = numbers<width>(multiplier + first);
            found.offset = numbers<width>(offset + first);
        } else {
            found.mean = statistics<width>(mean, first, of_batch);
            found.weight = numbers<width>(weight + first);
            found.bias = numbers<width>(bias + first);
            if constexpr (per_element) {
                found.variance = statistics<width>(variance, first, of_batch);
            } else if constexpr (in_registers) {
                const Numbers<width> variances = statistics<width>(variance, first, of_batch);
#pragma unroll
                for (int i = 0; i < width; ++i) {
                    found.multiplier.of[i] = found.weight.of[i] / sqrt(variances.of[i] + eps);
                }
            } else {
                found.multiplier = numbers<width>(multiplier + first);
            }
        }
        return found;
    }

    template <int width, typename Function>
    __device__ __forceinline__ accumulator_t operator()(accumulator_t value, const Columns<width>& columns, int i,
                                                        Function function) const {
        if constexpr (in_weight) {
            return value;
        } else if constexpr (folded) {
            return (affine ? value : function(value)) * columns.multiplier.of[i] + columns.offset.of[i];
        } else if constexpr (per_element) {
            const accumulator_t deviation = sqrt(columns.variance.of[i] + eps);
            return (function(value) - columns.mean.of[i]) / deviation * columns.weight.of[i] + columns.bias.of[i];
        } else if constexpr (in_registers) {
            return (function(value) - columns.mean.of[i]) * columns.multiplier.of[i] + columns.bias.of[i];
        } else {
            return (function(value) - columns.mean.of[i]) * columns.multiplier.of[i] * columns.weight.of[i] +
                   columns.bias.of[i];
        }
    }

    // multiplier and offset where folded; else multiplier is 1 / sqrt(variance + eps) and offset is not written. `linear_bias`,
    // which may be null, is that of a product with the multiplier in its weight, and goes into the offset.
    __device__ __forceinline__ void prepare(long long column, Affine function, const scalar_t* linear_bias,
                                            accumulator_t* multiplier, accumulator_t* offset) const {
        const accumulator_t reciprocal = accumulator_t(1) / sqrt(statistics<1>(variance, column, of_batch).of[0] + eps);
        if constexpr (folded) {
            const accumulator_t added = linear_bias ? accumulator_t(linear_bias[column]) : accumulator_t(0);
            const accumulator_t centred =
                added * function.multiplier + function.offset - statistics<1>(mean, column, of_batch).of[0];
            multiplier[column] = function.multiplier * reciprocal * weight[column];
            offset[column] = bias[column] + centred * reciprocal * weight[column];
        } else {
            multiplier[column] = reciprocal;
        }
    }
};
