// Definitions for all kernels: element types (-DDTYPE=0, 1 or 2 for fp32, fp16 or bf16), the arguments of a command, and loads
// and stores of WIDTH elements. A load or store moves 16 bytes at once if alignment and length allow it, and otherwise single
// elements.
// -DNORM_EPSILON: what norms add to the mean of the squares.
//
// fp16 is converted by PTX, so the kernels include no CUDA header.
typedef unsigned u32;
typedef unsigned long long u64;
typedef long long i64;
#ifndef NORM_EPSILON
#define NORM_EPSILON 1e-5f
#endif

#if DTYPE == 0
typedef float storage;
enum { WIDTH = 4 };
__device__ inline float widen(storage value) { return value; }
__device__ inline storage narrow(float value) { return value; }
#elif DTYPE == 1
typedef unsigned short storage;
enum { WIDTH = 8 };
__device__ inline float widen(storage value) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value));
    return wide;
}
__device__ inline storage narrow(float value) {
    storage result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(value));
    return result;
}
#else
typedef unsigned short storage;
enum { WIDTH = 8 };
__device__ inline float widen(storage value) { return __uint_as_float((u32)value << 16); }
__device__ inline storage narrow(float value) {
    u32 bits = __float_as_uint(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FFF;  // rounding a NaN could carry into the sign
    return (storage)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}
#endif

#include "shared/args.cuh"

union Vector {
    uint4 whole;
    storage parts[WIDTH];
    u32 words[4];
    // Return an element as fp32. An element of bf16 is widened directly from its word, because extracting its half first would
    // take three instructions.
    __device__ float wide(int i) const {
#if DTYPE == 2
        return __uint_as_float(i % 2 ? words[i / 2] & 0xFFFF0000u : words[i / 2] << 16);
#else
        return widen(parts[i]);
#endif
    }
};

// Return the operand of this block's command of the batch (blockIdx.z).
template <class T = storage> __device__ inline T* of_command(char* operand, i64 stride) {
    return (T*)(operand + blockIdx.z * stride);
}

// Return whether rows can be read 16 bytes at a time. first: address of the first row. row: elements from a row to the next.
__device__ inline bool aligned(const void* first, i64 row = 0) {
    return (((u64)first | (u64)row * sizeof(storage)) & 15) == 0;
}

// The elements of a row that one thread has in one pass of its block. A pass covers WIDTH * blockDim.x elements. If rows are
// aligned, a thread has WIDTH neighbours. Otherwise it has every blockDim.x-th element, so that a warp's accesses are
// contiguous.
struct Share {
    i64 first, end;
    int step;
    __device__ Share(i64 pass, i64 end, bool whole) : end(end), step(whole ? 1 : blockDim.x) {
        first = pass * WIDTH * blockDim.x + (whole ? WIDTH : 1) * threadIdx.x;
    }
    __device__ bool empty() const { return first >= end; }
    __device__ bool at_once() const { return step == 1 && first + WIDTH <= end; }
};

// Load a thread's elements of a row as fp32. beyond: value of elements behind the row's end.
__device__ inline void load(float (&to)[WIDTH], const storage* row, const Share& share, float beyond = 0.0f) {
    if (share.at_once()) {
        Vector vector;
        vector.whole = *(const uint4*)(row + share.first);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) to[i] = widen(vector.parts[i]);
        return;
    }
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        const i64 at = share.first + (i64)i * share.step;
        to[i] = at < share.end ? widen(row[at]) : beyond;
    }
}

__device__ inline void store(storage* row, const Share& share, const float (&from)[WIDTH]) {
    if (share.at_once()) {
        Vector vector;
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) vector.parts[i] = narrow(from[i]);
        *(uint4*)(row + share.first) = vector.whole;
        return;
    }
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        const i64 at = share.first + (i64)i * share.step;
        if (at < share.end) row[at] = narrow(from[i]);
    }
}

// Read WIDTH neighbouring elements. Elements from index `left` on do not exist; they become 0. whole: rows are aligned.
__device__ inline Vector read(const storage* from, i64 left, bool whole) {
    Vector vector;
    if (whole && left >= WIDTH) {
        vector.whole = *(const uint4*)from;
    } else {
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) vector.parts[i] = i < left ? from[i] : (storage)0;
    }
    return vector;
}

__device__ inline void load(float (&to)[WIDTH], const storage* from, i64 left, bool whole) {
    const Vector vector = read(from, left, whole);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) to[i] = widen(vector.parts[i]);
}

__device__ inline void store(storage* to, const float (&from)[WIDTH], i64 left, bool whole) {
    if (whole && left >= WIDTH) {
        Vector vector;
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) vector.parts[i] = narrow(from[i]);
        *(uint4*)to = vector.whole;
        return;
    }
#pragma unroll
    for (int i = 0; i < WIDTH; ++i)
        if (i < left) to[i] = narrow(from[i]);
}

__device__ inline float relu(float value) { return value < 0.0f ? 0.0f : value; }  // NaN stays NaN

// Combine one value of each thread of the block with f, and return the result to all threads. The block must consist of whole
// warps. part: shared memory, float [33], that only this call uses.
template <class F> __device__ float combined(float value, float* part, F f) {
    for (int step = 16; step; step >>= 1) value = f(value, __shfl_xor_sync(0xFFFFFFFFu, value, step));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < blockDim.x / 32; ++i) value = f(value, part[i]);
        part[32] = value;
    }
    __syncthreads();
    return part[32];
}

#define A_OF of_command(a, p.stride_a)
#define B_OF of_command(b, p.stride_b)
#define C_OF of_command(c, p.stride_c)
