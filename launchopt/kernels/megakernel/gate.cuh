// A launch that was made before its commands were there waits for the host's word on them (devices/launch_ahead.py): until
// then it stores nothing, but what it has to know of its list is read, and weights are on their way. The word has the
// launch's tag in its upper 16 bits; below is 0, and the launch is called off, or the address of struct Feedback's arguments.
//
// Such a launch also begins before the one before it has ended (programmatic dependent launch): as soon as all blocks of that
// know that they are admitted, its own come where those have ended. What others store it reads, and stores itself, behind
// `wait_for_earlier`.
//
// The word lies in pinned memory of the host. One thread polls it over the bus; the other blocks read a copy in the L2 cache.
// The poll is relaxed: a reader of other data that the host has stored loads the word once more with acquire. If the word does
// not come within `patience_ns`, the first block treats the launch as called off and reports that: a lost host must not block
// the GPU.
__shared__ u64 admission;  // what the word says below its tag,
__shared__ u64 is_known;   // a barrier, on which it is there: who fetches weights waits for it only when it has to know

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
    wait_for_earlier();  // whose end takes longer while others keep asking the L2 cache
    while (true) {
        const u64 word = load_system(gate.heard);
        if (is_for(word, gate.tag)) return word;
    }
}

// By all who go through the list: whether they are to. The warp that fetches weights need not have come as far.
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

// The same, by a warp that does not.
__device__ inline bool learns_admission() {
    barrier_wait(shared_address(&is_known), 0);
    __syncwarp();
    return admission;
}
