// Quantise the inputs of a GEMM to fp8, bit for bit as launchopt/weights/quantiser.py does. C gets the codes of B [n, k], and
// behind them the scales, as a quantised weight of n rows has them (launchopt/weights/packing.py).
//
// A block per scale: for PER_CHANNEL of a column, for PER_TENSOR of all columns, which must then be adjacent in memory. A scale
// is the largest magnitude over 448, and a code is e4m3(value / scale), both with IEEE division. Values fill whole vectors.
#include "common/storage.cuh"
#include "shared/weights.cuh"

enum { HELD = 4 };  // vectors that a thread keeps in registers until the scale is known; it reads the others again

// Return two values as e4m3 codes, rounded to nearest, ties to even: the first in the lowest 8 bits.
__device__ inline u32 fp8_pair(float first, float second) {
    unsigned short codes;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
    return codes;
}

__device__ inline void add_largest(float& largest, const Vector& vector) {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) largest = fmaxf(largest, fabsf(vector.wide(i)));
}

// Store the codes of a vector.
__device__ inline void store_codes(u32* to, const Vector& vector, float scale) {
#pragma unroll
    for (int i = 0; i < WIDTH; i += 4) {
        const u32 low = fp8_pair(vector.wide(i) / scale, vector.wide(i + 1) / scale);
        to[i / 4] = low | fp8_pair(vector.wide(i + 2) / scale, vector.wide(i + 3) / scale) << 16;
    }
}

extern "C" __global__ void __launch_bounds__(1024)
    quantise_inputs(char*, char* b, char* c, i64, const Args p) {
    __shared__ float part[33];
    const i64 values = SCALES == PER_TENSOR ? p.n * p.k : p.k;  // that share a scale
    const int vectors = (int)(values / WIDTH), step = blockDim.x, own = threadIdx.x;
    const uint4* from = (const uint4*)((const storage*)b + blockIdx.x * p.ldb);
    Vector held[HELD];
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < HELD; ++i)
        if (own + i * step < vectors) held[i].whole = from[own + i * step];
#pragma unroll
    for (int i = 0; i < HELD; ++i)
        if (own + i * step < vectors) add_largest(largest, held[i]);
    for (int at = own + HELD * step; at < vectors; at += step) {
        Vector vector;
        vector.whole = from[at];
        add_largest(largest, vector);
    }
    largest = combined(largest, part, [](float x, float y) { return fmaxf(x, y); });
    const float scale = largest == 0.0f ? 1.0f : fmaxf(largest / 448.0f, 0x1p-126f);
    u32* codes = (u32*)(c + blockIdx.x * values);
#pragma unroll
    for (int i = 0; i < HELD; ++i)
        if (own + i * step < vectors) store_codes(codes + (own + i * step) * (WIDTH / 4), held[i], scale);
    for (int at = own + HELD * step; at < vectors; at += step) {
        Vector vector;
        vector.whole = from[at];
        store_codes(codes + at * (WIDTH / 4), vector, scale);
    }
    const i64 scales_at = (p.n * p.k + SCALES_ALIGNMENT - 1) / SCALES_ALIGNMENT * SCALES_ALIGNMENT;
    if (own == 0) ((float*)(c + scales_at))[blockIdx.x] = scale;
}
