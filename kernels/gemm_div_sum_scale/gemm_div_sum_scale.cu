// y = sum over features of (x * W^T / 2), times a factor.
//
// Summed over the rows of W first, that is a matrix-vector product: y = x * s * factor with s = (column sums of W) / 2.
//
// sum_columns   partial column sums: blocks divide W into strips of columns and splits of rows
// join_sums     s from the partial sums
// dot_rows      x * s for every row
// fused         all three in one launch
// through       both passes in one launch, each block with its own strip of columns
// sum_rows      for `algorithm` gemm: the sum of every row of x * W^T
//
// Nothing is added by atomics, so that every run gives the same bits. Which block adds the partial sums up is `join`:
// a kernel of its own (`kernel`); every block of dot_rows for itself (`dot`); the block that finishes a strip last, in
// sum_columns (`last_block`) or with the product in the same launch (`fused`). Where a block has a strip's columns of W
// to itself, no other needs its sums: it multiplies the same columns of x with them, and what is added up is the partial
// products of every row (`algorithm` strips).
#include "early_launches.cuh"
#include "vector.cuh"
#include "warp.cuh"

using vector_t = vector_of<scalar_t, vector_width>;

constexpr bool stream_weight = load_hint == load_hint_t::streaming;
constexpr bool sums_columns = algorithm == algorithm_t::column_sums;
constexpr bool fuses = sums_columns && join == join_t::fused;
constexpr bool last_block_joins = sums_columns && (fuses || join == join_t::last_block);
constexpr bool takes_strips = algorithm == algorithm_t::strips;

// The counters of a launch, all zero at its start.
constexpr int ticket = 0;         // blocks that have started
constexpr int joined_strips = 1;  // strips whose sums are written
constexpr int first_strip = 2;    // from here on: splits that are done, by strip

// ------------------------------------------------------------------------------------------------------- column sums

// A block's threads: strip_threads side by side over columns, so many groups of them over rows.
constexpr int groups = block_size / strip_threads;
constexpr int strip_columns = strip_threads * vector_width;

struct Sums {
    accumulator_t of[vector_width];
};

// Adds rows first, first + groups, ..., of which the last may lie at `end` or beyond unless `whole`. All loads are in
// flight before the first addition, and the rows are summed among themselves first: shorter chains, smaller error.
template <bool whole>
__device__ __forceinline__ void add_rows(Sums& sums, const scalar_t* weight, long long first, long long end,
                                         long long features, long long column) {
    vector_t values[rows_in_flight];
#pragma unroll
    for (int k = 0; k < rows_in_flight; ++k) {
        const long long row = first + k * groups;
        if (whole || row < end) {
            values[k] = load<stream_weight>(reinterpret_cast<const vector_t*>(weight + row * features + column));
        } else {
            for_each(values[k], [](scalar_t& element, int) { element = scalar_t(0); });
        }
    }
    Sums batch{};
#pragma unroll
    for (int k = 0; k < rows_in_flight; ++k) {
        for_each(values[k], [&batch](scalar_t& element, int i) { batch.of[i] += element; });
    }
#pragma unroll
    for (int i = 0; i < vector_width; ++i) {
        sums.of[i] += batch.of[i];
    }
}

__device__ __forceinline__ Sums sums_of_thread(const scalar_t* weight, long long hidden, long long features,
                                               long long column, long long split, long long splits) {
    Sums sums{};
    const long long end = hidden * (split + 1) / splits;
    long long row = hidden * split / splits + threadIdx.x / strip_threads;
    if (column >= features) {
        return sums;
    }
    if (!is_aligned(weight, sizeof(vector_t))) {
        for (; row < end; row += groups) {
#pragma unroll
            for (int i = 0; i < vector_width; ++i) {
                sums.of[i] += weight[row * features + column + i];
            }
        }
        return sums;
    }
    constexpr long long step = static_cast<long long>(rows_in_flight) * groups;
    for (; row + step - groups < end; row += step) {
        add_rows<true>(sums, weight, row, end, features, column);
    }
    if (row < end) {
        add_rows<false>(sums, weight, row, end, features, column);
    }
    return sums;
}

