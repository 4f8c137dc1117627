#include "races.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <unordered_map>

using host::Clock;
using host::Seen;

namespace races {
bool on = false;

namespace {
constexpr u64 SHARED = 1ull << 63;  // set in a key: block number above a 32-bit shared address; clear: an address of memory
constexpr u64 PAGE_BYTES = 4096, CELL_BYTES = 2;

struct Access {
    const char* from = nullptr;
    u32 clock = 0;  // 0: no access
    u32 thread : 31, is_atomic : 1;
};
struct Reads {
    std::vector<Access> all;
    size_t most = 8;  // add_read drops what it can when there are as many
};
struct Cell {
    Access write, read;  // the last write; one read since then that is not ordered before another (often the only one)
    std::unique_ptr<Reads> more;
};
struct Thread {
    Clock known;    // for each thread, the clock up to which this thread sees its stores
    Clock fenced;   // what this thread had seen and done at its last fence
    std::vector<Clock> loaded;  // clocks of words that it has loaded relaxed since then
    u32 clock = 1;  // its own clock
};
struct Launch {
    std::vector<Thread> threads;  // fibers, then one pseudo-thread for the copies of each barrier
    std::unordered_map<u64, std::unique_ptr<Cell[]>> pages;
    std::unordered_map<u64, Clock> released;  // the clock that each stored word releases
    Clock one, other, both;                   // the last join, cached: the lanes of a warp do the same ones
    struct {
        u64 number = ~0ull;
        Cell* cells = nullptr;
    } recent[64];  // pages used last, by the last bits of their number
};
std::unique_ptr<Launch> launch;

u32 own() { return (u32)(host::grid->now - host::grid->fibers.data()); }

u32 seen(const Clock& clock, u32 thread) { return clock ? clock->of(thread) : 0; }
void join(Seen& into, const Clock& clock) {
    if (clock) into.join(*clock);
}
Clock joined(const Clock& one, const Clock& other) {
    if (!one || !other || one == other) return one ? one : other;
    if (launch->one == one && launch->other == other) return launch->both;
    Seen made = *one;
    join(made, other);
    launch->one = one, launch->other = other;
    return launch->both = made == *one ? one : std::make_shared<const Seen>(std::move(made));
}
// Adds to `into` all that a thread has seen and done. Its later actions get a higher clock.
void give(Seen& into, u32 thread) {
    join(into, launch->threads[thread].known);
    into.raise(thread, launch->threads[thread].clock++);
}
Clock given(u32 thread) {
    Seen made;
    give(made, thread);
    return std::make_shared<const Seen>(std::move(made));
}
void take(u32 thread, const Clock& clock) {
    Clock& known = launch->threads[thread].known;
    known = joined(known, clock);
}
bool is_before(const Access& access, u32 thread) {
    return !access.clock || access.thread == thread || seen(launch->threads[thread].known, access.thread) >= access.clock;
}

// -- Memory
u64 shared_key(unsigned block, u32 address) { return SHARED | (u64)block << 32 | address; }
u64 key_of(const void* pointer) {  // 0: the thread's own stack, which nobody else uses
    const char* p = (const char*)pointer;
    const host::Fiber& now = *host::grid->now;
    if (p >= now.stack && p < now.stack + host::STACK_BYTES) return 0;
    if (p >= &__start_shared_memory && p < &__stop_shared_memory)
        return shared_key(now.block->number, host::STATIC + (u32)(p - &__start_shared_memory));
    const std::vector<char>& dynamic = now.block->dynamic;
    if (p >= dynamic.data() && p < dynamic.data() + dynamic.size())
        return shared_key(now.block->number, (u32)(p - host::dynamic_begin()));
    return (u64)p;
}
Cell& cell_at(u64 key) {
    const u64 number = key / PAGE_BYTES;
    auto& recent = launch->recent[number % std::size(launch->recent)];
    if (recent.number != number) {
        auto& page = launch->pages[number];
        if (!page) page.reset(new Cell[PAGE_BYTES / CELL_BYTES]);
        recent = {number, page.get()};
    }
    return recent.cells[key % PAGE_BYTES / CELL_BYTES];
}

std::string name_of(u32 thread) {
    const auto& fibers = host::grid->fibers;
    if (thread >= fibers.size()) return "a copy";
    const host::Fiber& fiber = fibers[thread];
    return "thread " + std::to_string(fiber.thread) + " of block " + std::to_string(fiber.block->number);
}
std::string place_of(const char* from) {
    Dl_info library;
    char text[32];
    snprintf(text, sizeof text, "{pc:%llx}", (u64)(dladdr(from, &library) ? from - 1 - (const char*)library.dli_fbase : 0));
    return text;
}
[[noreturn]] void report(u64 key, const Access& before, bool wrote, const Access& now, bool writes) {
    char where[64];
    if (key & SHARED) snprintf(where, sizeof where, "shared memory, 0x%x of block %u", (u32)key, (u32)(key << 1 >> 33));
    else snprintf(where, sizeof where, "memory, 0x%llx", key);
    host::fail("a race: " + name_of(now.thread) + (writes ? " stores to " : " loads from ") + where + place_of(now.from) +
               ", and without an order " + name_of(before.thread) + (wrote ? " stores there" : " loads from there") +
               place_of(before.from));
}
// Adds a read to a cell. It may drop reads ordered before it: an access ordered after it is ordered after them, too.
void add_read(Cell& cell, u32 thread, const Access& now) {
    const auto is_known = [&](const Access& each) {
        return !is_before(each, thread) || (each.clock && now.is_atomic && !each.is_atomic);
    };
    if (!is_known(cell.read)) {
        cell.read = now;
        return;
    }
    if (!cell.more) cell.more.reset(new Reads);
    auto& all = cell.more->all;
    all.push_back(now);
    if (all.size() < cell.more->most) return;
    all.erase(std::remove_if(all.begin(), all.end() - 1, [&](const Access& each) { return !is_known(each); }), all.end() - 1);
    cell.more->most = std::max<size_t>(8, 2 * all.size());
}
// Checks and records an access. thread: the issuing thread, whose clock decides the order. now: the access to record.
void note(u64 key, size_t bytes, u32 thread, const Access& now, bool writes) {
    Access ordered = {};  // the last one found before this access; neighbouring cells often have the same
    const auto races = [&](const Access& before) {
        if (!before.clock || (before.is_atomic && now.is_atomic)) return false;
        if (before.thread == ordered.thread && before.clock <= ordered.clock) return false;
        if (!is_before(before, thread)) return true;
        ordered = before;
        return false;
    };
    for (const u64 last = key + bytes; key < last; key += CELL_BYTES) {
        Cell& cell = cell_at(key);
        if (races(cell.write)) report(key, cell.write, true, now, writes);
        if (!writes) {
            add_read(cell, thread, now);
            continue;
        }
        if (races(cell.read)) report(key, cell.read, false, now, writes);
        if (cell.more)
            for (const Access& each : cell.more->all)
                if (races(each)) report(key, each, false, now, writes);
        cell.write = now, cell.read = {}, cell.more.reset();
    }
}
void note(const void* at, size_t bytes, bool writes, bool is_atomic, const char* from) {
    const u64 key = key_of(at);
    if (!key) return;
    const u32 thread = own();
    note(key, bytes, thread, {from, launch->threads[thread].clock, thread, is_atomic}, writes);
}
template <class Word> void for_words(const void* at, size_t bytes, Word word) {
    for (size_t i = 0; i < bytes; i += 4) word(key_of((const char*)at + i));
}
void check_begun(const host::Barrier& barrier, const char* from) {
    if (is_before({nullptr, barrier.begun, barrier.begun_by, 0}, own())) return;
    host::fail("a race: " + name_of(own()) + " comes to a barrier" + place_of(from) + ", and without an order " +
               name_of(barrier.begun_by) + " begins it");
}
}  // namespace

void begin() {
    if (!on) return;
    launch.reset(new Launch);
    launch->threads.resize(host::grid->fibers.size());
}
void end() { launch.reset(); }

void meet(const std::vector<u32>& fibers) {
    Seen all;
    const Clock* last = nullptr;
    for (u32 each : fibers) {
        const Clock& known = launch->threads[each].known;
        if (!last || *last != known) join(all, known);
        last = &known;
    }
    for (u32 each : fibers) all.raise(each, launch->threads[each].clock++);
    const Clock made = std::make_shared<const Seen>(std::move(all));
    for (u32 each : fibers) launch->threads[each].known = made;
}
void meet(const host::Block& one, const host::Block& other) {
    std::vector<u32> all;
    for (const host::Block* each : {&one, &other})
        for (u32 t = 0; t < host::grid->threads; ++t) all.push_back(each->first + t);
    meet(all);
}
void fence() {
    Thread& thread = launch->threads[own()];
    for (const Clock& each : thread.loaded) take(own(), each);
    thread.loaded.clear();
    thread.fenced = given(own());
}

void read(const void* at, size_t bytes, const char* from) { note(at, bytes, false, false, from); }
void write(const void* at, size_t bytes, const char* from) { note(at, bytes, true, false, from); }
void load(const void* at, size_t bytes, Order order, const char* from) {
    note(at, bytes, false, true, from);
    for_words(at, bytes, [&](u64 key) {
        const auto found = launch->released.find(key);
        if (found == launch->released.end() || !found->second) return;
        if (order == Order::acquire) return take(own(), found->second);
        auto& loaded = launch->threads[own()].loaded;
        for (const Clock& each : loaded)
            if (each == found->second) return;
        loaded.push_back(found->second);
    });
}
void store(const void* at, size_t bytes, Order order, const char* from) {
    note(at, bytes, true, true, from);
    const Clock clock = order == Order::release ? given(own()) : launch->threads[own()].fenced;
    for_words(at, bytes, [&](u64 key) { launch->released[key] = clock; });
}
void exchange(const void* at, size_t bytes, const char* from) {
    load(at, bytes, Order::relaxed, from);
    note(at, bytes, true, true, from);
    for_words(at, bytes, [&](u64 key) {  // a thread that sees the new word also sees what earlier words released
        Clock& released = launch->released[key];
        released = joined(released, launch->threads[own()].fenced);
    });
}

void begin(host::Barrier& barrier) {
    barrier.begun_by = own(), barrier.begun = launch->threads[own()].clock;
    barrier.copies = (u32)launch->threads.size();
    launch->threads.emplace_back();
}
void arrive(host::Barrier& barrier, const char* from) {
    check_begun(barrier, from);
    give(barrier.gathered, own());
}
void pass(const host::Barrier& barrier, const char* from) {
    check_begun(barrier, from);
    take(own(), barrier.passed);
}
void end_phase(host::Barrier& barrier) {
    barrier.passed = std::make_shared<const Seen>(std::move(barrier.gathered));
    barrier.gathered = {};
}
void copy(const host::Block& to, host::Barrier& barrier, host::Copy& copy, const char* from) {
    check_begun(barrier, from);
    copy.clock = ++barrier.copied;
    copy.known = given(own());
    const Access now = {from, copy.clock, barrier.copies, 0};
    if (copy.from) note(key_of(copy.from), copy.bytes, own(), now, false);
    note(shared_key(to.number, copy.to), copy.bytes, own(), now, true);
}
void land(host::Barrier& barrier, const host::Copy& copy) {
    join(barrier.gathered, copy.known);
    barrier.gathered.raise(barrier.copies, copy.clock);
}
}  // namespace races

// -- Functions that the compiler makes kernels call
#define CALLER (const char*)__builtin_return_address(0)
#define PLAIN(name, bytes)                                                                \
    void __tsan_read##name(const void* at) { races::read(at, bytes, CALLER); }            \
    void __tsan_write##name(const void* at) { races::write(at, bytes, CALLER); }          \
    void __tsan_unaligned_read##name(const void* at) { races::read(at, bytes, CALLER); }  \
    void __tsan_unaligned_write##name(const void* at) { races::write(at, bytes, CALLER); } \
    void __tsan_volatile_read##name(const void* at) { races::load(at, bytes, races::Order::relaxed, CALLER); } \
    void __tsan_volatile_write##name(const void* at) { races::store(at, bytes, races::Order::relaxed, CALLER); }
extern "C" {
void __tsan_init() { races::on = true; }
PLAIN(1, 1)
PLAIN(2, 2)
PLAIN(4, 4)
PLAIN(8, 8)
PLAIN(16, 16)
void __tsan_read_range(const void* at, size_t bytes) { races::read(at, bytes, CALLER); }
void __tsan_write_range(const void* at, size_t bytes) { races::write(at, bytes, CALLER); }
}
