// The order of experts by their scores, for a warp that chooses the best ones.

// Exchange f of a value over the lanes of the warp.
template <class T, class F> __device__ T over_warp(T value, F f) {
    for (int step = 16; step; step >>= 1) value = f(value, __shfl_xor_sync(0xFFFFFFFFu, value, step));
    return value;
}

// Return the key of an expert: a larger score, and of equal ones the smaller number, has the larger key. No key is 0.
__device__ inline u64 key_of(float score, u32 number) {
    const u32 bits = __float_as_uint(score);
    const u32 ordered = score == score ? (bits & 0x80000000u ? ~bits : bits | 0x80000000u) : 0u;
    return (u64)ordered << 32 | (0xFFFFFFFFu - number);
}
