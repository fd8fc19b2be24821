// What a product multiplies: a layer's input and its weight, or two inputs, of which every call has others.
//
// The source says which (kernels/blocks/linear_source.py). Of two inputs (`of_inputs`) there may be several products, one
// behind the other in memory: a batch of them, or, with `product_slices`, slices of one product's depth, whose results are
// added. An operand is read where it lies: `x_in_columns` and `w_in_columns` say that neighbours in memory are of one
// column, as of a matrix that is transposed. Of a product that `has_triangle` only what lies on one side of the diagonal,
// or on it, is kept; the rest are zeros.
#pragma once

#include "parts.cuh"

__device__ __forceinline__ bool is_kept(long long row, long long column) {
    return !has_triangle || (keeps_upper ? column >= row : column <= row);
}

// How the matrices (rows, depth) of one operand lie in memory, of which each product takes one. Slices are of `whole_depth`.
template <bool in_columns> struct Lying {
    long long rows, depth, whole_depth;

    __device__ __forceinline__ bool are_slices() const { return of_inputs && whole_depth > depth; }
    __device__ __forceinline__ long long first(long long product) const {
        return product * depth * (in_columns || !are_slices() ? rows : 1);
    }
    // The last slices may be shorter.
    __device__ __forceinline__ long long depth_of(long long product) const {
        return are_slices() ? max(0ll, min(depth, whole_depth - product * depth)) : depth;
    }
    __device__ __forceinline__ long long place(long long row, long long k) const {
        return in_columns ? k * rows + row : row * whole_depth + k;
    }
};
using LyingX = Lying<x_in_columns>;
using LyingW = Lying<w_in_columns>;
