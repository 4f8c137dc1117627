// Runs the threads of a grid in random order until all have ended, and implements their barriers.
#include "fibers.h"

#include <ucontext.h>

#include <algorithm>
#include <cstring>

#include "races.h"

static __attribute__((section("shared_memory"), used)) char one_variable;  // makes the section exist in every kernel

namespace host {
Grid* grid;

static void body();
// Starts a fiber on its stack. Does not return.
static void start(Fiber& fiber) {
    ucontext_t context;
    fiber.begun = true;
    getcontext(&context);
    context.uc_stack.ss_sp = fiber.stack, context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&context, body, 0);
    setcontext(&context);
}
// The compiler's jumps: swapcontext makes a system call for the signal mask each time. GCC needs a jump and its target in
// separate functions.
__attribute__((noipa)) static void jump(void** to) { __builtin_longjmp(to, 1); }
__attribute__((noipa)) void yield() {
    if (!__builtin_setjmp(grid->now->at)) jump(grid->scheduler);
}
__attribute__((noipa)) static void go_on(Fiber& fiber) {  // runs a fiber until it yields
    grid->now = &fiber;
    if (__builtin_setjmp(grid->scheduler)) return;
    if (fiber.begun) jump(fiber.at);
    start(fiber);
}
void fail(const std::string& what) {
    if (grid->fault.empty()) grid->fault = what;
    while (true) yield();
}

constexpr unsigned ALIGNMENT = 128;  // of dynamic memory, in bytes
char* aligned(std::vector<char>& memory) { return memory.data() + (-(uintptr_t)memory.data() & (ALIGNMENT - 1)); }
char* dynamic_begin() { return aligned(grid->now->block->dynamic); }
char* at(u32 address) {
    if (address >= STATIC) return &__start_shared_memory + (address - STATIC);
    if (address >= grid->now->block->dynamic.size()) fail("shared address " + std::to_string(address) + " is beyond the end");
    return dynamic_begin() + address;
}
unsigned thread() { return grid->now->thread; }
unsigned threads() { return grid->threads; }
uint3 block() { return grid->now->block->index; }
uint3 blocks() { return grid->size; }

// Wakes the fibers of a block for which `waits` is true. orders: they and the running fiber then see each other's stores.
template <class Waits> static void wake(Block* block, unsigned first, unsigned last, bool orders, Waits waits) {
    std::vector<u32> met;
    for (unsigned t = first; t < last; ++t) {
        Fiber& each = grid->fibers[block->first + t];
        if (&each == grid->now && each.state == State::runs) met.push_back(block->first + t);
        if (!waits(each)) continue;
        each.state = State::runs;
        met.push_back(block->first + t);
    }
    if (races::on && orders) races::meet(met);
}
static void wake_warp(Block* block, unsigned warp) {
    Warp& own = block->warps[warp];
    const unsigned last = std::min(32 * (warp + 1), grid->threads);
    wake(block, 32 * warp, last, own.orders, [](const Fiber& each) { return each.state == State::in_warp; });
    own.arrived = 0, own.side ^= 1;
}
static void wake_all(Block* block, int barrier) {
    const auto waits = [&](const Fiber& each) { return each.state == State::at_barrier && each.barrier == barrier; };
    wake(block, 0, grid->threads, true, waits);
    block->named[barrier].arrived = 0;
}
void warp_together(bool orders) {
    Fiber& own = *grid->now;
    Warp& warp = own.block->warps[own.thread / 32];
    warp.orders = orders;
    if (++warp.arrived == warp.alive) return wake_warp(own.block, own.thread / 32);
    own.state = State::in_warp;
    yield();
}
static void block_together(int id, int count) {
    Fiber& own = *grid->now;
    Named& named = own.block->named[id];
    if (named.arrived && named.of != count && id != ALL)
        fail("barrier " + std::to_string(id) + " is for " + std::to_string(named.of));
    named.of = count;
    if (++named.arrived == (id == ALL ? own.block->alive : count)) return wake_all(own.block, id);
    own.state = State::at_barrier, own.barrier = id;
    yield();
}
void look(Barrier& barrier) {
    if (barrier.pending || barrier.bytes) return;
    barrier.phase ^= 1, barrier.pending = barrier.count;
    if (races::on) races::end_phase(barrier);
}

