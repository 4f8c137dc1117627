// The functions of common/ptx.cuh, and CUDA's functions that involve other threads, on the host.
#include <time.h>

#include "fibers.h"
#include "races.h"

using races::Order;
#define CALLER (const char*)__builtin_return_address(0)

namespace host {
static Warp& own_warp() { return grid->now->block->warps[grid->now->thread / 32]; }

void give(const void* value, size_t bytes) {
    Fiber& own = *grid->now;
    Warp& warp = own_warp();
    own.side = warp.side;
    memcpy(warp.words[own.side][own.thread % 32], value, bytes);
    warp_together(false);
}
void given(unsigned lane, void* value, size_t bytes) { memcpy(value, own_warp().words[grid->now->side][lane], bytes); }
unsigned ballot(bool own) {
    const u32 word = own;
    give(&word, sizeof word);
    const auto& words = own_warp().words[grid->now->side];
    unsigned found = 0;
    for (unsigned lane = 0; lane < 32; ++lane) found |= words[lane][0] << lane;
    return found;
}

static float half_of(int dtype, unsigned short bits) {
    return dtype == 1 ? half_bits(bits) : __uint_as_float((u32)bits << 16);
}
void multiply(int dtype, float (&c)[4], const u32 (&own)[6]) {
    const unsigned lane = grid->now->thread % 32, g = lane / 4, t = lane % 4;
    float wide[12];
    for (int i = 0; i < 12; ++i) wide[i] = half_of(dtype, (unsigned short)(own[i / 2] >> 16 * (i % 2)));
    give(wide, sizeof wide);
    const auto& words = own_warp().words[grid->now->side];
    auto element = [&](int of, int word, int k) { return __uint_as_float(words[4 * of + k % 8 / 2][2 * word + k % 2]); };
    for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 16; ++k)
            c[i] += element(g, i / 2 + 2 * (k / 8), k) * element(2 * t + i % 2, 4 + k / 8, k);
}

static void need_aligned(u64 address, const char* what) {
    if (address % 16) fail(std::string(what) + " at an address that is not aligned, " + std::to_string(address));
}
// Returns the other block of the pair.
static Block& peer_block() {
    for (Block& each : grid->blocks)
        if (each.index.x == (grid->now->block->index.x ^ 1)) return each;
    fail("a block without a peer");
}
static Barrier& barrier_at(Block& block, u32 address) {
    if (!block.barriers.count(address)) fail("no barrier at shared address " + std::to_string(address));
    return block.barriers[address];
}
static Barrier& barrier_at(u32 address) { return barrier_at(*grid->now->block, address); }
static void push(Block& block, Copy copy, const char* from) {
    if (races::on) races::copy(block, barrier_at(block, copy.barrier), copy, from);
    block.copies.push_back(copy);
}
static void expect(u32 address, u32 bytes, const char* from) {
    Barrier& barrier = barrier_at(address);
    if (!barrier.pending) fail("a slot is filled again before it was full");
    if (races::on) races::arrive(barrier, from);
    barrier.bytes += bytes, --barrier.pending;
    look(barrier);
}
template <class T> T load(const T* at, Order order, const char* from) {
    yield();
    if (races::on) races::load(at, sizeof(T), order, from);
    return *at;
}
template <class T> void store(T* to, const T& value, Order order, const char* from) {
    if (races::on) races::store(to, sizeof(T), order, from);
    grid->now->fenced = false;
    *to = value;
}
template <class T, class F> T exchange(T* to, F changed, const char* from) {
    if (races::on) races::exchange(to, sizeof(T), from);
    grid->now->fenced = false;  // its own fence does not cover stores of other threads behind their changes
    const T before = *to;
    *to = changed(before);
    return before;
}
template <class T> T add(T* to, T value, const char* from) {
    return exchange(to, [value](T before) { return before + value; }, from);
}
}  // namespace host

using namespace host;

void fence() {
    if (races::on) races::fence();
}
void fence_system() {
    fence();
    grid->now->fenced = true;
}
void __threadfence() { fence(); }
void count_release(u32* counter) {
    fence();
    add(counter, 1u, CALLER);
}
u32 add_ordered(u32* counter, u32 value) {
    fence();
    const u32 before = add(counter, value, CALLER);
    fence();
    return before;
}
u32 atomicAdd(u32* to, u32 value) { return add(to, value, CALLER); }
u64 atomicAdd(u64* to, u64 value) { return add(to, value, CALLER); }
u32 atomicOr(u32* to, u32 value) {
    return exchange(to, [value](u32 before) { return before | value; }, CALLER);
}

