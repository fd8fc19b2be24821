// The product x · wᵀ of half types and few rows of x on Hopper: a pass over the weight at the rate of memory, summed in fp32,
// with what follows in its epilogue.
//
// Rows of w are the tensor core's rows here, 64 to a warpgroup, and those of x its columns, of which there are as few as 16. The
// copy engine brings both operands straight from the tensors (TensorMap), 128 bytes of each row at a stage, in the order of the
// tensor cores' 128-byte swizzle. So that every multiprocessor has a part of the weight to read, the blocks of a cluster share
// the depth. Each finishes some rows of x: the others send it their sums of these, which are added in the blocks' order.
//
// Sizes are tunables (kernels/shared/half_stream.py): `stream_rows` of x at once, `stream_features` in a tile, `stream_split`
// blocks that share its depth, `stream_stages` in flight.
#pragma once

#include "pack.cuh"
#include "wgmma.cuh"

constexpr bool streams_halves = product == product_t::stream && sizeof(scalar_t) == 2;
constexpr int halves_rows = streams_halves ? stream_rows : 16;  // Of x, in a tile,
constexpr int halves_features = streams_halves ? stream_features : 64;
constexpr int halves_split = streams_halves ? stream_split : 1;
constexpr int half_stream_consumers = 2 * halves_features;       // A warpgroup for 64 features,
constexpr int half_stream_threads = half_stream_consumers + 64;  // and a warp for each operand, which brings it.

#if TUNEBENCH_HOPPER

