// Quantised weights: codes of fp8, int8 or int4, row after row, and behind them their scales (launchopt/weights/packing.py).
// Codes are unpacked in registers. Each is exact in fp32, fp16 and bf16; the scale is applied to sums.
//
// Macros:
//   WEIGHTS  FORMAT_FP8, FORMAT_INT8 or FORMAT_INT4; FORMAT_NONE where a kernel also takes halves
//   SCALES   PER_CHANNEL, PER_TENSOR or PER_BLOCK
#include "shared/weights.cuh"

enum { IS_INT4 = WEIGHTS == FORMAT_INT4, CODE_BITS = IS_INT4 ? 4 : WEIGHTS == FORMAT_NONE ? 16 : 8 };
enum { CODES = 128 / CODE_BITS };  // in 16 bytes
enum { BLOCK_ROWS = IS_INT4 ? 1 : SCALE_BLOCK };  // rows of a block that shares a scale

// Return a half as fp32. `widen` converts elements of DTYPE instead.
__device__ inline float half_value(u32 bits) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"((unsigned short)bits));
    return wide;
}

// Unpack the two fp8 codes in the lower half of a word.
__device__ inline void unpack_fp8(float* to, u32 codes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    u32 halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((unsigned short)codes));
    to[0] = half_value(halves & 0xFFFFu), to[1] = half_value(halves >> 16);
#else
    // e4m3 as the upper bits of a half whose exponent has another bias: 2**-8 times the value.
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const u32 code = codes >> 8 * i & 0xFFu;
        to[i] = 256.0f * half_value((code & 0x80u) << 8 | (code & 0x7Fu) << 7);
    }
#endif
}

// Unpack the four int8 codes of a word. Each, plus 128, becomes the lowest bits of the mantissa of 2**23.
__device__ inline void unpack_int8(float* to, u32 codes) {
    const u32 raised = codes ^ 0x80808080u;
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = __uint_as_float(__byte_perm(raised, 0x4B000000u, 0x7440u | i)) - 8388736.0f;
}

// Unpack the codes of a vector in units of their scale.
__device__ inline void unpack(float (&to)[CODES], const uint4& codes) {
    const u32 words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const u32 word = words[i];
        float* const own = to + i * CODES / 4;
        if constexpr (WEIGHTS == FORMAT_FP8) {
            unpack_fp8(own, word);
            unpack_fp8(own + 2, word >> 16);
        } else if constexpr (WEIGHTS == FORMAT_INT8) {
            unpack_int8(own, word);
        } else if constexpr (IS_INT4) {
#pragma unroll
            for (int j = 0; j < 8; ++j) own[j] = __uint_as_float((word >> 4 * j & 0xFu) | 0x4B000000u) - 8388616.0f;
        }
    }
}

// A scale as it is stored: fp32, or fp16 with int4. A kernel that loads scales ahead widens them where it multiplies by them,
// because widening waits for the load. A scale is a struct, so that no kernel can multiply by the bits of a half.
template <bool IS_HALF> struct StoredScale {
    float stored;
};
template <> struct StoredScale<true> {
    unsigned short stored;
};
typedef StoredScale<IS_INT4> stored_scale;
__device__ inline float widen_scale(stored_scale scale) {
    if constexpr (IS_INT4) return half_value(scale.stored);
    else return scale.stored;
}

// Return the scale of a row, or of one of its blocks. across: scales of a row of blocks.
__device__ inline stored_scale scale_of(const char* scales, i64 row, i64 block, i64 across) {
    i64 i = SCALES == PER_TENSOR ? 0 : row;
    if (SCALES == PER_BLOCK) i = row / BLOCK_ROWS * across + block;
    return ((const stored_scale*)scales)[i];
}

// The codes and the scales of a weight of `rows` rows of k values.
struct QuantisedWeight {
    const char *codes, *scales;
    i64 row_bytes, across;  // across: scales of a row of blocks
    __device__ QuantisedWeight(const char* slot, i64 rows, i64 k)
        : codes(slot), row_bytes(k * CODE_BITS / 8), across(SCALES == PER_BLOCK ? k / SCALE_BLOCK : 1) {
        scales = slot + (rows * row_bytes + SCALES_ALIGNMENT - 1) / SCALES_ALIGNMENT * SCALES_ALIGNMENT;
    }
    __device__ const uint4* row(i64 row) const { return (const uint4*)(codes + row * row_bytes); }
    // Return the scales of a row's blocks.
    __device__ const stored_scale* scales_of_row(i64 row) const {
        return (const stored_scale*)scales + row / BLOCK_ROWS * across;
    }
    // Return the scale of a row; for PER_BLOCK, that of the vector `at` of the row.
    __device__ stored_scale scale(i64 row, i64 at = 0) const { return scale_of(scales, row, at * CODES / SCALE_BLOCK, across); }
};
