// What the fused launches of a layer with experts share (expert_route.cu, expert_fused.cu).
//
//   PDL       1: programmatic dependent launch
//   INDIRECT  1: A is the address of the addresses of the four operands. The table is filled before the graph begins, so it can
//             be read before the previous launch has ended
//   STEPPED   1: the launch finds its operands by the number of the step. The first launch of a step, the routing, takes the
//             next number, and leaves it for the others. So no operands are uploaded between steps
//   WHOLE     1: rows of all operands are aligned to 16 bytes, and have a multiple of 8 elements
//   EVEN      1: the warps have the same number of whole chunks, so that loads need no condition
#ifndef PDL
#define PDL 0
#endif
#ifndef INDIRECT
#define INDIRECT 0
#endif
#ifndef STEPPED
#define STEPPED 0
#endif

// The operands of a launch, as they are given.
struct Operands {
    char *a, *b, *c, *d;
};

// Find the operands of a launch. is_first: it is the first one of a step.
template <class P> __device__ __forceinline__ void find(Operands& of, const P& p, bool is_first) {
#if INDIRECT
    char* const* const at = (char* const*)of.a;
    of = {at[0], at[1], at[2], at[3]};
#elif STEPPED
    const u64* const state = (const u64*)p.state;
    const u32 step = (u32)load_relaxed(state + (is_first ? 0 : 1));
    const i64 apart = (i64)load_relaxed(state + 2), input = step % (u32)p.inputs, copy = step % (u32)p.copies;
    const auto at = [&](int i) {
        const i64 moved = p.of_step[i] * step + p.of_input[i] * input + p.of_copy[i] * copy;
        return (char*)(p.address[i] + moved + (p.is_output[i] ? apart : 0));
    };
    of = {at(0), at(1), at(2), at(3)};
#endif
}

// Read 8 neighbours, of which `left` exist. The others become 0.
__device__ __forceinline__ uint4 eight(const storage* from, i64 left) {
    if (!WHOLE) return read(from, left, false).whole;
    uint4 vector = {0, 0, 0, 0};
    if (EVEN || left > 0) vector = *(const uint4*)from;
    return vector;
}

// Count this block at a counter, which is 0 between launches. Return whether it is the last of `of` blocks; it then sees what
// the others have stored before. All threads call this.
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
