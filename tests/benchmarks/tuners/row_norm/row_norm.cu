// y = x / sqrt(mean(x²) + eps) · weight, a block for each row. Kernel Tuner compiles the same text.
template <int width>
struct alignas(sizeof(scalar_t) * width) chunk_t {
    scalar_t at[width];
};

template <int width>
__device__ bool are_aligned(const void* x, const void* weight, const void* y) {
    const auto places = reinterpret_cast<unsigned long long>(x) | reinterpret_cast<unsigned long long>(weight) |
                        reinterpret_cast<unsigned long long>(y);
    return places % alignof(chunk_t<width>) == 0;
}

template <int width>
__device__ void normalise(const scalar_t* x, const scalar_t* weight, scalar_t* y, accumulator_t eps, int features,
                          accumulator_t* sums) {
    const auto* row = reinterpret_cast<const chunk_t<width>*>(x);
    const auto* factors = reinterpret_cast<const chunk_t<width>*>(weight);
    auto* written = reinterpret_cast<chunk_t<width>*>(y);
    const int chunks = features / width;
    accumulator_t sum = 0;
#pragma unroll unrolled
    for (int i = threadIdx.x; i < chunks; i += block_size) {
        const chunk_t<width> part = row[i];
        for (int j = 0; j < width; ++j) {
            sum += part.at[j] * part.at[j];
        }
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int half = block_size / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            sums[threadIdx.x] += sums[threadIdx.x + half];
        }
        __syncthreads();
    }
    const accumulator_t scale = 1 / sqrt(sums[0] / features + eps);
#pragma unroll unrolled
    for (int i = threadIdx.x; i < chunks; i += block_size) {
        chunk_t<width> part = row[i];
        const chunk_t<width> factor = factors[i];
        for (int j = 0; j < width; ++j) {
            part.at[j] = part.at[j] * scale * factor.at[j];
        }
        written[i] = part;
    }
}

extern "C" __global__ void __launch_bounds__(block_size)
    row_norm(const scalar_t* x, const scalar_t* weight, scalar_t* y, accumulator_t eps, int features) {
    __shared__ accumulator_t sums[block_size];
    const long long first = static_cast<long long>(blockIdx.x) * features;
    if (are_aligned<vector_width>(x, weight, y)) {
        normalise<vector_width>(x + first, weight, y + first, eps, features, sums);
    } else {
        normalise<1>(x + first, weight, y + first, eps, features, sums);
    }
}
