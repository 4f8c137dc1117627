// Small commands that come alone, done by the dispatcher's warp (dispatcher.cuh), one after the other. Its time is that of a
// round trip: what a lane has to do with a shape is found once, and from a command's words to its operands' addresses are a
// few instructions. The host is told the outputs themselves, each with its command's number above it, before they are stored,
// since it takes as long again until they are known to be in memory; then it is told that, too.
enum { SMALL_ROWS = OUTPUT_WORDS, SMALL_VECTORS = 16 };
#ifndef SERVERS
#define SERVERS (NEAR ? 4 : 1)  // who polls the host's memory is in another's way there
#endif
#define STOPPED (1ull << 63)
enum { SMALL_LANES = 8, PART_ROWS = SMALL_ROWS * SMALL_LANES / 32, PART_VECTORS = SMALL_VECTORS / SMALL_LANES };

// Whether a warp has all of it in its registers, and all distances in 32 bits.
__device__ inline bool is_small(const Lone& s) {
    return s.rows <= SMALL_ROWS && s.vectors <= SMALL_VECTORS && (s.row_bytes | s.step_bytes) < 1u << 28;
}

// What a lane does of each command of a shape: SMALL_LANES lanes beside each other have PART_ROWS rows, and each of them
// PART_VECTORS vectors of all these. What lies beyond the last row or vector is that one, again.
struct __align__(16) Part {
    u32 rows[PART_ROWS], vectors[PART_VECTORS];  // where they lie: bytes. Of a vector beyond the last one: and NONE
    u32 row, output;                             // of its output: which, twice (NONE: it has none), and where it lies
    enum : u32 { NONE = 1 };
    __device__ u32 at(int i) const { return vectors[i] & ~NONE; }
    __device__ bool counts(int i) const { return !(vectors[i] & NONE); }
    __device__ bool stores() const { return !(row & NONE); }
    __device__ void learn(const Lone& s, int lane) {
        enum { SHARE = SMALL_LANES / PART_ROWS };  // lanes that have the same sum, in the end
        const u32 first = lane / SMALL_LANES * PART_ROWS, last = s.rows - 1, own = first + lane % SMALL_LANES / SHARE;
#pragma unroll
        for (int r = 0; r < PART_ROWS; ++r) rows[r] = min(first + r, last) * s.row_bytes;
#pragma unroll
        for (int i = 0; i < PART_VECTORS; ++i) {
            const u32 vector = lane % SMALL_LANES + i * SMALL_LANES;
            vectors[i] = min(vector, s.vectors - 1) * 16 | (vector < s.vectors ? 0u : NONE);
        }
        row = lane % SHARE == 0 && own <= last ? own * 2 : NONE, output = own * s.step_bytes;
    }
};
__shared__ Part small_parts[SERVERS * 32];  // a lane's; in registers there is no room for it while products are made

// The words of the command that comes next, and the last one of the command behind it.
struct Coming {
    u64 a, b, c, last, follower;
};
#define UNKNOWN PAYLOAD  // no command's last word is like that
__device__ inline u32 upper(u64 word) { return (u32)(word >> 32); }

__device__ inline void load_words(const u64* from, const u64* follower, Coming& words) {
    load_two_system(from, words.a, words.b), load_two_system(from + 2, words.c, words.last);
    words.follower = load_system(follower);
}

// One warp alone changes `claimed` from `next`. What it is then is in `next`.
__device__ inline bool claim(u64& next, u64 then, int lane) {
    const u64 was = __shfl_sync(0xFFFFFFFFu, lane == 0 ? atomicCAS(&desk.claimed, next, then) : 0, 0);
    const bool own = __all_sync(0xFFFFFFFFu, was == next);
    next = own ? then : was;
    return own;
}
__device__ inline bool is_stopped(u64 claimed) { return __all_sync(0xFFFFFFFFu, (claimed & STOPPED) != 0); }

