// A few neighbouring elements of any type as one value, read and written by one access where memory allows it, with the
// cache hints that a kernel may choose between.
#pragma once

#include "bfloat.cuh"
#include "half.cuh"

template <typename T, int width> struct alignas(sizeof(T) * width) Pack {
    T of[width];
};

template <typename A, typename B> constexpr bool is_same = false;
template <typename A> constexpr bool is_same<A, A> = true;

// Cache hints are for CUDA's own types: half types, one or several, go as a word of the same size, in one access. Words are
// put together and taken apart by shifts: where memory does it, NVRTC writes element by element.
template <int bytes> struct WordOf;
template <> struct WordOf<2> { using type = unsigned short; };
template <> struct WordOf<4> { using type = unsigned; };
template <> struct WordOf<8> { using type = uint2; };
template <> struct WordOf<16> { using type = uint4; };

// What a value is accessed as, and the two conversions.
template <typename V> struct Access {
    using type = V;
    static __device__ __forceinline__ V from(V word) { return word; }
    static __device__ __forceinline__ V to(V value) { return value; }
};

template <typename T> struct OneHalf {
    using type = unsigned short;
    static __device__ __forceinline__ T from(type word) {
        T value;
        value.bits = word;
        return value;
    }
    static __device__ __forceinline__ type to(T value) { return value.bits; }
};
template <> struct Access<half_t> : OneHalf<half_t> {};
template <> struct Access<bfloat_t> : OneHalf<bfloat_t> {};

template <typename T, int width> struct Halves {
    using type = typename WordOf<2 * width>::type;
    static __device__ __forceinline__ Pack<T, width> from(type word) {
        union {
            type whole;
            unsigned pairs[width / 2];
        };
        whole = word;
        Pack<T, width> pack;
#pragma unroll
        for (int i = 0; i < width; ++i) {
            pack.of[i].bits = static_cast<unsigned short>(pairs[i / 2] >> i % 2 * 16);
        }
        return pack;
    }
    static __device__ __forceinline__ type to(const Pack<T, width>& pack) {
        union {
            type whole;
            unsigned pairs[width / 2];
        };
#pragma unroll
        for (int i = 0; i < width; i += 2) {
            pairs[i / 2] = pack.of[i].bits | static_cast<unsigned>(pack.of[i + 1].bits) << 16;
        }
        return whole;
    }
};
template <int width> struct Access<Pack<half_t, width>> : Halves<half_t, width> {};
template <int width> struct Access<Pack<bfloat_t, width>> : Halves<bfloat_t, width> {};

// `streaming`: evict first, for data that is touched once.
template <bool streaming, typename V> __device__ __forceinline__ V load(const V* address) {
    const auto* const word = reinterpret_cast<const typename Access<V>::type*>(address);
    if constexpr (streaming) {
        return Access<V>::from(__ldcs(word));
    } else {
        return Access<V>::from(*word);
    }
}

template <bool streaming, typename V> __device__ __forceinline__ void store(V* address, V value) {
    auto* const word = reinterpret_cast<typename Access<V>::type*>(address);
    if constexpr (streaming) {
        __stcs(word, Access<V>::to(value));
    } else if constexpr (is_same<typename Access<V>::type, V>) {
        *word = value;
    } else {
        __stwb(word, Access<V>::to(value));  // as any store, but certainly one
    }
}

// Whether a pointer may be read or written as whole packs.
template <typename T, int width> __device__ __forceinline__ bool takes_packs(const T* pointer) {
    return reinterpret_cast<unsigned long long>(pointer) % sizeof(Pack<T, width>) == 0;
}

// The elements from `address` on, of which `left` exist; in one access where `whole`.
template <int width, typename T>
__device__ __forceinline__ Pack<T, width> load_pack(const T* address, long long left, bool whole) {
    if (whole) {
        return *reinterpret_cast<const Pack<T, width>*>(address);
    }
    Pack<T, width> pack{};
#pragma unroll
    for (int i = 0; i < width; ++i) {
        if (i < left) {
            pack.of[i] = address[i];
        }
    }
    return pack;
}

// To memory that takes packs.
template <int width, typename T> __device__ __forceinline__ void store_whole(T* address, const Pack<T, width>& pack) {
    if constexpr (sizeof(T) == 2 && width > 1) {
        store<false>(reinterpret_cast<Pack<T, width>*>(address), pack);
    } else {
        *reinterpret_cast<Pack<T, width>*>(address) = pack;
    }
}

template <int width, typename T>
__device__ __forceinline__ void store_pack(T* address, const Pack<T, width>& pack, long long left, bool whole) {
    if (whole) {
        store_whole(address, pack);
        return;
    }
#pragma unroll
    for (int i = 0; i < width; ++i) {
        if (i < left) {
            address[i] = pack.of[i];
        }
    }
}
