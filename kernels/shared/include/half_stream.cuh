// The product x · wᵀ of half types and few rows of x on Hopper: a pass over the weight at the rate of memory, summed in fp32,
// with what follows in its epilogue.
//
// Rows of w are the tensor core's rows here, 64 to a warpgroup, and those of x its columns, of which there are as few as 8. The
// copy engine brings both operands straight from the tensors (TensorMap), 128 bytes of each row at a stage, in the order of the
// tensor cores' 128-byte swizzle. So that every multiprocessor has a part of the weight to read, the blocks of a cluster share
// the depth; their sums are joined through shared memory, in the blocks' order, each block finishing a part of the tile.
//
// Sizes are tunables (kernels/shared/half_stream.py): `stream_rows` of x at once, `stream_features` in a tile, `stream_split`
// blocks that share its depth, `stream_stages` in flight.
#pragma once

#include "early_launches.cuh"
#include "pack.cuh"
#include "wgmma.cuh"

constexpr bool streams_halves = product == product_t::stream && sizeof(scalar_t) == 2;
constexpr int halves_rows = streams_halves ? stream_rows : 8;  // Of x, in a tile,
constexpr int halves_features = streams_halves ? stream_features : 64;
constexpr int halves_line_bytes = stream_stages * (halves_rows + halves_features) * 128;
constexpr int half_stream_consumers = 2 * halves_features;       // A warpgroup for 64 features,
constexpr int half_stream_threads = half_stream_consumers + 32;  // and a warp that brings the operands.
constexpr int half_stream_blocks = halves_line_bytes <= 112 * 1024 ? 2 : 1;  // That a multiprocessor holds.

#if TUNEBENCH_HOPPER