// By SERVERS warps, until something else is there, or nothing for long: each polls for the next command, and who finds it first
// does it. It asks for the operands, and only then claims the command: when these are here it has long been told.
//
// Whatever decides where it goes is a vote: so the compiler knows that it is the same in all lanes, and else each load takes
// longer. In the kernel itself, not in a function, for the same reason.
__device__ inline void serve_small(int warp, int lane) {
    Part* const own_part = small_parts + warp * 32 + lane;
    u64 next = desk.next, known = UNKNOWN;
    for (Coming words;;) {
        const u64* const from = queue.ring + slot_of((u32)next) * COMMAND_WORDS;
        const u64* const follower = queue.ring + slot_of((u32)next + 1) * COMMAND_WORDS + 3;
        u64* const outputs = queue.host_outputs + slot_of((u32)next) * OUTPUT_WORDS;
        const u64 tag = ring_tag_of(next) << TAG_SHIFT;
        Part part = *own_part;
        u64* told = outputs + part.row / 2;
        bool stops = false;
#pragma unroll 1
        for (u32 polls = 0;; ++polls) {
            load_words(from, follower, words);
            const u32 differ = (upper(words.a) ^ upper(tag)) | (upper(words.b) ^ upper(tag)) | (upper(words.c) ^ upper(tag));
            const bool here = differ < 1u << 16, aligned = !((u32)(words.a | words.b) & 15);
            // All that is usual is found out at once: one after the other would take longer.
            if (__all_sync(0xFFFFFFFFu, here && aligned && words.last == (tag | known))) break;
            stops = polls == BUSY_POLLS;
            if (stops) break;
            if (!__all_sync(0xFFFFFFFFu, here && words.last >> TAG_SHIFT == tag >> TAG_SHIFT)) continue;
            Single single;
            const bool is = is_single(words.a, words.b, words.c, words.last, next, single) && is_small(single.like);
            stops = !__all_sync(0xFFFFFFFFu, is);
            if (stops) break;
            own_part->learn(single.like, lane);
            part = *own_part;
            told = outputs + part.row / 2;
            known = (words.last & PAYLOAD) >> 16 ? UNKNOWN : words.last & PAYLOAD;
            break;
        }
        if (stops) {
            claim(next, next | STOPPED, lane);
            if (is_stopped(next)) return;
            continue;
        }
#if !WITHOUT
        const u64 a = words.a & PAYLOAD, b = words.b & PAYLOAD;
        uint4 x[PART_VECTORS], rows[PART_ROWS][PART_VECTORS];
#pragma unroll
        for (int i = 0; i < PART_VECTORS; ++i) x[i] = read_now(b + part.at(i));
#pragma unroll
        for (int r = 0; r < PART_ROWS; ++r)
#pragma unroll
            for (int i = 0; i < PART_VECTORS; ++i) rows[r][i] = read_now(a + part.rows[r] + part.at(i));
#endif
        const u32 follower_tag = (u32)ring_tag_of(next + 1) << 16;
        const bool alone = !__any_sync(0xFFFFFFFFu, (upper(words.follower) ^ follower_tag) < 1u << 16);
        const u64 index = next;
        const bool own = claim(next, alone ? next + 1 : next | STOPPED, lane);
        if (is_stopped(next)) return;
        if (!own) continue;
#if !WITHOUT
        float sums[PART_ROWS][1];
#pragma unroll
        for (int r = 0; r < PART_ROWS; ++r) sums[r][0] = part.counts(0) ? add_product(0.f, rows[r][0], x[0]) : 0.f;
#pragma unroll
        for (int r = 0; r < PART_ROWS; ++r)
#pragma unroll
            for (int i = 1; i < PART_VECTORS; ++i) sums[r][0] += part.counts(i) ? add_product(0.f, rows[r][i], x[i]) : 0.f;
        add_lanes<SMALL_LANES>(sums, lane);
        if (part.stores()) {
            const storage output = narrow(sums[0][0]);
            store_system(told, next << 32 | __float_as_uint(widen(output)));
            *(storage*)((words.c & PAYLOAD) + part.output) = output;
        }
#endif
        __syncwarp();
        if (lane == 0) complete_single(index);
        __syncwarp();
        await_answer();
    }
}
