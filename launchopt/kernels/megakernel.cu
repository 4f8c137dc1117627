// A whole step in one launch: every block goes through the same list of instructions (devices/instructions.py).
//
// An instruction is an op for all requests of the step. Its work is cut into virtual blocks (of a GEMM: tiles of rows), which
// the blocks of this grid take in turn. Who has a share of one waits until those it depends on are complete: each has a
// counter, to which every block with a share adds one when it has stored; counters are never set back, but waited for to
// come further with each launch. What a GEMM has from another GEMM comes by mail instead (mail.cuh). Every block takes the list in its order,
// and an instruction waits only for earlier ones, so somebody can always go on; all blocks must be resident at once.
//
// Weights are under way to shared memory from the start, as far ahead as there is room (weights.cuh). GEMMs whose operands
// do not allow that (rows or k that are not whole vectors and slices, weights of each request's own) are done by skinny.cuh.
//
// -DSLOTS: of the ring. -DCOLUMNS: 1 for lists of one request, or MOST_COLUMNS. -DOPS: 0 for lists of nothing but GEMMs whose
// weights are under way, so that what they need stays in registers: what does not is far away, since shared memory leaves
// next to nothing of the L1 cache.
enum { THREADS = 256, ALL_THREADS = THREADS + 32 };  // which go through the list; and the warp that fetches weights
struct Threads {
    enum { x = THREADS };
};
#define blockDim (Threads())
#define __syncthreads() __barrier_sync_count(1, THREADS)
#if OPS
__shared__ uint3 virtual_block, virtual_grid;  // what the functions of ops.cuh take for their block and grid
#define blockIdx virtual_block
#define gridDim virtual_grid
#define OP(name) __device__ __noinline__ void name(char* a, char* b, char* c, i64 request, const Args& p)
#define OP_OF(name, threads, blocks) OP(name)
#endif
#include "storage.cuh"
#if OPS
#include "attention.cuh"
#include "ops.cuh"
#undef blockIdx
#undef gridDim
#endif
#include "skinny.cuh"
#include "ptx.cuh"
#include "weights.cuh"
#include "tiles.cuh"
#include "mail.cuh"

enum { MOST_WAITS = 4, JOIN = -1, LISTED = 4 };
enum { OP_GEMM, OP_BIAS, OP_RELU, OP_SCALE, OP_NORM, OP_SLOT_MAP, OP_ROPE, OP_KV_WRITE, OP_QK, OP_SOFTMAX, OP_AV, OP_ADD, OP_SILU_MUL };

struct Instruction {  // the columns of devices/instructions.py, in their order
    i64 op, m, n, k, requests, first_request;
    u64 a, b, c;
    i64 stride_a, stride_b, stride_c, lda, ldb, ldc;
    i64 q_heads, kv_heads, head_dim, ctx, page_tokens, pages;
    u64 positions, table;
    i64 all_requests;
    double theta;
    i64 grid_x, grid_y, grid_z;
    i64 waits, wait[MOST_WAITS], mail, level, fused, row;
};

struct Task {  // of devices/megakernel_program.py: an instruction, and how this grid goes about it
    Instruction in;
    i64 share;                   // blocks that have a share: the first ones
    i64 enough[MOST_WAITS];      // what a launch adds to the counters it waits for
    i64 counted;                 // whether anybody waits for its own
    i64 streamed;                // whether its weights are in the list of these; then also
    i64 tiles_each, tiles_more;  // as in Weights
    i64 row_used_bytes, round_bytes;  // of k, and how much of it at once, in whole pieces
    i64 column_bytes;            // from one column of the inputs to the next, in shared memory
    i64 mailed;                  // whether inputs come by mail
    i64 from_bytes;              // from one column of them to the next
    u64 from, box;               // inputs, or the first box that has them; the first box for outputs, or 0
};

