// Threads of a block that wait for each other, for cuda_on_cpu.h.
//
// Every block starts as a loop over its threads, on the stack of its OpenMP thread. The first time a CUDA thread has to
// wait, the stack it runs on becomes its own, a fiber, and the rest of the loop goes on on a fresh one; a thread that
// never waits costs no more than an iteration. So no kernel needs to be known beforehand to cooperate, and none can be
// taken wrongly for one that does not. A thread that has returned is never waited for. Fibers of a block share one OpenMP
// thread and give way to each other only where they wait.

#pragma once

#include <sys/mman.h>
#if !defined(__x86_64__) && !defined(__aarch64__)
#define TUNEBENCH_UCONTEXT
#endif
#ifdef TUNEBENCH_UCONTEXT
#include <ucontext.h>
#endif

namespace tunebench {

constexpr unsigned most_threads = 1024, lanes = 32, most_warps = most_threads / lanes;

// Whether the CUDA thread that runs is a fiber already. Only the functions here write it, so that a loop whose kernel
// calls none of them does not have to look.
static thread_local bool parked;

// ------------------------------------------------------------------------------------------------------------- fibers

struct Fiber {
#ifdef TUNEBENCH_UCONTEXT
    ucontext_t context;
#else
    void* stack_pointer;
#endif
    Fiber* next;                     // in the list it is in
    uint3 thread;                    // the CUDA thread it is
    unsigned number;                 // the same as one number
    unsigned mask;                   // the lanes it waits for
    unsigned source;                 // the lane whose value it wants
    bool votes;                      // it wants everyone's predicate instead
    unsigned long long value, answer;
    const void* site;                // where it asked for the active lanes

    size_t depth(const void* frame) const { return reinterpret_cast<const char*>(this) - static_cast<const char*>(frame); }
};

struct FiberList {
    Fiber *first, *last;
    void push(Fiber* fiber) {
        fiber->next = nullptr;
        (first ? last->next : first) = fiber;
        last = fiber;
    }
    Fiber* pop() {
        Fiber* fiber = first;
        if (fiber) first = fiber->next;
        return fiber;
    }
    void append(FiberList& list) {
        if (!list.first) return;
        (first ? last->next : first) = list.first;
        last = list.last;
        list.first = nullptr;
    }
};

// The stacks of one OpenMP thread's fibers, each with its Fiber at the upper end. The step between them is not a power of
// two, so that the tops of many stacks do not compete for the same lines of the cache. They are never unmapped: variants
// hand them on to each other.
struct Stacks {
    static constexpr size_t header = 4096, step = 65536 + 5 * 64, bytes = header + most_threads * step;
    static constexpr size_t usable = 62 * 1024;  // of a step; the rest is the Fiber and what `dispatch` calls
    Stacks* next;

    Fiber* fiber(unsigned number) {
        char* end = reinterpret_cast<char*>(this) + header + (number + 1) * step;
        return reinterpret_cast<Fiber*>(end - (sizeof(Fiber) + 63) / 64 * 64);
    }

    static Stacks* take(StackPool* pool) {
        pool->lock();
        Stacks* stacks = pool->first;
        if (stacks) pool->first = stacks->next;
        pool->unlock();
        if (stacks) return stacks;
        void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) return nullptr;
        madvise(memory, bytes, MADV_NOHUGEPAGE);  // a few pages of each stack are used; huge ones would take all 64 MiB
        return static_cast<Stacks*>(memory);
    }

    void give_back(StackPool* pool) {
        pool->lock();
        next = pool->first;
        pool->first = this;
        pool->unlock();
    }
};

static void fiber_main();

