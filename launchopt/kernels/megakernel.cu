// A whole step in one launch: every block goes through the same list of instructions (devices/instructions.py).
//
// An instruction is an op for all requests of the step, or a few that are done as one (devices/fusion.py). Its work is cut into
// virtual blocks (of a GEMM: tiles of rows), which the blocks of this grid take in turn. Who has a share of one waits until
// those it depends on are complete: each has a counter, to which every block with a share adds one when it has stored;
// counters are never set back, but waited for to come further with each launch. What GEMMs and attention
// (attention/fused_attention.cuh) have from one another comes by mail instead (megakernel/mailboxes.cuh). Every block takes the
// list in its order, and an instruction waits only for earlier ones, so somebody can always go on; all blocks must be resident
// at once.
//
// Weights are under way to shared memory from the start, as far ahead as there is room (megakernel/weights.cuh). GEMMs whose
// operands do not allow that (rows or k that are not whole vectors and slices, weights of each request's own) are done by
// common/skinny.cuh.
//
// -DSLOTS: of the ring. -DCOLUMNS: 1 for lists of one request, or MOST_COLUMNS. -DOPS and -DFUSED: a bit for each op that is in
// the list by itself (of GEMMs: that is not streamed), or done as one with others (OP_ROPE: attention). -DHEAD_DIM, -DGROUP and
// -DPAGE_TOKENS: of all of attention, or 0 where they differ. What a list does not have is not compiled, so that what the
// others need stays in registers: what does not is far away, since shared memory leaves next to nothing of the L1 cache.
//
// What the list has computed last is fed back in the same launch (tokens/step_end.cuh), where the host says so: when all blocks
// have gone through the list, which a counter behind the instructions' tells. -DKIND: of sampling, with the constants of
// devices/feedback_source.py; without it none of this is compiled. -DLOGITS: whether the list ends with a streamed GEMM alone,
// so that the largest of each column, which is all that greedy sampling wants, is found where they are stored.
//
// -DGROUPS=0: no instruction has more than COLUMNS requests. -DCOUNTS=0: nobody waits for a counter. -DONE_STEP=1: no block has
// more of a streamed GEMM than slots are waited for together, and inputs there is room for at once; then no loop is around it,
// whose head alone is some 50 cycles.
//
// -DSHORT=1: of a list of short GEMMs alone one more warp stores what they give (megakernel/gemm_short.cuh).
//
// -DPAIRS=1: blocks come in clusters of two, which share the tiles of some GEMMs of several columns (megakernel/peer.cuh).
//
// A launch may be made before its commands are there: then it waits for the host's word on them (megakernel/gate.cuh).
//
// To find where time goes (runner/bench/megakernel.py): -DSTAMPS=1 writes down when each block began an instruction, had all
// it waits for, and ended it, and how fast its clock was; -DWITHOUT=1 fetches no weights and -DWITHOUT=2 waits for nobody, so
// that what remains is the chain of instructions alone, or memory alone. Outputs are wrong then.
//
// -DEACH_LANE=1 (mode.racecheck): each lane sees by itself that a slot of the ring is full, and says by itself that it has read
// it. Else one of a warp does, before or behind a __syncwarp, which is as good; but NVIDIA's racecheck does not take that for
// an order between what the others do and what a copy does (see outputs/reference/h200/resident/racecheck_rings.txt).
#include "megakernel/config.cuh"
enum { THREADS = 256, LIST_THREADS = THREADS + 32 * SHORT };  // which do the work; and which go through the list
enum { ALL_THREADS = LIST_THREADS + 32 };                     // with the warp that fetches weights
struct Threads {
    enum { x = THREADS };
};
#define blockDim (Threads())
#define __syncthreads() __barrier_sync_count(1, THREADS)
#define meet() __barrier_sync_count(1, LIST_THREADS)
__shared__ uint3 virtual_block, virtual_grid;  // what the functions of common/ops.cuh take for their block and grid
#define blockIdx virtual_block
#define gridDim virtual_grid
#define OP(name) __device__ __noinline__ void name(char* a, char* b, char* c, i64 request, const Args& p)
#define OP_OF(name, threads, blocks) OP(name)
#include "common/storage.cuh"
#include "attention/kv_cache.cuh"
#include "attention/attention.cuh"
#include "common/ops.cuh"
#undef blockIdx
#undef gridDim
#include "common/skinny.cuh"
#include "common/ptx.cuh"
#include "shared/megakernel.cuh"
enum { LISTED = 4 };  // tasks in shared memory
enum { STAMPS_EACH = DONE + 1 };
#include "megakernel/gate.cuh"
#include "megakernel/weights.cuh"
#include "megakernel/tiles.cuh"
#include "megakernel/sums.cuh"
#include "megakernel/peer.cuh"
#include "megakernel/mailboxes.cuh"
#include "shared/feedback.cuh"
#ifdef KIND
#include "tokens/sampling.cuh"
#include "tokens/next_inputs.cuh"
#endif
#include "megakernel/vectors.cuh"
#include "megakernel/inputs.cuh"
#include "megakernel/outputs.cuh"
#if IN_REGISTERS
#include "megakernel/gemm_in_registers.cuh"
#elif SHORT
#include "megakernel/gemm_short.cuh"
#else
#include "megakernel/gemm.cuh"
#endif
#include "attention/fused_attention.cuh"
#if DTYPE == 0
#include "attention/fused_products_fp32.cuh"
#else
#include "attention/fused_products_halves.cuh"
#endif
#ifdef KIND
#include "tokens/step_end.cuh"
#endif

