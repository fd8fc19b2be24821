// Vector loads and stores of 1, 2 or 4 elements, with the cache hints that a kernel may choose between.
#pragma once

template <typename T, int width> struct VectorOf;
template <typename T> struct VectorOf<T, 1> { using type = T; };
template <> struct VectorOf<float, 2> { using type = float2; };
template <> struct VectorOf<float, 4> { using type = float4; };
template <> struct VectorOf<double, 2> { using type = double2; };

template <typename T, int width> using vector_of = typename VectorOf<T, width>::type;

// Whether a pointer may be read or written as vectors of that many bytes.
template <typename T> __device__ __forceinline__ bool is_aligned(const T* pointer, int bytes) {
    return reinterpret_cast<unsigned long long>(pointer) % bytes == 0;
}

// `streaming`: evict first, for data that is touched once.
template <bool streaming, typename V> __device__ __forceinline__ V load(const V* address) {
    if constexpr (streaming) {
        return __ldcs(address);
    } else {
        return *address;
    }
}

template <bool streaming, typename V> __device__ __forceinline__ void store(V* address, V value) {
    if constexpr (streaming) {
        __stcs(address, value);
    } else {
        *address = value;
    }
}

// The elements of a vector, one by one: f(element, position) for each.
template <typename T, typename F> __device__ __forceinline__ void for_each(T& value, F f) { f(value, 0); }
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

// A vector of elements that may lie off its alignment.
template <typename V, typename T> __device__ __forceinline__ V load_anywhere(const T* address) {
    V value;
    if (is_aligned(address, sizeof(V))) {
        value = *reinterpret_cast<const V*>(address);
    } else {
        for_each(value, [address](T& element, int i) { element = address[i]; });
    }
    return value;
}
