// What the fused launches of a layer with experts share (expert_route.cu, expert_fused.cu).
//
//   PDL       1: programmatic dependent launch
//   INDIRECT  1: A is the address of the addresses of the four operands. The table is filled before the graph begins, so that it
//             can be read before the previous launch has ended
//   WHOLE     1: rows of all operands are aligned to 16 bytes, and have a multiple of 8 elements
//   EVEN      1: the warps have the same number of whole chunks, so that loads need no condition
#ifndef PDL
#define PDL 0
#endif
#ifndef INDIRECT
#define INDIRECT 0
#endif
#define OPERANDS char *a, char *b, char *c, char *d
#if INDIRECT
#define FIND_OPERANDS                     \
    char* const* const at = (char* const*)a; \
    a = at[0], b = at[1], c = at[2], d = at[3];
#else
#define FIND_OPERANDS
#endif

// Read 8 neighbours, of which `left` exist. The others become 0.
__device__ __forceinline__ uint4 eight(const storage* from, i64 left) {
    if (!WHOLE) return read(from, left, false).whole;
    uint4 vector = {0, 0, 0, 0};
    if (EVEN || left > 0) vector = *(const uint4*)from;
    return vector;
}

// Count this block at a counter, which is 0 between launches. Return whether it is the last of `of` blocks; it then sees what the
// others have stored before. All threads call this.
__shared__ u32 blocks_before;
__device__ __forceinline__ bool is_last(u32* counter, u32 of) {
    __syncthreads();
    if (threadIdx.x == 0) {
        blocks_before = add_ordered(counter, 1u);
        if (blocks_before == of - 1) store_relaxed((u64)counter, 0u);
    }
    __syncthreads();
    return blocks_before == of - 1;
}
