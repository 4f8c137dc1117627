// Enough of CUDA to run a kernel of launchopt/kernels under a C++ compiler: every thread of a grid is a fiber, and which one
// goes on next, chance says. Barriers, warp collectives and mbarriers are those of the device; bulk copies come late. What it
// finds: wrong indices, threads that miss a barrier, waits that nobody ends, slots that are filled too early. What it does
// not: anything about the order in which memory becomes visible.
#include <setjmp.h>
#include <time.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
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
struct alignas(16) ulonglong2 {
    unsigned long long x, y;
};
struct alignas(8) float2 {
    float x, y;
};
#define __device__
#define __global__
#define __grid_constant__
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(bytes) alignas(bytes)
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
inline float rsqrtf(float value) { return 1.0f / sqrtf(value); }
inline float __expf(float value) { return expf(value); }
inline float __fdividef(float a, float b) { return a / b; }
inline void sincospi(double turns, double* sine, double* cosine) { *sine = sin(M_PI * turns), *cosine = cos(M_PI * turns); }
template <class T> T __ldcg(const T* from) { return *from; }

__shared__ __attribute__((used)) char one_variable;  // so that there is any
extern char __start_shared_memory __attribute__((visibility("hidden")));  // of the block that runs
extern char __stop_shared_memory __attribute__((visibility("hidden")));

namespace host {
constexpr unsigned STATIC = 1u << 30;  // shared addresses from here on are of variables, below of dynamic memory
constexpr size_t STACK_BYTES = 96 << 10;
constexpr int ALL = -1;  // the barrier of all threads that have not ended

struct Warp {
    int arrived = 0, alive = 0;
    unsigned words[32][6];
};
struct Barrier {
    int count = 1, pending = 1;
    long bytes = 0;
    unsigned phase = 0;
};
struct Copy {
    unsigned to;
    const char* from;
    unsigned bytes, barrier;
    unsigned long long word = 0;  // what is copied where `from` is 0
};
struct Named {
    int arrived = 0, of = 0;
};
struct Block {
    std::vector<char> dynamic, variables;
    std::map<unsigned, Barrier> barriers;
    std::map<int, Named> named;
    std::vector<Copy> copies;
    std::vector<Warp> warps;
    uint3 index;
    unsigned first = 0;  // of its fibers
    int alive = 0;
    int at_peer = 0;  // threads that have come to a barrier of a pair of blocks, since the launch began
};
enum class State { runs, in_warp, at_barrier, ended };
struct Fiber {
    ucontext_t start;
    jmp_buf at;  // where it goes on
    bool begun = false;
    Block* block;
    unsigned thread;
    State state = State::runs;
    int barrier = 0;
};

// SplitMix64 (Steele, Lea and Flood 2014): <random> by itself is a fifth of the time to compile a kernel.
struct Chance {
    unsigned long long state;
    unsigned long long operator()() {
        unsigned long long z = state += 0x9E3779B97F4A7C15ull;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ z >> 27) * 0x94D049BB133111EBull;
        return z ^ z >> 31;
    }
};

struct Grid {
    std::vector<Block> blocks;
    std::vector<Fiber> fibers;
    Fiber* now = nullptr;
    Block* resident = nullptr;
    jmp_buf scheduler;
    Chance chance;
    std::string fault;
    unsigned threads = 0;
    uint3 size;  // blocks
    void* arguments = nullptr;
};
inline Grid* grid;

// By jumps: swapcontext asks the kernel for the mask of signals each time.
inline void yield() {
    if (!_setjmp(grid->now->at)) _longjmp(grid->scheduler, 1);
}
inline void go_on(Fiber& fiber) {  // until it yields
    grid->now = &fiber;
    if (_setjmp(grid->scheduler)) return;
    if (fiber.begun) _longjmp(fiber.at, 1);
    fiber.begun = true;
    setcontext(&fiber.start);
}
inline void fail(const std::string& what) {
    if (grid->fault.empty()) grid->fault = what;
    while (true) yield();
}