// Writes the sums of a strip's columns, which begin at `first`, over one split of the rows.
__device__ __forceinline__ void sum_split(const scalar_t* weight, accumulator_t* target, long long hidden,
                                          long long features, long long first, long long split, long long splits) {
    const int side = threadIdx.x % strip_threads * vector_width;
    const Sums sums = sums_of_thread(weight, hidden, features, first + side, split, splits);
    if constexpr (groups == 1) {
        if (first + side < features) {
#pragma unroll
            for (int i = 0; i < vector_width; ++i) {
                target[side + i] = sums.of[i];
            }
        }
    } else {
        __shared__ accumulator_t of_groups[groups][strip_columns];
#pragma unroll
        for (int i = 0; i < vector_width; ++i) {
            of_groups[threadIdx.x / strip_threads][side + i] = sums.of[i];
        }
        __syncthreads();
        for (int i = threadIdx.x; i < strip_columns && first + i < features; i += block_size) {
            accumulator_t sum = 0;
#pragma unroll
            for (int group = 0; group < groups; ++group) {
                sum += of_groups[group][i];
            }
            target[i] = sum;
        }
    }
}

// The sum of an element's partial sums first, first + step, ..., each of which is `length` elements behind the last.
// Read past the first-level cache: in a fused launch other multiprocessors have just written them.
template <int at_once>
__device__ __forceinline__ accumulator_t joined(const accumulator_t* partials, long long splits, long long length,
                                           long long element, int first, int step) {
    accumulator_t total = 0;
#pragma unroll 1
    for (long long split = first; split < splits; split += at_once * step) {
        accumulator_t values[at_once];
#pragma unroll
        for (int k = 0; k < at_once; ++k) {
            const long long other = split + k * step;
            values[k] = other < splits ? __ldcg(partials + other * length + element) : accumulator_t(0);
        }
#pragma unroll
        for (int k = 0; k < at_once; ++k) {
            total += values[k];
        }
    }
    return total;
}

// The reference halves before it adds up.
constexpr accumulator_t half = 0.5;

// Joins `count` elements from `first` on, each by threads / count threads, and multiplies them by a factor.
template <int threads, int count, typename T>
__device__ __forceinline__ void join_elements(const accumulator_t* partials, T* sums, accumulator_t factor,
                                              long long first, long long splits, long long length) {
    constexpr int ways = threads > count ? threads / count : 1;
    if constexpr (ways == 1) {
        for (int i = threadIdx.x; i < count && first + i < length; i += threads) {
            sums[first + i] = T(joined<8>(partials, splits, length, first + i, 0, 1) * factor);
        }
    } else {
        __shared__ accumulator_t parts[ways][count];
        const int side = threadIdx.x % count, way = threadIdx.x / count;
        parts[way][side] = first + side < length ? joined<8>(partials, splits, length, first + side, way, ways) : 0;
        __syncthreads();
        if (way == 0 && first + side < length) {
            accumulator_t sum = 0;
#pragma unroll
            for (int i = 0; i < ways; ++i) {
                sum += parts[i][side];
            }
            sums[first + side] = T(sum * factor);
        }
    }
}

// Whether this block is the last of its strip to arrive; what the others wrote is visible to it then.
__device__ __forceinline__ bool is_last_of(unsigned* counter, long long splits) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(counter, 1u) == static_cast<unsigned>(splits - 1);
        __threadfence();
    }
    __syncthreads();
    return last;
}

__device__ __forceinline__ void sum_and_join(const scalar_t* weight, accumulator_t* partials, accumulator_t* sums,
                                             unsigned* counters, long long hidden, long long features, long long strip,
                                             long long split, long long splits) {
    const long long first = strip * strip_columns;
    sum_split(weight, partials + split * features + first, hidden, features, first, split, splits);
    if constexpr (last_block_joins) {
        if (is_last_of(counters + first_strip + strip, splits)) {
            join_elements<block_size, strip_columns>(partials, sums, half, first, splits, features);
            __threadfence();
            __syncthreads();
            if (threadIdx.x == 0) {
                atomicAdd(counters + joined_strips, 1u);
            }
        }
    }
}

