// The megakernel: one launch executes a whole step. Each block executes the same list of tasks in order. A task is one
// instruction (devices/instructions/compiler.py), that is one op for all requests of the step, or several fused instructions
// (devices/instructions/fusion.py). megakernel/config.cuh describes the macros.
//
// The work of a GEMM is divided into tiles of rows. The work of another op is divided into virtual blocks: the blocks that the
// op has where it is a kernel of its own (ops.cu). The blocks of the grid share the tiles, or the virtual blocks, of a task.
// Before a task a block waits until the tasks on which it depends are complete. Each task has a counter, to which each block
// with a share of the task adds 1 after its stores. Counters are never reset, so a wait compares a counter with the number of
// blocks that add to it, times the number of launches. GEMMs and fused attention (attention/fused_attention.cuh) do not wait
// for the counter of the task that makes their inputs. They receive the inputs through mailboxes (megakernel/mailboxes.cuh). A
// task waits only for earlier tasks, so some block can always go on. All blocks must be resident at once.
//
// An additional warp of each block copies weights into a ring in shared memory, as far ahead as the ring has space
// (megakernel/weights.cuh). GEMMs whose weights are copied in this way are called streamed. common/skinny.cuh multiplies all
// other GEMMs: those whose rows or k do not consist of whole vectors and slices, and those whose requests have different
// weights.
//
// If the host asks for it, the launch also feeds its last outputs back (tokens/step_end.cuh), once all blocks have ended the
// list. One more counter, behind those of the tasks, counts these blocks.
//
// The host may make a launch before its commands are there. The launch then waits for a word of the host
// (megakernel/gate.cuh).
//
// The ops of common/ and attention/ use threadIdx, blockDim, blockIdx and gridDim. The macros below replace blockDim by the
// number of threads that multiply, and blockIdx and gridDim by those of a virtual block.
#include "megakernel/config.cuh"
enum { THREADS = 256, LIST_THREADS = THREADS + 32 * SHORT };  // threads that multiply; threads that execute the list
enum { ALL_THREADS = LIST_THREADS + 32 };  // threads of a block, with the warp that copies weights
struct Threads {
    enum { x = THREADS };
};
#define blockDim (Threads())
#define __syncthreads() __barrier_sync_count(1, THREADS)
#define meet() __barrier_sync_count(1, LIST_THREADS)
__shared__ uint3 virtual_block, virtual_grid;  // blockIdx and gridDim of the ops: of a virtual block
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
#include "common/ptx.cuh"
#include "common/skinny.cuh"
#include "shared/megakernel.cuh"
enum { LISTED = 4 };  // tasks of the list that are in shared memory at once
enum { STAMPS_EACH = DONE + 1 };  // clock stamps of a task in each block
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
#include "attention/rotary.cuh"
#include "attention/fused_attention.cuh"
#if DTYPE == 0
#include "attention/fused_products_fp32.cuh"
#else
#include "attention/fused_products_halves.cuh"
#endif
#ifdef KIND
#include "tokens/step_end.cuh"
#endif

// Return whether all requests of a GEMM share the weights, with one column each. They are then columns of one product.
__device__ inline bool together(const Instruction& in) { return in.n == 1 && in.stride_a == 0; }

__device__ inline Args arguments(const Instruction& in) {
    return {in.m, in.n, in.k, in.lda, in.ldb, in.ldc, in.stride_a, in.stride_b, in.stride_c,
            in.q_heads, in.kv_heads, in.head_dim, in.ctx, in.page_tokens, in.pages, in.qk_norm,
            in.positions, in.table, in.all_requests, in.theta};
}

// Multiply a GEMM whose weights are not streamed. `share` blocks divide its rows; this one has number `block` of them. scratch:
// shared memory for sums.
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

// Execute one virtual block of an op.
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

// Execute this block's share of an op: every `blocks`-th virtual block, from `block` on.
__device__ __noinline__ void play_blocks(const Instruction& in, u32 block, u32 blocks) {
    const Args p = arguments(in);
    const u32 x = (u32)in.grid_x, y = (u32)in.grid_y, all = x * y * (u32)in.grid_z;
    for (u32 i = block; i < all; i += blocks) {
        __syncthreads();  // all threads have ended the previous virtual block
        if (threadIdx.x == 0) virtual_grid = {x, y, (u32)in.grid_z}, virtual_block = {i % x, i / x % y, i / x / y};
        __syncthreads();
        play(in, p);
    }
}
// A block that executes the list of tasks. list: LISTED tasks in shared memory.
struct Player : Gemm {
    Task* list;