#ifdef TUNEBENCH_UCONTEXT
static void prepare(Fiber* fiber) {
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = reinterpret_cast<char*>(fiber) - Stacks::usable;
    fiber->context.uc_stack.ss_size = Stacks::usable;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, fiber_main, 0);
}
static void give_way(Fiber* from, Fiber* to) { swapcontext(&from->context, &to->context); }
#else
// Keeps on the stack what the calling convention says survives a call, and changes the stack pointer. ucontext would change
// the signal mask as well, which costs two system calls a switch.
extern "C" void tunebench_switch(void** keep, void* load);
#if defined(__x86_64__)
constexpr unsigned kept_words = 8, entry_word = 6;  // the last one stands where a caller's return address would
asm(R"(
    .pushsection .text
    .local tunebench_switch
    .type tunebench_switch, @function
tunebench_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size tunebench_switch, . - tunebench_switch
    .popsection
)");
#else
constexpr unsigned kept_words = 20, entry_word = 11;
asm(R"(
    .pushsection .text
    .balign 4
    .local tunebench_switch
    .type tunebench_switch, %function
tunebench_switch:
    stp x19, x20, [sp, -160]!
    stp x21, x22, [sp, 16]
    stp x23, x24, [sp, 32]
    stp x25, x26, [sp, 48]
    stp x27, x28, [sp, 64]
    stp x29, x30, [sp, 80]
    stp d8, d9, [sp, 96]
    stp d10, d11, [sp, 112]
    stp d12, d13, [sp, 128]
    stp d14, d15, [sp, 144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x21, x22, [sp, 16]
    ldp x23, x24, [sp, 32]
    ldp x25, x26, [sp, 48]
    ldp x27, x28, [sp, 64]
    ldp x29, x30, [sp, 80]
    ldp d8, d9, [sp, 96]
    ldp d10, d11, [sp, 112]
    ldp d12, d13, [sp, 128]
    ldp d14, d15, [sp, 144]
    ldp x19, x20, [sp], 160
    ret
    .size tunebench_switch, . - tunebench_switch
    .popsection
)");
#endif
static void prepare(Fiber* fiber) {
    void** kept = reinterpret_cast<void**>(fiber) - kept_words;
    for (unsigned i = 0; i < kept_words; ++i) kept[i] = nullptr;
    kept[entry_word] = reinterpret_cast<void*>(fiber_main);
    fiber->stack_pointer = kept;
}
static void give_way(Fiber* from, Fiber* to) { tunebench_switch(&from->stack_pointer, to->stack_pointer); }
#endif

// ------------------------------------------------------------------------------------------- a block and its threads

struct Warp {
    unsigned live;        // lanes that have not returned
    unsigned exchanging;  // lanes that wait for the others of their mask
    unsigned converging;  // lanes that wait to learn who is with them
    Fiber* fibers[lanes];  // of the lanes that wait
};

// The threads of the block that one OpenMP thread runs at the moment.
struct Cooperation {
    Loop loop;
    void* const* arguments;
    StackPool* pool;
    Stacks* stacks = nullptr;
    unsigned stacks_used = 0;
    FiberList spare{};  // fibers whose thread has returned

    bool started = false;  // some thread of the block has waited, so that what follows has its values
    unsigned threads;
    unsigned loop_start;  // thread that the loop on the running stack began with
    unsigned next;        // first thread that no loop has reached
    unsigned returned;    // threads
    unsigned arrived, votes, last_arrived, last_votes;  // at the barrier; last: when it opened
    FiberList ready, barrier;
    Fiber* running;
    Fiber native;  // the OpenMP thread's own stack
    Warp warps[most_warps];

    Cooperation(Loop loop, void* const* arguments, StackPool* pool) : loop(loop), arguments(arguments), pool(pool) {}

    // Makes the stack of the running thread its own, and counts those that its loop finished before it.
    Fiber* park() {
        if (!parked) park_first_time();
        return running;
    }

    __attribute__((noinline)) void park_first_time() {
        const unsigned number = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
        if (!started) start();
        running->thread = threadIdx;
        running->number = number;
        next = number + 1;
        parked = true;
        count_returned(loop_start, number);
    }

    void start() {
        started = true;
        threads = blockDim.x * blockDim.y * blockDim.z;
        loop_start = returned = arrived = votes = 0;
        ready.first = barrier.first = nullptr;
        running = &native;
        for (unsigned first = 0; first < threads; first += lanes) {
            const unsigned count = threads - first;
            warps[first / lanes].live = count < lanes ? (1u << count) - 1 : ~0u;
            warps[first / lanes].exchanging = warps[first / lanes].converging = 0;
        }
    }

    // Threads from..to-1 have returned: whoever waited only for them goes on.
    void count_returned(unsigned from, unsigned to) {
        if (from == to) return;
        returned += to - from;
        for (unsigned number = from; number < to; ++number) warps[number / lanes].live &= ~(1u << number % lanes);
        for (unsigned index = from / lanes; index <= (to - 1) / lanes; ++index) {
            for (unsigned pending = warps[index].exchanging; pending;) {
                const unsigned mask = warps[index].fibers[__builtin_ctz(pending)]->mask;
                settle(warps[index], mask);
                pending &= ~mask;
            }
        }
        open_barrier();
    }

    bool open_barrier() {
        if (!arrived || arrived + returned != threads) return false;
        last_arrived = arrived, last_votes = votes;
        arrived = votes = 0;
        ready.append(barrier);
        return true;
    }

    // Answers the lanes of a mask once all of them that live have come with that same mask.
    bool settle(Warp& warp, unsigned mask) {
        const unsigned all = mask & warp.live;
        if ((warp.exchanging & all) != all) return false;
        unsigned ballot = 0;
        for (unsigned left = all; left; left &= left - 1) {
            const unsigned lane = __builtin_ctz(left);
            if (warp.fibers[lane]->mask != mask) return false;
            if (warp.fibers[lane]->value) ballot |= 1u << lane;
        }
        warp.exchanging &= ~all;
        for (unsigned left = all; left; left &= left - 1) {
            Fiber* fiber = warp.fibers[__builtin_ctz(left)];
            const bool there = all >> fiber->source & 1;
            fiber->answer = fiber->votes ? ballot : there ? warp.fibers[fiber->source]->value : fiber->value;
            if (fiber != running) ready.push(fiber);
        }
        return true;
    }

    // Nothing else can run: those that asked for their active lanes at one place of the program are together there.
    bool converge() {
        bool any = false;
        for (unsigned index = 0; index <= (threads - 1) / lanes; ++index) {
            Warp& warp = warps[index];
            while (warp.converging) {
                const void* site = warp.fibers[__builtin_ctz(warp.converging)]->site;
                unsigned together = 0;
                for (unsigned left = warp.converging; left; left &= left - 1)
                    if (warp.fibers[__builtin_ctz(left)]->site == site) together |= left & -left;
                for (unsigned left = together; left; left &= left - 1) {
                    warp.fibers[__builtin_ctz(left)]->answer = together;
                    ready.push(warp.fibers[__builtin_ctz(left)]);
                }
                warp.converging &= ~together;
                any = true;
            }
        }
        return any;
    }

    Fiber* fresh() {
        Fiber* fiber = spare.pop();
        if (!fiber) {
            if (!stacks) stacks = Stacks::take(pool);
            if (!stacks) fail("no memory for the stacks of threads that wait for each other");
            fiber = stacks->fiber(stacks_used++);
        }
        prepare(fiber);
        return fiber;
    }

    // Lets another thread of the block run; returns when the running one may go on, or, on the native stack, when its own
    // thread has returned and so have all others.
    void dispatch() {
        Fiber* me = running;
        if (me != &native && me->depth(__builtin_frame_address(0)) > Stacks::usable)
            fail("a thread that waits for others has used more than its 64 KiB of stack");
        Fiber* to = ready.pop();
        if (!to) {
            if (next < threads)
                to = fresh();
            else if (returned == threads)
                to = &native;
            else if (converge())
                to = ready.pop();
            else
                deadlock();
        }
        if (to != me) {
            running = to;
            give_way(me, to);
        }
        parked = true;
        threadIdx = me->thread;
    }

    [[noreturn]] __attribute__((noinline, cold)) void deadlock() {
        char counts[96];
        __builtin_snprintf(counts, sizeof counts, "%u of %u are at __syncthreads, %u have returned", arrived, threads,
                           returned);
        fail("the threads of a block wait for each other for ever: ", counts);
    }

    // The native stack's thread has returned; the others are still on their way.
    void finish() {
        count_returned(native.number, native.number + 1);
        dispatch();
        started = false;
    }
};

static thread_local Cooperation* cooperation;

static void fiber_main() {
    Cooperation& block = *cooperation;
    Fiber* me = block.running;
    for (;;) {
        block.loop_start = block.next;
        block.loop(block.arguments, block.next, 1);
        if (parked) {
            block.count_returned(me->number, me->number + 1);
        } else {
            block.next = block.threads;
            block.count_returned(block.loop_start, block.threads);
        }
        // With threads left to begin, this very stack takes them on: as a spare one it would be handed out while in use.
        if (!block.ready.first && block.next < block.threads) continue;
        block.spare.push(me);
        block.dispatch();
    }
}

// ---------------------------------------------------------------------------------------- what the CUDA functions call

__attribute__((noinline)) static void wait_at_barrier(bool vote) {
    Cooperation& block = *cooperation;
    Fiber* me = block.park();
    ++block.arrived;
    block.votes += vote;
    if (block.open_barrier()) return;
    block.barrier.push(me);
    block.dispatch();
}

__attribute__((noinline)) static unsigned long long wait_for_lanes(unsigned mask, bool votes, unsigned long long value, unsigned source) {
    Cooperation& block = *cooperation;
    Fiber* me = block.park();
    Warp& warp = block.warps[me->number / lanes];
    const unsigned lane = me->number % lanes;
    if (!(mask >> lane & 1)) fail("a warp function was called with a mask that leaves out the caller's own lane");
    me->mask = mask, me->votes = votes, me->value = value, me->source = source;
    warp.fibers[lane] = me;
    warp.exchanging |= 1u << lane;
    if (!block.settle(warp, mask)) block.dispatch();
    return me->answer;
}

__attribute__((noinline)) static unsigned wait_for_convergence() {
    Cooperation& block = *cooperation;
    Fiber* me = block.park();
    Warp& warp = block.warps[me->number / lanes];
    me->site = __builtin_return_address(0);
    warp.fibers[me->number % lanes] = me;
    warp.converging |= 1u << me->number % lanes;
    block.dispatch();
    return me->answer;
}

static inline unsigned own_lane() { return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % lanes; }

template <class T> static T exchange(unsigned mask, T value, unsigned source) {
    static_assert(sizeof(T) <= sizeof(long long), "shuffles are for values of at most 8 bytes");
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof value);
    bits = wait_for_lanes(mask, false, bits, source);
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

}  // namespace tunebench

