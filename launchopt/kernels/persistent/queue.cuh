// The queue of the persistent kernel and reports of completions (persistent.cu).
#include "shared/queue.cuh"
#define PAYLOAD ((1ull << TAG_SHIFT) - 1)  // the bits of a word below its tag
enum { USED_WORDS = 6, NEAR_SHAPES = 64 };  // words of an entry that are used; shapes that are kept in shared memory
enum { BUSY_POLLS = 4096, QUIET_POLLS = 65536 };  // polls without success before short sleeps; before long sleeps

// A tile. a, b, c: addresses of its command's operands. index: index of the command. before: distance to the command for which
// it waits, or 0. shape: number of the shape. tiles: tiles of the command. first, rows: first row and number of rows of the
// tile.
struct Order {
    u64 a, b, c;
    u32 index, before, shape, tiles, first, rows;
};

// Shapes by their number. Shared memory holds the first NEAR_SHAPES; the GPU's memory holds all.
struct Shapes {
    Shape near[NEAR_SHAPES];
    const Shape* far;
    __device__ const Shape& operator[](u32 number) const { return number < NEAR_SHAPES ? near[number] : far[number]; }
};

// Copies that each block has. They are at file scope, so that functions that are not inlined know their addresses.
__shared__ Queue queue;
__shared__ Shapes shapes;

__device__ inline u32 slot_of(u32 index) { return index & ((1u << queue.capacity_bits) - 1); }

// Count a complete tile of command `index`; the last tile of the command reports the command's completion. One thread of the
// group calls this, behind a barrier that follows the stores of all its threads.
__device__ void complete(u32 index, u32 tiles) {
    const u32 slot = slot_of(index);
    u64 *const done = queue.done + slot, *const host_done = queue.host_done + slot;
    if (tiles > 1) {
        fence();
        if (atomicAdd(queue.arrived + slot, 1u) + 1 != tiles) return;
        queue.arrived[slot] = 0;
    }
    fence_system();  // also orders the stores of other blocks: each block has a fence between its stores and atomicAdd
    store_told(host_done, (u64)index + 1);
    store_relaxed((u64)done, (u64)index + 1);
}

// Return whether command `index` is complete. A fence must follow before the command's outputs are loaded.
__device__ inline bool is_done(u32 index) {
    return (int)((u32)load_relaxed(queue.done + slot_of(index)) - (index + 1)) >= 0;
}
// Return whether command `index` is complete. The load has acquire semantics: later loads see the command's outputs.
__device__ inline bool has_done(u32 index) {
    return (int)((u32)load_acquire(queue.done + slot_of(index)) - (index + 1)) >= 0;
}

// Wait until the command at the distance `before` is complete, or until the kernel gives up. One thread of a group calls this.
__device__ void await(const Order& o) {
    while (!is_done(o.index - o.before))
        if (load_relaxed(queue.gone)) return;
    fence();
}

__device__ inline Rows tile_of(const Order& o, const Shape& s) {
    const i64 first = o.first;
    return {(const storage*)o.a + first * s.row_elements, (const storage*)o.b, (storage*)o.c + first * s.row_step, (int)o.rows};
}