static void body() {
    Fiber& own = *grid->now;
    run_thread(grid->arguments);
    own.state = State::ended;
    --own.block->alive;
    Warp& warp = own.block->warps[own.thread / 32];
    if (--warp.alive && warp.arrived == warp.alive) wake_warp(own.block, own.thread / 32);
    Named& all = own.block->named[ALL];
    if (own.block->alive && all.arrived == own.block->alive) wake_all(own.block, ALL);
    yield();
}
static void swap_in(Block* block) {
    if (grid->resident == block) return;
    const size_t bytes = &__stop_shared_memory - &__start_shared_memory;
    if (grid->resident) memcpy(grid->resident->variables.data(), &__start_shared_memory, bytes);
    memcpy(&__start_shared_memory, block->variables.data(), bytes);
    grid->resident = block;
}
static void land(Block& block) {  // completes a random choice of the copies under way
    for (size_t i = 0; i < block.copies.size();) {
        if (grid->chance() % 3) {
            ++i;
            continue;
        }
        const Copy copy = block.copies[i];
        block.copies.erase(block.copies.begin() + i);
        char* to = copy.to < STATIC ? aligned(block.dynamic) + copy.to : &__start_shared_memory + (copy.to - STATIC);
        memcpy(to, copy.from ? copy.from : (const char*)&copy.word, copy.bytes);
        Barrier& barrier = block.barriers[copy.barrier];
        barrier.bytes -= (long)copy.bytes;
        if (races::on) races::land(barrier, copy);
        look(barrier);
    }
}

// Prepares blocks `first` to `first + count` - 1 of a grid, which run together. `own` has the sizes.
static void begin(Grid& own, unsigned first, unsigned count, unsigned dynamic_bytes, char* stacks) {
    const unsigned threads = own.threads;
    const size_t bytes = &__stop_shared_memory - &__start_shared_memory;
    own.blocks.resize(count), own.fibers.resize(count * threads);
    for (unsigned b = 0; b < count; ++b) {
        Block& block = own.blocks[b];
        const unsigned at = first + b;
        block.dynamic.assign(dynamic_bytes + ALIGNMENT, (char)0xA5), block.variables.assign(bytes, (char)0xA5);
        block.warps.resize((threads + 31) / 32), block.alive = threads, block.number = b, block.first = b * threads;
        block.index = {at % own.size.x, at / own.size.x % own.size.y, at / own.size.x / own.size.y};
        for (unsigned t = 0; t < threads; ++t) {
            Fiber& fiber = own.fibers[b * threads + t];
            ++block.warps[t / 32].alive;
            fiber.block = &block, fiber.thread = t, fiber.stack = stacks + (b * threads + t) * STACK_BYTES;
        }
    }
}
// Returns whether a fiber does not depend on its own block alone.
static bool may_go_on(State state) { return state == State::runs || state == State::at_phase; }
static void run(Grid& own, u64 most_turns) {
    const unsigned threads = own.threads;
    for (u64 turn = 0; own.fault.empty(); ++turn) {
        unsigned alive = 0;
        bool moved = false;
        for (Block& each : own.blocks) alive += each.alive;
        if (!alive) break;
        if (turn >= most_turns) own.fault = "does not end";
        Block& block = own.blocks[own.chance() % own.blocks.size()];
        if (!block.alive) continue;
        swap_in(&block);
        land(block);
        const unsigned from = own.chance() % threads;
        for (unsigned i = 0; i < threads && own.fault.empty(); ++i) {
            Fiber& fiber = own.fibers[block.first + (from + i) % threads];
            if (fiber.state == State::at_phase && fiber.awaited->phase != fiber.phase) fiber.state = State::runs;
            if (fiber.state != State::runs || own.chance() % 8 == 0) continue;
            moved = true;
            go_on(fiber);
        }
        if (moved || !own.fault.empty()) continue;
        bool any = !block.copies.empty();
        for (unsigned t = 0; t < threads; ++t) any |= may_go_on(own.fibers[block.first + t].state);
        if (!any) own.fault = "all threads of a block wait for each other";
    }
    for (Block& block : own.blocks)
        if (own.fault.empty() && !block.copies.empty()) own.fault = "a block ends while copies are under way";
}
}  // namespace host

void __syncthreads() { host::block_together(host::ALL, 0); }
void __barrier_sync_count(unsigned id, unsigned count) { host::block_together(id, count); }
void __syncwarp() { host::warp_together(true); }

#define EXPORTED extern "C" __attribute__((visibility("default")))
EXPORTED u64 stack_bytes() { return host::STACK_BYTES; }
// Runs a launch. Returns 0, or the reason why it did not end. at_once: the number of blocks that run together; further blocks
// follow when these have ended. stacks: STACK_BYTES for each thread of `at_once` blocks.
EXPORTED const char* launch(const unsigned* size, unsigned at_once, unsigned threads, unsigned dynamic_bytes, u64 seed,
                            void* arguments, u64 most_turns, char* stacks) {
    static std::string fault;
    const unsigned blocks = size[0] * size[1] * size[2];
    fault.clear();
    for (unsigned first = 0; first < blocks && fault.empty(); first += at_once) {
        host::Grid own;
        host::grid = &own;
        own.chance.state = seed + first, own.threads = threads, own.arguments = arguments;
        own.size = {size[0], size[1], size[2]};
        host::begin(own, first, std::min(at_once, blocks - first), dynamic_bytes, stacks);
        races::begin();
        host::run(own, most_turns);
        races::end();
        fault = own.fault;
    }
    host::grid = nullptr;
    return fault.empty() ? nullptr : fault.c_str();
}
