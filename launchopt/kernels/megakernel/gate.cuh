// The gate of a launch that the host makes before the launch's commands are there (devices/megakernel/launch_ahead.py). The
// launch waits for a word of the host. Until then it reads its list and copies weights, but it stores nothing. The upper 16
// bits of the word are the tag of the launch. The other bits are the address of the arguments of struct Feedback. The address
// 0 calls the launch off: it ends without an effect.
//
// Such a launch may begin before the previous launch has ended (programmatic dependent launch). Its blocks start as blocks of
// the previous launch end, once each block of that launch knows that it is admitted. Only behind `wait_for_earlier` does the
// launch store anything, or read data that other launches store.
//
// The word is in pinned memory of the host. One thread polls it over the bus; the other blocks read a copy in the L2 cache.
// The poll is relaxed. A thread that reads other data of the host therefore loads the word once more, with acquire. If the word
// does not come within `patience_ns`, the first block reports that and treats the launch as called off, so that a host that
// died does not block the GPU.
__shared__ u64 admission;  // the word without its tag
// An mbarrier whose phase ends when `admission` is set. The warp that copies weights waits for it as late as possible.
__shared__ u64 is_known;

__device__ inline void begin_gate() {
    if (threadIdx.x == 0) barrier_begin(shared_address(&is_known), 1);
}

__device__ inline bool is_for(u64 word, u64 tag) { return word >> 64 - TAG_BITS == tag; }

// Poll the host's word and return it. Return a word that calls the launch off if the host does not answer.
__device__ inline u64 await_word(const Gate& gate) {
    const u64 since_ns = global_ns();
    while (true) {
        const u64 word = load_system(gate.word);
        if (is_for(word, gate.tag)) return word;
        if (global_ns() - since_ns < gate.patience_ns) continue;
        store_release_system(gate.gave_up, gate.tag);
        return gate.tag << 64 - TAG_BITS;
    }
}

// Poll the copy of the host's word in the L2 cache, and return it.
__device__ inline u64 await_copy(const Gate& gate) {
    wait_for_earlier();  // earlier polls of the L2 cache would slow the end of the previous launch
    while (true) {
        const u64 word = load_system(gate.word_copy);
        if (is_for(word, gate.tag)) return word;
    }
}

// Return whether the launch is admitted. All threads that execute the list call this.
__device__ __noinline__ bool admitted(const Gate& gate) {
    if (threadIdx.x == 0) {
        u64 word;
        if (blockIdx.x == 0) {
            word = await_word(gate);
            store_relaxed((u64)gate.word_copy, word);
        } else {
            word = await_copy(gate);
        }
        admission = word << TAG_BITS >> TAG_BITS;
        barrier_arrive(shared_address(&is_known));
    }
    meet();
    return admission;
}

// Return whether the launch is admitted. The warp that copies weights calls this.
__device__ inline bool learns_admission() {
    barrier_wait(shared_address(&is_known), 0);
    __syncwarp();
    return admission;
}