constexpr unsigned ALIGNMENT = 128;  // of dynamic memory
inline char* aligned(std::vector<char>& memory) { return memory.data() + (-(uintptr_t)memory.data() & (ALIGNMENT - 1)); }
inline char* dynamic_begin() { return aligned(grid->now->block->dynamic); }
inline char* at(unsigned address) {
    if (address >= STATIC) return &__start_shared_memory + (address - STATIC);
    if (address >= grid->now->block->dynamic.size()) fail("shared address " + std::to_string(address) + " is beyond the end");
    return dynamic_begin() + address;
}

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
inline void look(Barrier& barrier) {
    if (barrier.pending || barrier.bytes) return;
    barrier.phase ^= 1, barrier.pending = barrier.count;
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

struct alignas(16) int4 {
    int x, y, z, w;
};
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double a) { return sqrt(a); }
inline float __double2float_rn(double a) { return (float)a; }
inline double __ull2double_rn(unsigned long long a) { return (double)a; }
inline void __syncthreads() { host::block_together(host::ALL, 0); }

inline void __barrier_sync_count(unsigned id, unsigned count) { host::block_together(id, count); }
inline void __syncwarp() { host::warp_together(); }
inline void __threadfence() {}
inline void __threadfence_system() {}
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
template <class T> T atomicAdd(T* to, T value) {
    const T before = *to;
    *to += value;
    return before;
}
// What all lanes of the own warp have given; `read` is called before any of them goes on.
template <class T, class Read> auto exchanged(const T& value, Read read) {
    const unsigned thread = host::grid->now->thread;
    host::Warp& warp = host::grid->now->block->warps[thread / 32];
    memcpy(warp.words[thread % 32], &value, sizeof value);
    host::warp_together();
    const auto found = read([&](unsigned lane) {
        T other;
        memcpy(&other, warp.words[lane], sizeof other);
        return other;
    });
    host::warp_together();
    return found;
}
template <class T> T __shfl_sync(unsigned, T value, int lane) {
    return exchanged(value, [&](auto of) { return of(lane); });
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int bits) {
    return __shfl_sync(mask, value, host::grid->now->thread % 32 ^ bits);
}
inline unsigned __ballot_sync(unsigned, bool own) {
    return exchanged(own, [](auto of) {
        unsigned found = 0;
        for (unsigned lane = 0; lane < 32; ++lane) found |= (unsigned)of(lane) << lane;
        return found;
    });
}
inline bool __all_sync(unsigned mask, bool own) { return __ballot_sync(mask, own) == 0xFFFFFFFFu; }
inline bool __any_sync(unsigned mask, bool own) { return __ballot_sync(mask, own) != 0; }
inline int __ffs(unsigned bits) { return __builtin_ffs((int)bits); }