// A GEMM's requests are columns of one product where they share the weights.
__device__ inline bool together(const Instruction& in) { return in.n == 1 && in.stride_a == 0; }

__device__ inline Args arguments(const Instruction& in) {
    return {in.m, in.n, in.k, in.lda, in.ldb, in.ldc, in.stride_a, in.stride_b, in.stride_c,
            in.q_heads, in.kv_heads, in.head_dim, in.ctx, in.page_tokens, in.pages,
            in.positions, in.table, in.all_requests, in.theta};
}

// A GEMM whose weights are not in shared memory: each block has a range of rows.
__device__ __noinline__ void by_rows(const Instruction& in, u32 block, u32 share, void* scratch) {
    const i64 first = in.m * block / share, end = in.m * (block + 1) / share, size = sizeof(storage);
    const bool joined = together(in);
    const i64 columns = joined ? in.requests : in.n;
    Shape s = {in.m, 0, in.k, in.lda, joined ? in.stride_b / size : in.ldb, 1, joined ? in.stride_c / size : in.ldc, 1};
    for (i64 request = 0; request < (joined ? 1 : in.requests); ++request) {
        const storage* a = (const storage*)(in.a + request * in.stride_a) + first * in.lda;
        const storage* b = (const storage*)(in.b + request * in.stride_b);
        storage* c = (storage*)(in.c + request * in.stride_c) + first;
        for (i64 column = 0; column < columns; column += MOST_COLUMNS) {
            s.columns = min((i64)MOST_COLUMNS, columns - column);
            const Rows rows = {a, b + column * s.column_elements, c + column * s.column_step, (int)(end - first)};
            multiply(rows, s, threadIdx.x / 32, threadIdx.x % 32, 0, (float(*)[MOST_COLUMNS])scratch);
            __syncthreads();
        }
    }
}

