// Reductions of rows, and a function of every element, or of every row, that knows their results.
//
// A row has row_threads threads, from a few lanes of a warp to the whole block; a block of block_size threads has several
// rows where they are short. Vectors of a row are dealt out to its threads in turn; a thread has vectors_per_thread of them
// in flight. Reductions come in stages: those of a stage are made in one pass over the row, and what they need of each other
// comes from earlier stages. `keep` says where the row is between the passes:
//
//   registers   all of it is in the threads' registers: vectors_per_thread covers it
//   shared      in shared memory; a thread reads what it has itself written
//   memory      it is read again
//   split       a row has several blocks, and every stage is a launch (row_partials) that leaves a partial result for each
//               block; the last launch (row_results) applies the function. All join the partial results in one order.
//
// A row whose beginning is no address of a vector is read from the vector that holds its first element: the elements of the
// rows beside it are left out. The class F of the functions is generated:
//
//   tensors, features_given, channels_given, rows_given   how many there are of full size, and with a value for each
//                                                 column, channel or row
//   reductions, stages                            how many there are, and in how many passes they are made
//   given, row_step(k)                            where the values of a row go; 0 where all rows have one, else 1
//   is_of_rows                                    whether the function is of a row, not of each element
//   online_max, online_sum                        the two reductions of one pass over exp(x - max), or -1
//   prepares, prepared(e)                         whether the first tensor's elements are not as they were read, and what
//                                                 they are: made once for each time that they are read, and rounded as a
//                                                 tensor between the two would be
//   add<stage>(sums, e, r)                        one element's terms of a stage
//   top(e, r)                                     one element's term of the maximum of an online sum
//   join(number, a, b), identity(number)          of a reduction
//   result(e, r)                                  the function
#pragma once

#include "functions.cuh"
#include "vector.cuh"

namespace row_reduction {

using functions::max;

using vector_t = vector_of<scalar_t, vector_width>;

constexpr bool in_registers = keep == keep_t::registers;
constexpr bool in_shared = keep == keep_t::shared;
constexpr bool splits_rows = keep == keep_t::split;
constexpr bool stream_loads = load_hint == load_hint_t::streaming && keep != keep_t::memory && !splits_rows;
constexpr int block_rows = block_size / row_threads;
constexpr int row_warps = row_threads > 32 ? row_threads / 32 : 1;
constexpr int lanes = row_threads < 32 ? row_threads : 32;

struct Sum {
    static __device__ __forceinline__ accumulator_t identity() { return 0; }
    static __device__ __forceinline__ accumulator_t join(accumulator_t a, accumulator_t b) { return a + b; }
};
struct Product {
    static __device__ __forceinline__ accumulator_t identity() { return 1; }
    static __device__ __forceinline__ accumulator_t join(accumulator_t a, accumulator_t b) { return a * b; }
};
struct Max {
    static __device__ __forceinline__ accumulator_t identity() { return -INFINITY; }
    static __device__ __forceinline__ accumulator_t join(accumulator_t a, accumulator_t b) { return functions::max(a, b); }
};
struct Min {
    static __device__ __forceinline__ accumulator_t identity() { return INFINITY; }
    static __device__ __forceinline__ accumulator_t join(accumulator_t a, accumulator_t b) { return functions::min(a, b); }
};

// A maximum with a sum of exp(x - maximum), made together (Milakov and Gimelshein 2018). While the maximum is infinite the
// sum is of exp(x), so that no NaN arises before it is known what there is in the row.
__device__ __forceinline__ accumulator_t rescaled(accumulator_t sum, accumulator_t from, accumulator_t shift) {
    return sum * functions::exp(from - shift);
}
__device__ __forceinline__ void join_online(accumulator_t& top, accumulator_t& sum, accumulator_t other_top,
                                            accumulator_t other_sum) {
    const accumulator_t next = max(top, other_top), shift = functions::zero_if_infinite(next);
    sum = rescaled(sum, functions::zero_if_infinite(top), shift) +
          rescaled(other_sum, functions::zero_if_infinite(other_top), shift);
    top = next;
}

// Dimension 1 of what the rows are of: a channel is `inner` neighbours in memory, and there are `count` of them.
struct Channels {
    long long inner, count;
    bool is_short;

