// Runs a whole step in one launch. Every block goes through the same list of instructions (devices/instructions/compiler.py).
// megakernel/config.cuh describes the macros.
//
// An instruction is one op for all requests of the step, or several fused ops (devices/instructions/fusion.py). It is divided
// into virtual blocks, for a GEMM into tiles of rows, which the blocks of this grid take in turn. A block waits until the
// instructions that its next one depends on are complete. Each instruction has a counter: every block with a share adds 1 after
// its stores. Counters are never reset, so a wait compares with the number of launches. GEMMs and fused attention
// (attention/fused_attention.cuh) exchange their data through mailboxes instead (megakernel/mailboxes.cuh). All blocks take the
// list in order, and an instruction waits only for earlier ones, so some block can always go on. All blocks must be resident at
// once.
//
// An additional warp of each block copies weights into a ring in shared memory, as far ahead as the ring has room
// (megakernel/weights.cuh). These GEMMs are called streamed. Other GEMMs are multiplied by common/skinny.cuh: those whose rows
// or k are not whole vectors and slices, and those with weights of each request's own.
//
// If the host asks for it, the launch also feeds its last outputs back (tokens/step_end.cuh). It begins when all blocks are
// through the list; a counter behind those of the instructions counts them.
//
// A launch may be made before its commands are there. It then waits for a word of the host (megakernel/gate.cuh).
//
// The ops of common/ and attention/ take threadIdx, blockDim, blockIdx and gridDim. The macros below give them the threads that
// work, and a virtual block.
#include "megakernel/config.cuh"
enum { THREADS = 256, LIST_THREADS = THREADS + 32 * SHORT };  // threads that multiply; threads that go through the list
enum { ALL_THREADS = LIST_THREADS + 32 };  // with the warp that fetches weights
struct Threads {
    enum { x = THREADS };
};
#define blockDim (Threads())
#define __syncthreads() __barrier_sync_count(1, THREADS)
#define meet() __barrier_sync_count(1, LIST_THREADS)
__shared__ uint3 virtual_block, virtual_grid;  // blockIdx and gridDim of the ops in common/ops.cuh
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
enum { LISTED = 4 };  // tasks that are kept in shared memory
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

// Return whether the requests of a GEMM are columns of one product: they share the weights.
__device__ inline bool together(const Instruction& in) { return in.n == 1 && in.stride_a == 0; }

__device__ inline Args arguments(const Instruction& in) {
    return {in.m, in.n, in.k, in.lda, in.ldb, in.ldc, in.stride_a, in.stride_b, in.stride_c,
            in.q_heads, in.kv_heads, in.head_dim, in.ctx, in.page_tokens, in.pages,
            in.positions, in.table, in.all_requests, in.theta};
}

// A GEMM whose weights are not streamed: each block has a range of rows.
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
        __syncthreads();  // all threads have left the virtual block before
        if (threadIdx.x == 0) virtual_grid = {x, y, (u32)in.grid_z}, virtual_block = {i % x, i / x % y, i / x / y};
        __syncthreads();
        play(in, p);
    }
}
// A block on its way through the list.
struct Player : Gemm {
    Task* list;

    __device__ Player(const Program& q, u32 launch, const Feedback& feed, Memory& memory, Task* list, const Ring& ring)
        : Gemm(q, launch, feed, memory, ring), list(list) {}
    // The last warp fetches tasks, since it has least to do for a single column. It begins the copy of a task three
    // instructions ahead, into a place that no thread reads any more. It waits for the copy one instruction later, so that a
    // barrier lies between the copy and its readers.
    __device__ bool fetches() const { return warp == GROUP_WARPS - 1; }
    __device__ void fetch(u32 i) const {
        static_assert(sizeof(Task) % 16 == 0 && sizeof(Task) <= 32 * 16, "one for each lane");
        if (i < q.count && lane < sizeof(Task) / 16)
            copy_later(shared_address(list + i % LISTED) + lane * 16, (u64)(q.tasks + i) + lane * 16);
    }
    // Return the block's place among the blocks with a share. Attention takes the last blocks, which have fewer tiles of GEMMs.
    __device__ u32 place_in(u32 flags) const { return attends(flags) ? gridDim.x - 1 - block : block; }
    static __device__ bool attends(u32 flags) { return (FUSED >> OP_ROPE & 1) && (flags & ATTENDS); }
    // Wait for the counters of a task. A barrier must follow.
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

    // A streamed GEMM, up to COLUMNS columns at a time.
    __device__ void play_streamed(const Task& task, u32 flags, u64 i) {
        const int all = (int)task.requests;
        if (!GROUPS) return streamed(task, flags, i, 0, COLUMNS == 1 ? 1 : all, true);
#pragma unroll 1
        for (int column = 0; column < all; column += COLUMNS)
            streamed(task, flags, i, column, min((int)COLUMNS, all - column), all - column <= COLUMNS);
    }
    __device__ void play_other(const Task& task, u32 flags, u64 i) {
        stamp(i, READY);
        if (IN_REGISTERS) __syncthreads();  // the sums of a GEMM before are read; ops use the same memory
        if (attends(flags)) attend<Products>(task, place_in(flags), q.box_bytes, launch, memory.inputs, stamps(i) + READY);
        else if ((OPS >> OP_GEMM & 1) && task.in.op == OP_GEMM) by_rows(task.in, block, task.share, memory.part[0]);
        else if (OPS && task.in.op != JOIN) play_blocks(task.in, block, task.share);
        meet();  // a streamed GEMM has had a barrier
    }
    __device__ void play(const Task& task, u32 flags, u64 i) {
        stamp(i, BEGAN);
        if (COUNTS && (flags & WAITS)) {
            wait(task);
            __syncwarp();
            // Mailed inputs are waited for where they are read. All other inputs are read behind this barrier.
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
        // Load the row's words from the host well before they are needed. The acquire makes the words that the host staged
        // visible.
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
    wait_for_earlier();  // also if this launch was called off, since the next launch waits for this one only
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
