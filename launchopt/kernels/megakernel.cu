// A whole step in one launch: every block goes through the same list of instructions (devices/instructions.py).
//
// An instruction is an op for all requests of the step. Its work is cut into virtual blocks (of a GEMM: ranges of rows),
// which the blocks of this grid take in turn. Who has a share of one waits until those it depends on are complete: each
// has a counter, to which every block with a share adds one when it has stored. Every block takes the list in its order,
// and an instruction waits only for earlier ones, so somebody can always go on; all blocks must be resident at once.
// While a block waits with one instruction, it reads the next one and has that one's weights brought to the L2 cache.
//
// The last block to leave sets the counters back for the next launch.
#define blockIdx virtual_block
#define gridDim virtual_grid
#define OP(name) __device__ __noinline__ void name(char* a, char* b, char* c, i64 request, const Args& p)
#define OP_OF(name, threads, blocks) OP(name)
typedef long long i64;
__shared__ uint3 virtual_block, virtual_grid;  // what the functions of ops.cuh take for their block and grid
#include "storage.cuh"
#include "attention.cuh"
#include "ops.cuh"
#include "skinny.cuh"
#include "tensor.cuh"
#undef blockIdx
#undef gridDim

enum { THREADS = 256, MOST_WAITS = 4, JOIN = -1, MOST_FETCHED = 64 << 10 };  // bytes a block: together they fit into the L2
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
    i64 waits, wait[MOST_WAITS], level, fused, row;
};

struct Program {  // of devices/megakernel.py
    const Instruction* instructions;
    u32* counters;  // one an instruction, and one of blocks that left
    u64 count;
};

__device__ inline u32 load_acquire(const u32* from) {
    u32 value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

// A GEMM's requests are columns of one product where they share the weights.
__device__ inline bool together(const Instruction& in) { return in.n == 1 && in.stride_a == 0; }

// Rows that are handed out at once: 16 where the tensor cores do it, for several columns.
__device__ inline i64 granule(const Instruction& in) {
#if DTYPE != 0
    const bool joined = together(in);
    const u64 bits = in.a | in.b | in.stride_a | (u64)(in.lda * sizeof(storage)) | (joined ? in.stride_b : in.ldb * sizeof(storage));
    if ((joined ? in.requests : in.n) > 1 && (bits & 15) == 0) return MMA_ROWS;
#endif
    return 1;
}

// Blocks that have a share of an instruction: of this grid the first ones.
__device__ inline u32 sharers(const Instruction& in, u32 blocks) {
    if (in.op == JOIN) return 1;
    const i64 rows = granule(in), all = in.op == OP_GEMM ? (in.m + rows - 1) / rows : in.grid_x * in.grid_y * in.grid_z;
    return (u32)min((i64)blocks, all);
}

struct Range {  // of a GEMM's rows
    i64 first, end;
    __device__ Range(const Instruction& in, u32 block, u32 share) {
        const i64 rows = granule(in), all = (in.m + rows - 1) / rows;
        first = all * block / share * rows, end = min(in.m, all * (block + 1) / share * rows);
    }
};

__device__ inline Args arguments(const Instruction& in) {
    return {in.m, in.n, in.k, in.lda, in.ldb, in.ldc, in.stride_a, in.stride_b, in.stride_c,
            in.q_heads, in.kv_heads, in.head_dim, in.ctx, in.page_tokens, in.pages,
            in.positions, in.table, in.all_requests, in.theta};
}

union Part {
    float of_warps[GROUP_WARPS][MOST_COLUMNS];
#if DTYPE != 0
    float of_rows[GROUP_WARPS][MMA_ROWS][MOST_COLUMNS];
#endif
};

__device__ void product(const Rows& all, const Shape& s, i64 granule, Part& part) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#if DTYPE != 0
    for (int row = 0; granule > 1 && row < all.rows; row += MMA_ROWS) {
        const Rows some = {all.weights + row * s.row_elements, all.inputs, all.outputs + row, min(MMA_ROWS, all.rows - row)};
        rows_by_mma(some, s, warp, lane, 0, part.of_rows);
        __syncthreads();
    }
    if (granule > 1) return;
#endif
    multiply(all, s, warp, lane, 0, part.of_warps);
    __syncthreads();
}

