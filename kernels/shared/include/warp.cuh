// Sums and maxima over lanes of a warp, for each of them, in a fixed order: distances between lanes go from `first` by powers
// of two, down or up, to `last`.
#pragma once

template <int first, int last, typename T, class Join> __device__ __forceinline__ T join_lanes(T mine, Join join) {
#pragma unroll
    for (int distance = first; distance != (first > last ? last / 2 : 2 * last);
         distance = first > last ? distance / 2 : 2 * distance) {
        mine = join(mine, __shfl_xor_sync(0xFFFFFFFFu, mine, distance));
    }
    return mine;
}
template <int first = 16, int last = 1, typename T> __device__ __forceinline__ T sum_of_lanes(T mine) {
    return join_lanes<first, last>(mine, [](T a, T b) { return a + b; });
}
template <int first = 16, int last = 1, typename T> __device__ __forceinline__ T largest_of_lanes(T mine) {
    return join_lanes<first, last>(mine, [](T a, T b) { return a > b ? a : b; });
}

// The words of a value that a lane has.
template <typename T> __device__ __forceinline__ T from_lane(const T& mine, int lane) {
    T found = mine;
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(T) / 4); ++i) {
        reinterpret_cast<unsigned*>(&found)[i] =
            __shfl_sync(0xFFFFFFFFu, reinterpret_cast<const unsigned*>(&mine)[i], lane);
    }
    return found;
}
