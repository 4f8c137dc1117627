// State that the warps of the dispatcher's group share (persistent/dispatcher.cuh).
enum { AT_ONCE = 8, DEEP = 128 };  // most commands of an ordinary poll; most commands of a poll by a bulk copy
enum { FIRST = (1 << COMMAND_WORDS) - 1 };  // bits of the lanes that hold the first command's words
// Clock cycles that `await_answer` waits at first; increase of the wait after a poll that came too early; longest wait.
enum { ANSWER_CYCLES = 350, LATER_CYCLES = 32, MOST_ANSWER_CYCLES = 2048 };

struct __align__(128) Desk {
    u64 staged[DEEP][COMMAND_WORDS];  // words of commands, copied from the ring
    u64 copied;  // mbarrier of the bulk copy
    u64 next, tile, oldest;  // number of commands so far; number of tiles so far; first command not known to be complete
    u64 own;  // first command of a sequence that `serve_small` multiplies, one command after another
    u32 copies, answer_cycles;  // number of bulk copies so far; clock cycles that `await_answer` waits
    u32 first_tile[MOST_CAPACITY];  // number of the first tile of the command in each slot
    Lone lone[NEAR_SHAPES + 1];  // by shape; the last element stands for all other shapes, which are handed out
    Single alone;  // command that the group must multiply; like.vectors = 0: the kernel ends
};
__shared__ Desk desk;

// Return the address of the lane's word in the ring. The 32 lanes have the words of AT_ONCE commands, from `next` on.
__device__ inline const u64* place_of(u64 next, int lane) {
    return queue.ring + slot_of((u32)next + lane / COMMAND_WORDS) * COMMAND_WORDS + lane % COMMAND_WORDS;
}
__device__ inline u64 ring_tag_of(u64 index) { return (index >> queue.capacity_bits) + 1 & 0xFFFF; }

// Return whether the dispatcher's group multiplies a command instead of handing it out. It does if the shape and the operands
// allow that, and if the command need not wait for another one. a, b, c, last: the command's words; next: its index. The
// caller multiplies the commands from `own` on in order, so the command need not wait for one of those.
__device__ inline bool is_single(u64 a, u64 b, u64 c, u64 last, u64 next, u64 own, Single& single) {
    single.a = a & PAYLOAD, single.b = b & PAYLOAD, single.c = c & PAYLOAD, last &= PAYLOAD;
    single.like = desk.lone[min((u32)last & 0xFFFF, (u32)NEAR_SHAPES)];
    if (!single.like.vectors || (u32)(a | b) & 15) return false;
    const u32 wait = (u32)(last >> 16);
    return wait <= next - own || has_done((u32)next - wait);
}

// Wait for the time that the host needs to answer outputs, or a completion, with its next command. The polling warp calls this.
// The ring is in the host's memory. A poll that the warp sends before the answer finds nothing, and the next poll then arrives
// a trip over the bus later.
__device__ inline void await_answer() {
    const u32 cycles = desk.answer_cycles;
    for (const i64 since = clock64(); clock64() - since < cycles;) {}
}
// Adapt the wait of `await_answer`. polls: polls that found nothing before a command came. One such poll makes the wait
// LATER_CYCLES longer; none makes it 1 cycle shorter. So about one poll in LATER_CYCLES is sent too early.
__device__ inline void learn_answer(u32 polls, int lane) {
    if (polls > 1) return;  // the command came so late that it was not an answer
    const u32 cycles = desk.answer_cycles;
    __syncwarp();
    if (lane == 0) desk.answer_cycles = polls ? min(cycles + LATER_CYCLES, (u32)MOST_ANSWER_CYCLES) : cycles - (cycles > 0);
    __syncwarp();
}

// Count a command that was not handed out and so has no tiles. One thread calls this.
__device__ inline void pass_single() {
    desk.first_tile[slot_of((u32)desk.next)] = (u32)desk.tile;
    ++desk.next;
}