__device__ void gemm(const Instruction& in, u32 block, u32 share, Part& part) {
    const Range range(in, block, share);
    const bool joined = together(in);
    const i64 size = sizeof(storage), columns = joined ? in.requests : in.n, at_once = granule(in);
    Shape s = {in.m, 0, in.k, in.lda, joined ? in.stride_b / size : in.ldb, 1, joined ? in.stride_c / size : in.ldc, 1};
    for (i64 request = 0; request < (joined ? 1 : in.requests); ++request) {
        const storage* a = (const storage*)(in.a + request * in.stride_a) + range.first * in.lda;
        const storage* b = (const storage*)(in.b + request * in.stride_b);
        storage* c = (storage*)(in.c + request * in.stride_c) + range.first;
        for (i64 column = 0; column < columns; column += MOST_COLUMNS) {
            s.columns = min((i64)MOST_COLUMNS, columns - column);
            const Rows rows = {a, b + column * s.column_elements, c + column * s.column_step, (int)(range.end - range.first)};
            product(rows, s, at_once, part);
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

__device__ void play_blocks(const Instruction& in, u32 block, u32 blocks) {
    const Args p = arguments(in);
    const u32 x = (u32)in.grid_x, y = (u32)in.grid_y, all = x * y * (u32)in.grid_z;
    for (u32 i = block; i < all; i += blocks) {
        __syncthreads();  // of the one before all have left
        if (threadIdx.x == 0) virtual_grid = {x, y, (u32)in.grid_z}, virtual_block = {i % x, i / x % y, i / x / y};
        __syncthreads();
        play(in, p);
    }
}

struct Next {
    Instruction in;
    u32 enough[MOST_WAITS];  // what the counters it waits for come to
};

// By one warp: instruction i, and its weights on their way to the L2 cache. No kernel writes weights within a step.
__device__ void fetch(const Program& q, u64 i, Next& to, u32 block, u32 blocks) {
    const int lane = threadIdx.x % 32;
    const u64* from = (const u64*)(q.instructions + i);
    for (int word = lane; word < sizeof(Instruction) / 8; word += 32) ((u64*)&to.in)[word] = from[word];
    __syncwarp();
    if (lane < to.in.waits) to.enough[lane] = sharers(q.instructions[to.in.wait[lane]], blocks);
    const Instruction& in = to.in;
    const u32 share = sharers(in, blocks);
    if (lane || in.op != OP_GEMM || block >= share) return;
    const Range range(in, block, share);
    const u64 row = in.lda * sizeof(storage), weights = in.a + range.first * row;
    const u64 bytes = min((u64)MOST_FETCHED, (range.end - range.first) * row);
    if (((weights | row) & 15) == 0 && bytes)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(weights), "r"((u32)bytes) : "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) megakernel(const Program* program) {
    __shared__ Next list[2];
    __shared__ Part part;
    const Program q = *program;
    const u32 block = blockIdx.x, blocks = gridDim.x;
    if (threadIdx.x < 32) fetch(q, 0, list[0], block, blocks);
    for (u64 i = 0; i < q.count; ++i) {
        __syncthreads();  // what was fetched is here, and nobody looks at the one before any more
        const Next& now = list[i % 2];
        const Instruction& in = now.in;
        const u32 share = sharers(in, blocks);
        if (threadIdx.x / 32 == 1 && i + 1 < q.count) fetch(q, i + 1, list[(i + 1) % 2], block, blocks);
        if (block >= share) continue;
        if (threadIdx.x < in.waits)
            while (load_acquire(q.counters + in.wait[threadIdx.x]) < now.enough[threadIdx.x]) {}
        __syncthreads();
        if (in.op == OP_GEMM) gemm(in, block, share, part);
        else if (in.op != JOIN) play_blocks(in, block, share);
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(q.counters + i, 1u);
        }
    }
    if (threadIdx.x == 0) {
        __threadfence();
        if (atomicAdd(q.counters + q.count, 1u) + 1 == blocks)
            for (u64 i = 0; i <= q.count; ++i) q.counters[i] = 0;
    }
}
