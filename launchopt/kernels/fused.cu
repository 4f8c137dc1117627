// bias, ReLU and scale in one launch: C = max(B + bias, 0) * scale, computed in fp32. p.stride_a: bytes from `bias` of one
// command to that of the next, and likewise for `scale`. Grid: x over features, y over columns, z over commands.
// -DPDL=1: programmatic dependent launch, as in ops.cu.
#include "common/storage.cuh"
#include "common/ptx.cuh"
#ifndef PDL
#define PDL 0
#endif

extern "C" __global__ void BIAS_RELU_SCALE(char* bias, char* scale, char* b, char* c, const Args p) {
#if PDL
    let_next_begin();
    wait_for_earlier();
#endif
    const storage* added = of_command(bias, p.stride_a);
    const storage* factor = of_command(scale, p.stride_a);
    const storage* from = of_command(b, p.stride_b);
    storage* to = of_command(c, p.stride_c);
    const bool whole = aligned(added) && aligned(factor) && aligned(from, p.ldb) && aligned(to, p.ldc);
    const Share share(blockIdx.x, p.m, whole);
    if (share.empty()) return;
    float x[WIDTH], y[WIDTH], z[WIDTH];
    load(y, added, share);
    load(z, factor, share);
    for (i64 j = blockIdx.y; j < p.n; j += gridDim.y) {
        load(x, from + j * p.ldb, share);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) x[i] = relu(x[i] + y[i]) * z[i];
        store(to + j * p.ldc, share, x);
    }
}
