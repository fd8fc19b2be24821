// Vector loads and stores of one to eight elements, with the cache hints that a kernel may choose between.
#pragma once

#include "bfloat.cuh"
#include "half.cuh"
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

// Cache hints are for CUDA's own types: half types, one or several, go as a word of the same size, in one access.
template <int bytes> struct WordOf;
template <> struct WordOf<2> { using type = unsigned short; };
template <> struct WordOf<4> { using type = unsigned; };
template <> struct WordOf<8> { using type = uint2; };
template <> struct WordOf<16> { using type = uint4; };

template <typename V> struct Accessed { using type = V; };
template <> struct Accessed<half_t> : WordOf<2> {};
template <> struct Accessed<bfloat_t> : WordOf<2> {};
template <int width> struct Accessed<Pack<half_t, width>> : WordOf<2 * width> {};
template <int width> struct Accessed<Pack<bfloat_t, width>> : WordOf<2 * width> {};

template <typename To, typename From> struct SameBits {
    static_assert(sizeof(To) == sizeof(From));
    union {
        From from;
        To to;
    };
    __device__ __forceinline__ explicit SameBits(From value) : from(value) {}
};
template <typename T> struct SameBits<T, T> {
    T to;
    __device__ __forceinline__ explicit SameBits(T value) : to(value) {}
};

// `streaming`: evict first, for data that is touched once.
template <bool streaming, typename V> __device__ __forceinline__ V load(const V* address) {
    using word_t = typename Accessed<V>::type;
    const auto* const word = reinterpret_cast<const word_t*>(address);
    if constexpr (streaming) {
        return SameBits<V, word_t>(__ldcs(word)).to;
    } else {
        return SameBits<V, word_t>(*word).to;
    }
}

template <bool streaming, typename V> __device__ __forceinline__ void store(V* address, V value) {
    using word_t = typename Accessed<V>::type;
    if constexpr (streaming) {
        __stcs(reinterpret_cast<word_t*>(address), SameBits<word_t, V>(value).to);
    } else {
        *reinterpret_cast<word_t*>(address) = SameBits<word_t, V>(value).to;
    }
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
    T elements[width];
    for_each(value, [&elements](auto& element, int i) { elements[i] = T(element); });
    vector_of<T, width> result;
    for_each(result, [&elements](T& element, int i) { element = elements[i]; });
    return result;
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
