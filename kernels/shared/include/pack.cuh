// A few neighbouring elements of any type as one value, read and written by one access where memory allows it.
#pragma once

template <typename T, int width> struct alignas(sizeof(T) * width) Pack {
    T of[width];
};

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

template <int width, typename T>
__device__ __forceinline__ void store_pack(T* address, const Pack<T, width>& pack, long long left, bool whole) {
    if (whole) {
        *reinterpret_cast<Pack<T, width>*>(address) = pack;
        return;
    }
#pragma unroll
    for (int i = 0; i < width; ++i) {
        if (i < left) {
            address[i] = pack.of[i];
        }
    }
}
