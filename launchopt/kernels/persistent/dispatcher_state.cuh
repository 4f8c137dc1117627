// What the dispatcher's group has in common (persistent/dispatcher.cuh).
enum { AT_ONCE = 8, DEEP = 128 };  // commands of a poll, and of one while many come
enum { FIRST = (1 << COMMAND_WORDS) - 1 };  // the bits of the first one's words, where each lane has a word
enum { ANSWER_CYCLES = 350, LATER_CYCLES = 32, MOST_ANSWER_CYCLES = 2048 };  // see `await_answer`

struct __align__(128) Desk {
    u64 staged[DEEP][COMMAND_WORDS];  // as they lie in the ring
    u64 copied;                       // mbarrier of the copy
    u64 next, tile, oldest;           // commands and tiles so far, in all; the first not known to be complete
    u64 own;                          // the first of those that `serve_small` does, one after the other
    u32 copies, answer_cycles;
    u32 first_tile[MOST_CAPACITY];    // of the command in a slot
    Lone lone[NEAR_SHAPES + 1];       // the last one: any other shape
    Single alone;                     // what the group is to do; no vectors: it is over
};
__shared__ Desk desk;

// A lane's word of the next commands, AT_ONCE of them.
__device__ inline const u64* place_of(u64 next, int lane) {
    return queue.ring + slot_of((u32)next + lane / COMMAND_WORDS) * COMMAND_WORDS + lane % COMMAND_WORDS;
}
__device__ inline u64 ring_tag_of(u64 index) { return (index >> queue.capacity_bits) + 1 & 0xFFFF; }

// Whether the command with these words is not handed out, and has nothing to wait for: who asks does those from `own` on.
__device__ inline bool is_single(u64 a, u64 b, u64 c, u64 last, u64 next, u64 own, Single& single) {
    single.a = a & PAYLOAD, single.b = b & PAYLOAD, single.c = c & PAYLOAD, last &= PAYLOAD;
    single.like = desk.lone[min((u32)last & 0xFFFF, (u32)NEAR_SHAPES)];
    if (!single.like.vectors || (u32)(a | b) & 15) return false;
    const u32 wait = (u32)(last >> 16);
    return wait <= next - own || has_done((u32)next - wait);
}

// The host has just been sent outputs, or told of a completion. In its memory a poll that left before it has answered would
// find nothing, and hold up the next one by its own trip over the bus. By the warp that polls.
__device__ inline void await_answer() {
    const u32 cycles = desk.answer_cycles;
    for (const i64 since = clock64(); clock64() - since < cycles;) {}
}
// After so many polls that found nothing there was a command. How long to wait is learnt from that: of LATER_CYCLES polls that
// are answered at once, one leaves too early.
__device__ inline void learn_answer(u32 polls, int lane) {
    if (polls > 1) return;  // it was no answer
    const u32 cycles = desk.answer_cycles;
    __syncwarp();
    if (lane == 0) desk.answer_cycles = polls ? min(cycles + LATER_CYCLES, (u32)MOST_ANSWER_CYCLES) : cycles - (cycles > 0);
    __syncwarp();
}

// By one thread: the command has no tiles.
__device__ inline void pass_single() {
    desk.first_tile[slot_of((u32)desk.next)] = (u32)desk.tile;
    ++desk.next;
}
