// C[n, m] = B[n, k] @ A[m, k].T for N columns (-DN, n = N from 1 to 8), accumulated in fp32. Each element of A is read once;
// these reads take most of the time.
//
// WARPS_PER_ROW (1, 2, 4 or 8) of a block's 8 warps share a row of A. Grid: x over rows, 8 / WARPS_PER_ROW per block; z over
// commands. A thread reads vectors of 16 bytes. It reads element by element if rows are not aligned to 16 bytes, and behind the
// last whole vector of a row.
//
// -DPDL=1: programmatic dependent launch. The kernel may start while the previous kernel of the CUDA stream runs. It lets the
// next kernel start and loads its first weights, which no kernel writes. Then it waits for the end of the previous kernel.
#include "common/storage.cuh"

#ifndef PDL
#define PDL 0
#endif
enum { WARPS = 8, ROWS = WARPS / WARPS_PER_ROW, DEPTH = 4 };  // DEPTH: vectors of A that a thread loads ahead

extern "C" __global__ void __launch_bounds__(32 * WARPS) gemv(char* a, char* b, char* c, i64 request, const Args p) {
    __shared__ float part[WARPS][N];
#if PDL
    asm volatile("griddepcontrol.launch_dependents;");
#endif
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, step = 32 * WARPS_PER_ROW;
    const i64 row = (i64)blockIdx.x * ROWS + warp / WARPS_PER_ROW;
    const storage *weights = A_OF, *inputs = B_OF;
    const bool exists = row < p.m, whole = aligned(weights, p.lda) && aligned(inputs, p.ldb);
    weights += row * p.lda;
    const int vectors = whole && exists ? (int)(p.k / WIDTH) : 0, own = warp % WARPS_PER_ROW * 32 + lane;
    Vector read[DEPTH];
#pragma unroll
    for (int i = 0; i < DEPTH; ++i)
        if (own + i * step < vectors) read[i].whole = __ldcs((const uint4*)weights + own + i * step);
#if PDL
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    float sums[N] = {};
    for (int at = own; at < vectors; at += DEPTH * step) {
#pragma unroll
        for (int i = 0; i < DEPTH; ++i) {
            if (at + i * step >= vectors) break;
#pragma unroll
            for (int j = 0; j < N; ++j) {
                Vector x;
                x.whole = ((const uint4*)(inputs + j * p.ldb))[at + i * step];
#pragma unroll
                for (int e = 0; e < WIDTH; ++e) sums[j] += widen(read[i].parts[e]) * widen(x.parts[e]);
            }
        }
#pragma unroll
        for (int i = 0; i < DEPTH; ++i) {
            const int next = at + (DEPTH + i) * step;
            if (next < vectors) read[i].whole = __ldcs((const uint4*)weights + next);
        }
    }
    for (i64 at = (i64)vectors * WIDTH + own; exists && at < p.k; at += step)
        for (int j = 0; j < N; ++j) sums[j] += widen(weights[at]) * widen(inputs[j * p.ldb + at]);
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
    (C_OF)[lane * p.ldc + row] = narrow(sum);
}
