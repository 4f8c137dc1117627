// A whole step in one launch: every block goes through the same list of instructions (devices/instructions.py).
//
// An instruction is an op for all requests of the step, or a few that are done as one (devices/fusion.py). Its work is cut into
// virtual blocks (of a GEMM: tiles of rows), which the blocks of this grid take in turn. Who has a share of one waits until
// those it depends on are complete: each has a counter, to which every block with a share adds one when it has stored;
// counters are never set back, but waited for to come further with each launch. What GEMMs and attention (attend.cuh) have
// from one another comes by mail instead (mail.cuh). Every block takes the list in its order, and an instruction waits only
// for earlier ones, so somebody can always go on; all blocks must be resident at once.
//
// Weights are under way to shared memory from the start, as far ahead as there is room (weights.cuh). GEMMs whose operands
// do not allow that (rows or k that are not whole vectors and slices, weights of each request's own) are done by skinny.cuh.
//
// Beside those that go through the list there are three warps in a block, each with one thing to do: to fetch weights, to fetch
// the list (listed.cuh), and of single columns to store what the others have multiplied (results.cuh).
//
// -DSLOTS: of the ring. -DCOLUMNS: 1 for lists of one request, or MOST_COLUMNS. -DOPS and -DFUSED: a bit for each op that is in
// the list by itself (of GEMMs: that is not streamed), or done as one with others (OP_ROPE: attention). -DHEAD_DIM, -DGROUP and
// -DPAGE_TOKENS: of all of attention, or 0 where they differ. What a list does not have is not compiled, so that what the
// others need stays in registers: what does not is far away, since shared memory leaves next to nothing of the L1 cache.
//
// To find where time goes (runner/bench/megakernel.py): -DSTAMPS=1 writes down when each block began an instruction, had all
// it waits for, and ended it, and how fast its clock was; -DWITHOUT=1 fetches no weights and -DWITHOUT=2 waits for nobody, so
// that what remains is the chain of instructions alone, or memory alone. Outputs are wrong then. To be measured: -DGATED=1 (a
// GEMM's last slots are told to be empty when the inputs of the next one are there), -DPACE (cycles from one slot to the next),
// -DTENSOR=1 (single columns on tensor cores), -DUNROLL (of their chunks), -DPOLLS=2 (of a vector of inputs at a time).
#ifndef HEAD_DIM
#define HEAD_DIM 0
#define GROUP 0
#define PAGE_TOKENS 0
#endif
#ifndef GATED
#define GATED 0
#endif
#ifndef POLLS
#define POLLS 1
#endif
#ifndef STAMPS
#define STAMPS 0
#endif
#ifndef WITHOUT
#define WITHOUT 0
#endif
enum { NO_WEIGHTS = 1, NO_WAITS = 2 };
// Those that go through the list; then a warp that fetches weights, one that fetches the list, and one that stores (results.cuh).
enum { THREADS = 256, CLERK = THREADS + 32, STORER = CLERK + 32, ALL_THREADS = STORER + 32 };
struct Threads {
    enum { x = THREADS };
};
#define blockDim (Threads())
#define __syncthreads() __barrier_sync_count(1, THREADS)
__shared__ uint3 virtual_block, virtual_grid;  // what the functions of ops.cuh take for their block and grid
#define blockIdx virtual_block
#define gridDim virtual_grid
#define OP(name) __device__ __noinline__ void name(char* a, char* b, char* c, i64 request, const Args& p)
#define OP_OF(name, threads, blocks) OP(name)
#include "storage.cuh"
#include "attention.cuh"
#include "ops.cuh"
#undef blockIdx
#undef gridDim
#include "skinny.cuh"
#include "ptx.cuh"
#include "weights.cuh"
#include "tasks.cuh"
#include "tiles.cuh"
#include "listed.cuh"
#include "mail.cuh"
#include "block.cuh"
#include "results.cuh"
#include "gemm.cuh"
#include "attend.cuh"

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
    using Gemm::Gemm;
    // What is no streamed GEMM, by all threads together.
    __device__ void play(const Task& task, const Plan& plan, u64 i) {
        if (GATED) let_go();
        turns.drain();
        __syncthreads();  // all have read what was in shared memory
        stamp(i, BEGAN, threadIdx.x == 0);
        if (plan.waits()) {
            wait(task, threadIdx.x);
            __syncthreads();
        }
        stamp(i, READY, threadIdx.x == 0);
        if ((FUSED >> OP_ROPE & 1) && task.attends) attend(task, place_in(task, block), now, apart, memory.inputs, stamps(i) + READY);
        else if ((OPS >> OP_GEMM & 1) && task.in.op == OP_GEMM) by_rows(task.in, block, (u32)task.share, memory.part);
        else if (OPS && task.in.op != JOIN) play_blocks(task.in, block, (u32)task.share);
        __syncthreads();
        if (task.counted && threadIdx.x == 0) complete(i);
        stamp(i, DONE, threadIdx.x == 0);
    }
};

extern "C" __global__ void __launch_bounds__(ALL_THREADS, 1) megakernel(const Program q, const Weights first, u32 launch) {
    extern __shared__ uint4 shared[];
    __shared__ Listed listed;
    __shared__ u64 of_slots[BARRIERS], of_parts[2 * PARTS];
    Memory& memory = *(Memory*)shared;
#if STAMPS
    const u64 began = clock64(), began_ns = global_ns();
#endif
    const List list(listed);
    const Turns turns(of_parts);
    Ring::begin(of_slots);
    list.begin();
    turns.begin();
    barriers_begun();
    if (threadIdx.x == 0) turned_of[0] = -1;
    const Ring ring(memory.ring, of_slots);
    if (threadIdx.x >= STORER) {
        __barrier_sync_count(0, ALL_THREADS);
#if COLUMNS == 1
        Storer(q, launch, memory, turns).run(list);
#endif
        return;
    }
    if (threadIdx.x >= CLERK) {
        Clerk clerk(q, launch, list);
        __barrier_sync_count(0, ALL_THREADS);
        return clerk.run();
    }
    if (threadIdx.x >= THREADS) {
        Feed feed(first, q.weights, blockIdx.x, ring);
        __barrier_sync_count(0, ALL_THREADS);
        return feed.run();
    }
    __barrier_sync_count(0, ALL_THREADS);
    Player player(q, launch, memory, ring, turns);
    for (u32 i = 0; i < q.count; ++i) {
        const Plan plan = list.wait(i);
        if (plan.shares()) {
            if (plan.streamed()) player.streamed(list.task(i), plan, i);
            else player.play(list.task(i), plan, i);
        }
        list.leave(i);
    }
#if STAMPS
    if (threadIdx.x) return;
    u64* whole = player.stamps(q.count);
    whole[CYCLES] = clock64() - began, whole[NS] = global_ns() - began_ns;
#endif
}