#define PLAY(name) \
    case OP_##name: \
        if constexpr (OPS >> OP_##name & 1) name((char*)in.a, (char*)in.b, (char*)in.c, in.first_request, p); \
        return
__device__ void play(const Instruction& in, const Args& p) {
    switch (in.op) {
        PLAY(BIAS);
        PLAY(RELU);
        PLAY(SCALE);
        PLAY(NORM);
        PLAY(SLOT_MAP);
        PLAY(ROPE);
        PLAY(KV_WRITE);
        PLAY(QK);
        PLAY(SOFTMAX);
        PLAY(AV);
        PLAY(ADD);
        PLAY(SILU_MUL);
    }
}

__device__ __noinline__ void play_blocks(const Instruction& in, u32 block, u32 blocks) {
    const Args p = arguments(in);
    const u32 x = (u32)in.grid_x, y = (u32)in.grid_y, all = x * y * (u32)in.grid_z;
    for (u32 i = block; i < all; i += blocks) {
        __syncthreads();  // of the one before all have left
        if (threadIdx.x == 0) virtual_grid = {x, y, (u32)in.grid_z}, virtual_block = {i % x, i / x % y, i / x / y};
        __syncthreads();
        play(in, p);
    }
}
// What all blocks of the grid do alike.
struct Player : Gemm {
    Task* list;

    __device__ Player(const Program& q, u32 launch, const Feedback& feed, Memory& memory, Task* list, const Ring& ring)
        : Gemm(q, launch, feed, memory, ring), list(list) {}
    // By the last warp, which has the least to do for a single column: the copy of a task begins three instructions before its
    // turn, where nobody reads the one that was there any more, and is waited for in the next one, so that a barrier lies
    // between that and who reads it.
    __device__ bool fetches() const { return warp == GROUP_WARPS - 1; }
    __device__ void fetch(u32 i) const {
        static_assert(sizeof(Task) % 16 == 0 && sizeof(Task) <= 32 * 16, "one for each lane");
        if (i < q.count && lane < sizeof(Task) / 16)
            copy_later(shared_address(list + i % LISTED) + lane * 16, (u64)(q.tasks + i) + lane * 16);
    }
    // Which of those with a share it is, if it has one. Attention is for the last blocks, which have fewer tiles of GEMMs.
    __device__ u32 place_in(u32 flags) const { return attends(flags) ? gridDim.x - 1 - block : block; }
    static __device__ bool attends(u32 flags) { return (FUSED >> OP_ROPE & 1) && (flags & ATTENDS); }
    // Until all that it waits for is complete; a barrier must follow.
    __device__ void wait(const Task& task) {
        if (WITHOUT == NO_WAITS || threadIdx.x >= MOST_WAITS || !task.enough[threadIdx.x]) return;
        const u32 enough = task.enough[threadIdx.x] * launch;
        const u32* counter = q.counters + task.wait[threadIdx.x];
        while ((int)(load_acquire(counter) - enough) < 0) {}
    }
    __device__ void complete(u64 i) {
        meet();
        if (threadIdx.x) return;
        __threadfence();
        atomicAdd(q.counters + i, 1u);
    }

    // A streamed GEMM, as many columns of it at a time as one product has.
    __device__ void play_streamed(const Task& task, u32 flags, u64 i) {
        const int all = (int)task.requests;
        if (!GROUPS) return streamed(task, flags, i, 0, COLUMNS == 1 ? 1 : all, true);
#pragma unroll 1
        for (int column = 0; column < all; column += COLUMNS)
            streamed(task, flags, i, column, min((int)COLUMNS, all - column), all - column <= COLUMNS);
    }
    __device__ void play_other(const Task& task, u32 flags, u64 i) {
        stamp(i, READY);
        if (IN_REGISTERS) __syncthreads();  // of a GEMM before all sums are read, which lie where ops have their memory
        if (attends(flags)) attend<Products>(task, place_in(flags), q.box_bytes, launch, memory.inputs, stamps(i) + READY);
        else if ((OPS >> OP_GEMM & 1) && task.in.op == OP_GEMM) by_rows(task.in, block, task.share, memory.part[0]);
        else if (OPS && task.in.op != JOIN) play_blocks(task.in, block, task.share);
        meet();  // a streamed one has had a barrier
    }
    __device__ void play(const Task& task, u32 flags, u64 i) {
        stamp(i, BEGAN);
        if (COUNTS && (flags & WAITS)) {
            wait(task);
            __syncwarp();
            // What comes by mail is waited for where it is read; what else is read before any other barrier is not.
            if ((flags & (STREAMED | MAILED | ADDS)) != (STREAMED | MAILED)) meet();
        }
        if (flags & STREAMED) play_streamed(task, flags, i);
        else play_other(task, flags, i);
        if (COUNTS && (flags & COUNTED)) complete(i);
        stamp(i, DONE);
    }
};

#if PAIRS
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(ALL_THREADS, 1)
#else
extern "C" __global__ void __launch_bounds__(ALL_THREADS, 1)
#endif
megakernel(const Program q, const __grid_constant__ Feedback feed, u32 launch, const __grid_constant__ Gate gate) {
    extern __shared__ __align__(128) char shared[];
    __shared__ Task list[LISTED];
    __shared__ u64 of_slots[BARRIERS];
    Memory& memory = *(Memory*)shared;
#if STAMPS
    const u64 began = clock64(), began_ns = global_ns();
#endif
    Ring::begin(of_slots);
    begin_gate();
    Peer::begin();
    if (threadIdx.x == 0) sequence.request = -1;
    barriers_begun();
#if PAIRS
    pair_together();
#else
    __barrier_sync_count(0, ALL_THREADS);
#endif
    const Ring ring(memory.ring, of_slots);
    if (threadIdx.x >= LIST_THREADS) {
        if (!Feed(q.weights, blockIdx.x, ring, gate.word).run()) return;
#ifdef KIND
        // From the host, well before they are needed. What it has staged is there for who has its word from the host itself.
        if (gate.word && first_row() < feed.rows) load_acquire_system(gate.word);
        read_row(feed, gate, first_row(), threadIdx.x - LIST_THREADS);
        __barrier_sync_count(0, ALL_THREADS);
#endif
        return;
    }
    Player player(q, launch, feed, memory, list, ring);
    if (player.fetches()) {
        for (u32 i = 0; i < 3; ++i) player.fetch(i);
        wait_for_copies();
    }
    const bool goes_on = !gate.word || admitted(gate);
    wait_for_earlier();  // also of one that is called off, since the next one waits for this one only
    if (!goes_on) return;
    if (threadIdx.x == 0) let_next_begin();
    if (!gate.word) meet();
    for (u32 i = 0; i < (u32)player.q.count; ++i) {
        const Task& task = list[i % LISTED];
        const u32 flags = task.flags;
        if (player.place_in(flags) < task.share) player.play(task, flags, i);
        else meet();
        if (!player.fetches()) continue;
        wait_for_copies();
        player.fetch(i + 3);
    }
#ifdef KIND
    const u64 count = player.q.count;
    const u32 share = FINDS_LARGEST ? list[(count - 1) % LISTED].share : 0;
    feed_back(feed, gate, player.q.counters + count, launch, share, *(sampling::Room*)memory.inputs);
#endif
#if STAMPS
    if (threadIdx.x) return;
    u64* whole = player.stamps(player.q.count);
    whole[CYCLES] = clock64() - began, whole[NS] = global_ns() - began_ns;
#endif
}
