// C[n, m] = B[n, k] @ A[m, k].T for N columns (-DN, n = N from 1 to 8) and a quantised weight A, by tensor cores: halves only.
// It computes what gemv_quantised.cu does. It unpacks codes to halves instead of fp32, and needs no multiply-add for each code,
// so it is for weights with many rows.
//
// WARPS_PER_ROW (1, 2, 4 or 8) of a block's 8 warps share 16 rows of A. Grid: x over groups of 16 rows, 8 / WARPS_PER_ROW per
// block; z over commands. k must be a multiple of 4 vectors of codes.
//
// mma.m16n8k16 takes from thread 4 g + t the weights of rows g and g + 8, and the inputs of column g. In each step a thread has
// a vector of codes of each of its two rows, at the same k, and takes the inputs there. Any order of k gives the same sums, as
// long as inputs and weights agree. Columns from N on repeat the last one; their sums are not used.
//
// -DPDL=1: programmatic dependent launch, as in gemv.cu. Codes are loaded before the previous kernel has ended.
#include "common/storage.cuh"
#include "common/ptx.cuh"
#include "common/quantised.cuh"
#include "steps/unpacked.cuh"

#ifndef PDL
#define PDL 0
#endif
enum { WARPS = 8, GROUP_ROWS = 16, BLOCK_GROUPS = WARPS / WARPS_PER_ROW, DEPTH = 4 };  // DEPTH: steps that are loaded ahead
enum { PACK = 16 / CODE_BITS, CHUNK = 8 };  // a vector of codes is PACK chunks of 8

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    gemv_quantised_rows(char* a, char* b, char* c, i64 request, const Args p) {
    __shared__ float part[WARPS][GROUP_ROWS][8];
    if (PDL) let_next_begin();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const i64 first = ((i64)blockIdx.x * BLOCK_GROUPS + warp / WARPS_PER_ROW) * GROUP_ROWS;
    const QuantisedWeight weight(of_command<char>(a, p.stride_a), p.m, p.k);
    // A row that does not exist repeats the last one.
    const i64 rows[2] = {min(first + g, p.m - 1), min(first + g + 8, p.m - 1)};
    const uint4* const codes[2] = {weight.row(rows[0]), weight.row(rows[1])};
    const int steps = (int)(p.k / (4 * CODES)), own = warp % WARPS_PER_ROW;
    uint4 loaded[DEPTH][2];
#pragma unroll
    for (int i = 0; i < DEPTH; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j)
            if (own + i * WARPS_PER_ROW < steps) loaded[i][j] = __ldcs(codes[j] + (own + i * WARPS_PER_ROW) * 4 + t);
    // The threads of a block finish its outputs. Neighbours have neighbouring rows, and each thread has one row.
    const int in_block = threadIdx.x % (BLOCK_GROUPS * GROUP_ROWS);
    const i64 row = (i64)blockIdx.x * BLOCK_GROUPS * GROUP_ROWS + in_block;
    const stored_scale scale = SCALES == PER_BLOCK || row >= p.m ? 0 : weight.scale(row);
    if (PDL) wait_for_earlier();
    const storage* const inputs = B_OF + min(g, N - 1) * p.ldb;
    float sums[4] = {};
    for (int at = own; at < steps; at += DEPTH * WARPS_PER_ROW) {
#pragma unroll
        for (int i = 0; i < DEPTH; ++i) {
            const int step = at + i * WARPS_PER_ROW, next = step + DEPTH * WARPS_PER_ROW;
            if (step >= steps) break;
            const int vector = step * 4 + t;
            float of_block[4] = {};
            float(&to)[4] = SCALES == PER_BLOCK ? of_block : sums;
#pragma unroll
            for (int chunk = 0; chunk < PACK; ++chunk) {
                const uint4 x = paired(*(const uint4*)(inputs + (i64)vector * CODES + chunk * CHUNK));
                const uint4 low = halves_of(loaded[i][0], chunk), high = halves_of(loaded[i][1], chunk);
                mma(to, low.x, high.x, low.y, high.y, x.x, x.y);
                mma(to, low.z, high.z, low.w, high.w, x.z, x.w);
            }
            if (SCALES == PER_BLOCK) {
                const stored_scale scales[2] = {weight.scale(rows[0], vector), weight.scale(rows[1], vector)};
#pragma unroll
                for (int j = 0; j < 4; ++j) sums[j] += widen_scale(scales[j / 2]) * of_block[j];
            }
#pragma unroll
            for (int j = 0; j < 2; ++j)
                if (next < steps) loaded[i][j] = __ldcs(codes[j] + next * 4 + t);
        }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) part[warp][g + j / 2 * 8][2 * t + j % 2] = sums[j];
    __syncthreads();
    for (int j = threadIdx.x / (BLOCK_GROUPS * GROUP_ROWS); j < N && row < p.m; j += 2 * WARPS_PER_ROW) {
        float sum = 0.0f;
        for (int i = 0; i < WARPS_PER_ROW; ++i)
            sum += part[in_block / GROUP_ROWS * WARPS_PER_ROW + i][in_block % GROUP_ROWS][j];
        (C_OF)[j * p.ldc + row] = narrow(SCALES == PER_BLOCK ? sum : widen_scale(scale) * sum);
    }
}
