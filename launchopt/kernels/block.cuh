// A block of the grid in a launch: its shared memory, its threads, and what all of them wait for and write down alike.
struct Memory {  // shared, of a block; ops take what they need from its beginning
    char inputs[INPUT_BYTES + COLUMNS * INPUT_GAP_BYTES];
    Parts part[PARTS][GROUP_WARPS];
    char ring[SLOTS * SLOT_BYTES];
};

struct Block {
    Program q;
    u32 launch, block;
    Memory& memory;
    int warp, lane;
    u64 now, apart;  // where the boxes of this launch lie, from the first ones on; and from these to those of the next one

    __device__ Block(const Program& q, u32 launch, Memory& memory)
        : q(q), launch(launch), block(blockIdx.x), memory(memory), warp(threadIdx.x / 32), lane(threadIdx.x % 32) {
        now = launch % 2 * q.box_bytes, apart = q.box_bytes - 2 * now;
    }
    __device__ u64* stamps(u64 i) const { return q.stamps + (block * (q.count + 1) + i) * STAMPS_EACH; }
    __device__ void stamp(u64 i, int which, bool is_first) const {
#if STAMPS
        if (is_first) stamps(i)[which] = clock64();
#endif
    }
    // Until all that a task waits for is complete, one of them a thread; a barrier must follow.
    __device__ void wait(const Task& task, u32 thread) const {
        if (WITHOUT == NO_WAITS || thread >= task.in.waits) return;
        const u32 enough = (u32)task.enough[thread] * launch;
        const u32* counter = q.counters + task.in.wait[thread];
        while ((int)(load_acquire(counter) - enough) < 0) {}
    }
    // By one thread, when all that its block has stored for a task lies before a barrier.
    __device__ void complete(u64 i) const {
        __threadfence();
        atomicAdd(q.counters + i, 1u);
    }
};
