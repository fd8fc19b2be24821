// Launches for cuda_on_cpu.h: blocks over the OpenMP threads of the process, a block's threads as a loop.

#pragma once

#include <setjmp.h>

namespace tunebench {

struct Stacks;

// Stacks that wait for their next use, shared by every variant of the process; cpu.py keeps the one instance.
struct StackPool {
    unsigned long long locked;
    Stacks* first;
    void lock() {
        while (__atomic_exchange_n(&locked, 1, __ATOMIC_ACQUIRE)) continue;
    }
    void unlock() { __atomic_store_n(&locked, 0, __ATOMIC_RELEASE); }
};

// What cpu.py asks for: words of 64 bits in this order.
struct Request {
    unsigned long long grid[3], block[3];
    unsigned long long shared;                                     // dynamic shared memory, bytes a block
    void (*parallel)(void (*)(void*), void*, unsigned, unsigned);  // GOMP_parallel of the runtime torch uses, or null
    unsigned long long openmp_threads;
    StackPool* stacks;
    unsigned long long argument_count;
    struct Argument {
        void* value;  // of so many bytes
        unsigned long long bytes;
    } arguments[];
};

// Runs the threads of the current block from number `start` on, and then of further blocks, `blocks` in all. Returns
// how many of them are not finished: some when a thread had to wait, as then that block goes on by other means.
using Loop = unsigned long long (*)(void* const* arguments, unsigned start, unsigned long long blocks);

}  // namespace tunebench

#ifdef TUNEBENCH_COOPERATES
#include "cuda_on_cpu_fibers.h"
#endif

