// C[n, m] = B[n, k] @ A[m, k].T for N columns (-DN, n = N from 1 to 8) and a quantised weight A, by tensor cores: halves only.
// It computes what gemv_quantised.cu does. It unpacks codes to halves instead of fp32, and needs no multiply-add for each code,
// so it is for weights with many rows. Halves are fp16 even if inputs are bf16, since fp16 takes less time to unpack to: a warp
// multiplies the inputs of a column by a power of two first, so that fp16 holds them.
//
// The warps of a block (WARPS: 8 or 16) share 16 rows of A. Grid: x over groups of 16 rows, z over commands. k must be a
// multiple of 4 vectors of codes. Blocks of few rows divide evenly among the multiprocessors, and as they end, blocks of the
// next launch begin. Where a multiprocessor has two blocks at most, 16 warps load faster than 8.
//
// mma.m16n8k16 takes from thread 4 g + t the weights of rows g and g + 8, and the inputs of column g. In each step a thread has
// a vector of codes of each of its two rows, at the same k, and takes the inputs there. Any order of k gives the same sums, as
// long as inputs and weights agree. Columns from N on repeat the last one; their sums are not used.
//
// A warp multiplies DEPTH neighbouring steps in a round, so that it reads whole lines of each row. During a round it loads the
// next round's inputs, and then codes and scales. Inputs pass through shared memory, so that no product waits for a load that
// was issued just before it.
//
// BLOCKS is the minimum number of blocks on a multiprocessor, chosen so that no register is spilled. Of blocks with 8 warps it
// is 4 for one or two columns, 3 if codes are int4 or scales are per block; one fewer for three or four columns; 2 for more
// columns. Of blocks with 16 warps it is half of that.
//
// -DPDL=1: programmatic dependent launch, as in gemv.cu. Codes are loaded before the previous kernel has ended.
#include "common/storage.cuh"
#include "common/ptx.cuh"
#include "common/quantised.cuh"
#include "steps/unpacked.cuh"
#include "steps/unpacked_fp16.cuh"

#ifndef PDL
#define PDL 0
#endif
enum { ROWS = 16 };
enum { PACK = 16 / CODE_BITS, STEP = 4 * PACK };  // a vector of codes is PACK chunks of 8 weights; a step has STEP chunks of k
enum { DEPTH = 2, ROUND = DEPTH * STEP };  // steps and chunks of a round; a lane copies at most one chunk of each column
enum { COLUMN = ROUND + 4 };  // chunks from a column in shared memory to the next; the gap prevents bank conflicts
enum { BY_BLOCK = SCALES == PER_BLOCK };
// On an H100, four blocks with rounds of 2 steps hide more latency than three blocks with rounds of 4.
enum { BLOCKS = 8 * (N > 4 ? 2 : (IS_INT4 || BY_BLOCK ? 3 : 4) - (N > 2)) / WARPS };

// What a thread loads of A for a step.
struct Step {
    uint4 codes[2];
    stored_scale scales[2];
};

// A thread's two rows of A. A row that does not exist repeats the last one.
struct Rows {
    const uint4* codes[2];
    const stored_scale* scales[2];
    __device__ Rows(const QuantisedWeight& weight, i64 row, i64 end) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const i64 own = min(row + 8 * j, end - 1);
            codes[j] = weight.row(own), scales[j] = weight.scales_of_row(own);
        }
    }
    // Load the vectors `at` of both rows.
    __device__ void load(Step& to, int at) const {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            to.codes[j] = __ldcs(codes[j] + at);
            if (BY_BLOCK) to.scales[j] = scales[j][at * CODES / SCALE_BLOCK];
        }
    }
};

// Load this lane's chunk of each column, zeros if it has none. first: number of the round's first chunk; end: chunks of k.
__device__ inline void fetch(uint4 (&to)[N], const storage* inputs, i64 ldb, int first, int end, int lane) {
    const bool exists = lane < ROUND && first + lane < end;
#pragma unroll
    for (int j = 0; j < N; ++j) to[j] = exists ? ((const uint4*)(inputs + j * ldb))[first + lane] : uint4{0, 0, 0, 0};
}
// Convert a chunk of bf16 to fp16, times a power of two that all lanes share; return its reciprocal. The largest input becomes
// one from 2**14 on, so that only inputs below 2**-28 of it are rounded.
__device__ inline float to_fp16(Vector& chunk) {
    if (DTYPE == 1) return 1.0f;
    u32 largest = 15u << 23;  // with a smaller exponent, the power of two would not be finite
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) largest = max(largest, __float_as_uint(chunk.wide(i)) & 0x7F800000u);
    largest = __reduce_max_sync(0xFFFFFFFFu, largest);
    const float factor = __uint_as_float((268u << 23) - largest);
