// The next few tasks of the list, in shared memory, and of each what its GEMM begins with, as this block has it: a warp that
// does nothing else brings them, as soon as all others have left those that were there.
__device__ inline u32 place_in(const Task& task, u32 block) {  // which of those with a share it is, if it has one
    // GEMMs begin at another block each; attention at the last one.
    return (FUSED >> OP_ROPE & 1) && task.attends ? gridDim.x - 1 - block : moved(block, (u32)task.turn);
}
__device__ inline int first_tile(const Task& task, u32 block) {
    const int pairs = (FUSED >> OP_SILU_MUL & 1) && task.pair_rows;
    const int place = (int)moved(block, (u32)task.turn);
    return place * (int)task.tiles_each + min(place, (int)task.tiles_more) << pairs;
}

struct Plan {  // one load
    enum { SHARES = 1, STREAMED = 2, MAILED = 4, WAITS = 8, NORMED = 16, TILES = 256 };
    uint4 words;  // address of the inputs, bytes of k, and the above

    __device__ Plan(const uint4& words) : words(words) {}
    __device__ Plan(const Task& task, u32 block, u64 now) {
        const int pairs = (FUSED >> OP_SILU_MUL & 1) && task.pair_rows;
        const u64 from = task.from + (task.mailed ? now : 0);
        const u32 place = place_in(task, block), tiles = (u32)task.tiles_each + (place < (u32)task.tiles_more) << pairs;
        const u32 flags = (place < task.share ? SHARES : 0) | (task.streamed ? STREAMED : 0) |
                          (task.mailed ? MAILED : 0) | (task.in.waits ? WAITS : 0) | (task.gain ? NORMED : 0);
        words = {(u32)from, (u32)(from >> 32), (u32)task.row_used_bytes, flags | tiles * TILES};
    }
    __device__ u64 from() const { return words.x | (u64)words.y << 32; }
    __device__ int bytes() const { return (int)words.z; }
    __device__ int tiles() const { return (int)(words.w / TILES); }
    __device__ bool shares() const { return words.w & SHARES; }
    __device__ bool streamed() const { return words.w & STREAMED; }
    __device__ bool mailed() const { return words.w & MAILED; }
    __device__ bool waits() const { return words.w & WAITS; }
    __device__ bool normed() const { return (FUSED >> OP_NORM & 1) && words.w & NORMED; }
};

struct Listed {  // shared
    uint4 plans[LISTED];
    u64 full[LISTED], empty[LISTED];  // barriers: of the clerk, and of all who read
    Task tasks[LISTED];
};

struct List {
    enum { READERS = GROUP_WARPS + (COLUMNS == 1) };  // with the storer (results.cuh)
    enum { FULL = LISTED * 16, EMPTY_AGAIN = FULL + LISTED * 8 };
    const Listed& listed;
    u32 at;

    __device__ List(const Listed& listed) : listed(listed), at(shared_address(&listed)) {}
    __device__ u32 plan(u32 i) const { return at + i % LISTED * 16; }
    __device__ u32 full(u32 i) const { return at + FULL + i % LISTED * 8; }
    __device__ u32 empty(u32 i) const { return at + EMPTY_AGAIN + i % LISTED * 8; }
    __device__ void begin() const {  // by LISTED threads
        if (threadIdx.x < LISTED) barrier_begin(full(threadIdx.x), 1), barrier_begin(empty(threadIdx.x), READERS);
    }
    __device__ Plan wait(u32 i) const {
        barrier_wait(full(i), i / LISTED % 2);
        return Plan(load_shared(plan(i)));
    }
    __device__ const Task& task(u32 i) const { return listed.tasks[i % LISTED]; }
    __device__ void leave(u32 i) const {
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(empty(i));
    }
};

// The warp that brings tasks. The first one is under way when it is made.
struct Clerk {
    enum { WORDS = sizeof(Task) / 8, PARTS_OF_TASK = (WORDS + 31) / 32 };
    const Program& q;
    const List list;
    u64 now, words[PARTS_OF_TASK];
    u32 lane;

    __device__ Clerk(const Program& q, u32 launch, const List& list)
        : q(q), list(list), now(launch % 2 * q.box_bytes), lane(threadIdx.x % 32) {
        fetch(0);
    }
    __device__ void fetch(u32 i) {
        const u64* from = (const u64*)(q.tasks + i);
#pragma unroll
        for (int part = 0; part < PARTS_OF_TASK; ++part)
            if (part * 32 + lane < WORDS && i < q.count) words[part] = from[part * 32 + lane];
    }
    __device__ void run() {
        for (u32 i = 0; i < q.count; ++i) {
            u64* to = (u64*)&list.task(i);
            barrier_wait(list.empty(i), i / LISTED % 2 ^ 1);  // the first time it is
            __syncwarp();
#pragma unroll
            for (int part = 0; part < PARTS_OF_TASK; ++part)
                if (part * 32 + lane < WORDS) to[part * 32 + lane] = words[part];
            __syncwarp();
            if (lane == 0) {
                store_shared(list.plan(i), Plan(list.task(i), blockIdx.x, now).words);
                barrier_arrive(list.full(i));
            }
            fetch(i + 1);
        }
    }
};