    __device__ Player(const Program& q, u32 launch, const Feedback& feed, Memory& memory, Task* list, const Ring& ring)
        : Gemm(q, launch, feed, memory, ring), list(list) {}
    // Return whether this warp copies tasks into shared memory. The last warp does, since it has the least work for a single
    // column. After task i it begins to copy task i + 3 to the place of task i - 1, which no thread reads any more. It waits
    // for the copy after task i + 1, so that a barrier lies between the copy and its readers.
    __device__ bool fetches() const { return warp == GROUP_WARPS - 1; }
    __device__ void fetch(u32 i) const {
        static_assert(sizeof(Task) % 16 == 0 && sizeof(Task) <= 32 * 16, "one for each lane");
        if (i < q.count && lane < sizeof(Task) / 16)
            copy_later(shared_address(list + i % LISTED) + lane * 16, (u64)(q.tasks + i) + lane * 16);
    }
    // Return the block's place among the blocks with a share of a task; it has a share if the place is below Task::share.
    // Attention uses the last blocks of the grid, which have fewer tiles of GEMMs.
    __device__ u32 place_in(u32 flags) const { return attends(flags) ? gridDim.x - 1 - block : block; }
    static __device__ bool attends(u32 flags) { return (FUSED >> OP_ROPE & 1) && (flags & ATTENDS); }
    // Wait until the counters for which a task waits are high enough. Each thread checks one counter; a barrier must follow.
    __device__ void wait(const Task& task) {
        if (WITHOUT == NO_WAITS || threadIdx.x >= MOST_WAITS || !task.enough[threadIdx.x]) return;
        const u32 enough = task.enough[threadIdx.x] * launch;
        const u32* counter = q.counters + task.wait[threadIdx.x];
        while ((int)(load_acquire(counter) - enough) < 0) {}
    }
    // Add 1 to the counter of task i, behind the stores of all threads of this block.
    __device__ void complete(u64 i) {
        meet();
        if (threadIdx.x) return;
        __threadfence();
        atomicAdd(q.counters + i, 1u);
    }

    // Multiply a streamed GEMM, up to COLUMNS columns at a time.
    __device__ void play_streamed(const Task& task, u32 flags, u64 i) {
        const int all = (int)task.requests;
        if (!GROUPS) return streamed(task, flags, i, 0, COLUMNS == 1 ? 1 : all, true);
#pragma unroll 1
        for (int column = 0; column < all; column += COLUMNS)
            streamed(task, flags, i, column, min((int)COLUMNS, all - column), all - column <= COLUMNS);
    }
    __device__ void play_other(const Task& task, u32 flags, u64 i) {
        stamp(i, READY);
        // Ops use the memory of a GEMM's sums: wait until all threads have read the sums of the previous GEMM.
        if (IN_REGISTERS) __syncthreads();
        if (attends(flags)) attend<Products>(task, place_in(flags), q.box_bytes, launch, memory.inputs, stamps(i) + READY);
        else if ((OPS >> OP_GEMM & 1) && task.in.op == OP_GEMM) by_rows(task.in, block, task.share, memory.part[0]);
        else if (OPS && task.in.op != JOIN) play_blocks(task.in, block, task.share);
        meet();  // streamed GEMMs have a barrier of their own
    }
    __device__ void play(const Task& task, u32 flags, u64 i) {
        stamp(i, BEGAN);
        if (COUNTS && (flags & WAITS)) {
            wait(task);
            __syncwarp();
            // A streamed GEMM waits for mailboxes where it reads them. All other inputs are read behind this barrier.
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
        // Load from the host's memory the words (ROW_WORDS) of the row that this block feeds back, well before they are needed.
        // The load with acquire makes words visible that the host has written.
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
    wait_for_earlier();  // also if this launch was called off: the next launch waits only for the end of this one
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
    feed_back(feed, gate, player.q.counters + count, launch, share, *(sampling::Scratch*)memory.inputs);
#endif
#if STAMPS
    if (threadIdx.x) return;
    u64* whole = player.stamps(player.q.count);
    whole[CYCLES] = clock64() - began, whole[NS] = global_ns() - began_ns;
#endif
}
