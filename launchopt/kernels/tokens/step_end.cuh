// The end of a whole step (megakernel.cu): rows are fed back (tokens/next_inputs.cuh), a row a block, by the last blocks first,
// which have fewer tiles of GEMMs.
//
// The host is told of a token as soon as it is known, while the next inputs are made of it: who uses these is a later launch
// on the same stream, which waits for the end of this one.
__shared__ u64 row_words[ROW_WORDS];
static_assert(sizeof(sampling::Room) <= sizeof(Memory::inputs), "it lies there");

// Where it is told of the rows: a launch that was made before its commands were there knows that once it is admitted.
__device__ inline const u64* arguments_of(const Feedback& feed, const Gate& gate) {
    return gate.word ? (const u64*)admission : feed.arguments;
}

__device__ inline u64 first_row() { return gridDim.x - 1 - blockIdx.x; }

__device__ inline void read_row(const Feedback& feed, const Gate& gate, u64 row, int lane) {
    if (row < feed.rows && lane < ROW_WORDS) row_words[lane] = arguments_of(feed, gate)[lane * feed.pitch + row];
}

// What the last GEMM's blocks have found (megakernel/gemm.cuh): a word of each of `share`, not 0 once it is there, and 0 again
// when the launch ends.
__device__ inline u64 largest_of_all(u64* found, u32 share) {
    u64 largest = 0;
    for (u32 part = threadIdx.x; part < share; part += THREADS) {
        u64 word;
        do word = load_relaxed(found + part);
        while (!word);
        store_relaxed((u64)(found + part), 0ull);
        largest = sampling::larger(largest, word);
    }
    return largest;
}

// That all blocks are through the list is waited for before inputs are replaced, not just that the last instruction is
// complete: who has no share of that may still read them. To load the counter with acquire, and a barrier, is what
// instructions do to see what others stored: the L1 cache has nothing older.
__device__ inline void wait_for_all(const u32* ended, u32 launch) {
    if (threadIdx.x == 0)
        while ((int)(load_acquire(ended) - gridDim.x * launch) < 0) {}
    __syncthreads();
}

// By all who went through the list, of whose last instruction `share` blocks had a share; the first row's words are on their
// way. Where blocks say what they have found, nothing else that they have stored is read here.
__device__ __noinline__ void feed_back(const Feedback& feed, const Gate& gate, u32* ended, u32 launch, u32 share,
                                       sampling::Room& room) {
    __barrier_sync_count(0, ALL_THREADS);  // of this block everything is stored and read; and the words are there
    if (SHORT && threadIdx.x >= THREADS) return;
    if (threadIdx.x == 0) count_release(ended);
    u64 row = first_row(), began_ns = 0;
    if (row >= feed.rows) return;
    while (true) {
        u64 own = 0;
        if (FINDS_LARGEST) own = largest_of_all(feed.found + row * gridDim.x, share);
        else wait_for_all(ended, launch);
        if (!began_ns) began_ns = global_ns();
        const int id =
            FINDS_LARGEST ? sampling::id_of(sampling::combined<false>(own, room.part))
                          : sampling::token_of(feed, row_words, room);
        if (threadIdx.x == 0) sampling::tell(row_words, id);
        if (FINDS_LARGEST) wait_for_all(ended, launch);
        sampling::go_on(feed, row_words, id, room);
        row += gridDim.x;
        if (row >= feed.rows) break;
        __syncthreads();
        read_row(feed, gate, row, threadIdx.x);
        __syncthreads();
    }
    if (sampling::KIND != sampling::NONE && first_row() == 0 && threadIdx.x == 0) *feed.ns += global_ns() - began_ns;
}