struct Program {  // of devices/megakernel_program.py
    const Task* tasks;
    u32* counters;  // one an instruction
    const Weights* weights;
    u64 count;
    u64 box_bytes;  // from the first boxes to the second
};

struct Memory {  // shared, of a block; ops take what they need from its beginning
    char inputs[INPUT_BYTES + COLUMNS * INPUT_GAP_BYTES];
    Parts part[GROUP_WARPS];
    char ring[SLOTS * SLOT_BYTES];
};

#if OPS
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

__device__ void play(const Instruction& in, const Args& p) {
    char *a = (char*)in.a, *b = (char*)in.b, *c = (char*)in.c;
    switch (in.op) {
        case OP_BIAS: return BIAS(a, b, c, in.first_request, p);
        case OP_RELU: return RELU(a, b, c, in.first_request, p);
        case OP_SCALE: return SCALE(a, b, c, in.first_request, p);
        case OP_NORM: return NORM(a, b, c, in.first_request, p);
        case OP_SLOT_MAP: return SLOT_MAP(a, b, c, in.first_request, p);
        case OP_ROPE: return ROPE(a, b, c, in.first_request, p);
        case OP_KV_WRITE: return KV_WRITE(a, b, c, in.first_request, p);
        case OP_QK: return QK(a, b, c, in.first_request, p);
        case OP_SOFTMAX: return SOFTMAX(a, b, c, in.first_request, p);
        case OP_AV: return AV(a, b, c, in.first_request, p);
        case OP_ADD: return ADD(a, b, c, in.first_request, p);
        case OP_SILU_MUL: return SILU_MUL(a, b, c, in.first_request, p);
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
#endif

// What all blocks of the grid do alike, and where they are.
struct Player {
    Program q;
    u32 launch, block, blocks;
    Memory& memory;
    Task* list;
    Ring ring;
    int warp, lane;
    u64 now, other;  // where the boxes of this launch lie, and those of the next one, from the first ones on
    u64 ahead[(sizeof(Task) / 8 + 31) / 32];  // a task on its way: of the second warp

    __device__ Player(const Program& q, u32 launch, Memory& memory, Task* list, const Ring& ring)
        : q(q), launch(launch), block(blockIdx.x), blocks(gridDim.x), memory(memory), list(list), ring(ring),
          warp(threadIdx.x / 32), lane(threadIdx.x % 32) {
        now = launch % 2 * q.box_bytes, other = (launch + 1) % 2 * q.box_bytes;
    }
    // By the second warp: a task is read two instructions before its turn, and put into the list in the next one, before
    // a barrier.
    __device__ void fetch(u64 i) {
        if (warp != 1 || i >= q.count) return;
        const u64* from = (const u64*)(q.tasks + i);
#pragma unroll
        for (int part = 0; part < sizeof(ahead) / 8; ++part) {
            const int word = part * 32 + lane;
            if (word < sizeof(Task) / 8) ahead[part] = from[word];
        }
    }
    __device__ void enlist(u64 i) {
        if (warp != 1 || i >= q.count) return;
        u64* to = (u64*)(list + i % LISTED);
#pragma unroll
        for (int part = 0; part < sizeof(ahead) / 8; ++part) {
            const int word = part * 32 + lane;
            if (word < sizeof(Task) / 8) to[word] = ahead[part];
        }
    }
    // Until all that it waits for is complete; a barrier must follow.
    __device__ void wait(const Task& task) {
        if (threadIdx.x >= task.in.waits) return;
        const u32 enough = (u32)task.enough[threadIdx.x] * launch;
        const u32* counter = q.counters + task.in.wait[threadIdx.x];
        while ((int)(load_acquire(counter) - enough) < 0) {}
    }
    __device__ void complete(const Task& task, u64 i) {
        if (!task.counted) return;
        __syncthreads();
        if (threadIdx.x) return;
        __threadfence();
        atomicAdd(q.counters + i, 1u);
    }

    // Inputs of some columns, `bytes` of k from `first` on, to shared memory. Each thread has a vector of all columns, or
    // several of the only one.
    __device__ void gather(const Task& task, int column, int columns, int first, int bytes) {
        enum { LOOKS = COLUMNS > 1 && sizeof(storage) == 2 ? 8 : 4 };
        const bool alone = COLUMNS == 1, mailed = task.mailed;
        const int vectors = bytes / 16, own = threadIdx.x;
        const int count = alone ? (vectors - own + THREADS - 1) / THREADS : columns;
        const u64 step = alone ? THREADS * 16 : task.from_bytes, from = task.from + (mailed ? now : 0) + column * task.from_bytes + first;
        const u32 step_to = alone ? THREADS * 16 : (u32)task.column_bytes, to = shared_address(memory.inputs);
#pragma unroll 1
        for (int vector = own; vector < vectors; vector += alone ? vectors : THREADS) {
            // Of several columns one at first until it is there, since all of them at once would keep the cache from others.
            if (mailed && !alone && first == 0)
                while (!arrived(load_relaxed(from + vector * 16))) {}
#pragma unroll 1
            for (int j = 0; j < count; j += LOOKS) {
                const u64 at = from + vector * 16 + j * step;
                const u32 place = to + vector * 16 + j * step_to;
                uint4 found[LOOKS];
#pragma unroll
                for (int i = 0; i < LOOKS; ++i) {
                    if (j + i >= count) break;
                    found[i] = load_relaxed(at + i * step);
                }
#pragma unroll
                for (int i = 0; i < LOOKS; ++i) {
                    if (j + i >= count) break;
                    while (mailed && !arrived(found[i])) found[i] = load_relaxed(at + i * step);
                    store_shared(place + i * step_to, found[i]);
                }
            }
        }
    }
    // What all warps have of a pass, added up and stored, two rows a thread.
    struct Place {
        u64 box;
        storage* c;
        int row, column, rows;  // of this thread, in a pass; rows that there are from its first on
    };
    __device__ Place place(const Task& task, int pass, int tiles, int column, int columns) {
        const int row = threadIdx.x % (PASS_ROWS / 2) * 2, j = threadIdx.x / (PASS_ROWS / 2), first = pass * TILE_ROWS + row;
        const i64 at = (column + j) * task.in.m + first;
        return {task.box ? task.box + at * sizeof(storage) : 0, (storage*)(task.in.c + (column + j) * task.in.stride_c) + first,
                row, j, row < tiles * TILE_ROWS && j < columns ? (int)task.in.m - first : 0};
    }
    __device__ void store(const Place& to) {
        if (to.rows <= 0) return;
        float2 sum = {0.0f, 0.0f};
#pragma unroll
        for (int warp = 0; warp < GROUP_WARPS; ++warp) {
            const float2 part = *(const float2*)&memory.part[warp][to.column][to.row];
            sum.x += part.x, sum.y += part.y;
        }
        const storage value = narrow(sum.x), below = narrow(sum.y);
        if (to.box) send(to.box + now, to.box + other, value, below);
        to.c[0] = value;
        if (to.rows > 1) to.c[1] = below;
    }
    // Pieces of all tiles, as many as `bytes` of k are, the first ones' weights loaded; `then`: bytes of the next round.
    __device__ void multiply_round(Sums& sums, Slices& w, u32 column_bytes, int tiles, int bytes, int then, int columns) {
        u32 inputs = shared_address(memory.inputs) + warp * SLICE_BYTES;
#pragma unroll 1
        for (int left = bytes;;) {
            const int own = min(w.pieces, (left - warp * SLICE_BYTES + PIECE_BYTES - 1) / PIECE_BYTES);
            sums.add(w, max(own, 0), inputs, column_bytes, columns, lane);
            left -= w.pieces * PIECE_BYTES, inputs += w.pieces * PIECE_BYTES;
            if (left <= 0 && !then) return;
            if (ring.untold() >= MOST_UNTOLD) {
                __syncthreads();
                ring.tell();
            }
            w.load(ring, tiles, left > 0 ? left : then, warp, lane);
            if (left <= 0) return;
        }
    }
    __device__ void streamed(const Task& task, int column, int columns) {
        const int each = (int)task.tiles_each, more = (int)task.tiles_more;
        const int first = block * each + min((int)block, more), last = first + each + ((int)block < more);
        const int all = (int)task.row_used_bytes, at_once = (int)task.round_bytes;
        const u32 column_bytes = (u32)task.column_bytes;
#pragma unroll 1
        for (int pass = first; pass < last; pass += PASS_TILES) {
            const int tiles = min((int)PASS_TILES, last - pass);
            const Place to = place(task, pass, tiles, column, columns);
            Sums sums = {};
            Slices w;
            w.load(ring, tiles, min(all, at_once), warp, lane);
#pragma unroll 1
            for (int round = 0; round < all; round += at_once) {
                const int bytes = min(all - round, at_once);
                if (at_once < all || pass == first) {
                    if (round || pass > first || column) __syncthreads();  // all have read what was there
                    gather(task, column, columns, round, bytes);
                    __syncthreads();
                }
                multiply_round(sums, w, column_bytes, tiles, bytes, min(all - round - bytes, at_once), columns);
            }
            sums.leave(memory.part[warp], tiles, columns, lane);
            __syncthreads();
            ring.tell();
            store(to);
            if (pass + PASS_TILES < last || column + COLUMNS < task.in.requests) __syncthreads();
        }
    }
    __device__ void streamed(const Task& task) {
        if (COLUMNS == 1) return streamed(task, 0, 1);
#pragma unroll 1
        for (int column = 0, all = (int)task.in.requests; column < all; column += COLUMNS)
            streamed(task, column, min((int)COLUMNS, all - column));
    }
    __device__ void play(const Task& task, u64 i) {
        if (task.in.waits) {
            wait(task);
            if (!task.streamed || !task.mailed) __syncthreads();
        }
        if (task.streamed) streamed(task);
#if OPS
        else if (task.in.op == OP_GEMM) by_rows(task.in, block, (u32)task.share, memory.part);
        else if (task.in.op != JOIN) play_blocks(task.in, block, (u32)task.share);
#endif
        complete(task, i);
    }
};

extern "C" __global__ void __launch_bounds__(ALL_THREADS, 1) megakernel(const Program q, u32 launch) {
    extern __shared__ uint4 shared[];
    __shared__ Task list[LISTED];
    __shared__ u64 full[SLOTS + 1];  // of the ring, and how many slots have been read
    Memory& memory = *(Memory*)shared;
    if (threadIdx.x < SLOTS) barrier_begin(shared_address(full + threadIdx.x));
    if (threadIdx.x == SLOTS) full[SLOTS] = 0;
    __barrier_sync_count(0, ALL_THREADS);
    const Ring ring(memory.ring, full);
    if (threadIdx.x >= THREADS) return Feed(q.weights, blockIdx.x, ring).run();
    Player player(q, launch, memory, list, ring);
    if (player.warp < 2) {  // a task each
        for (u64 part = player.lane; part < sizeof(Task) / 8 && player.warp < player.q.count; part += 32)
            ((u64*)(list + player.warp))[part] = ((const u64*)(player.q.tasks + player.warp))[part];
    }
    player.fetch(2);
    __syncthreads();
    for (u64 i = 0; i < player.q.count; ++i) {
        const Task& task = list[i % LISTED];
        const bool streamed = task.streamed, shares = player.block < task.share;
        if (shares) player.play(task, i);
        player.enlist(i + 2);
        player.fetch(i + 3);
        if (!shares || !streamed) __syncthreads();  // a streamed one has had a barrier
    }
}
