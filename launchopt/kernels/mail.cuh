// Outputs of a GEMM, or attention, that are the inputs of another, sent as they are made: beside them there is a box with a
// word that no output can be, EMPTY, until they come. Whoever wants them reads until they are there, so that data and the
// news of it are one trip through the L2 cache, instead of a store, a fence, a counter, and a load.
//
// EMPTY is a NaN that arithmetic does not make: results that are none have the sign and payload of 0x7FFFFFFF, and narrow to
// 0x7FFF. Words are written whole. There are two boxes, for every other launch: what one launch has filled the next one
// empties, and the end of a launch lies between that and who fills it again.
//
// Of a single column all blocks read the same few lines, again and again until they have what they want, and whoever stores
// there waits in line with them: so that there are -DCOPIES of each box, which as many blocks in turn read.
#define EMPTY 0xFFFFFFFFu

// Two neighbours.
#if DTYPE == 0
__device__ inline void put(u64 box, const float2& both) {
    store_relaxed(box, uint2{__float_as_uint(both.x), __float_as_uint(both.y)});
}
__device__ inline void empty(u64 box, const float2&) { *(uint2*)box = {EMPTY, EMPTY}; }
__device__ inline float2 receive(u64 box) {
    const u64 found = load_relaxed((const u64*)box);
    return {__uint_as_float((u32)found), __uint_as_float((u32)(found >> 32))};
}
__device__ inline bool arrived(const float2& both) {
    return WITHOUT == NO_WAITS || max(__float_as_uint(both.x), __float_as_uint(both.y)) != EMPTY;
}
#else
__device__ inline void put(u64 box, u32 both) { store_relaxed(box, both); }
__device__ inline void empty(u64 box, u32) { *(u32*)box = EMPTY; }
__device__ inline u32 receive(u64 box) { return load_relaxed((const u32*)box); }
__device__ inline bool arrived(u32 both) { return WITHOUT == NO_WAITS || both != EMPTY; }
#endif

__device__ inline bool arrived(const uint4& found) {
    return WITHOUT == NO_WAITS || max(max(found.x, found.y), max(found.z, found.w)) != EMPTY;
}
// As one question.
template <int N> __device__ inline bool all_arrived(const uint4 (&found)[N]) {
    u32 most = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) most = max(most, max(max(found[i].x, found[i].y), max(found[i].z, found[i].w)));
    return WITHOUT == NO_WAITS || most != EMPTY;
}

// Where boxes lie, from the first ones on: all of this launch, one copy behind another, and all of the next one.
struct Boxes {
    u64 copy_bytes, now, own;  // own: the copy that this block reads
    __device__ Boxes(u64 copy_bytes, u32 launch, u32 block)
        : copy_bytes(copy_bytes), now(launch % 2 * COPIES * copy_bytes), own(now + block % COPIES * copy_bytes) {}
    // To a box of this launch, in all copies.
    template <class T> __device__ void send(u64 box, const T& both) const {
#pragma unroll
        for (int i = 0; i < COPIES; ++i) put(box + i * copy_bytes, both);
        const u64 other = box + (COPIES * copy_bytes - 2 * now);
#pragma unroll
        for (int i = 0; i < COPIES; ++i) empty(other + i * copy_bytes, both);
    }
};
