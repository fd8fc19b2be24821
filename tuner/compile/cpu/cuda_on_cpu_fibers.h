// Threads of a block that wait for each other, for cuda_on_cpu.h.
//
// Every block starts as a loop over its threads, on the stack of its OpenMP thread. The first time a CUDA thread has to
// wait, the stack it runs on becomes its own, a fiber, and the rest of the loop goes on on a fresh one; a thread that
// never waits costs no more than an iteration. So no kernel needs to be known beforehand to cooperate, and none can be
// taken wrongly for one that does not. A thread that has returned is never waited for. The fibers of a block share one
// OpenMP thread and give way to each other only where they wait.

#pragma once

#include "cuda_on_cpu_stacks.h"

namespace tunebench {

// Whether the CUDA thread that runs is a fiber already. Only the functions here write it, so that a loop whose kernel
// calls none of them does not have to look.
static thread_local bool parked;

static inline unsigned thread_number() {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

// ------------------------------------------------------------------------------------------- a block and its threads

struct Warp {
    unsigned live;         // lanes that have not returned
    unsigned exchanging;   // lanes that wait for the others of their mask
    unsigned converging;   // lanes that wait to learn who is with them
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
    Fiber native;  // whichever thread is on the OpenMP thread's own stack
    Warp warps[most_warps];

    Cooperation(Loop loop, void* const* arguments, StackPool* pool) : loop(loop), arguments(arguments), pool(pool) {}

    // Makes the stack of the running thread its own, and counts those that its loop finished before it.
    Fiber* park() {
        if (!parked) park_first_time();
        return running;
    }

    [[gnu::noinline]] void park_first_time() {
        const unsigned number = thread_number();
        if (!started) start();
        running->thread = threadIdx;
        running->number = number;
        next = number + 1;
        parked = true;
        count_returned(loop_start, number);
    }

    [[gnu::noinline]] void start() {
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
    [[gnu::noinline]] void count_returned(unsigned from, unsigned to) {
        if (from == to) return;
        returned += to - from;
        for (unsigned number = from; number < to; ++number) warps[number / lanes].live &= ~(1u << number % lanes);
        for (unsigned index = from / lanes; index <= (to - 1) / lanes; ++index) {
            // Lane by lane: the masks of different groups may overlap.
            for (unsigned pending = warps[index].exchanging; pending; pending &= pending - 1)
                settle(warps[index], warps[index].fibers[__builtin_ctz(pending)]->mask);
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
    [[gnu::noinline]] bool settle(Warp& warp, unsigned mask) {
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
    [[gnu::noinline, gnu::cold]] bool converge() {
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

    [[gnu::noinline]] Fiber* fresh() {
        Fiber* fiber = spare.pop();
        if (!fiber) {
            if (!stacks) stacks = Stacks::take(pool);
            if (!stacks) fail("no memory for the stacks of threads that wait for each other");
            fiber = stacks->fiber(stacks_used++);
        }
        prepare(fiber);
        return fiber;
    }

    // Lets another thread of the block run; returns when the running one may go on. On the native stack, after its own
    // thread has returned, it returns when all others have as well.
    [[gnu::noinline]] void dispatch() {
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

    [[noreturn, gnu::noinline, gnu::cold]] void deadlock() {
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
        // With threads left to begin, this very stack takes them on: as a spare it would be handed out while in use.
        if (!block.ready.first && block.next < block.threads) continue;
        block.spare.push(me);
        block.dispatch();
    }
}

// ---------------------------------------------------------------------------------------- what the CUDA functions call

[[gnu::noinline]] static void wait_at_barrier(bool vote) {
    Cooperation& block = *cooperation;
    Fiber* me = block.park();
    ++block.arrived;
    block.votes += vote;
    if (block.open_barrier()) return;
    block.barrier.push(me);
    block.dispatch();
}

[[gnu::noinline]] static unsigned long long wait_for_lanes(unsigned mask, bool votes, unsigned long long value,
                                                           unsigned source) {
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

[[gnu::noinline]] static unsigned wait_for_convergence() {
    Cooperation& block = *cooperation;
    Fiber* me = block.park();
    Warp& warp = block.warps[me->number / lanes];
    me->site = __builtin_return_address(0);
    warp.fibers[me->number % lanes] = me;
    warp.converging |= 1u << me->number % lanes;
    block.dispatch();
    return me->answer;
}

static inline unsigned own_lane() { return thread_number() % lanes; }

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
