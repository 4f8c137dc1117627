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
// Whether all of them have: one question.
template <int N> __device__ inline bool all_arrived(const uint4 (&found)[N]) {
    u32 most = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) most = max(most, max(max(found[i].x, found[i].y), max(found[i].z, found[i].w)));
    return WITHOUT == NO_WAITS || most != EMPTY;
}

// Where something lies in boxes of so many features: column_in for the first one of a column, `stride` being of a column, or
// of 16 of them; and in_box for so many bytes behind that.
#if IN_REGISTERS
// What a warp asks for at once lies together, as products want it (megakernel/gemm_in_registers.cuh): of 16 columns 64 bytes,
// of which each lane has two vectors, words of the columns g and g + 8 by turns. The next 64 bytes lie behind all of these.
enum { BOX_COLUMNS = MOST_COLUMNS, BOX_STEP = BOX_BYTES * BOX_COLUMNS };
__device__ inline u32 in_box(u32 bytes) {  // of whole words
    return bytes / BOX_BYTES * BOX_STEP + bytes / 8 % 2 * (BOX_STEP / 2) + (bytes & 48) + (bytes & 4) * 2;
}
__device__ inline u32 column_in(u32 column, u32 stride) {
    return (GROUPS ? column / BOX_COLUMNS * stride : 0) + column % 8 * BOX_BYTES + column / 8 % 2 * 4;
}
__device__ inline u32 box_of(u32 column, u32 features) {
    return column_in(column, (features * (u32)sizeof(storage) + BOX_BYTES - 1) / BOX_BYTES * BOX_STEP);
}
__device__ inline uint4 receive_vector(u64 box) {  // that begins there
    const u64 more = box + BOX_STEP / 2;
    return {receive(box), receive(box + 8), receive(more), receive(more + 8)};
}
#else
// Of a single column every other sector of the L2 cache is a box's, so that more slices of that share what all blocks ask for
// at once. Of several, boxes lie dense: there it is the number of bytes that counts.
enum { SECTOR_BYTES = 32, SECTORS_APART = COLUMNS == 1 ? 2 : 1 };
__device__ inline u32 in_box(u32 bytes) { return bytes + bytes / SECTOR_BYTES * SECTOR_BYTES * (SECTORS_APART - 1); }
__device__ inline u32 column_in(u32 column, u32 stride) { return column * stride; }
__device__ inline uint4 receive_vector(u64 box) { return load_relaxed(box); }
__device__ inline u32 box_of(u32 column, u32 features) { return column * features * SECTORS_APART * (u32)sizeof(storage); }
#endif

// Where the boxes of this launch lie, from the first ones on; the next one's lie as many bytes behind, or before.
struct Boxes {
    u64 bytes, now;
    __device__ Boxes(u64 bytes, u32 launch) : bytes(bytes), now(launch % 2 * bytes) {}
    // To a box of this launch.
    template <class T> __device__ void send(u64 box, const T& both) const {
        put(box, both);
        empty(box + (bytes - 2 * now), both);
    }
};
