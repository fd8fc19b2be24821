// Vectors of one to eight elements, of CUDA's own types where it has any.
#pragma once

#include "pack.cuh"

template <typename T, int width> struct VectorOf { using type = Pack<T, width>; };
template <typename T> struct VectorOf<T, 1> { using type = T; };
template <> struct VectorOf<float, 2> { using type = float2; };
template <> struct VectorOf<float, 4> { using type = float4; };
template <> struct VectorOf<double, 2> { using type = double2; };

template <typename T, int width> using vector_of = typename VectorOf<T, width>::type;

// Whether a pointer may be read or written as vectors of that many bytes.
template <typename T> __device__ __forceinline__ bool is_aligned(const T* pointer, int bytes) {
    return reinterpret_cast<unsigned long long>(pointer) % bytes == 0;
}

// The elements of a vector, one by one: f(element, position) for each.
template <typename T, typename F> __device__ __forceinline__ void for_each(T& value, F f) { f(value, 0); }
template <typename T, int width, typename F> __device__ __forceinline__ void for_each(Pack<T, width>& value, F f) {
#pragma unroll
    for (int i = 0; i < width; ++i) {
        f(value.of[i], i);
    }
}
template <typename F> __device__ __forceinline__ void for_each(float2& value, F f) {
    f(value.x, 0);
    f(value.y, 1);
}
template <typename F> __device__ __forceinline__ void for_each(float4& value, F f) {
    f(value.x, 0);
    f(value.y, 1);
    f(value.z, 2);
    f(value.w, 3);
}
template <typename F> __device__ __forceinline__ void for_each(double2& value, F f) {
    f(value.x, 0);
    f(value.y, 1);
}

// The same elements as another type.
template <typename T, int width, typename V> __device__ __forceinline__ vector_of<T, width> converted(V value) {
    if constexpr (is_same<V, vector_of<T, width>>) {
        return value;
    } else {
        T elements[width];
        for_each(value, [&elements](auto& element, int i) { elements[i] = T(element); });
        vector_of<T, width> result;
        for_each(result, [&elements](T& element, int i) { element = elements[i]; });
        return result;
    }
}

// A vector of elements that may lie off its alignment.
template <typename V, typename T> __device__ __forceinline__ V load_anywhere(const T* address) {
    V value;
    if (is_aligned(address, sizeof(V))) {
        value = load<false>(reinterpret_cast<const V*>(address));
    } else {
        for_each(value, [address](T& element, int i) { element = address[i]; });
    }
    return value;
}
