// Small commands that come alone, done by the dispatcher's warp (persistent/dispatcher.cuh), one after the other. Its time is
// that of a round trip: what a lane has to do with a shape is found once, and from a command's words to its operands' addresses
// there are few instructions. The host is sent the outputs themselves, each with its command's number above it, before they are
// known to be in memory, which takes as long again; then it is told that, too (persistent/completions.cuh), and only that tells
// other commands.
enum { SMALL_ROWS = OUTPUT_WORDS };
enum { SMALL_LANES = 8, PART_ROWS = SMALL_ROWS * SMALL_LANES / 32, PART_VECTORS = SMALL_VECTORS / SMALL_LANES };

// Whether a warp has all of it in its registers, and all distances in 32 bits.
__device__ inline bool is_small(const Lone& s) {
    return s.rows <= SMALL_ROWS && s.vectors <= SMALL_VECTORS && (s.row_bytes | s.step_bytes) < 1u << 28;
}

// What a lane does of each command of a shape: SMALL_LANES lanes beside each other have PART_ROWS rows, and each of them
// every SMALL_LANES-th vector of all these. Rows beyond the last one are that one, again.
struct __align__(16) Part {
    u32 rows[PART_ROWS];  // where the first of its vectors lie, from A on: bytes
    u32 input, vectors;   // and from B on; how many of them there are: perhaps none, then these are the last one's
    u32 row, output;      // of its output: which, twice (or NONE), and where it lies
    enum : u32 { NONE = 1, STEP_BYTES = 16 * SMALL_LANES };
    __device__ bool has(int i) const { return i < vectors; }
    __device__ u32 at(int i) const { return has(i) ? i * STEP_BYTES : 0; }  // from the first one on
    __device__ bool stores() const { return !(row & NONE); }
    __device__ void learn(const Lone& s, int lane) {
        enum { SHARE = SMALL_LANES / PART_ROWS };  // lanes that have the same sum, in the end
        const u32 first = lane / SMALL_LANES * PART_ROWS, last = s.rows - 1, own = first + lane % SMALL_LANES / SHARE;
        const u32 vector = lane % SMALL_LANES;
        input = min(vector, s.vectors - 1) * 16, vectors = (max(s.vectors, vector) - vector + SMALL_LANES - 1) / SMALL_LANES;
#pragma unroll
        for (int r = 0; r < PART_ROWS; ++r) rows[r] = min(first + r, last) * s.row_bytes + input;
        row = lane % SHARE == 0 && own <= last ? own * 2 : NONE, output = own * s.step_bytes;
    }
};
__shared__ Part small_parts[32];  // a lane's; in registers there is no room for it while products are made

// What a lane multiplies. All of it is asked for before any of it is waited for.
struct Operands {
    uint4 inputs[PART_VECTORS], weights[PART_ROWS][PART_VECTORS];
    __device__ static void ask(uint4 (&found)[PART_VECTORS], u64 first, const Part& part) {
#pragma unroll
        for (int i = 0; i < PART_VECTORS; ++i) found[i] = load_relaxed(first + part.at(i));
    }
    __device__ void ask(u64 a, u64 b, const Part& part) {
        ask(inputs, b + part.input, part);
#pragma unroll
        for (int r = 0; r < PART_ROWS; ++r) ask(weights[r], a + part.rows[r], part);
    }
    __device__ float product(int r, int i, const Part& part) const {
        return part.has(i) ? add_product(0.f, weights[r][i], inputs[i]) : 0.f;
    }
    // The lane's output.
    __device__ float sum(const Part& part, int lane) const {
        float sums[PART_ROWS][1];
#pragma unroll
        for (int r = 0; r < PART_ROWS; ++r) sums[r][0] = product(r, 0, part);
#pragma unroll
        for (int r = 0; r < PART_ROWS; ++r)
#pragma unroll
            for (int i = 1; i < PART_VECTORS; ++i) sums[r][0] += product(r, i, part);
        add_lanes<SMALL_LANES>(sums, lane);
        return sums[0][0];
    }
};

