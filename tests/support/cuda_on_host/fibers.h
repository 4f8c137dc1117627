// The state of a grid whose threads are fibers of one process: blocks, warps and barriers. See cuda_on_host.h.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cuda_on_host.h"

extern char __start_shared_memory __attribute__((visibility("hidden")));  // shared variables of the running block
extern char __stop_shared_memory __attribute__((visibility("hidden")));

namespace host {
constexpr unsigned STATIC = 1u << 30;  // shared addresses of variables start here; lower ones are dynamic memory
constexpr size_t STACK_BYTES = (96 << 10) + 448;  // an odd number of cache lines: else all stacks share few sets of a cache
constexpr int ALL = -1;  // number of the barrier for all threads that have not ended
// A vector clock over all threads (races.h). Clocks share parts that are equal: a barrier changes the part of its own block.
class Seen {
    static constexpr u32 PART = 128;
    struct Part {
        u32 clocks[PART] = {};
    };
    std::vector<std::shared_ptr<Part>> parts;  // a part of which another clock has a share is never changed
    Part& own(u32 part);

   public:
    u32 of(u32 thread) const {
        const u32 part = thread / PART;
        return part < parts.size() && parts[part] ? parts[part]->clocks[thread % PART] : 0;
    }
    void raise(u32 thread, u32 clock);
    void join(const Seen& other);
    bool operator==(const Seen& other) const { return parts == other.parts; }  // false may mean equal clocks in separate parts
};
typedef std::shared_ptr<const Seen> Clock;

struct Warp {
    int arrived = 0, alive = 0;
    bool orders = false;  // whether lanes that meet see each other's stores; false for a shuffle
    int side = 0;  // of `words`, for the next exchange; changes at each meeting, so that slow lanes can still read the others
    u32 words[2][32][12];
};
struct Barrier {
    int count = 1, pending = 1;
    long bytes = 0;
    unsigned phase = 0;
    // For races.h: the thread that initialised it, and when; the pseudo-thread of its copies, and their number; the clocks that
    // arrivals bring to this phase, and that the last phase passes on.
    u32 begun_by = 0, begun = 0, copies = 0, copied = 0;
    Seen gathered;
    Clock passed;
};
struct Copy {
    u32 to;
    const char* from;
    u32 bytes, barrier;
    u64 word = 0;  // the value to copy if `from` is 0
    u32 clock = 0;  // for races.h, like `known`, the clock of the issuing thread
    Clock known;
};
struct Named {
    int arrived = 0, of = 0;
};
struct Block {
    std::vector<char> dynamic, variables;
    std::map<u32, Barrier> barriers;
    std::map<int, Named> named;
    std::vector<Copy> copies;
    std::vector<Warp> warps;
    uint3 index;
    unsigned number = 0, first = 0;  // the block's number among those that run together, and its first fiber
    int alive = 0;
    int at_peer = 0;  // arrivals of its threads at pair barriers since the launch began
};
enum class State { runs, in_warp, at_barrier, at_phase, ended };
struct Fiber {
    State state = State::runs;
    bool begun = false;
    void* at[5];  // where the fiber continues
    char* stack;
    Block* block;
    unsigned thread;
    int side = 0;  // of its warp's words, in its last exchange
    int barrier = 0;  // in state at_barrier
    const Barrier* awaited = nullptr;  // in state at_phase, until its phase is no longer `phase`
    unsigned phase = 0;
    bool fenced = false;  // after a system fence, until the next store or atomic operation (ptx.cpp)
    std::vector<std::pair<char*, const char*>> later;  // asynchronous copies not yet waited for: (to, from)
};

// SplitMix64 (Steele, Lea and Flood 2014).
struct Chance {
    u64 state;
    u64 operator()() {
        u64 z = state += 0x9E3779B97F4A7C15ull;
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
    void* scheduler[5];
    Chance chance;
    std::string fault;
    unsigned threads = 0;
    uint3 size;  // blocks
    void* arguments = nullptr;
};
extern Grid* grid;

[[noreturn]] void fail(const std::string& what);
char* aligned(std::vector<char>& memory);  // returns the start of dynamic memory
char* at(u32 shared_address);
void warp_together(bool orders);
void look(Barrier& barrier);  // ends the phase if nothing is pending
}  // namespace host
