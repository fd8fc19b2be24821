// Loop nests over kept and reduced elements, as generated sources have them: places in memory, functions that
// functions.cuh lacks, and what the threads of a row do together. All of it, and a generated entry point too, is in the
// namespace of functions.cuh, so that its functions come before CUDA's own.
#pragma once

#include "functions.cuh"
#include "pack.cuh"

namespace functions {

// All threads of a pass, first of all. The next launch may begin then, and waits for the end of this one, which waits for
// the end of the one before it (early_launches.cuh).
template <bool early> __device__ __forceinline__ void begin_pass() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if constexpr (early) {
        asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
        asm volatile("griddepcontrol.wait;" ::: "memory");
    }
#endif
}

// 32 bits where no tensor has more elements: a division takes a quarter of the time.
template <bool is_short> struct Index { using type = int; };
template <> struct Index<false> { using type = long long; };

// The greatest power of two up to `most`, which is one, that divides sizes.
template <class... Sizes> constexpr int common(int most, Sizes... sizes) {
    return ((sizes % most == 0) && ...) ? most : common(most / 2, sizes...);
}
// The `items` elements from an address on, in as few accesses as multiples of `width` elements permit: the first element
// of a tensor is aligned, and the address is a multiple of `width` behind it.
template <class T, int width> constexpr int pack_width = width * sizeof(T) <= 16 ? width : 16 / sizeof(T);
template <int items, int width, class T> __device__ __forceinline__ Pack<T, items> read(const T* address) {
    constexpr int own = pack_width<T, width>;
    Pack<T, items> found;
#pragma unroll
    for (int i = 0; i < items; i += own) {
        if constexpr (own == 1) {
            found.of[i] = address[i];
        } else {
            const auto pack = load<false>(reinterpret_cast<const Pack<T, own>*>(address + i));
#pragma unroll
            for (int j = 0; j < own; ++j) {
                found.of[i + j] = pack.of[j];
            }
        }
    }
    return found;
}
template <int width, int items, class T> __device__ __forceinline__ void write(T* address, const Pack<T, items>& made) {
    constexpr int own = pack_width<T, width>;
#pragma unroll
    for (int i = 0; i < items; i += own) {
        if constexpr (own == 1) {
            address[i] = made.of[i];
        } else {
            Pack<T, own> pack;
#pragma unroll
            for (int j = 0; j < own; ++j) {
                pack.of[j] = made.of[i + j];
            }
            store<false>(reinterpret_cast<Pack<T, own>*>(address + i), pack);
        }
    }
}
// How often the lanes of a row go over its elements, each with `items` at once, and how often all of them have some. What
// few trips read stays in registers from one loop over the row to the next: they are unrolled, so that the compiler sees
// the same places. Of many, several reads are under way at a time, since nothing is asked between them.
template <long long size, int lanes, int items> struct Trips {
    static constexpr int whole = static_cast<int>(size / (lanes * items)), count = whole + (size % (lanes * items) != 0);
    static constexpr int unrolled = count > 0 && count * items <= 32 ? count : items < 8 ? 8 / items : 1;

    template <class Place, class Body> static __device__ __forceinline__ void each(int lane, const Body& body) {
#pragma unroll(unrolled)
        for (int trip = 0; trip < whole; ++trip) {
            body(static_cast<Place>(trip) * (lanes * items) + lane * items);
        }
        if constexpr (whole < count) {
            const Place place = static_cast<Place>(whole) * (lanes * items) + lane * items;
            if (place < size) {
                body(place);
            }
        }
    }
};

template <class T> __device__ __forceinline__ constexpr T floor_div(T x, long long y) {
#ifndef __CUDA_ARCH__
    // Of these a GPU has some answer, and a CPU stops the process.
    if (y == 0 || y == -1) {
        return y == 0 ? T(0) : static_cast<T>(-static_cast<unsigned long long>(x));
    }
#endif
    const T quotient = static_cast<T>(x / y);
    return x % y != 0 && (x < 0) != (y < 0) ? quotient - 1 : quotient;
}
template <class T> __device__ __forceinline__ constexpr T floor_mod(T x, long long y) {
    return static_cast<T>(x - floor_div(x, y) * y);
}
// A place that a tensor names, counted from the end where it is negative.
template <class T> __device__ __forceinline__ T wrapped(T place, long long size) {
    return place < 0 ? place + static_cast<T>(size) : place;
}
template <class T> __device__ __forceinline__ T checked(T place, long long size) {
    place = wrapped(place, size);
    if (place < 0 || place >= size) {
        __trap();
    }
    return place;
}
__device__ __forceinline__ void require(bool holds) {
    if (!holds) {
        __trap();
    }
}
// The value of a function where a condition holds, which alone calls it.
template <class Function, class Other>
__device__ __forceinline__ auto when(bool condition, Other other, Function function) -> decltype(function()) {
    return condition ? function() : static_cast<decltype(function())>(other);
}