template <typename T> struct HalfStream {
    static constexpr int line_depth = 128 / sizeof(T);  // Along K, of one stage.
    static constexpr int w_bytes = halves_features * 128;
    static constexpr int x_bytes = halves_rows * 128;
    static constexpr int stage_bytes = w_bytes + x_bytes;
    static constexpr int sums = halves_rows / 2;       // Of a thread,
    static constexpr int share = sums / halves_split;  // and those for the rows that one block finishes.
    static constexpr int fours = share / 4;
    static constexpr int sent_bytes = (sums - share) * half_stream_consumers * 4;
    static constexpr int share_rows = halves_rows / halves_split;
    static constexpr int run = 8;                            // Neighbouring features that a thread finishes,
    static constexpr int runs = halves_features / run;       // of so many in each row of the tile.
    static constexpr int sums_of_row = halves_features + 4;  // A warp's lanes then write to all banks.
    using Position = RingPosition<stream_stages>;

    unsigned char* shared;
    long long rows, features, depth;
    u32 rank;

    // Of what one block sends another: sums of the thread of the same number.
    __device__ __forceinline__ float4* sent(u32 from, u32 to, int i) const {
        float4* const first = reinterpret_cast<float4*>(shared + stream_stages * stage_bytes);
        return first + ((from - (from > to)) * fours + i) * half_stream_consumers + threadIdx.x;
    }
    __device__ __forceinline__ u64* full() const {
        return reinterpret_cast<u64*>(shared + stream_stages * stage_bytes + sent_bytes);
    }
    __device__ __forceinline__ u64* empty() const { return full() + stream_stages; }
    __device__ __forceinline__ u64* joined() const { return empty() + stream_stages; }

    __device__ __forceinline__ long long first_feature() const {
        return static_cast<long long>(blockIdx.x) / halves_split * halves_features;
    }
    // Of all lines along the depth, where the share of block number `rank` begins: it ends where the next one's does.
    __device__ __forceinline__ int first_line(u32 rank) const {
        return static_cast<int>((depth + line_depth - 1) / line_depth * rank / halves_split);
    }

    // One thread.
    __device__ __forceinline__ void begin() const {
        for (int i = 0; i < stream_stages; ++i) {
            mbarrier_init(full() + i, 2);
            mbarrier_init(empty() + i, half_stream_consumers / 32);
        }
        mbarrier_init(joined(), 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(joined(), sent_bytes);
    }

    // One thread: this block's share of an operand, of which so many bytes go to this place of each stage.
    __device__ __forceinline__ void bring(const TensorMap& operand, int row, int place, int bytes) const {
        Position position;
        for (int line = first_line(rank); line < first_line(rank + 1); ++line) {
            mbarrier_wait(empty() + position.slot, position.parity ^ 1);
            u64* const barrier = full() + position.slot;
            mbarrier_arrive_expect_tx(barrier, bytes);
            cp_async_bulk_tensor<1>(shared + position.slot * stage_bytes + place, operand,
                                    {line * line_depth, row, 0, 0, 0}, barrier);
            position.advance();
        }
    }

    __device__ __forceinline__ void multiply(float (&sum)[sums]) const {
        const u32 w_base = shared_address(shared) + threadIdx.x / 128 * (64 * 128);
        const u32 x_base = shared_address(shared) + w_bytes;
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
            if (previous >= 0 && threadIdx.x % 32 == 0) {
                mbarrier_arrive(empty() + previous);
            }
            previous = position.slot;
            position.advance();
        }
        wgmma_wait<0>();
    }

    // The sums of all blocks for this one's rows, in the place of the stages, when all of them have been read.
    __device__ __forceinline__ void join(const float (&sum)[sums]) const {
        float4 mine[fours];
        cluster_wait();
#pragma unroll
        for (int i = 0; i < sums / 4; ++i) {
            const float4 four{sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]};
            if (i / fours == rank) {
                mine[i % fours] = four;
            } else {
                st_async(sent(rank, i / fours, i % fours), four, joined(), i / fours);
            }
        }
        bar_sync(1, half_stream_consumers);
        mbarrier_wait(joined(), 0);
        const int lane = threadIdx.x % 32;
        float* const to = reinterpret_cast<float*>(shared) + lane % 4 * 2 * sums_of_row + threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
        for (int i = 0; i < fours; ++i) {
            float4 total{};
#pragma unroll
            for (int block = 0; block < halves_split; ++block) {
                const float4 more = block == rank ? mine[i] : *sent(block, rank, i);
                total = {total.x + more.x, total.y + more.y, total.z + more.z, total.w + more.w};
            }
            float* const row = to + i * 8 * sums_of_row;
            row[0] = total.x;
            row[sums_of_row] = total.y;
            row[8] = total.z;
            row[sums_of_row + 8] = total.w;
        }
        bar_sync(1, half_stream_consumers);
    }

    // This block's rows, in which each thread keeps to its features.
    template <class Features> __device__ __forceinline__ void finish(const Features& mine) const {
        const long long first = rank * share_rows;
        const float* const from = reinterpret_cast<const float*>(shared) + threadIdx.x % runs * run;
#pragma unroll
        for (int i = 0; i < share_rows; i += half_stream_consumers / runs) {
            const int row = i + threadIdx.x / runs;
            if (row < share_rows && first + row < rows && mine.feature < features) {
                const float4* const sums = reinterpret_cast<const float4*>(from + row * sums_of_row);
                const float4 four = sums[0], others = sums[1];
                const Pack<float, run> values{four.x, four.y, four.z, four.w, others.x, others.y, others.z, others.w};
                mine.write(mine.finished(mine.with_bias(values), first + row), first + row);
            }
        }
    }
};

template <class Epilogue>
__device__ __forceinline__ void half_stream_of_block(const TensorMap& x, const TensorMap& w, long long rows,
                                                     long long features, long long depth, const Epilogue& epilogue) {
    extern __shared__ __align__(1024) unsigned char swizzled[];
    using Stream = HalfStream<scalar_t>;
    const Stream stream{swizzled, rows, features, depth, halves_split == 1 ? 0 : cluster_ctarank()};
    if (threadIdx.x == half_stream_consumers) {
        stream.begin();
    }
    __syncthreads();
    cluster_arrive();
    if (threadIdx.x == half_stream_consumers) {
        stream.bring(w, static_cast<int>(stream.first_feature()), 0, Stream::w_bytes);
    } else if (threadIdx.x == half_stream_consumers + 32) {
        stream.bring(x, 0, Stream::w_bytes, Stream::x_bytes);
    } else if (threadIdx.x < half_stream_consumers) {
        const long long feature = stream.first_feature() + threadIdx.x % Stream::runs * Stream::run;
        const auto mine = epilogue.template neighbours<Stream::run>(feature);  // It arrives while the operands do.
        float sum[Stream::sums] = {};
        stream.multiply(sum);
        stream.join(sum);
        stream.finish(mine);
    }
}

#endif  // TUNEBENCH_HOPPER
