// Elementwise ops of a step that engines fuse: the residual add with the norm behind it, and rotary embedding with KV write.
// All outputs are stored. Coordinate z of the grid is the command of the batch.
//
// -DPDL=1: programmatic dependent launch, as in ops.cu. ADD_NORM loads the norm's gain, which no kernel writes, before it
// waits.
#include "common/storage.cuh"
#include "common/ptx.cuh"
#include "shared/add_norm.cuh"
#ifndef PDL
#define PDL 0
#endif
#define OP(name) __device__ __forceinline__ void name(char* a, char* b, char* c, i64 request, const Args& p)
#include "attention/kv_cache.cuh"

// C = A + B, and beside it the RMS norm of C. C is rounded before it is normed, so that both outputs fit together. `gain`: the
// norm's weights. Grid: one block per column. A thread keeps the first elements of its row in registers, as NORM does.
extern "C" __global__ void ADD_NORM(char* a, char* b, char* c, char* gain, const AddNorm p) {
    __shared__ float part[33];
    const i64 j = blockIdx.x;
    const storage *residual = A_OF + j * p.lda, *added = B_OF + j * p.ldb, *factors = (const storage*)gain;
    storage *sums = C_OF + j * p.ldc, *normed = (storage*)((char*)C_OF + p.to_norm) + j * p.ldn;
    const bool whole = aligned(residual) && aligned(added) && aligned(factors) && aligned(sums) && aligned(normed);
    const i64 passes = (p.m + WIDTH * blockDim.x - 1) / (WIDTH * blockDim.x);
    float first[WIDTH], scale[WIDTH], x[WIDTH], y[WIDTH], sum = 0.0f;
#if PDL
    let_next_begin();
#endif
    load(scale, factors, Share(0, p.m, whole));
#if PDL
    wait_for_earlier();
#endif
    for (i64 pass = 0; pass < passes; ++pass) {
        const Share share(pass, p.m, whole);
        load(x, residual, share);
        load(y, added, share);
        for (int i = 0; i < WIDTH; ++i) {
            x[i] = widen(narrow(x[i] + y[i]));
            sum += x[i] * x[i];
            if (!pass) first[i] = x[i];
        }
        store(sums, share, x);
    }
    sum = combined(sum, part, [](float x, float y) { return x + y; });
    const float factor = 1.0f / sqrtf(sum / (float)p.m + NORM_EPSILON);
    for (i64 pass = 0; pass < passes; ++pass) {
        const Share share(pass, p.m, whole);
        if (pass) load(first, sums, share), load(scale, factors, share);
        for (int i = 0; i < WIDTH; ++i) x[i] = first[i] * factor * scale[i];
        store(normed, share, x);
    }
}

// ROPE, which also writes keys and values into the cache at A. Arguments and grid as ROPE's, but p.qk_norm is the address of
// the gains of queries and keys, or 0.
extern "C" __global__ void ROPE_KV(char* a, char* b, char* c, i64 request, const Args p) {
#if PDL
    let_next_begin();
    wait_for_earlier();
#endif
    rotate<true>((storage*)a, (const storage*)p.qk_norm, B_OF, C_OF, request, p);
}
