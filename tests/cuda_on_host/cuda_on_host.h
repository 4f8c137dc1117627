// Enough of CUDA to run a kernel of launchopt/kernels under a C++ compiler: every thread of a grid is a fiber, and which one
// goes on next, chance says. Barriers and warp collectives are those of the device. What it finds: wrong indices, threads that
// miss a barrier, waits that nobody ends. What it does not: anything about the order in which memory becomes visible.
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

struct uint2 {
    unsigned x, y;
};
struct uint3 {
    unsigned x, y, z;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
#define __device__
#define __global__
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("shared_memory")))

template <class A, class B> auto min(A a, B b) {
    using C = std::common_type_t<A, B>;
    return (C)a < (C)b ? (C)a : (C)b;
}
template <class A, class B> auto max(A a, B b) {
    using C = std::common_type_t<A, B>;
    return (C)a > (C)b ? (C)a : (C)b;
}
inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, 4);
    return bits;
}
inline void sincospi(double turns, double* sine, double* cosine) { *sine = sin(M_PI * turns), *cosine = cos(M_PI * turns); }
template <class T> T __ldcg(const T* from) { return *from; }

__shared__ __attribute__((used)) char one_variable;  // so that there is any
extern char __start_shared_memory __attribute__((visibility("hidden")));  // of the block that runs
extern char __stop_shared_memory __attribute__((visibility("hidden")));

namespace host {
constexpr size_t STACK_BYTES = 96 << 10;
constexpr int ALL = -1;  // the barrier of all threads that have not ended

struct Warp {
    int arrived = 0, alive = 0;
    unsigned words[32];
};
struct Named {
    int arrived = 0, of = 0;
};
struct Block {
    std::vector<char> dynamic, variables;
    std::map<int, Named> named;
    std::vector<Warp> warps;
    uint3 index;
    unsigned first = 0;  // of its fibers
    int alive = 0;
};
enum class State { runs, in_warp, at_barrier, ended };
struct Fiber {
    ucontext_t context;
    Block* block;
    unsigned thread;
    State state = State::runs;
    int barrier = 0;
};

struct Grid {
    std::vector<Block> blocks;
    std::vector<Fiber> fibers;
    Fiber* now = nullptr;
    Block* resident = nullptr;
    ucontext_t scheduler;
    std::mt19937_64 chance;
    std::string fault;
    unsigned threads = 0;
    uint3 size;  // blocks
    void* arguments = nullptr;
};
inline Grid* grid;

inline void yield() { swapcontext(&grid->now->context, &grid->scheduler); }
inline void fail(const std::string& what) {
    if (grid->fault.empty()) grid->fault = what;
    while (true) yield();
}

inline char* aligned(std::vector<char>& memory) { return memory.data() + (-(uintptr_t)memory.data() & 15); }
inline char* dynamic_begin() { return aligned(grid->now->block->dynamic); }
inline void wake_warp(Block* block, unsigned warp) {
    for (unsigned t = 32 * warp; t < std::min(32 * (warp + 1), grid->threads); ++t)
        if (grid->fibers[block->first + t].state == State::in_warp) grid->fibers[block->first + t].state = State::runs;
}
inline void wake_all(Block* block, int barrier) {
    for (unsigned t = 0; t < grid->threads; ++t) {
        Fiber& each = grid->fibers[block->first + t];
        if (each.state == State::at_barrier && each.barrier == barrier) each.state = State::runs;
    }
}
inline void warp_together() {
    Fiber& own = *grid->now;
    Warp& warp = own.block->warps[own.thread / 32];
    if (++warp.arrived == warp.alive) {
        warp.arrived = 0;
        wake_warp(own.block, own.thread / 32);
        return;
    }
    own.state = State::in_warp;
    yield();
}
inline void block_together(int id, int count) {
    Fiber& own = *grid->now;
    Named& named = own.block->named[id];
    if (named.arrived && named.of != count && id != ALL) fail("barrier " + std::to_string(id) + " is for " + std::to_string(named.of));
    named.of = count;
    if (++named.arrived == (id == ALL ? own.block->alive : count)) {
        named.arrived = 0;
        wake_all(own.block, id);
        return;
    }
    own.state = State::at_barrier, own.barrier = id;
    yield();
}
}  // namespace host

// threadIdx.x and the like, read anew each time: they are of the fiber that runs.
#define DIMENSION(name, value)                                \
    struct name {                                             \
        operator unsigned() const {                           \
            const host::Fiber& now = *host::grid->now;        \
            return value;                                     \
        }                                                     \
    }
struct ThreadIdx {
    DIMENSION(X, now.thread) x;
    unsigned y = 0, z = 0;
};
struct BlockDim {
    DIMENSION(X, (now.thread, host::grid->threads)) x;
    unsigned y = 1, z = 1;
};
struct BlockIdx {
    DIMENSION(X, now.block->index.x) x;
    DIMENSION(Y, now.block->index.y) y;
    DIMENSION(Z, now.block->index.z) z;
};
struct GridDim {
    DIMENSION(X, (now.thread, host::grid->size.x)) x;
    DIMENSION(Y, (now.thread, host::grid->size.y)) y;
    DIMENSION(Z, (now.thread, host::grid->size.z)) z;
};
inline char* dynamic_memory() { return host::dynamic_begin(); }

inline ThreadIdx threadIdx;
inline BlockDim blockDim;
inline BlockIdx blockIdx;
inline GridDim gridDim;

inline void __syncthreads() { host::block_together(host::ALL, 0); }

inline void __barrier_sync_count(unsigned id, unsigned count) { host::block_together(id, count); }
inline void __syncwarp() { host::warp_together(); }
inline void __threadfence() {}
inline float half_bits(unsigned short bits) {
    _Float16 value;
    memcpy(&value, &bits, 2);
    return (float)value;
}
inline unsigned short bits_of_half(float wide) {
    const _Float16 value = (_Float16)wide;
    unsigned short bits;
    memcpy(&bits, &value, 2);
    return bits;
}
inline void __nanosleep(unsigned) { host::yield(); }
inline unsigned atomicAdd(unsigned* to, unsigned value) {
    const unsigned before = *to;
    *to += value;
    return before;
}
inline float __shfl_xor_sync(unsigned, float value, int mask) {
    const unsigned thread = host::grid->now->thread;
    host::Warp& warp = host::grid->now->block->warps[thread / 32];
    warp.words[thread % 32] = __float_as_uint(value);
    host::warp_together();
    const float found = __uint_as_float(warp.words[thread % 32 ^ mask]);
    host::warp_together();
    return found;
}

typedef unsigned u32;
typedef unsigned long long u64;