    __device__ __forceinline__ long long of(long long element) const {
        // A division of 32 bits takes a quarter of the time of one of 64.
        if (is_short) {
            return static_cast<unsigned>(element) / static_cast<unsigned>(inner) % static_cast<unsigned>(count);
        }
        return element / inner % count;
    }
};

// Where the tensors are, and the row's part of this thread.
template <class F, bool aligned> struct Row {
    static constexpr int values = F::tensors + F::features_given + F::channels_given;

    const F& f;
    const scalar_t* const* data;           // of each tensor, the row's first element
    const scalar_t* const* features_data;  // of each vector of a value a column
    const scalar_t* const* channels_data;  // of each vector of a value a channel
    Channels channels;
    long long before;  // elements of the rows before this one
    scalar_t* output;                      // the row's first element, or its one value
    scalar_t* shared;                      // the row's place in shared memory
    long long features;
    int shift;           // elements of the row's first vector that are not the row's
    long long begin, end;  // the vectors of this block
    int thread;          // within the row
    bool exists;         // or it stands in for a row behind the last one

    vector_t kept[vectors_per_thread][F::tensors];
    accumulator_t results[F::reductions];

    __device__ __forceinline__ long long first_of(long long vector) const {
        return aligned ? vector * vector_width : vector * vector_width - shift;
    }
    __device__ __forceinline__ bool has(long long element) const {
        return aligned || (element >= 0 && element < features);
    }

    template <bool streams>
    __device__ __forceinline__ vector_t read(const scalar_t* values, long long first) const {
        if (aligned || (first >= 0 && first + vector_width <= features && is_aligned(values + first, sizeof(vector_t)))) {
            return load<streams>(reinterpret_cast<const vector_t*>(values + first));
        }
        vector_t vector;
        for_each(vector, [&](scalar_t& value, int e) {
            value = first + e >= 0 && first + e < features ? values[first + e] : scalar_t(0);
        });
        return vector;
    }

    __device__ __forceinline__ void read_channels(const scalar_t* from, long long first,
                                                  accumulator_t (&e)[vector_width][values], int t) const {
        if (aligned && channels.inner % vector_width == 0) {
            const accumulator_t value = accumulator_t(from[channels.of(before + first)]);
#pragma unroll
            for (int at = 0; at < vector_width; ++at) {
                e[at][t] = value;
            }
        } else {
#pragma unroll
            for (int at = 0; at < vector_width; ++at) {
                e[at][t] = has(first + at) ? accumulator_t(from[channels.of(before + first + at)]) : accumulator_t(0);
            }
        }
    }

    __device__ __forceinline__ vector_t* place_in_shared(long long vector, int t) const {
        return reinterpret_cast<vector_t*>(shared) + (vector * F::tensors + t);
    }

    // The vectors from `base` on that this thread has in flight, from memory or from where they are kept.
    template <bool again> __device__ __forceinline__ void fetch(long long base) {
#pragma unroll
        for (int k = 0; k < vectors_per_thread; ++k) {
            const long long vector = base + static_cast<long long>(k) * row_threads;
            if (exists && vector < end) {
#pragma unroll
                for (int t = 0; t < F::tensors; ++t) {
                    if constexpr (again && in_shared) {
                        kept[k][t] = *place_in_shared(vector, t);
                    } else {
                        kept[k][t] = read<stream_loads>(data[t], first_of(vector));
                    }
                }
            }
        }
        if constexpr (F::prepares && !(again && in_shared)) {
            each_vector(base, [&](int k, long long, accumulator_t(&e)[vector_width][values]) {
                for_each(kept[k][0], [&](scalar_t& value, int at) { value = scalar_t(f.prepared(e[at])); });
            });
        }
        if constexpr (!again && in_shared) {
#pragma unroll
            for (int k = 0; k < vectors_per_thread; ++k) {
                const long long vector = base + static_cast<long long>(k) * row_threads;
                if (exists && vector < end) {
#pragma unroll
                    for (int t = 0; t < F::tensors; ++t) {
                        *place_in_shared(vector, t) = kept[k][t];
                    }
                }
            }
        }
    }

    // body(k, vector, e, element): every element of the vectors in flight; `e` are its values, of all tensors.
    template <class Body> __device__ __forceinline__ void each_vector(long long base, Body body) {
#pragma unroll
        for (int k = 0; k < vectors_per_thread; ++k) {
            const long long vector = base + static_cast<long long>(k) * row_threads;
            if (exists && vector < end) {
                accumulator_t e[vector_width][values];
#pragma unroll
                for (int t = 0; t < F::tensors; ++t) {
                    for_each(kept[k][t], [&](scalar_t& value, int at) { e[at][t] = accumulator_t(value); });
                }
#pragma unroll
                for (int t = 0; t < F::features_given; ++t) {
                    vector_t columns = read<false>(features_data[t], first_of(vector));
                    for_each(columns, [&](scalar_t& value, int at) { e[at][F::tensors + t] = accumulator_t(value); });
                }
#pragma unroll
                for (int t = 0; t < F::channels_given; ++t) {
                    read_channels(channels_data[t], first_of(vector), e, F::tensors + F::features_given + t);
                }
                body(k, first_of(vector), e);
            }
        }
    }

    template <class Body> __device__ __forceinline__ void each_element(long long base, Body body) {
        each_vector(base, [&](int, long long first, accumulator_t(&e)[vector_width][values]) {
#pragma unroll
            for (int at = 0; at < vector_width; ++at) {
                if (has(first + at)) {
                    body(e[at]);
                }
            }
        });
    }

    template <int stage> static constexpr bool is_online() { return F::online_max >= 0 && stage == F::online_stage; }

    template <int stage> __device__ __forceinline__ void add(long long base, accumulator_t* sums) {
        if constexpr (is_online<stage>()) {
            accumulator_t top = sums[F::online_max];
            each_element(base, [&](const accumulator_t* e) { top = max(top, f.top(e, results)); });
            const accumulator_t shift = functions::zero_if_infinite(top);
            accumulator_t sum =
                rescaled(sums[F::online_sum], functions::zero_if_infinite(sums[F::online_max]), shift);
            each_element(base, [&](const accumulator_t* e) { sum += functions::exp(f.top(e, results) - shift); });
            sums[F::online_max] = top;
            sums[F::online_sum] = sum;
        }
        each_element(base, [&](const accumulator_t* e) { f.template add<stage>(sums, e, results); });
    }

    // Puts another thread's sums of a stage into these.
    template <int stage>
    static __device__ __forceinline__ void join(accumulator_t* sums, const accumulator_t* others) {
        if constexpr (is_online<stage>()) {
            join_online(sums[F::online_max], sums[F::online_sum], others[F::online_max], others[F::online_sum]);
        }
        F::template join<stage>(sums, others);
    }

    template <int stage, int width> static __device__ __forceinline__ void join_lanes(accumulator_t* sums) {
#pragma unroll
        for (int distance = width / 2; distance > 0; distance /= 2) {
            accumulator_t others[F::reductions];
#pragma unroll
            for (int n = 0; n < F::reductions; ++n) {
                if (F::is_of(n, stage)) {
                    others[n] = __shfl_xor_sync(0xffffffffu, sums[n], distance);
                }
            }
            join<stage>(sums, others);
        }
    }

    // The sums of all threads of the row, for each of them.
    template <int stage> __device__ __forceinline__ void join_threads(accumulator_t* sums, int& turn) {
        join_lanes<stage, lanes>(sums);
        if constexpr (row_warps > 1) {
            // Written in turns: when a half is written again, all threads have passed a barrier since they read it.
            __shared__ accumulator_t of_warps[2][F::reductions][block_size / 32];
            const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
            for (int n = 0; n < F::reductions; ++n) {
                if (F::is_of(n, stage) && lane == 0) {
                    of_warps[turn][n][warp] = sums[n];
                }
            }
            __syncthreads();
#pragma unroll
            for (int n = 0; n < F::reductions; ++n) {
                if (F::is_of(n, stage)) {
                    sums[n] = of_warps[turn][n][warp / row_warps * row_warps + lane % row_warps];
                }
            }
            turn ^= 1;
            join_lanes<stage, row_warps>(sums);
        }
    }

    // What a sum of exp(x - maximum) is of a row whose maximum is infinite.
    template <int stage> __device__ __forceinline__ void take(const accumulator_t* sums) {
#pragma unroll
        for (int n = 0; n < F::reductions; ++n) {
            if (F::is_of(n, stage)) {
                results[n] = sums[n];
            }
        }
        if constexpr (is_online<stage>() && !F::online_is_finite) {
            if (functions::abs(results[F::online_max]) == accumulator_t(INFINITY)) {
                results[F::online_sum] = NAN;
            }
        }
    }

    template <int stage> __device__ __forceinline__ void sum_of_block(accumulator_t* sums, int& turn) {
#pragma unroll
        for (int n = 0; n < F::reductions; ++n) {
            sums[n] = F::identity(n);
        }
        if constexpr (in_registers) {
            if constexpr (stage == 0) {
                fetch<false>(begin + thread);
            }
            add<stage>(begin + thread, sums);
        } else {
            for (long long base = begin + thread; base < end; base += row_threads * vectors_per_thread) {
                fetch<(stage > 0)>(base);
                add<stage>(base, sums);
            }
        }
        join_threads<stage>(sums, turn);
    }

    template <int stage = 0> __device__ __forceinline__ void reduce(int& turn) {
        if constexpr (stage < F::stages) {
            accumulator_t sums[F::reductions];
            sum_of_block<stage>(sums, turn);
            take<stage>(sums);
            reduce<stage + 1>(turn);
        }
    }

    __device__ __forceinline__ void write(long long base) {
        each_vector(base, [&](int, long long first, accumulator_t(&e)[vector_width][values]) {
            vector_t made;
            for_each(made, [&](scalar_t& value, int at) { value = scalar_t(f.result(e[at], results)); });
            if (aligned ||
                (first >= 0 && first + vector_width <= features && is_aligned(output + first, sizeof(vector_t)))) {
                store<streams_results>(reinterpret_cast<vector_t*>(output + first), made);
            } else {
                for_each(made, [&](scalar_t& value, int at) {
                    if (has(first + at)) {
                        output[first + at] = value;
                    }
                });
            }
        });
    }

    __device__ __forceinline__ void finish() {
        if constexpr (F::is_of_rows) {
            if (exists && thread == 0 && begin == 0) {
                *output = scalar_t(f.result(nullptr, results));
            }
        } else if constexpr (in_registers) {
            write(begin + thread);
        } else {
            for (long long base = begin + thread; base < end; base += row_threads * vectors_per_thread) {
                fetch<true>(base);
                write(base);
            }
        }
    }
};

// What a launch is given.
template <class F> struct Task {
    F f;
    const scalar_t* tensors[F::tensors];
    const scalar_t* features_data[F::features_given ? F::features_given : 1];
    const scalar_t* channels_data[F::channels_given ? F::channels_given : 1];
    const scalar_t* row_values[F::rows_given ? F::rows_given : 1];
    scalar_t* output;
    long long rows, features, inner, channels;

    __device__ __forceinline__ bool is_aligned_throughout() const {
        bool all = features % vector_width == 0 && (F::is_of_rows || is_aligned(output, sizeof(vector_t)));
#pragma unroll
        for (int t = 0; t < F::tensors; ++t) {
            all = all && is_aligned(tensors[t], sizeof(vector_t));
        }
#pragma unroll
        for (int t = 0; t < F::features_given; ++t) {
            all = all && is_aligned(features_data[t], sizeof(vector_t));
        }
        return all;
    }

    // The elements between the address of a vector and the row's first element; none where all rows lie alike, for their
    // vectors would be one more than space is planned for.
    __device__ __forceinline__ int shift_of(long long row) const {
        if (features % vector_width == 0) {
            return 0;
        }
        const unsigned long long address = reinterpret_cast<unsigned long long>(tensors[0] + row * features);
        return static_cast<int>(address % sizeof(vector_t) / sizeof(scalar_t));
    }
    __device__ __forceinline__ long long vectors(int shift) const {
        return (features + shift + vector_width - 1) / vector_width;
    }

    // act(row): one row under this block's threads, its vectors in `splits` equal parts of which this is number `split`.
    template <bool aligned, class Act>
    __device__ __forceinline__ void row_of(long long row, long long split, long long splits, scalar_t* shared, Act act) {
        const bool exists = row < rows;
        const scalar_t* data[F::tensors];
#pragma unroll
        for (int t = 0; t < F::tensors; ++t) {
            data[t] = tensors[t] + row * features;
        }
#pragma unroll
        for (int k = 0; k < F::rows_given; ++k) {
            f.given[k] = exists ? accumulator_t(row_values[k][F::row_step(k) * row]) : accumulator_t(0);
        }
        const int shift = aligned ? 0 : shift_of(row);
        const long long all = vectors(shift), part = (all + splits - 1) / splits;
        const long long begin = split * part;
        Row<F, aligned> one{f,
                            data,
                            features_data,
                            channels_data,
                            Channels{inner, channels, rows * features < 1ll << 31},
                            row * features,
                            F::is_of_rows ? output + row : output + row * features,
                            shared,
                            features,
                            shift,
                            begin,
                            begin + part < all ? begin + part : all,
                            static_cast<int>(threadIdx.x % row_threads),
                            exists};
        act(one);
    }

    template <bool aligned> __device__ __forceinline__ void all_rows(scalar_t* shared) {
        int turn = 0;
        // Vectors of a row in shared memory, with one more where it does not begin on one.
        const long long room = (features + vector_width - 1) / vector_width + 1;
        const int number = threadIdx.x / row_threads;
        scalar_t* const own = shared + number * room * vector_width * F::tensors;
        for (long long first = static_cast<long long>(blockIdx.x) * block_rows; first < rows;
             first += static_cast<long long>(gridDim.x) * block_rows) {
            row_of<aligned>(first + number, 0, 1, own, [&](auto& row) {
                row.reduce(turn);
                row.finish();
            });
        }
    }

    // The results of the stages before `stage` from the blocks' partial results, each of which has all reductions'.
    template <int stage, bool aligned>
    __device__ __forceinline__ void join_partials(Row<F, aligned>& row, const accumulator_t* partials, long long splits,
                                                  int stages) {
        if constexpr (stage < F::stages) {
            if (stage < stages) {
                accumulator_t sums[F::reductions], others[F::reductions];
#pragma unroll
                for (int n = 0; n < F::reductions; ++n) {
                    sums[n] = F::identity(n);
                }
                for (long long split = threadIdx.x % 32; split < splits; split += 32) {
#pragma unroll
                    for (int n = 0; n < F::reductions; ++n) {
                        others[n] = partials[split * F::reductions + n];
                    }
                    Row<F, aligned>::template join<stage>(sums, others);
                }
                Row<F, aligned>::template join_lanes<stage, 32>(sums);
                row.template take<stage>(sums);
                join_partials<stage + 1, aligned>(row, partials, splits, stages);
            }
        }
    }

    template <int stage, bool aligned>
    __device__ __forceinline__ void partial_sums(Row<F, aligned>& row, accumulator_t* target, int wanted) {
        if constexpr (stage < F::stages) {
            if (stage == wanted) {
                int turn = 0;
                accumulator_t sums[F::reductions];
                row.template sum_of_block<stage>(sums, turn);
#pragma unroll
                for (int n = 0; n < F::reductions; ++n) {
                    if (F::is_of(n, stage) && threadIdx.x == 0) {
                        target[n] = sums[n];
                    }
                }
            } else {
                partial_sums<stage + 1, aligned>(row, target, wanted);
            }
        }
    }

    template <bool aligned>
    __device__ __forceinline__ void split_rows(accumulator_t* partials, long long splits, int stage, bool finishes) {
        const long long number = blockIdx.x / splits, split = blockIdx.x % splits;
        row_of<aligned>(number, split, splits, nullptr, [&](Row<F, aligned>& row) {
            accumulator_t* const own = partials + number * splits * F::reductions;
            join_partials<0, aligned>(row, own, splits, stage);
            if (finishes) {
                row.finish();
            } else {
                partial_sums<0, aligned>(row, own + split * F::reductions, stage);
            }
        });
    }
};

template <class F> __device__ __forceinline__ void rows_of_blocks(Task<F> task) {
    if constexpr (!splits_rows) {
        extern __shared__ __align__(16) unsigned char shared_memory[];
        scalar_t* const shared = reinterpret_cast<scalar_t*>(shared_memory);
        task.is_aligned_throughout() ? task.template all_rows<true>(shared) : task.template all_rows<false>(shared);
    }
}

// Stage number `stage` of rows of several blocks each; behind the last one the function.
template <class F>
__device__ __forceinline__ void parts_of_rows(Task<F> task, accumulator_t* partials, long long splits, int stage,
                                              bool finishes) {
    if constexpr (splits_rows) {
        task.is_aligned_throughout() ? task.template split_rows<true>(partials, splits, stage, finishes)
                                     : task.template split_rows<false>(partials, splits, stage, finishes);
    }
}

}  // namespace row_reduction
