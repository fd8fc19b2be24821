// The stacks of cuda_on_cpu_fibers.h, and the switch from one to another.

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

// A CUDA thread that has waited. Its members are for Cooperation.
struct Fiber {
#ifdef TUNEBENCH_UCONTEXT
    ucontext_t context;
#else
    void* stack_pointer;
#endif
    Fiber* next;       // in the list it is in
    uint3 thread;      // its threadIdx
    unsigned number;   // the same as one number
    unsigned mask;     // the lanes it waits for
    unsigned source;   // the lane whose value it wants
    bool votes;        // it wants everyone's predicate instead
    unsigned long long value, answer;
    const void* site;  // where it asked for the active lanes

    // Bytes of its stack that are in use where a frame is at that address.
    size_t depth(const void* frame) const {
        return reinterpret_cast<const char*>(this) - static_cast<const char*>(frame);
    }
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

// The stacks of one OpenMP thread's fibers, each with its Fiber at the upper end. The step between them is not a power
// of two, so that the tops of many stacks do not compete for the same lines of the cache. They are never unmapped:
// variants hand them on to each other.
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
// Keeps on the stack what the calling convention says survives a call, and changes the stack pointer. ucontext would
// change the signal mask as well, which costs two system calls a switch.
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

}  // namespace tunebench