// Grid: strips, splits. `sums` and `counters` are used where the last block joins.
extern "C" __global__ void __launch_bounds__(block_size)
    sum_columns(const scalar_t* __restrict__ weight, accumulator_t* partials, accumulator_t* sums, unsigned* counters,
                long long hidden, long long features) {
    if constexpr (sums_columns) {
        begin_launch();
        let_next_begin();
        sum_and_join(weight, partials, sums, counters, hidden, features, blockIdx.x, blockIdx.y, gridDim.y);
    }
}

constexpr int join_threads = 256;
constexpr int join_strip = 32;  // elements that a block joins

extern "C" __global__ void __launch_bounds__(join_threads)
    join_sums(const accumulator_t* partials, accumulator_t* sums, long long splits, long long features) {
    begin_launch();
    let_next_begin();
    join_elements<join_threads, join_strip>(partials, sums, half, static_cast<long long>(blockIdx.x) * join_strip,
                                            splits, features);
}

// ---------------------------------------------------------------------------------------------------- sums along rows

// row_threads threads share rows_per_thread rows; a block has at least 128 threads, a fused one block_size.
constexpr int row_block = fuses ? block_size : row_threads > 128 ? row_threads : 128;
constexpr int row_groups = row_block / row_threads;
constexpr int block_rows = row_groups * rows_per_thread;
constexpr int row_warps = row_threads / 32;

enum class Factors { none, sums, partials };

struct RowSums {
    accumulator_t of[rows_per_thread];
};

// The rows that a thread shares: beyond the last one it reads the last one again, and nothing of it is written.
struct Rows {
    const scalar_t* start[rows_per_thread];

    __device__ __forceinline__ Rows(const scalar_t* x, long long first, long long rows, long long stride) {
#pragma unroll
        for (int r = 0; r < rows_per_thread; ++r) {
            start[r] = x + (first + r < rows ? first + r : rows - 1) * stride;
        }
    }
};

template <Factors factors>
__device__ __forceinline__ accumulator_t factor_of(const accumulator_t* sums, long long splits, long long features,
                                                   long long column) {
    if constexpr (factors == Factors::none) {
        return half;
    } else if constexpr (factors == Factors::sums) {
        return fuses ? __ldcg(sums + column) : sums[column];
    } else {
        return joined<2>(sums, splits, features, column, 0, 1) * half;
    }
}

// Adds vectors_in_flight vectors a row, row_threads vectors apart; unless `whole`, those of them before `features`.
template <Factors factors, bool whole>
__device__ __forceinline__ void add_vectors(RowSums& totals, const Rows& rows, const accumulator_t* sums,
                                            long long splits, long long features, long long first) {
    constexpr int step = row_threads * vector_width;
    vector_t values[vectors_in_flight][rows_per_thread];
    vector_of<accumulator_t, vector_width> scales[vectors_in_flight];
#pragma unroll
    for (int k = 0; k < vectors_in_flight; ++k) {
        const long long column = first + k * step;
        if (whole || column < features) {
#pragma unroll
            for (int r = 0; r < rows_per_thread; ++r) {
                values[k][r] = load<false>(reinterpret_cast<const vector_t*>(rows.start[r] + column));
            }
            for_each(scales[k], [sums, splits, features, column](accumulator_t& element, int i) {
                element = factor_of<factors>(sums, splits, features, column + i);
            });
        }
    }
#pragma unroll
    for (int k = 0; k < vectors_in_flight; ++k) {
        if (whole || first + k * step < features) {
            accumulator_t scale[vector_width];
            for_each(scales[k], [&scale](accumulator_t& element, int i) { scale[i] = element; });
#pragma unroll
            for (int r = 0; r < rows_per_thread; ++r) {
                accumulator_t& total = totals.of[r];
                for_each(values[k][r], [&scale, &total](scalar_t& element, int i) { total += element * scale[i]; });
            }
        }
    }
}

