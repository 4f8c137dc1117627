// State that the persistent kernel shares with the host, and reports of completions (persistent.cu).
#include "shared/queue.cuh"
#define PAYLOAD ((1ull << TAG_SHIFT) - 1)
enum { USED_WORDS = 6, NEAR_SHAPES = 64 };  // words of an entry that are used; shapes that are kept in shared memory
enum { BUSY_POLLS = 4096, QUIET_POLLS = 65536 };  // polls without success before short sleeps; before long sleeps

struct Order {  // a tile
    u64 a, b, c;
    u32 index, before, shape, tiles, first, rows;
};

// Shapes by their number. The first ones are in shared memory.
struct Shapes {
    Shape near[NEAR_SHAPES];
    const Shape* far;
    __device__ const Shape& operator[](u32 number) const { return number < NEAR_SHAPES ? near[number] : far[number]; }
};

// Of a block. At file scope, so that functions that are not inlined know their addresses.
__shared__ Queue queue;
__shared__ Shapes shapes;

__device__ inline u32 slot_of(u32 index) { return index & ((1u << queue.capacity_bits) - 1); }

// By one thread of a group, after all have stored and met. The last tile of a command reports its completion.
__device__ void complete(u32 index, u32 tiles) {
    const u32 slot = slot_of(index);
    u64 *const done = queue.done + slot, *const host_done = queue.host_done + slot;
    if (tiles > 1) {
        fence();
        if (atomicAdd(queue.arrived + slot, 1u) + 1 != tiles) return;
        queue.arrived[slot] = 0;
    }
    fence_system();  // includes the stores of other blocks, which lie behind their fences
    store_told(host_done, (u64)index + 1);
    store_relaxed((u64)done, (u64)index + 1);
}

__device__ inline bool is_done(u32 index) {
    return (int)((u32)load_relaxed(queue.done + slot_of(index)) - (index + 1)) >= 0;
}
// The same with acquire: later loads see what the command stored.
__device__ inline bool has_done(u32 index) {
    return (int)((u32)load_acquire(queue.done + slot_of(index)) - (index + 1)) >= 0;
}

// By one thread of a group: wait for the command `before` this one, or until the kernel gives up.
__device__ void await(const Order& o) {
    while (!is_done(o.index - o.before))
        if (load_relaxed(queue.gone)) return;
    fence();
}

__device__ inline Rows tile_of(const Order& o, const Shape& s) {
    const i64 first = o.first;
    return {(const storage*)o.a + first * s.row_elements, (const storage*)o.b, (storage*)o.c + first * s.row_step, (int)o.rows};
}