#pragma unroll
    for (int i = 0; i < 4; ++i) chunk.words[i] = narrow_two_fp16(factor * chunk.wide(2 * i), factor * chunk.wide(2 * i + 1));
    return __uint_as_float(largest - (14u << 23));
}
// Store the chunks of a round in fp16. The four lanes of a row multiply neighbouring chunks in shared memory. factors: what the
// sums of this thread's two columns are multiplied by.
__device__ inline void stage(uint4 (&to)[N][COLUMN], float (&factors)[2], const uint4 (&from)[N], int lane) {
    const int place = lane / STEP * STEP + lane % PACK * 4 + lane / PACK % 4;
    __syncwarp();  // the round before has been multiplied
#pragma unroll
    for (int j = 0; j < N; ++j) {
        Vector chunk;
        chunk.whole = from[j];
        const float factor = to_fp16(chunk);
        if (lane % 4 == j / 2) factors[j % 2] = factor;
        if (lane < ROUND) to[j][place] = paired(chunk.whole);
    }
    __syncwarp();
}
// Add to `sums` the products of a step. Two chains of sums overlap.
__device__ inline void add_products(float (&sums)[2][4], const Step& step, const uint4* inputs) {
    float of_block[2][4] = {};
    float(&to)[2][4] = BY_BLOCK ? of_block : sums;
#pragma unroll
    for (int chunk = 0; chunk < PACK; ++chunk) {
        const uint4 x = inputs[chunk * 4], low = fp16_of(step.codes[0], chunk), high = fp16_of(step.codes[1], chunk);
        mma_fp16(to[0], low.x, high.x, low.y, high.y, x.x, x.y);
        mma_fp16(to[1], low.z, high.z, low.w, high.w, x.z, x.w);
    }
    if (BY_BLOCK)
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[0][j] += widen_scale(step.scales[j / 2]) * (of_block[0][j] + of_block[1][j]);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    gemv_quantised_rows(char* a, char* b, char* c, i64 request, const Args p) {
    __shared__ uint4 staged[WARPS][N][COLUMN];
    __shared__ float part[WARPS][ROWS][8];
    if (PDL) let_next_begin();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const QuantisedWeight weight(of_command<char>(a, p.stride_a), p.m, p.k);
    const Rows rows(weight, (i64)blockIdx.x * ROWS + g, p.m);
    const int steps = (int)(p.k / (4 * CODES)), own = warp * DEPTH, end = (int)(p.k / 8);
    Step loaded[DEPTH];
#pragma unroll
    for (int i = 0; i < DEPTH; ++i)
        if (own + i < steps) rows.load(loaded[i], (own + i) * 4 + t);
    // The threads of a block finish its outputs. Neighbours have neighbouring rows, and each thread has one row and column.
    const int in_block = threadIdx.x % ROWS, column = threadIdx.x / ROWS;
    const i64 row = (i64)blockIdx.x * ROWS + in_block;
    const stored_scale scale = BY_BLOCK || row >= p.m ? stored_scale{} : weight.scale(row);
    if (PDL) wait_for_earlier();
    const storage* const inputs = B_OF;
    uint4 x[N];
    fetch(x, inputs, p.ldb, own * STEP, end, lane);
    float sums[4] = {};
#pragma unroll 1
    for (int at = own; at < steps; at += DEPTH * WARPS) {
        const int next = at + DEPTH * WARPS;
        float of_round[2][4] = {}, factors[2] = {1.0f, 1.0f};
        stage(staged[warp], factors, x, lane);
        if (next < steps) fetch(x, inputs, p.ldb, next * STEP, end, lane);
#pragma unroll
        for (int i = 0; i < DEPTH; ++i) {
            if (at + i >= steps) break;
            add_products(of_round, loaded[i], staged[warp][min(g, N - 1)] + i * STEP + t);
            if (next + i < steps) rows.load(loaded[i], (next + i) * 4 + t);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[j] += factors[j % 2] * (of_round[0][j] + of_round[1][j]);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) part[warp][g + j / 2 * 8][2 * t + j % 2] = sums[j];
    __syncthreads();
    if (column >= N || row >= p.m) return;
    float sum = 0.0f;
    for (int i = 0; i < WARPS; ++i) sum += part[i][in_block][column];
    (C_OF)[column * p.ldc + row] = narrow(BY_BLOCK ? sum : widen_scale(scale) * sum);
}