template <Factors factors>
__device__ __forceinline__ RowSums row_sums(const Rows& rows, const accumulator_t* sums, long long splits,
                                            long long features, bool aligned) {
    RowSums totals{};
    constexpr long long step = static_cast<long long>(vectors_in_flight) * row_threads * vector_width;
    long long column = static_cast<long long>(threadIdx.x % row_threads) * vector_width;
    if (!aligned) {
        for (column = threadIdx.x % row_threads; column < features; column += row_threads) {
            const accumulator_t scale = factor_of<factors>(sums, splits, features, column);
#pragma unroll
            for (int r = 0; r < rows_per_thread; ++r) {
                totals.of[r] += rows.start[r][column] * scale;
            }
        }
        return totals;
    }
    for (; column + step - row_threads * vector_width < features; column += step) {
        add_vectors<factors, true>(totals, rows, sums, splits, features, column);
    }
    if (column < features) {
        add_vectors<factors, false>(totals, rows, sums, splits, features, column);
    }
    return totals;
}

template <Factors factors>
__device__ __forceinline__ void reduce_rows(const scalar_t* x, const accumulator_t* sums, scalar_t* output,
                                            accumulator_t factor, long long block, long long rows, long long features,
                                            long long stride, long long splits) {
    const int group = threadIdx.x / row_threads;
    const long long first = (block * row_groups + group) * rows_per_thread;
    const Rows mine(x, first, rows, stride);
    const bool aligned = is_aligned(x, sizeof(vector_t)) && stride % vector_width == 0;
    RowSums totals = row_sums<factors>(mine, sums, splits, features, aligned);
#pragma unroll
    for (int r = 0; r < rows_per_thread; ++r) {
        totals.of[r] = sum_of_lanes(totals.of[r]);
    }
    const int lane = threadIdx.x % row_threads;
    if constexpr (row_warps == 1) {
#pragma unroll
        for (int r = 0; r < rows_per_thread; ++r) {
            if (lane == r && first + r < rows) {
                output[first + r] = scalar_t(totals.of[r] * factor);
            }
        }
    } else {
        __shared__ accumulator_t of_warps[row_groups][rows_per_thread][row_warps];
#pragma unroll
        for (int r = 0; r < rows_per_thread; ++r) {
            if (lane % 32 == r) {
                of_warps[group][r][lane / 32] = totals.of[r];
            }
        }
        __syncthreads();
        if (lane < rows_per_thread && first + lane < rows) {
            accumulator_t total = 0;
#pragma unroll
            for (int warp = 0; warp < row_warps; ++warp) {
                total += of_warps[group][lane][warp];
            }
            output[first + lane] = scalar_t(total * factor);
        }
    }
}

// `sums` are the joined sums where splits is 0, else so many partial sums.
extern "C" __global__ void __launch_bounds__(row_block)
    dot_rows(const scalar_t* __restrict__ x, const accumulator_t* __restrict__ sums, scalar_t* __restrict__ output,
             accumulator_t factor, long long rows, long long features, long long stride, long long splits) {
    if constexpr (sums_columns && !fuses) {
        begin_launch();
        if constexpr (join == join_t::dot) {
            if (splits != 0) {
                reduce_rows<Factors::partials>(x, sums, output, factor, blockIdx.x, rows, features, stride, splits);
                return;
            }
        }
        reduce_rows<Factors::sums>(x, sums, output, factor, blockIdx.x, rows, features, stride, 0);
    }
}

extern "C" __global__ void __launch_bounds__(row_block)
    sum_rows(const scalar_t* __restrict__ product, scalar_t* __restrict__ output, accumulator_t factor, long long rows,
             long long features) {
    if constexpr (algorithm == algorithm_t::gemm) {
        reduce_rows<Factors::none>(product, nullptr, output, factor, blockIdx.x, rows, features, features, 0);
    }
}

// ------------------------------------------------------------------------------------------------------- one launch

// Blocks take their work by ticket, the strips' first: a block that has to wait for strips waits for blocks that run
// already, so the launch ends whatever the order in which a device starts blocks and however few of them fit on it.
__device__ __forceinline__ long long next_ticket(unsigned* counters) {
    __shared__ unsigned taken;
    if (threadIdx.x == 0) {
        taken = atomicAdd(counters + ticket, 1u);
    }
    __syncthreads();
    return taken;
}

