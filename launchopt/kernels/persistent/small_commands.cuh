// Small commands that come alone. The dispatcher's warp multiplies them one after another (persistent/dispatcher.cuh). The bus
// takes most of the time of such a command. Each lane therefore computes its part of a shape once, and few instructions lie
// between the arrival of a command's words and the loads of its operands. The warp sends the outputs to the host directly, each
// with the command's number in the upper half of the word. It takes another trip over the bus until the outputs in C are
// known to be in memory. Then the reporter reports the completion (persistent/completions.cuh), for which other commands wait.
enum { SMALL_ROWS = OUTPUT_WORDS };  // most rows of a small command
// Lanes that share rows; rows of a lane; most vectors that a lane has of each row.
enum { SMALL_LANES = 8, PART_ROWS = SMALL_ROWS * SMALL_LANES / 32, PART_VECTORS = SMALL_VECTORS / SMALL_LANES };

// Return whether the registers of a warp can hold all operands of a command of this shape, and all its offsets fit in 32 bits.
__device__ inline bool is_small(const Lone& s) {
    return s.rows <= SMALL_ROWS && s.vectors <= SMALL_VECTORS && (s.row_bytes | s.step_bytes) < 1u << 28;
}

// A lane's part of each command of a shape. SMALL_LANES neighbouring lanes share PART_ROWS rows. A lane has one of every
// SMALL_LANES vectors of each of these rows. Rows that do not exist repeat the last row.
struct __align__(16) Part {
    u32 rows[PART_ROWS];  // bytes from A to the lane's first vector of each row
    u32 input, vectors;  // bytes from B to the lane's first vector; its number of vectors, or 0: it loads the last vector
    u32 row, output;  // twice the row of the lane's output, or NONE; bytes from C to the output
    enum : u32 { NONE = 1, STEP_BYTES = 16 * SMALL_LANES };
    __device__ bool has(int i) const { return i < vectors; }
    // Return the bytes from the lane's first vector of a row to its vector i; 0 if vector i does not exist.
    __device__ u32 at(int i) const { return has(i) ? i * STEP_BYTES : 0; }
    __device__ bool stores() const { return !(row & NONE); }
    __device__ void set(const Lone& s, int lane) {
        enum { SHARE = SMALL_LANES / PART_ROWS };  // lanes that have the same sum at the end
        const u32 first = lane / SMALL_LANES * PART_ROWS, last = s.rows - 1, own = first + lane % SMALL_LANES / SHARE;
        const u32 vector = lane % SMALL_LANES;
        input = min(vector, s.vectors - 1) * 16, vectors = (max(s.vectors, vector) - vector + SMALL_LANES - 1) / SMALL_LANES;
#pragma unroll
        for (int r = 0; r < PART_ROWS; ++r) rows[r] = min(first + r, last) * s.row_bytes + input;
        row = lane % SHARE == 0 && own <= last ? own * 2 : NONE, output = own * s.step_bytes;
    }
};
__shared__ Part small_parts[32];  // the part of each lane; during the products there are not enough registers for it

// A lane's operands. `load` issues all loads before the warp waits for the first one.
struct Operands {
    uint4 inputs[PART_VECTORS], weights[PART_ROWS][PART_VECTORS];
    __device__ static void load(uint4 (&found)[PART_VECTORS], u64 first, const Part& part) {
#pragma unroll
        for (int i = 0; i < PART_VECTORS; ++i) found[i] = load_relaxed(first + part.at(i));
    }
    __device__ void load(u64 a, u64 b, const Part& part) {
        load(inputs, b + part.input, part);
#pragma unroll
        for (int r = 0; r < PART_ROWS; ++r) load(weights[r], a + part.rows[r], part);
    }
    __device__ float product(int r, int i, const Part& part) const {
        return part.has(i) ? add_product(0.f, weights[r][i], inputs[i]) : 0.f;
    }
    // Return the lane's output.
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

// The next command. One load gives each lane two of the command's words, since two loads would cross the bus one after the
// other. For one command in LOOKS, half of the lanes load words of the following command instead, to see whether it has come
// too. Doing so for each command would take longer.
struct Coming {
    enum : u32 { LOOKS = 8 };
    const u64* from;  // address of the lane's two words
    // Expected first word, without its payload. Expected second word. Bits of the first word, and of the second word, that must
    // agree with the expected words.
    u64 tag, expected, first_bits, second_bits;
    u64 first, second, a, b;  // the lane's two words; words A and B of the command
    // odd: the lane has the last two of the four words. looks: some lanes load words of the following command. own: this lane
    // loads words of this command.
    bool odd, looks, own;
    __device__ Coming(u64 next, u64 known, int lane) : odd(lane & 1), looks(next % LOOKS == 0), own(!looks || !(lane & 2)) {
        from = queue.ring + slot_of((u32)next + !own) * COMMAND_WORDS + odd * 2, tag = ring_tag_of(next) << TAG_SHIFT;
        // A usual command has aligned operands and the same last word as the previous command.
        expected = odd ? tag | known : tag;
        first_bits = own ? ~PAYLOAD | (odd ? 0 : 15) : 0, second_bits = own ? odd ? ~0ull : ~PAYLOAD | 15 : 0;
        settle(expected), settle(first_bits), settle(second_bits);
    }
    __device__ static u64 of(int lane, u64 word) { return __shfl_sync(0xFFFFFFFFu, word, lane); }
    __device__ void load() { load_two_system(from, first, second), a = of(0, first), b = of(0, second); }
    __device__ u64 c() const { return of(1, first); }
    __device__ u64 last() const { return of(1, second); }
    __device__ u64 follower() const { return looks ? of(3, second) : 0; }  // last word of the following command
    __device__ bool is_whole() const { return !own | ((first ^ tag) | (second ^ tag)) >> TAG_SHIFT == 0; }
    // Return whether all words of the command have come and the command is usual. A branch would take longer than this
    // expression.
    __device__ bool is_usual() const { return !((first ^ tag) & first_bits | (second ^ expected) & second_bits); }
};
#define UNKNOWN PAYLOAD  // a last word that no command has

// Multiply small commands. Return when a command comes that is not small, or if BUSY_POLLS polls find none. Branches depend
// only on votes of the warp, so that the compiler knows that all lanes take the same branch; otherwise each load takes
// longer. The function is inlined into the kernel for the same reason.
__device__ inline void serve_small(int lane) {
    u64 early = 0;  // last word of the following command, as it was when this command was found
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
            small_parts[lane].set(single.like, lane);
            part = small_parts[lane];
            known = (last & PAYLOAD) >> 16 ? UNKNOWN : last & PAYLOAD;  // `is_single` must check each command that waits
            break;
        }
#if !WITHOUT
        operands.load(coming.a & PAYLOAD, coming.b & PAYLOAD, part);
#endif
        u64* const host_output = queue.host_outputs + slot_of((u32)next) * OUTPUT_WORDS + part.row / 2;
        // The command was already in the ring when the previous command came, so it has not come alone.
        if (__any_sync(0xFFFFFFFFu, early >> TAG_SHIFT == ring_tag_of(next))) return;
        early = coming.follower();
        const u64 c = coming.c() & PAYLOAD;
        learn_answer(polls, lane);
        const storage output = narrow(operands.sum(part, lane));
        if (part.stores()) {
            store_system(host_output, (next + 1) << 32 | __float_as_uint(widen(output)));
            *(storage*)(c + part.output) = output;
        }
        __syncwarp();
        if (lane == 0) give_to_reporter(desk.next + 1), pass_single();
        __syncwarp();
        await_answer();
    }
}
