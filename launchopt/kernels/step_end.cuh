// The end of a whole step (megakernel.cu): rows are fed back (sampling.cuh), a row a block, or each by several blocks.
//
// With greedy sampling all that takes long is to look at the logits, which blocks that share a row do in parts: a block alone
// would take many times as long, while most others have nothing to do. The first of them waits for what the others have found.
// That is a word of each, not 0 once it is there, and 0 again when the launch ends: to count who is through, as instructions
// do, takes two more ways to the L2 cache and back, a fence and a load.
enum { NO_LOGITS = 1 };  // found where a part has no logits: less than any key with an index
__shared__ u64 row_words[ROW_WORDS];
static_assert(sizeof(sampling::Room) <= sizeof(Memory::inputs), "it lies there");

// Where it is more than one, rows * blocks_a_row() blocks have something to do, with one row each.
__device__ inline u32 blocks_a_row(const Feedback& feed) {
    return sampling::KIND == sampling::GREEDY && feed.rows && feed.rows < gridDim.x ? gridDim.x / (u32)feed.rows : 1;
}

// Where it is told of the rows: a launch that was made before its commands were there knows that once it is admitted.
__device__ inline const u64* arguments_of(const Feedback& feed, const Gate& gate) {
    return gate.word ? (const u64*)admission : feed.arguments;
}

__device__ inline void read_row(const Feedback& feed, const Gate& gate, u64 row, int lane) {
    if (row < feed.rows && lane < ROW_WORDS) row_words[lane] = arguments_of(feed, gate)[lane * feed.pitch + row];
}

// `found`: of this row's blocks, of which this one is number `part`.
__device__ inline void feed_part(const Feedback& feed, u64* found, u32 part, u32 parts, sampling::Room& room) {
    const sampling::Logits logits = {(const storage*)row_words[0], (u32)feed.vocab};
    u64 largest = sampling::combined<false>(sampling::largest_of(logits, part, parts), room.part);
    if (part) {
        if (threadIdx.x == 0) store_relaxed((u64)(found + part), sampling::larger(largest, NO_LOGITS));
        return;
    }
    for (u32 other = 1 + threadIdx.x; other < parts; other += THREADS) {
        u64 word;
        do word = load_relaxed(found + other);
        while (!word);
        store_relaxed((u64)(found + other), 0ull);
        largest = sampling::larger(largest, word);
    }
    sampling::go_on(feed, row_words, sampling::id_of(sampling::combined<false>(largest, room.part)));
}

// By all who went through the list; the first row's words are on their way. That all blocks have is waited for, not just that
// the last instruction is complete: who has no share of that may still read inputs that a row's next ones replace. To load
// the counter with acquire, and a barrier, is what instructions do to see what others stored: the L1 cache has nothing older.
__device__ __noinline__ void feed_back(const Feedback& feed, const Gate& gate, u32* ended, u32 launch, sampling::Room& room) {
    __barrier_sync_count(0, ALL_THREADS);  // of this block everything is stored and read; and the words are there
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(ended, 1u);
    }
    const u32 parts = blocks_a_row(feed), part = blockIdx.x % parts;
    u64 row = blockIdx.x / parts;
    if (row >= feed.rows) return;
    if (threadIdx.x == 0)
        while ((int)(load_acquire(ended) - gridDim.x * launch) < 0) {}
    __syncthreads();
    const u64 began_ns = global_ns();
    while (true) {
        if (sampling::KIND == sampling::GREEDY) feed_part(feed, feed.found + blockIdx.x - part, part, parts, room);
        else sampling::feed_row(feed, row_words, room);
        row += gridDim.x;
        if (row >= feed.rows) break;
        __syncthreads();
        read_row(feed, gate, row, threadIdx.x);
        __syncthreads();
    }
    if (sampling::KIND != sampling::NONE && blockIdx.x == 0 && threadIdx.x == 0) *feed.ns += global_ns() - began_ns;
}
