// y = factor · x, for Kernel Tuner: the choices of `scalar_mul_60.toml` in as few lines as they take.
struct alignas(sizeof(float) * vector_width) chunk_t {
    float at[vector_width];
};

extern "C" __global__ void __launch_bounds__(block_size) scalar_mul(const float* x, float* y, float factor, long long n) {
    const long long chunks = n / vector_width;
    const long long first = static_cast<long long>(blockIdx.x) * (block_size * items_per_thread) + threadIdx.x;
#pragma unroll
    for (int item = 0; item < items_per_thread; ++item) {
        const long long i = first + item * block_size;
        if (i < chunks) {
            chunk_t chunk = reinterpret_cast<const chunk_t*>(x)[i];
            for (int j = 0; j < vector_width; ++j) {
                chunk.at[j] *= factor;
            }
            reinterpret_cast<chunk_t*>(y)[i] = chunk;
        }
    }
}