// The command that comes next. Of its words each lane has two, by one load: two of a line in the host's memory would go over
// the bus one after the other. Some lanes have words of the command behind it instead, where one looks for that: not always in
// the host's memory, as that takes longer.
struct Coming {
    enum : u32 { LOOKS = 8 };
    const u64* from;
    u64 tag, expected, first_bits, second_bits;  // what the lane's second word is, and which bits of both count
    u64 first, second, a, b;
    bool odd, looks, own;
    __device__ Coming(u64 next, u64 known, int lane) : odd(lane & 1), looks(next % LOOKS == 0), own(!looks || !(lane & 2)) {
        from = queue.ring + slot_of((u32)next + !own) * COMMAND_WORDS + odd * 2, tag = ring_tag_of(next) << TAG_SHIFT;
        // Operands that lie well, and such a last word.
        expected = odd ? tag | known : tag;
        first_bits = own ? ~PAYLOAD | (odd ? 0 : 15) : 0, second_bits = own ? odd ? ~0ull : ~PAYLOAD | 15 : 0;
        settle(expected), settle(first_bits), settle(second_bits);
    }
    __device__ static u64 of(int lane, u64 word) { return __shfl_sync(0xFFFFFFFFu, word, lane); }
    __device__ void load() { load_two_system(from, first, second), a = of(0, first), b = of(0, second); }
    __device__ u64 c() const { return of(1, first); }
    __device__ u64 last() const { return of(1, second); }
    __device__ u64 follower() const { return looks ? of(3, second) : 0; }  // its last word
    __device__ bool is_whole() const { return !own | ((first ^ tag) | (second ^ tag)) >> TAG_SHIFT == 0; }
    // Whole, and as expected: found out at once, without a branch, which would take longer.
    __device__ bool is_usual() const { return !((first ^ tag) & first_bits | (second ^ expected) & second_bits); }
};
#define UNKNOWN PAYLOAD  // no command's last word is like that

// Until something else is there, or nothing for long. Whatever decides where it goes is a vote: so the compiler knows that it
// is the same in all lanes, and else each load takes longer. In the kernel itself, not in a function, for the same reason.
__device__ inline void serve_small(int lane) {
    u64 early = 0;  // a word of the command that comes next, as it was when the last one had just been found
    for (u64 next = desk.next, known = UNKNOWN;; ++next) {
        Coming coming(next, known, lane);
        Part part = small_parts[lane];
        Operands operands = {};
        u32 polls = 0;
#pragma unroll 1
        for (;; ++polls) {
            if (polls == BUSY_POLLS) return;
            coming.load();
            if (__all_sync(0xFFFFFFFFu, coming.is_usual())) break;
            if (!__all_sync(0xFFFFFFFFu, coming.is_whole())) continue;
            Single single;
            const u64 last = coming.last();
            const bool is = is_single(coming.a, coming.b, coming.c(), last, next, desk.own, single) && is_small(single.like);
            if (!__all_sync(0xFFFFFFFFu, is)) return;
            small_parts[lane].learn(single.like, lane);
            part = small_parts[lane];
            known = (last & PAYLOAD) >> 16 ? UNKNOWN : last & PAYLOAD;  // who waits is asked for anew
            break;
        }
#if !WITHOUT
        operands.ask(coming.a & PAYLOAD, coming.b & PAYLOAD, part);
#endif
        u64* const told = queue.host_outputs + slot_of((u32)next) * OUTPUT_WORDS + part.row / 2;
        if (__any_sync(0xFFFFFFFFu, early >> TAG_SHIFT == ring_tag_of(next))) return;  // it has not come alone
        early = coming.follower();
        const u64 c = coming.c() & PAYLOAD;
        learn_answer(polls, lane);
        const storage output = narrow(operands.sum(part, lane));
        if (part.stores()) {
            store_system(told, (next + 1) << 32 | __float_as_uint(widen(output)));
            *(storage*)(c + part.output) = output;
        }
        __syncwarp();
        if (lane == 0) give_to_teller(desk.next + 1), pass_single();
        __syncwarp();
        await_answer();
    }
}