// Of any type; a NaN stays one, as in torch.
template <class T> __device__ __forceinline__ constexpr T larger(T x, T y) { return x > y || x != x ? x : y; }
template <class T> __device__ __forceinline__ constexpr T smaller(T x, T y) { return x < y || x != x ? x : y; }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
// One instruction each, where comparisons are three.
template <> __device__ __forceinline__ float larger(float x, float y) {
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(y));
    return x;
}
template <> __device__ __forceinline__ float smaller(float x, float y) {
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(y));
    return x;
}
#endif
template <class T, class U> __device__ __forceinline__ constexpr auto larger(T x, U y) -> decltype(x + y) {
    return x > y || x != x ? decltype(x + y)(x) : decltype(x + y)(y);
}
template <class T, class U> __device__ __forceinline__ constexpr auto smaller(T x, U y) -> decltype(x + y) {
    return x < y || x != x ? decltype(x + y)(x) : decltype(x + y)(y);
}
// The nearest value that scalar_t has.
__device__ __forceinline__ accumulator_t rounded(accumulator_t x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if constexpr (is_same<scalar_t, bfloat_t>) {
        // As a pair's upper half, by F2FP: to round one value and widen it ptxas takes F2F, which is slower.
        unsigned pair;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(static_cast<float>(x)), "f"(0.0f));
        return __uint_as_float(pair);
    }
#endif
    return accumulator_t(scalar_t(x));
}
template <class T> __device__ __forceinline__ T magnitude(T x) { return x < 0 ? -x : x; }
__device__ __forceinline__ accumulator_t magnitude(accumulator_t x) { return abs(x); }
template <class T> __device__ __forceinline__ T inverse(T x) { return ~x; }
__device__ __forceinline__ bool inverse(bool x) { return !x; }
template <class T> __device__ __forceinline__ T sign_of(T x) { return static_cast<T>((x > 0) - (x < 0)); }