// -- What ptx.cuh has for the device.
typedef unsigned u32;
typedef unsigned long long u64;
inline u32 shared_address(const void* pointer) {
    const char* p = (const char*)pointer;
    if (p >= &__start_shared_memory && p < &__stop_shared_memory) return host::STATIC + (u32)(p - &__start_shared_memory);
    return (u32)(p - host::dynamic_begin());
}
inline uint4 load_shared(u32 address) {
    if (address % 16) host::fail("a vector at shared address " + std::to_string(address));
    return *(const uint4*)host::at(address);
}
inline void store_shared(u32 address, const uint4& value) {
    if (address % 16) host::fail("a vector at shared address " + std::to_string(address));
    *(uint4*)host::at(address) = value;
}
inline u32 load_shared_acquire(u32 address) {
    host::yield();
    return *(const u32*)host::at(address);
}
inline void store_shared_release(u32 address, u32 value) { *(u32*)host::at(address) = value; }
inline uint4 load_relaxed(u64 address) {
    host::yield();
    if (address % 16) host::fail("a vector at an address that is not aligned");
    return *(const uint4*)address;
}
inline void store_relaxed(u64 address, u32 value) { *(u32*)address = value; }
inline void store_relaxed(u64 address, const uint2& value) { *(uint2*)address = value; }
inline void store_relaxed(u64 address, u64 value) { *(u64*)address = value; }
inline u64 load_relaxed(const u64* from) {
    host::yield();
    return *from;
}
inline u32 load_acquire(const u32* from) {
    host::yield();
    return *from;
}
inline u64 load_system(const u64* from) { return load_relaxed(from); }
inline void store_system(u64* to, u64 value) { *to = value; }
inline void store_two(ulonglong2* to, u64 first, u64 second) { *to = {first, second}; }
inline void fence() {}
inline u64 load_acquire(const u64* from) { return load_relaxed(from); }
inline u64 load_acquire_system(const u64* from) { return load_relaxed(from); }
inline void store_release(u64* to, u64 value) { *to = value; }
inline void store_release_system(u64* to, u64 value) { *to = value; }
inline void let_next_begin() {}
inline void wait_for_earlier() {}  // a launch begins when the one before it has ended
// Goes on by one each time that somebody asks.
inline u64 clock64() {
    static u64 cycles = 0;
    host::yield();
    return ++cycles;
}
inline u64 global_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1'000'000'000ull * now.tv_sec + now.tv_nsec;
}
inline void barrier_begin(u32 address, u32 count) {
    host::grid->now->block->barriers[address] = {(int)count, (int)count};
}
inline void barriers_begun() {}
inline host::Barrier& barrier_at(u32 address) {
    auto& all = host::grid->now->block->barriers;
    if (!all.count(address)) host::fail("no barrier at shared address " + std::to_string(address));
    return all[address];
}
inline void barrier_expect(u32 address, u32 bytes) {
    host::Barrier& barrier = barrier_at(address);
    if (!barrier.pending) host::fail("a slot is filled again before it was full");
    barrier.bytes += bytes, --barrier.pending;
    host::look(barrier);
}
inline void barrier_arrive(u32 address) { barrier_expect(address, 0); }
inline void barrier_wait(u32 address, u32 phase) {
    while (barrier_at(address).phase == phase) host::yield();
}
inline bool barrier_try(u32 address, u32 phase) {
    host::yield();
    return barrier_at(address).phase != phase;
}
inline u64 evict_first() { return 0; }
inline void copy_bulk(u32 to, u64 from, u32 bytes, u32 barrier, u64 = 0) {
    if (to % 16 || from % 16 || bytes % 16) host::fail("a bulk copy of what is not aligned");
    host::grid->now->block->copies.push_back({to, (const char*)from, bytes, barrier});
}
// Of blocks that come in pairs.
inline host::Block& peer_block() {
    const auto& own = *host::grid->now->block;
    for (host::Block& each : host::grid->blocks)
        if (each.index.x == (own.index.x ^ 1)) return each;
    host::fail("a block without a peer");
    return host::grid->blocks[0];
}
inline void pair_together() {
    host::Block &own = *host::grid->now->block, &other = peer_block();
    const int threads = (int)host::grid->threads, all = (own.at_peer++ / threads + 1) * threads;
    while (own.at_peer < all || other.at_peer < all) host::yield();
}
inline u32 at_peer(u32 own_address) { return own_address; }
template <class T> void send_word(u32 to, T value, u32 barrier) {
    host::Block& other = peer_block();
    if (!other.alive) host::fail("a store to a block that has ended");
    other.copies.push_back({to, nullptr, (unsigned)sizeof value, barrier, value});
}
inline void send_to_peer(u32 to, u32 value, u32 barrier) { send_word(to, value, barrier); }
inline void send_to_peer(u32 to, u64 value, u32 barrier) { send_word(to, value, barrier); }
#if DTYPE != 0
inline u32 narrow_two(float first, float second) {
#if DTYPE == 1
    return (u32)bits_of_half(first) | (u32)bits_of_half(second) << 16;
#else
    auto rounded = [](float value) {  // to bfloat16
        const u32 bits = __float_as_uint(value);
        return (bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FFFu : bits + 0x7FFFu + (bits >> 16 & 1u) >> 16;
    };
    return rounded(first) | rounded(second) << 16;
#endif
}
#endif
inline float half_of(unsigned short bits) {
#if DTYPE == 1
    return half_bits(bits);
#else
    return __uint_as_float((u32)bits << 16);
#endif
}
inline void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    const unsigned lane = host::grid->now->thread % 32, g = lane / 4, t = lane % 4;
    host::Warp& warp = host::grid->now->block->warps[host::grid->now->thread / 32];
    const u32 own[6] = {a0, a1, a2, a3, b0, b1};
    memcpy(warp.words[lane], own, sizeof own);
    host::warp_together();
    auto element = [&](int of, int word, int k) {
        return half_of((unsigned short)(warp.words[4 * of + k % 8 / 2][word] >> 16 * (k % 2)));
    };
    for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 16; ++k)
            c[i] += element(g, i / 2 + 2 * (k / 8), k) * element(2 * t + i % 2, 4 + k / 8, k);
    host::warp_together();
}