static inline void __syncthreads() { tunebench::wait_at_barrier(false); }
static inline int __syncthreads_count(int predicate) {
    tunebench::wait_at_barrier(predicate != 0);
    return int(tunebench::cooperation->last_votes);
}
static inline int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) != 0; }
static inline int __syncthreads_and(int predicate) { return __syncthreads_count(predicate == 0) == 0; }

static inline void __syncwarp(unsigned mask = ~0u) { tunebench::wait_for_lanes(mask, true, 0, 0); }
static inline unsigned __ballot_sync(unsigned mask, int predicate) {
    return unsigned(tunebench::wait_for_lanes(mask, true, predicate != 0, 0));
}
static inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate == 0) == 0; }
static inline unsigned __activemask() { return tunebench::wait_for_convergence(); }

// A source outside the caller's segment of `width` lanes leaves it its own value.
template <class T> static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    const unsigned lane = tunebench::own_lane();
    return tunebench::exchange(mask, value, (lane & ~(width - 1u)) | (unsigned(source) & (width - 1u)));
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    const unsigned lane = tunebench::own_lane();
    return tunebench::exchange(mask, value, (lane & (width - 1u)) < delta ? lane : lane - delta);
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    const unsigned lane = tunebench::own_lane();
    return tunebench::exchange(mask, value, (lane & (width - 1u)) + delta < unsigned(width) ? lane + delta : lane);
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32) {
    const unsigned lane = tunebench::own_lane(), source = lane ^ unsigned(with);
    return tunebench::exchange(mask, value, source <= (lane | (width - 1u)) && source < 32 ? source : lane);
}
