// Outputs of a GEMM, or attention, that are the inputs of another, sent as they are made: beside them there is a box with a
// word that no output can be, EMPTY, until they come. Whoever wants them reads until they are there, so that data and the
// news of it are one trip through the L2 cache, instead of a store, a fence, a counter, and a load.
//
// EMPTY is a NaN that arithmetic does not make: results that are none have the sign and payload of 0x7FFFFFFF, and narrow to
// 0x7FFF. Words are written whole. There are two boxes, for every other launch: what one launch has filled the next one
// empties, and the end of a launch lies between that and who fills it again.
#define EMPTY 0xFFFFFFFFu

// Two neighbours.
#if DTYPE == 0
__device__ inline void send(u64 box, u64 other_box, const float2& both) {
    store_relaxed(box, uint2{__float_as_uint(both.x), __float_as_uint(both.y)});
    *(uint2*)other_box = {EMPTY, EMPTY};
}
__device__ inline float2 receive(u64 box) {
    const u64 found = load_relaxed((const u64*)box);
    return {__uint_as_float((u32)found), __uint_as_float((u32)(found >> 32))};
}
__device__ inline bool arrived(const float2& both) {
    return WITHOUT == NO_WAITS || max(__float_as_uint(both.x), __float_as_uint(both.y)) != EMPTY;
}
#else
__device__ inline void send(u64 box, u64 other_box, u32 both) {
    store_relaxed(box, both);
    *(u32*)other_box = EMPTY;
}
__device__ inline u32 receive(u64 box) { return load_relaxed((const u32*)box); }
__device__ inline bool arrived(u32 both) { return WITHOUT == NO_WAITS || both != EMPTY; }
#endif

__device__ inline bool arrived(const uint4& found) {
    return WITHOUT == NO_WAITS || max(max(found.x, found.y), max(found.z, found.w)) != EMPTY;
}