template <typename T> struct HalfStream {
    static constexpr int line_depth = 128 / sizeof(T);  // Along K, of one stage.
    static constexpr int w_bytes = halves_features * 128;
    static constexpr int stage_bytes = w_bytes + halves_rows * 128;
    static constexpr int run = 8;                            // Neighbouring features that a thread finishes,
    static constexpr int runs = halves_features / run;       // of so many in each row of the tile.
    static constexpr int sums_of_row = halves_features + 4;  // A warp's lanes then write to all banks.
    static constexpr int registers = halves_rows / 2;
    using Position = RingPosition<stream_stages>;

    unsigned char* shared;
    long long rows, features, depth;
    u32 rank;

    __device__ __forceinline__ u64* full() const {
        return reinterpret_cast<u64*>(shared + stream_stages * stage_bytes);
    }
    __device__ __forceinline__ u64* empty() const { return full() + stream_stages; }
    __device__ __forceinline__ float* sums() const { return reinterpret_cast<float*>(shared); }
    __device__ __forceinline__ long long first_feature() const {
        return static_cast<long long>(blockIdx.x) / stream_split * halves_features;
    }
    // Of all lines along the depth, where the share of block number `rank` begins: it ends where the next one's does.
    __device__ __forceinline__ int first_line(u32 rank) const {
        return static_cast<int>((depth + line_depth - 1) / line_depth * rank / stream_split);
    }

    // One thread.
    __device__ __forceinline__ void begin() const {
        for (int i = 0; i < stream_stages; ++i) {
            mbarrier_init(full() + i, 1);
            mbarrier_init(empty() + i, half_stream_consumers / 32);
        }
        fence_mbarrier_init();
    }

    // One thread.
    __device__ __forceinline__ void bring(const TensorMap& x, const TensorMap& w) const {
        Position position;
        for (int line = first_line(rank); line < first_line(rank + 1); ++line) {
            mbarrier_wait(empty() + position.slot, position.parity ^ 1);
            u64* const barrier = full() + position.slot;
            unsigned char* const target = shared + position.slot * stage_bytes;
            mbarrier_arrive_expect_tx(barrier, stage_bytes);
            cp_async_bulk_tensor<1>(target, w, {line * line_depth, static_cast<int>(first_feature()), 0, 0, 0}, barrier);
            cp_async_bulk_tensor<1>(target + w_bytes, x, {line * line_depth, 0, 0, 0, 0}, barrier);
            position.advance();
        }
    }

    __device__ __forceinline__ void multiply(float (&sum)[registers]) const {
        const u32 w_base = shared_address(shared) + threadIdx.x / 128 * (64 * 128);
        const u32 x_base = shared_address(shared) + w_bytes;
        const bool tells = threadIdx.x % 32 == 0;
        int previous = -1;
        Position position;
        for (int line = first_line(rank); line < first_line(rank + 1); ++line) {
            mbarrier_wait(full() + position.slot, position.parity);
            wgmma_fence();
#pragma unroll
            for (int step = 0; step < 4; ++step) {
                const u32 place = position.slot * stage_bytes + step * 32;
                Wgmma<halves_rows, T>::run(sum, wgmma_swizzled(w_base + place), wgmma_swizzled(x_base + place), true);
            }
            wgmma_commit();
            wgmma_wait<1>();
            if (previous >= 0 && tells) {
                mbarrier_arrive(empty() + previous);
            }
            previous = position.slot;
            position.advance();
        }
        wgmma_wait<0>();
    }

    // This block's sums, row by row of x, in the place of the stages, all of which have been read.
    __device__ __forceinline__ void show(const float (&sum)[registers]) const {
        static_assert(sums_of_row * halves_rows * 4 <= stream_stages * stage_bytes, "sums take the place of the stages");
        const int lane = threadIdx.x % 32;
        float* const to = sums() + lane % 4 * 2 * sums_of_row + threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
        for (int i = 0; i < registers; ++i) {
            to[(i / 4 * 8 + i % 2) * sums_of_row + i % 4 / 2 * 8] = sum[i];
        }
    }

    // This block's part of the tile, in which each thread keeps to its features.
    template <class Features> __device__ __forceinline__ void finish(const Features& mine) const {
        const int first = rank * half_stream_consumers + threadIdx.x;
        for (int i = first; i / runs < rows; i += stream_split * half_stream_consumers) {
            const float4* const from = reinterpret_cast<const float4*>(sums() + i / runs * sums_of_row + i % runs * run);
            float4 of_blocks[stream_split][2];
#pragma unroll
            for (int j = 0; j < 2 * stream_split; ++j) {
                of_blocks[j / 2][j % 2] = load_remote(from + j % 2, j / 2);
            }
            Pack<float, run> values{};
#pragma unroll
            for (int j = 0; j < 2 * stream_split; ++j) {
                for_each(of_blocks[j / 2][j % 2], [&](float& sum, int at) { values.of[j % 2 * 4 + at] += sum; });
            }
            if (mine.feature < features) {
                mine.write(mine.finished(mine.with_bias(values), i / runs), i / runs);
            }
        }
    }
};

template <class Epilogue>
__device__ __forceinline__ void half_stream_of_block(const TensorMap& x, const TensorMap& w, long long rows,
                                                     long long features, long long depth, const Epilogue& epilogue) {
    extern __shared__ __align__(1024) unsigned char swizzled[];
    using Stream = HalfStream<scalar_t>;
    const Stream stream{swizzled, rows, features, depth, stream_split == 1 ? 0 : cluster_ctarank()};
    if (threadIdx.x == 0) {
        stream.begin();
    }
    __syncthreads();
    const long long feature = stream.first_feature() + threadIdx.x % Stream::runs * Stream::run;
    decltype(epilogue.template neighbours<Stream::run>(0)) mine;
    float sum[Stream::registers] = {};
    if (threadIdx.x == half_stream_consumers) {
        stream.bring(x, w);
    } else if (threadIdx.x < half_stream_consumers) {
        mine = epilogue.template neighbours<Stream::run>(feature);  // It arrives while the operands do.
        stream.multiply(sum);
    }
    __syncthreads();
    if (threadIdx.x < half_stream_consumers) {
        stream.show(sum);
    }
    cluster_sync();
    if (threadIdx.x < half_stream_consumers) {
        stream.finish(mine);
    }
    cluster_sync();  // A block must not end while another reads its sums.
}

#endif  // TUNEBENCH_HOPPER
