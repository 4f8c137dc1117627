// What the warps of the dispatcher's group share (persistent/dispatcher.cuh).
enum { AT_ONCE = 8, DEEP = 128 };  // commands of a poll; of a poll while many commands come
enum { FIRST = (1 << COMMAND_WORDS) - 1 };  // bits of the lanes that hold the first command's words
enum { ANSWER_CYCLES = 350, LATER_CYCLES = 32, MOST_ANSWER_CYCLES = 2048 };  // see `await_answer`

struct __align__(128) Desk {
    u64 staged[DEEP][COMMAND_WORDS];  // commands as they lie in the ring
    u64 copied;  // mbarrier of the copy
    u64 next, tile, oldest;  // number of commands and tiles so far; the first command that is not known to be complete
    u64 own;  // the first command of those that `serve_small` multiplies one after another
    u32 copies, answer_cycles;
    u32 first_tile[MOST_CAPACITY];  // of the command in each slot
    Lone lone[NEAR_SHAPES + 1];  // the last entry stands for all other shapes
    Single alone;  // what the group is to multiply; no vectors: the kernel ends
};
__shared__ Desk desk;

// Return the address of a lane's word of the next AT_ONCE commands.
__device__ inline const u64* place_of(u64 next, int lane) {
    return queue.ring + slot_of((u32)next + lane / COMMAND_WORDS) * COMMAND_WORDS + lane % COMMAND_WORDS;
}
__device__ inline u64 ring_tag_of(u64 index) { return (index >> queue.capacity_bits) + 1 & 0xFFFF; }

// Return whether the dispatcher's group multiplies the command itself: its shape and operands allow it, and it waits for no
// command. The caller multiplies the commands from `own` on in order, so a wait for one of those counts as none.
__device__ inline bool is_single(u64 a, u64 b, u64 c, u64 last, u64 next, u64 own, Single& single) {
    single.a = a & PAYLOAD, single.b = b & PAYLOAD, single.c = c & PAYLOAD, last &= PAYLOAD;
    single.like = desk.lone[min((u32)last & 0xFFFF, (u32)NEAR_SHAPES)];
    if (!single.like.vectors || (u32)(a | b) & 15) return false;
    const u32 wait = (u32)(last >> 16);
    return wait <= next - own || has_done((u32)next - wait);
}

// Wait, by the polling warp, until the host may have answered outputs or a completion. The ring lies in the host's memory: a
// poll that leaves before the answer finds nothing, and the next one has to wait for its trip over the bus.
__device__ inline void await_answer() {
    const u32 cycles = desk.answer_cycles;
    for (const i64 since = clock64(); clock64() - since < cycles;) {}
}
// Adapt the wait. polls: polls that found nothing before a command came. One of LATER_CYCLES prompt polls leaves too early.
__device__ inline void learn_answer(u32 polls, int lane) {
    if (polls > 1) return;  // the command came long after: it was no answer
    const u32 cycles = desk.answer_cycles;
    __syncwarp();
    if (lane == 0) desk.answer_cycles = polls ? min(cycles + LATER_CYCLES, (u32)MOST_ANSWER_CYCLES) : cycles - (cycles > 0);
    __syncwarp();
}

// By one thread: count a command that has no tiles.
__device__ inline void pass_single() {
    desk.first_tile[slot_of((u32)desk.next)] = (u32)desk.tile;
    ++desk.next;
}