namespace tunebench {

constexpr size_t message_bytes = 512;

struct Launch {
    const Request& request;
    Loop loop;
    void* const* arguments;                  // addresses of the values
    unsigned long long blocks, next, share;  // blocks in all, the first not handed out, and how many at a time
    int failed;                              // 1 from the first failure on, which alone writes the message
    char* message;
};

// What one OpenMP thread needs while it runs blocks of a launch.
struct Worker {
    Launch* launch;
    jmp_buf escape;  // where a failure leaves the kernel for
};
static thread_local Worker* worker;

[[noreturn, gnu::noinline, gnu::cold]] static void fail(const char* what, const char* detail, const char* file,
                                                        int line) {
    Launch& launch = *worker->launch;
    if (!__atomic_exchange_n(&launch.failed, 1, __ATOMIC_RELAXED)) {
        char place[128] = "";
        if (file) __builtin_snprintf(place, sizeof place, " at %s:%d", file, line);
        __builtin_snprintf(launch.message, message_bytes, "%s%s%s, in block (%u, %u, %u), thread (%u, %u, %u)", what,
                           detail, place, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
    }
    longjmp(worker->escape, 1);
}

// --------------------------------------------------------------------------------------------- an entry point's loop

static inline void advance_block() {
    if (++blockIdx.x < gridDim.x) return;
    blockIdx.x = 0;
    if (++blockIdx.y < gridDim.y) return;
    blockIdx.y = 0;
    ++blockIdx.z;
}

template <unsigned... numbers> struct Numbers {};

// One entry point, its parameters as its own type has them.
template <auto kernel> struct EntryPoint;
template <class... Parameters, void (*kernel)(Parameters...)> struct EntryPoint<kernel> {
    static constexpr unsigned parameters = sizeof...(Parameters), bytes[parameters + 1] = {sizeof(Parameters)...};

    // Flattened so that g++ sees the kernel with all that it calls as the body of the loop over x, with threadIdx as
    // its counter, and so a loop that it can vectorise.
    [[gnu::flatten, gnu::noinline]] static unsigned long long loop(void* const* arguments, unsigned start,
                                                                   unsigned long long blocks) {
        return spread(arguments, start, blocks, Numbers<__integer_pack(parameters)...>{});
    }

    template <unsigned... numbers>
    __forceinline__ static unsigned long long spread([[maybe_unused]] void* const* arguments, unsigned start,
                                                     unsigned long long blocks, Numbers<numbers...>) {
        return threads(start, blocks, *static_cast<const Parameters*>(arguments[numbers])...);
    }

    __forceinline__ static unsigned long long threads(unsigned start, unsigned long long blocks,
                                                      Parameters... values) {
        const unsigned width = blockDim.x, height = blockDim.y, depth = blockDim.z;
        unsigned x = 0, y = 0, z = 0;
        if (start) x = start % width, y = start / width % height, z = start / width / height;
        for (;; z = 0) {
#ifdef TUNEBENCH_COOPERATES
            parked = false;
#endif
            for (; z < depth; ++z, y = 0) {
                for (; y < height; ++y, x = 0) {
                    for (; x < width; ++x) {
                        threadIdx = {x, y, z};
                        kernel(values...);
#ifdef TUNEBENCH_COOPERATES
                        // This thread has a stack of its own by now, and others do the rest of the loop.
                        if (parked) return blocks;
#endif
                    }
                }
            }
            if (!--blocks) return 0;
            advance_block();
        }
    }
};

// ----------------------------------------------------------------------------------------------------------- launches

// Blocks are handed out in ascending order, so that one which waits for an earlier one of its grid gets its answer.
static void run_blocks(Launch& launch) {
    const unsigned width = gridDim.x, height = gridDim.y;
    while (!__atomic_load_n(&launch.failed, __ATOMIC_RELAXED)) {
        const unsigned long long first = __atomic_fetch_add(&launch.next, launch.share, __ATOMIC_RELAXED);
        if (first >= launch.blocks) return;
        const unsigned long long left = launch.blocks - first;
        blockIdx = {unsigned(first % width), unsigned(first / width % height), unsigned(first / width / height)};
#ifdef TUNEBENCH_COOPERATES
        unsigned long long blocks = left < launch.share ? left : launch.share;
        while ((blocks = launch.loop(launch.arguments, 0, blocks))) {
            cooperation->finish();
            if (!--blocks) break;
            advance_block();
        }
#else
        launch.loop(launch.arguments, 0, left < launch.share ? left : launch.share);
#endif
    }
}

static void work_on(void* state) {
    Launch& launch = *static_cast<Launch*>(state);
    const Request& request = launch.request;
    Worker here;
    here.launch = &launch;
    worker = &here;
    gridDim = {unsigned(request.grid[0]), unsigned(request.grid[1]), unsigned(request.grid[2])};
    blockDim = {unsigned(request.block[0]), unsigned(request.block[1]), unsigned(request.block[2])};
    // Without dynamic shared memory a kernel that uses it anyway meets a null pointer, not its neighbour's data.
    dynamic_shared = request.shared ? __builtin_alloca_with_align(request.shared, 8 * 128) : nullptr;
    for (const SharedArray* array = shared_arrays; array; array = array->next) array->bind();
#ifdef TUNEBENCH_COOPERATES
    Cooperation block(launch.loop, launch.arguments, request.stacks);
    cooperation = &block;
#endif
    if (!_setjmp(here.escape)) run_blocks(launch);
#ifdef TUNEBENCH_COOPERATES
    if (block.stacks) block.stacks->give_back(request.stacks);
#endif
    worker = nullptr;
}

// Null, or why CUDA would refuse such a launch of the kernel, in the buffer.
[[gnu::noinline, gnu::cold]] static const char* refusal(const Request& request, long long most_threads,
                                                        unsigned parameters, const unsigned* bytes, char* buffer) {
    if (static_cast<long long>(request.block[0] * request.block[1] * request.block[2]) > most_threads) {
        __builtin_snprintf(buffer, message_bytes, "its __launch_bounds__ allow %lld threads a block", most_threads);
        return buffer;
    }
    if (request.argument_count != parameters) {
        const unsigned long long given = request.argument_count;
        __builtin_snprintf(buffer, message_bytes, "it takes %u arguments, not %llu", parameters, given);
        return buffer;
    }
    for (unsigned i = 0; i < parameters; ++i) {
        const unsigned long long given = request.arguments[i].bytes;
        if (given == bytes[i]) continue;
        __builtin_snprintf(buffer, message_bytes, "its argument %u takes %u bytes, not %llu", i + 1, bytes[i], given);
        return buffer;
    }
    return nullptr;
}

// Null, or the message of why the launch failed, in the buffer.
static const char* run(const Request& request, Loop loop, char* buffer) {
    void** arguments = static_cast<void**>(__builtin_alloca((request.argument_count + 1) * sizeof(void*)));
    for (unsigned long long i = 0; i < request.argument_count; ++i) {
        arguments[i] = request.arguments[i].value;
    }
    const unsigned long long blocks = request.grid[0] * request.grid[1] * request.grid[2];
    const unsigned threads = request.parallel && blocks > 1 ? unsigned(request.openmp_threads) : 1;
    // Neighbouring blocks stay together for the caches' sake; 16 shares a thread even out what disturbs one of them.
    const unsigned long long share = blocks / (16ull * threads);
    Launch launch{request, loop, arguments, blocks, 0, share ? share : 1, 0, buffer};
    // The team is always the whole of torch's: libgomp ends the threads that a smaller team leaves out.
    if (threads > 1)
        request.parallel(work_on, &launch, threads, 0);
    else
        work_on(&launch);
    return launch.failed ? buffer : nullptr;
}

// Of this thread's last launch that was refused or failed.
static thread_local char message[message_bytes];

}  // namespace tunebench

extern "C" void __assert_fail(const char* condition, const char* file, unsigned line, const char*) noexcept {
    tunebench::fail("assertion failed: ", condition, file, int(line));
}

// Exports an entry point's launch, which returns null or a message. The further arguments are those of its
// __launch_bounds__; CUDA refuses more threads a block than the first of them.
#define TUNEBENCH_EXPORT(name, ...)                                                                                    \
    extern "C" [[gnu::visibility("default")]] const char* tunebench_launch_##name(const tunebench::Request* request) { \
        using Entry = tunebench::EntryPoint<&name>;                                                                    \
        constexpr long long bounds[] = {__VA_ARGS__};                                                                  \
        char* buffer = tunebench::message;                                                                             \
        const char* refused = tunebench::refusal(*request, bounds[0], Entry::parameters, Entry::bytes, buffer);        \
        return refused ? refused : tunebench::run(*request, Entry::loop, buffer);                                      \
    }
