// A launch that was made before its commands were there waits for a word of the host (devices/megakernel/launch_ahead.py).
// Before the word it stores nothing, but it reads its list and fetches weights. The upper 16 bits of the word are the tag of
// the launch. The other bits are the address of the arguments of struct Feedback, or 0: the launch is called off.
//
// Such a launch begins before the launch before it has ended (programmatic dependent launch). Its blocks start where blocks of
// that launch have ended, once all of those know that they are admitted. It reads what other launches store, and stores itself,
// only behind `wait_for_earlier`.
//
// The word lies in pinned memory of the host. One thread polls it over the bus; the other blocks read a copy in the L2 cache.
// The poll is relaxed: a reader of other data that the host has stored loads the word once more with acquire. If the word does
// not come within `patience_ns`, the first block treats the launch as called off and reports that: a lost host must not block
// the GPU.
__shared__ u64 admission;  // the word without its tag
// A barrier that ends when `admission` is there; the warp that fetches weights waits for it as late as it can.
__shared__ u64 is_known;

__device__ inline void begin_gate() {
    if (threadIdx.x == 0) barrier_begin(shared_address(&is_known), 1);
}

__device__ inline bool is_for(u64 word, u64 tag) { return word >> 64 - TAG_BITS == tag; }

__device__ inline u64 ask(const Gate& gate) {
    const u64 since_ns = global_ns();
    while (true) {
        const u64 word = load_system(gate.word);
        if (is_for(word, gate.tag)) return word;
        if (global_ns() - since_ns < gate.patience_ns) continue;
        store_release_system(gate.gave_up, gate.tag);
        return gate.tag << 64 - TAG_BITS;
    }
}

__device__ inline u64 learn(const Gate& gate) {
    wait_for_earlier();  // polls of the L2 cache would make the end of the launch before longer
    while (true) {
        const u64 word = load_system(gate.heard);
        if (is_for(word, gate.tag)) return word;
    }
}

// Return whether the launch is admitted. By all threads that go through the list.
__device__ __noinline__ bool admitted(const Gate& gate) {
    if (threadIdx.x == 0) {
        u64 word;
        if (blockIdx.x == 0) {
            word = ask(gate);
            store_relaxed((u64)gate.heard, word);
        } else {
            word = learn(gate);
        }
        admission = word << TAG_BITS >> TAG_BITS;
        barrier_arrive(shared_address(&is_known));
    }
    meet();
    return admission;
}

// The same for the warp that fetches weights.
__device__ inline bool learns_admission() {
    barrier_wait(shared_address(&is_known), 0);
    __syncwarp();
    return admission;
}
