// The end of a whole step (megakernel.cu): the blocks feed the step's outputs back (tokens/next_inputs.cuh), one block per row.
// The last block of the grid has the first row, since the last blocks have fewer tiles of GEMMs.
//
// A block sends a token to the host as soon as the token is known, before it makes the next inputs. Only later launches on the
// same CUDA stream read these inputs, and they wait for the end of this launch.
__shared__ u64 row_words[ROW_WORDS];  // words of this block's row
static_assert(sizeof(sampling::Scratch) <= sizeof(Memory::inputs), "feed_back puts Scratch into the memory of the inputs");

// Return the address of the words of all rows. A launch that was made before its commands were there gets the address when it
// is admitted.
__device__ inline const u64* arguments_of(const Feedback& feed, const Gate& gate) {
    return gate.word ? (const u64*)admission : feed.arguments;
}

// Return the first row of this block. Its next rows follow at distances of gridDim.x.
__device__ inline u64 first_row() { return gridDim.x - 1 - blockIdx.x; }

// Read the words of a row into `row_words`.
__device__ inline void read_row(const Feedback& feed, const Gate& gate, u64 row, int lane) {
    if (row < feed.rows && lane < ROW_WORDS) row_words[lane] = arguments_of(feed, gate)[lane * feed.pitch + row];
}

// Wait for the words that blocks of the last GEMM write for a row (megakernel/outputs.cuh), and return the largest one that
// this thread reads. Each of `share` blocks writes one word, which is not 0. This function resets the words to 0 for the next
// launch.
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

// Wait until all blocks have ended the list, before inputs are replaced. It is not enough that the last task is complete: a
// block without a share of that task may still read the inputs. The load with acquire and the barrier make other blocks' stores
// visible, as they do for tasks; the L1 cache holds no stale data of them.
__device__ inline void wait_for_all(const u32* ended, u32 launch) {
    if (threadIdx.x == 0)
        while ((int)(load_acquire(ended) - gridDim.x * launch) < 0) {}
    __syncthreads();
}

// Feed back this block's rows. All threads that execute the list call this. share: number of blocks that have a share of the
// last task. The warp that copies weights has begun to load the words of the block's first row. With FINDS_LARGEST the block
// reads, before wait_for_all, only words of `found` from other blocks.
__device__ __noinline__ void feed_back(const Feedback& feed, const Gate& gate, u32* ended, u32 launch, u32 share,
                                       sampling::Scratch& scratch) {
    // Behind this barrier all threads have ended the list, and the words of the block's first row are in shared memory.
    __barrier_sync_count(0, ALL_THREADS);
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
            FINDS_LARGEST ? sampling::id_of(sampling::combined<false>(own, scratch.part))
                          : sampling::token_of(feed, row_words, scratch);
        if (threadIdx.x == 0) sampling::store_token(row_words, id);
        if (FINDS_LARGEST) wait_for_all(ended, launch);
        sampling::go_on(feed, row_words, id, scratch);
        row += gridDim.x;
        if (row >= feed.rows) break;
        __syncthreads();
        read_row(feed, gate, row, threadIdx.x);
        __syncthreads();
    }
    if (sampling::KIND != sampling::NONE && first_row() == 0 && threadIdx.x == 0) *feed.ns += global_ns() - began_ns;
}