__device__ __forceinline__ void wait_for(const unsigned* counter, long long count) {
    if (threadIdx.x == 0) {
        while (__ldcv(counter) != count) {
#ifdef __CUDA_ARCH__
            __nanosleep(100);
#endif
        }
        __threadfence();
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(block_size)
    fused(const scalar_t* __restrict__ weight, const scalar_t* __restrict__ x, accumulator_t* partials,
          accumulator_t* sums, unsigned* counters, scalar_t* __restrict__ output, accumulator_t factor, long long rows,
          long long hidden, long long features, long long stride, long long strips, long long splits) {
    if constexpr (fuses) {
        const long long number = next_ticket(counters);
        if (number < strips * splits) {
            sum_and_join(weight, partials, sums, counters, hidden, features, number % strips, number / strips, splits);
            return;
        }
        wait_for(counters + joined_strips, strips);
        reduce_rows<Factors::sums>(x, sums, output, factor, number - strips * splits, rows, features, stride, 0);
    }
}

constexpr int strip_warps = strip_threads / 32;

// Every row's product with the sums of a strip: partial products by warp and row, `rows` of them for each warp's columns.
// A group of strip_threads threads takes rows_in_flight rows at a time.
template <bool aligned>
__device__ __forceinline__ void multiply_strip(const scalar_t* x, const accumulator_t* sums, accumulator_t* products,
                                               long long strip, long long rows, long long features, long long stride) {
    const int side = threadIdx.x % strip_threads * vector_width, lane = threadIdx.x % 32;
    const long long column = strip * strip_columns + side;
    const bool inside = column < features;
    accumulator_t scale[vector_width];
#pragma unroll
    for (int i = 0; i < vector_width; ++i) {
        scale[i] = inside ? sums[side + i] * half : accumulator_t(0);
    }
    accumulator_t* const target = products + (strip * strip_warps + threadIdx.x % strip_threads / 32) * rows;
    constexpr long long step = static_cast<long long>(groups) * rows_in_flight;
    for (long long row = static_cast<long long>(threadIdx.x / strip_threads) * rows_in_flight; row < rows; row += step) {
        vector_t values[rows_in_flight];
#pragma unroll
        for (int k = 0; k < rows_in_flight; ++k) {
            const scalar_t* const source = x + (row + k) * stride + column;
            const bool there = inside && row + k < rows;
            if (aligned && there) {
                values[k] = load<false>(reinterpret_cast<const vector_t*>(source));
            } else {
                for_each(values[k], [source, there](scalar_t& element, int i) {
                    element = !aligned && there ? source[i] : scalar_t(0);
                });
            }
        }
        accumulator_t mine = 0;
#pragma unroll
        for (int k = 0; k < rows_in_flight; ++k) {
            accumulator_t total = 0;
            for_each(values[k], [&scale, &total](scalar_t& element, int i) { total += element * scale[i]; });
            total = sum_of_lanes(total);
            mine = lane == k ? total : mine;
        }
        if (lane < rows_in_flight && row + lane < rows) {
            target[row + lane] = mine;
        }
    }
}

// Grid: a block for each strip, then one for every join_strip rows.
extern "C" __global__ void __launch_bounds__(block_size)
    through(const scalar_t* __restrict__ weight, const scalar_t* __restrict__ x, accumulator_t* products,
            unsigned* counters, scalar_t* __restrict__ output, accumulator_t factor, long long rows, long long hidden, long long features,
            long long stride, long long strips) {
    if constexpr (takes_strips) {
        const long long number = next_ticket(counters);
        if (number >= strips) {
            wait_for(counters + joined_strips, strips);
            join_elements<block_size, join_strip>(products, output, factor, (number - strips) * join_strip,
                                                  strips * strip_warps, rows);
            return;
        }
        __shared__ accumulator_t sums[strip_columns];
        sum_split(weight, sums, hidden, features, number * strip_columns, 0, 1);
        __syncthreads();
        if (is_aligned(x, sizeof(vector_t)) && stride % vector_width == 0) {
            multiply_strip<true>(x, sums, products, number, rows, features, stride);
        } else {
            multiply_strip<false>(x, sums, products, number, rows, features, stride);
        }
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            atomicAdd(counters + joined_strips, 1u);
        }
    }
}
