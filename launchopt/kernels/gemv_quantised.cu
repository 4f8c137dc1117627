// C[n, m] = B[n, k] @ A[m, k].T for N columns (-DN, n = N from 1 to 8) and a quantised weight A, accumulated in fp32. Grid and
// WARPS_PER_ROW are those of gemv.cu. Rows of A and B begin at multiples of 16 bytes, and k fills whole vectors of codes.
//
// A thread unpacks each vector of 16 bytes of A in its registers, after it has loaded several ahead. Scales per channel or
// tensor are applied to the whole sum, scales per block to the sum of a vector's products.
//
// -DPDL=1: programmatic dependent launch, as in gemv.cu. Codes and scales are loaded before the previous kernel has ended.
#include "common/storage.cuh"
#include "common/ptx.cuh"
#include "common/quantised.cuh"

#ifndef PDL
#define PDL 0
#endif
enum { WARPS = 8, ROWS = WARPS / WARPS_PER_ROW, DEPTH = 4 };  // DEPTH: vectors of A that a thread loads ahead

struct Loaded {
    uint4 codes;
    stored_scale scale;
};

// Load a vector of a row, and its scale if it has one of its own.
__device__ inline void load(Loaded& to, const QuantisedWeight& weight, const uint4* codes, i64 row, int at) {
    to.codes = __ldcs(codes + at);
    if (SCALES == PER_BLOCK) to.scale = weight.scale(row, at);
}

// Add to `sums` the products of a vector of A and the same elements of each column.
__device__ inline void add_products(float (&sums)[N], const Loaded& loaded, const storage* inputs, i64 ldb) {
    float values[CODES];
    unpack(values, loaded.codes);
#pragma unroll
    for (int j = 0; j < N; ++j) {
        float sum = 0.0f;
#pragma unroll
        for (int v = 0; v < CODES / WIDTH; ++v) {
            Vector x;
            x.whole = ((const uint4*)(inputs + j * ldb))[v];
#pragma unroll
            for (int e = 0; e < WIDTH; ++e) sum += values[v * WIDTH + e] * x.wide(e);
        }
        sums[j] += SCALES == PER_BLOCK ? widen_scale(loaded.scale) * sum : sum;
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    gemv_quantised(char* a, char* b, char* c, i64 request, const Args p) {
    __shared__ float part[WARPS][N];
    if (PDL) let_next_begin();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, step = 32 * WARPS_PER_ROW;
    const i64 row = (i64)blockIdx.x * ROWS + warp / WARPS_PER_ROW;
    const QuantisedWeight weight(of_command<char>(a, p.stride_a), p.m, p.k);
    const storage* inputs = B_OF;
    const bool exists = row < p.m;
    const uint4* codes = weight.row(row);
    const int vectors = exists ? (int)(p.k / CODES) : 0, own = warp % WARPS_PER_ROW * 32 + lane;
    Loaded loaded[DEPTH];
#pragma unroll
    for (int i = 0; i < DEPTH; ++i)
        if (own + i * step < vectors) load(loaded[i], weight, codes, row, own + i * step);
    const stored_scale scale = SCALES == PER_BLOCK || !exists ? stored_scale{} : weight.scale(row);
    if (PDL) wait_for_earlier();
    float sums[N] = {};
    for (int at = own; at < vectors; at += DEPTH * step) {
#pragma unroll
        for (int i = 0; i < DEPTH; ++i) {
            if (at + i * step >= vectors) break;
            add_products(sums, loaded[i], inputs + (i64)(at + i * step) * CODES, p.ldb);
        }
#pragma unroll
        for (int i = 0; i < DEPTH; ++i) {
            const int next = at + (DEPTH + i) * step;
            if (next < vectors) load(loaded[i], weight, codes, row, next);
        }
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
        for (int bit = 16; bit; bit >>= 1) sums[j] += __shfl_xor_sync(0xFFFFFFFFu, sums[j], bit);
        if (lane == 0) part[warp][j] = sums[j];
    }
    if (WARPS_PER_ROW > 1) __syncthreads();
    else __syncwarp();
    if (!exists || warp % WARPS_PER_ROW != 0 || lane >= N) return;
    float sum = 0.0f;
    for (int i = 0; i < WARPS_PER_ROW; ++i) sum += part[warp + i][lane];
    (C_OF)[lane * p.ldc + row] = narrow(SCALES == PER_BLOCK ? sum : widen_scale(scale) * sum);
}