#define TUNEBENCH_FUNCTION(name)                                                     \
    __device__ __forceinline__ accumulator_t name(accumulator_t x) {                 \
        return is_double ? accumulator_t(::name(double(x))) : accumulator_t(::name##f(float(x))); \
    }
TUNEBENCH_FUNCTION(tan)
TUNEBENCH_FUNCTION(asin)
TUNEBENCH_FUNCTION(acos)
TUNEBENCH_FUNCTION(atan)
TUNEBENCH_FUNCTION(sinh)
TUNEBENCH_FUNCTION(cosh)
TUNEBENCH_FUNCTION(asinh)
TUNEBENCH_FUNCTION(acosh)
TUNEBENCH_FUNCTION(atanh)
TUNEBENCH_FUNCTION(exp2)
TUNEBENCH_FUNCTION(log2)
TUNEBENCH_FUNCTION(log10)
TUNEBENCH_FUNCTION(erfc)
TUNEBENCH_FUNCTION(lgamma)
TUNEBENCH_FUNCTION(rint)
#undef TUNEBENCH_FUNCTION
#define TUNEBENCH_FUNCTION(name)                                                              \
    __device__ __forceinline__ accumulator_t name(accumulator_t x, accumulator_t y) {         \
        return is_double ? accumulator_t(::name(double(x), double(y)))                        \
                         : accumulator_t(::name##f(float(x), float(y)));                      \
    }
TUNEBENCH_FUNCTION(atan2)
TUNEBENCH_FUNCTION(fmod)
TUNEBENCH_FUNCTION(copysign)
TUNEBENCH_FUNCTION(hypot)
#undef TUNEBENCH_FUNCTION
// Of the divisor's sign, as in Python.
__device__ __forceinline__ accumulator_t remainder(accumulator_t x, accumulator_t y) {
    const accumulator_t rest = fmod(x, y);
    return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}
template <class T, class U> __device__ __forceinline__ auto remainder(T x, U y) -> decltype(x % y) {
    return floor_mod(decltype(x % y)(x), y);
}
template <class T> __device__ __forceinline__ bool is_negative(T x) { return x < 0; }
__device__ __forceinline__ bool is_negative(accumulator_t x) { return copysign(1, x) < 0; }

// The joins of reductions. The first element that is a NaN, or the best of equal ones, is the first of all.
struct Sum {
    template <class T> static __device__ __forceinline__ T join(T a, T b) { return a + b; }
};
struct Product {
    template <class T> static __device__ __forceinline__ T join(T a, T b) { return a * b; }
};
struct Max {
    template <class T> static __device__ __forceinline__ T join(T a, T b) { return larger<T>(a, b); }
};
struct Min {
    template <class T> static __device__ __forceinline__ T join(T a, T b) { return smaller<T>(a, b); }
};
struct Any {
    static __device__ __forceinline__ bool join(bool a, bool b) { return a || b; }
};
struct Parity {
    template <class T> static __device__ __forceinline__ T join(T a, T b) { return a ^ b; }
};

template <class T> struct Placed {
    T value;
    long long place;  // -1 where there is no element
};
template <bool is_largest> struct Best {
    template <class T> static __device__ __forceinline__ Placed<T> join(Placed<T> a, Placed<T> b) {
        if (a.place < 0 || b.place < 0) {
            return a.place < 0 ? b : a;
        }
        const bool a_is_none = a.value != a.value, b_is_none = b.value != b.value;
        if (a_is_none != b_is_none) {
            return a_is_none ? a : b;
        }
        if (a_is_none || a.value == b.value) {
            return a.place < b.place ? a : b;
        }
        return (is_largest ? a.value > b.value : a.value < b.value) ? a : b;
    }
    // Adds the next element of a row: the first of equal ones stays, and the first NaN.
    template <class T> static __device__ __forceinline__ Placed<T> add(Placed<T> a, T value, long long place) {
        const bool is_better_or_none = !(is_largest ? value <= a.value : value >= a.value);
        return a.place < 0 || (is_better_or_none && a.value == a.value) ? Placed<T>{value, place} : a;
    }
};

// A mean, the sum of squares around it, and of how many: joined as Chan, Golub and LeVeque (1983) do.
struct Moments {
    accumulator_t mean, squares, count;
};
struct Spread {
    // A quotient that is rounded correctly takes more instructions than all the rest.
    static __device__ __forceinline__ accumulator_t quotient(accumulator_t x, accumulator_t y) {
        return is_double ? x / y : x * __fdividef(1.0f, y);
    }
    static __device__ __forceinline__ Moments join(Moments a, Moments b) {
        const accumulator_t count = a.count + b.count, step = b.mean - a.mean;
        const accumulator_t share = quotient(b.count, count > 0 ? count : accumulator_t(1));
        return {a.mean + step * share, a.squares + b.squares + step * step * a.count * share, count};
    }
    static __device__ __forceinline__ Moments add(Moments a, accumulator_t value) {
        const accumulator_t count = a.count + 1, step = value - a.mean, mean = a.mean + quotient(step, count);
        return {mean, a.squares + step * (value - mean), count};
    }
    // Adds several values, a power of two, by one quotient. Since they are summed in pairs, the mean of equal ones is exact.
    template <int number> static __device__ __forceinline__ Moments add(Moments a, const accumulator_t (&values)[number]) {
        accumulator_t sums[number];
#pragma unroll
        for (int i = 0; i < number; ++i) {
            sums[i] = values[i];
        }
#pragma unroll
        for (int half = number / 2; half > 0; half /= 2) {
#pragma unroll
            for (int i = 0; i < half; ++i) {
                sums[i] += sums[i + half];
            }
        }
        Moments several{sums[0] / number, 0, number};
#pragma unroll
        for (int i = 0; i < number; ++i) {
            several.squares += square(values[i] - several.mean);
        }
        return join(a, several);
    }
};

// Returns what another lane has, by an exchange of words.
template <class T, class Exchange> __device__ __forceinline__ T from_lane(T mine, Exchange exchange) {
    if constexpr (sizeof(T) < 4) {
        return static_cast<T>(exchange(static_cast<unsigned>(mine)));
    }
    T found = mine;
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(T) / 4); ++i) {
        reinterpret_cast<unsigned*>(&found)[i] = exchange(reinterpret_cast<const unsigned*>(&mine)[i]);
    }
    return found;
}
template <class T> __device__ __forceinline__ T from_lane_beside(T mine, int distance) {
    return from_lane(mine, [&](unsigned word) { return __shfl_xor_sync(0xFFFFFFFFu, word, distance); });
}