u32 shared_address(const void* pointer) {
    const char* p = (const char*)pointer;
    if (p >= &__start_shared_memory && p < &__stop_shared_memory) return STATIC + (u32)(p - &__start_shared_memory);
    return (u32)(p - dynamic_begin());
}
uint4 load_shared(u32 address) {
    need_aligned(address, "a vector in shared memory");
    const char* from = at(address);
    if (races::on) races::read(from, 16, CALLER);
    return *(const uint4*)from;
}
void store_shared(u32 address, const uint4& value) {
    need_aligned(address, "a vector in shared memory");
    char* to = at(address);
    if (races::on) races::write(to, 16, CALLER);
    *(uint4*)to = value;
}
// Fills the target with 0xA5 until the copy is waited for: the kernel must not rely on its content.
void copy_later(u32 address, u64 from) {
    need_aligned(address, "a copy to shared memory"), need_aligned(from, "a copy");
    char* to = at(address);
    if (races::on) races::read((const char*)from, 16, CALLER), races::write(to, 16, CALLER);
    memset(to, 0xA5, 16);
    grid->now->later.push_back({to, (const char*)from});
}
static void arrive(const std::pair<char*, const char*>& copy, const char* caller) {
    if (races::on) races::write(copy.first, 16, caller);
    memcpy(copy.first, copy.second, 16);
}
void wait_for_copies() {
    for (const auto& copy : grid->now->later)
        if (copy.first) arrive(copy, CALLER);
    grid->now->later.clear();
}
// A group ends with an empty entry.
void group_copies() { grid->now->later.push_back({nullptr, nullptr}); }
void wait_for_groups(unsigned left) {
    auto& later = grid->now->later;
    size_t groups = 0;
    for (const auto& copy : later) groups += !copy.first;
    size_t done = 0;
    for (; groups > left; ++done) {
        if (later[done].first) arrive(later[done], CALLER);
        else --groups;
    }
    later.erase(later.begin(), later.begin() + done);
}
uint4 load_relaxed(u64 address) {
    need_aligned(address, "a vector");
    return load((const uint4*)address, Order::relaxed, CALLER);
}
u32 load_relaxed(const u32* from) { return load(from, Order::relaxed, CALLER); }
u64 load_relaxed(const u64* from) { return load(from, Order::relaxed, CALLER); }
u64 load_system(const u64* from) { return load(from, Order::relaxed, CALLER); }
void load_two_system(const u64* from, u64& first, u64& second) {
    const ulonglong2 both = load((const ulonglong2*)from, Order::relaxed, CALLER);
    first = both.x, second = both.y;
}
u32 load_acquire(const u32* from) { return load(from, Order::acquire, CALLER); }
u64 load_acquire(const u64* from) { return load(from, Order::acquire, CALLER); }
u64 load_acquire_system(const u64* from) { return load(from, Order::acquire, CALLER); }
void store_relaxed(u64 to, u32 value) { store((u32*)to, value, Order::relaxed, CALLER); }
void store_relaxed(u64 to, const uint2& value) { store((uint2*)to, value, Order::relaxed, CALLER); }
void store_relaxed(u64 to, u64 value) { store((u64*)to, value, Order::relaxed, CALLER); }
void store_system(u64* to, u64 value) { store(to, value, Order::relaxed, CALLER); }
void store_told(u64* to, u64 value) {
    if (!grid->now->fenced) fail("the host is notified of a store that may not have arrived");
    store(to, value, Order::relaxed, CALLER);
}
void store_two_system(u64* to, u64 first, u64 second) { store((ulonglong2*)to, ulonglong2{first, second}, Order::relaxed, CALLER); }
void store_two(ulonglong2* to, u64 first, u64 second) { store(to, ulonglong2{first, second}, Order::relaxed, CALLER); }
void store_release(u64* to, u64 value) { store(to, value, Order::release, CALLER); }
void store_release_system(u64* to, u64 value) { store(to, value, Order::release, CALLER); }

u64 clock64() {  // a clock that advances by one at each call
    static u64 cycles = 0;
    yield();
    return ++cycles;
}
u64 global_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1'000'000'000ull * now.tv_sec + now.tv_nsec;
}

void barrier_begin(u32 address, u32 count) {
    Barrier& barrier = grid->now->block->barriers[address] = {(int)count, (int)count};
    if (races::on) races::begin(barrier);
}
void barrier_expect(u32 address, u32 bytes) { expect(address, bytes, CALLER); }
void barrier_arrive(u32 address) { expect(address, 0, CALLER); }
void barrier_wait(u32 address, u32 phase) {
    Fiber& own = *grid->now;
    own.awaited = &barrier_at(address), own.phase = phase;
    if (own.awaited->phase == phase) {
        own.state = State::at_phase;
        yield();
    }
    if (races::on) races::pass(barrier_at(address), CALLER);
}
bool barrier_try(u32 address, u32 phase) {
    yield();
    if (barrier_at(address).phase == phase) return false;
    if (races::on) races::pass(barrier_at(address), CALLER);
    return true;
}
void copy_bulk(u32 to, u64 from, u32 bytes, u32 barrier, u64) {
    if (to % 16 || from % 16 || bytes % 16) fail("a bulk copy of what is not aligned");
    push(*grid->now->block, {to, (const char*)from, bytes, barrier}, CALLER);
}
void pair_together() {
    Block &own = *grid->now->block, &other = peer_block();
    const int threads = (int)grid->threads, all = (own.at_peer++ / threads + 1) * threads;
    if (races::on && own.at_peer == all && other.at_peer == all) races::meet(own, other);
    while (own.at_peer < all || other.at_peer < all) yield();
}
void send_to_peer(u32 to, u64 value, u32 barrier) {
    Block& other = peer_block();
    if (!other.alive) fail("a store to a block that has ended");
    push(other, {to, nullptr, (u32)sizeof value, barrier, value}, CALLER);
}
