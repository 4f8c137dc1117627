// A whole step in one launch: every block goes through the same list of instructions (devices/instructions.py).
//
// An instruction is an op for all requests of the step. Its work is cut into virtual blocks (of a GEMM: ranges of rows),
// which the blocks of this grid take in turn. Who has a share of one waits until those it depends on are complete: each
// has a counter, to which every block with a share adds one when it has stored. Every block takes the list in its order,
// and an instruction waits only for earlier ones, so somebody can always go on; all blocks must be resident at once.
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
#undef blockIdx
#undef gridDim

enum { THREADS = 256, MOST_WAITS = 4, JOIN = -1 };
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

// Blocks that have a share of an instruction: of this grid the first ones.
__device__ inline u32 sharers(const Instruction& in, u32 blocks) {
    if (in.op == JOIN) return 1;
    const i64 all = in.op == OP_GEMM ? in.m : in.grid_x * in.grid_y * in.grid_z;
    return (u32)min((i64)blocks, all);
}

__device__ inline Args arguments(const Instruction& in) {
    return {in.m, in.n, in.k, in.lda, in.ldb, in.ldc, in.stride_a, in.stride_b, in.stride_c,
            in.q_heads, in.kv_heads, in.head_dim, in.ctx, in.page_tokens, in.pages,
            in.positions, in.table, in.all_requests, in.theta};
}

__device__ void gemm(const Instruction& in, u32 block, u32 blocks, float (*part)[MOST_COLUMNS]) {
    const i64 first = in.m * block / blocks, rows = in.m * (block + 1) / blocks - first;
    const bool together = in.n == 1 && in.stride_a == 0;  // requests are columns of one product
    const i64 size = sizeof(storage), columns = together ? in.requests : in.n;
    Shape s = {in.m, 0, in.k, in.lda, together ? in.stride_b / size : in.ldb, 1, together ? in.stride_c / size : in.ldc, 1};
    for (i64 request = 0; request < (together ? 1 : in.requests); ++request) {
        const storage* a = (const storage*)(in.a + request * in.stride_a) + first * in.lda;
        const storage* b = (const storage*)(in.b + request * in.stride_b);
        storage* c = (storage*)(in.c + request * in.stride_c) + first;
        for (i64 column = 0; column < columns; column += MOST_COLUMNS) {
            s.columns = min((i64)MOST_COLUMNS, columns - column);
            const Rows t = {a, b + column * s.column_elements, c + column * s.column_step, (int)rows};
            multiply(t, s, threadIdx.x / 32, threadIdx.x % 32, 0, part);
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

extern "C" __global__ void __launch_bounds__(THREADS, 2) megakernel(const Program* program) {
    __shared__ Instruction in;
    __shared__ float part[GROUP_WARPS][MOST_COLUMNS];
    const Program q = *program;
    const u32 block = blockIdx.x, blocks = gridDim.x;
    for (u64 i = 0; i < q.count; ++i) {
        __syncthreads();
        if (threadIdx.x < sizeof(Instruction) / 8) ((u64*)&in)[threadIdx.x] = ((const u64*)(q.instructions + i))[threadIdx.x];
        __syncthreads();
        const u32 share = sharers(in, blocks);
        if (block >= share) continue;
        if (threadIdx.x < in.waits) {
            const u32 before = (u32)in.wait[threadIdx.x], enough = sharers(q.instructions[before], blocks);
            while (load_acquire(q.counters + before) < enough) {}
        }
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