// The threads of a block: `lanes` for each of `rows`, powers of two; neighbours are lanes of one row, or of rows beside it.
template <int rows, int lanes, bool neighbours_are_lanes> struct Threads {
    static constexpr int shuffled = !neighbours_are_lanes ? 1 : lanes < 32 ? lanes : 32;

    // The compiler has to know the number of a single row or lane: places in a window are constants then.
    static __device__ __forceinline__ int row() {
        return rows == 1 ? 0 : neighbours_are_lanes ? threadIdx.x / lanes : threadIdx.x % rows;
    }
    static __device__ __forceinline__ int lane() {
        return lanes == 1 ? 0 : neighbours_are_lanes ? threadIdx.x % lanes : threadIdx.x / rows;
    }

    // What the lanes of a row have, joined in one order, for each of them.
    template <class Join, class T> static __device__ __forceinline__ T join(T mine) {
#pragma unroll
        for (int distance = shuffled / 2; distance > 0; distance /= 2) {
            const T other = from_lane_beside(mine, distance);
            mine = lane() & distance ? Join::join(other, mine) : Join::join(mine, other);
        }
        if constexpr (lanes > shuffled) {
            __shared__ T shared[rows][lanes / shuffled];
            __syncthreads();
            if (lane() % shuffled == 0) {
                shared[row()][lane() / shuffled] = mine;
            }
            __syncthreads();
            mine = shared[row()][0];
            for (int part = 1; part < lanes / shuffled; ++part) {
                mine = Join::join(mine, shared[row()][part]);
            }
        }
        return mine;
    }

    // Makes of each element of a thread what all elements up to it make, with those of the lanes before this one and what
    // came before; `before` becomes that of all elements of all lanes.
    template <int number, class T, class Join>
    static __device__ __forceinline__ void scan(T (&mine)[number], T& before, bool is_first, Join join) {
#pragma unroll
        for (int i = 1; i < number; ++i) {
            mine[i] = join(mine[i - 1], mine[i]);
        }
        T all = mine[number - 1], earlier = before;
        bool is_nothing = is_first;  // nothing is before this lane
        const auto add = [&](T more) {
            earlier = is_nothing ? more : join(earlier, more);
            is_nothing = false;
        };
        const int of_warp = lane() % shuffled, warp = lane() / shuffled;
        const auto from_below = [&](int distance) {
            return from_lane(all, [&](unsigned word) { return __shfl_up_sync(0xFFFFFFFFu, word, distance, shuffled); });
        };
#pragma unroll
        for (int distance = 1; distance < shuffled; distance *= 2) {
            const T other = from_below(distance);
            all = of_warp >= distance ? join(other, all) : all;
        }
        const T beside = shuffled > 1 ? from_below(1) : all;
        if constexpr (lanes > shuffled) {
            __shared__ T shared[rows][lanes / shuffled];
            __syncthreads();
            if (of_warp == shuffled - 1) {
                shared[row()][warp] = all;
            }
            __syncthreads();
            all = shared[row()][0];
            T of_warps = all;
            for (int part = 1; part < lanes / shuffled; ++part) {
                of_warps = part < warp ? join(of_warps, shared[row()][part]) : of_warps;
                all = join(all, shared[row()][part]);
            }
            if (warp > 0) {
                add(of_warps);
            }
        } else if constexpr (shuffled > 1) {
            all = from_lane(
                all, [&](unsigned word) { return __shfl_sync(0xFFFFFFFFu, word, shuffled - 1, shuffled); });
        }
        if (of_warp > 0) {
            add(beside);
        }
#pragma unroll
        for (int i = 0; i < number; ++i) {
            mine[i] = is_nothing ? mine[i] : join(earlier, mine[i]);
        }
        before = is_first ? all : join(before, all);
    }
};

}  // namespace functions
