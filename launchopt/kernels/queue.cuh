// What the host and a kernel that stays have in common, and who is told that a command is complete (persistent.cu).
#define TAG_SHIFT 48
#define PAYLOAD ((1ull << TAG_SHIFT) - 1)
enum { GROUPS = 4, COMMAND_WORDS = 4, ENTRY_WORDS = 8, USED_WORDS = 6 };
enum { END = 0xFFFF, MOST_CAPACITY = 4096, NEAR_SHAPES = 64 };
enum { RUNNING, ENDED, GAVE_UP };  // control[STATE]
enum { STATE, ABORT };             // words of `control`, in the host's memory
enum { BUSY_POLLS = 4096, QUIET_POLLS = 65536 };  // until who finds nothing sleeps a little, and longer

struct Queue {  // of devices/resident.py
    const u64* ring;
    u64 *host_done, *control, *entries, *done, *ticket, *gone, *progress;
    u32* arrived;
    const Shape* shapes;
    u64 shape_count, capacity_bits, entry_bits, workers, patience_ns, direct_bytes;
};

struct Order {  // a tile
    u64 a, b, c;
    u32 index, before, shape, tiles, first, rows;
};

// Shapes that are asked for again and again lie near.
struct Shapes {
    Shape near[NEAR_SHAPES];
    const Shape* far;
    __device__ const Shape& operator[](u32 number) const { return number < NEAR_SHAPES ? near[number] : far[number]; }
};

__device__ inline u64 load_system(const u64* from) {
    u64 value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}
__device__ inline void store_system(u64* to, u64 value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
// Each of both is seen whole.
__device__ inline void store_two(ulonglong2* to, u64 first, u64 second) {
    asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(first), "l"(second) : "memory");
}
__device__ inline void fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// By one thread of a group, after all have stored and met: who completes the command tells of it.
__device__ void complete(const Queue& q, const Order& o) {
    const u32 slot = o.index & ((1u << q.capacity_bits) - 1);
    fence();
    if (o.tiles > 1) {
        if (atomicAdd(q.arrived + slot, 1u) + 1 != o.tiles) return;
        q.arrived[slot] = 0;
        fence();  // what the others stored, too
    }
    store_relaxed((u64)(q.done + slot), (u64)o.index + 1);
    store_system(q.host_done + slot, (u64)o.index + 1);
}

__device__ inline bool is_done(const Queue& q, u32 index) {
    const u32 slot = index & ((1u << q.capacity_bits) - 1);
    return (int)((u32)load_relaxed(q.done + slot) - (index + 1)) >= 0;
}

// By one thread of a group: until the command `before` this one is complete, or the run was given up.
__device__ void await(const Queue& q, const Order& o) {
    while (!is_done(q, o.index - o.before))
        if (load_relaxed(q.gone)) return;
    fence();
}

__device__ inline Rows tile_of(const Order& o, const Shape& s) {
    const i64 first = o.first;
    return {(const storage*)o.a + first * s.row_elements, (const storage*)o.b, (storage*)o.c + first * s.row_step, (int)o.rows};
}
