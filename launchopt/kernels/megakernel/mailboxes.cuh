// Mailboxes. A GEMM, or fused attention, sends its outputs to the next task through mailboxes, in the GPU's memory. Each output
// has a mailbox, which holds EMPTY until the output comes. EMPTY is a bit pattern that no output has. The reader polls the
// mailboxes. So an output needs one trip through the L2 cache, instead of a store, a fence, an addition to a counter, and a
// load.
//
// EMPTY is a NaN that arithmetic does not make: arithmetic makes the NaN 0x7FFFFFFF, or 0x7FFF as a half. Each word of a
// mailbox is written atomically. There are two sets of mailboxes, which launches use in turn. A launch empties the set that the
// previous launch filled. The next launch fills that set again; it begins to send after the end of this launch.
#define EMPTY 0xFFFFFFFFu

// Functions on the mailboxes of two neighbouring outputs. put: store both. empty: store EMPTY. receive: load both. arrived:
// return whether the mailboxes held outputs.
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
// Return whether all N vectors have arrived. One comparison at the end is enough, since EMPTY is the largest unsigned word.
template <int N> __device__ inline bool all_arrived(const uint4 (&found)[N]) {
    u32 most = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) most = max(most, max(max(found[i].x, found[i].y), max(found[i].z, found[i].w)));
    return WITHOUT == NO_WAITS || most != EMPTY;
}

// Offsets of mailboxes, in bytes. An offset is the sum of column_in, for a column, and in_box, for an output of that column.
//
// column_in: return the offset of the first mailbox of `column`. stride: bytes of the mailboxes of a column, or of 16 columns
// with IN_REGISTERS.
// in_box: return the offset from there to the mailbox of the output that is `bytes` behind the column's first output.
// box_of: return column_in for a column of `features` outputs.
// receive_vector: load a vector of 16 bytes of outputs.
#if IN_REGISTERS
// The mailboxes are in the order in which tensor cores need the inputs (megakernel/gemm_in_registers.cuh). A warp loads 64
// bytes of each of 16 columns at once, and these are contiguous. The next 64 bytes of the columns follow. A lane loads two
// vectors, in which words of columns g and g + 8 alternate.
enum { BOX_COLUMNS = MOST_COLUMNS, BOX_STEP = BOX_BYTES * BOX_COLUMNS };
__device__ inline u32 in_box(u32 bytes) {  // bytes: a multiple of 4
    return bytes / BOX_BYTES * BOX_STEP + bytes / 8 % 2 * (BOX_STEP / 2) + (bytes & 48) + (bytes & 4) * 2;
}
__device__ inline u32 column_in(u32 column, u32 stride) {
    return (GROUPS ? column / BOX_COLUMNS * stride : 0) + column % 8 * BOX_BYTES + column / 8 % 2 * 4;
}
__device__ inline u32 box_of(u32 column, u32 features) {
    return column_in(column, (features * (u32)sizeof(storage) + BOX_BYTES - 1) / BOX_BYTES * BOX_STEP);
}
__device__ inline uint4 receive_vector(u64 box) {
    const u64 more = box + BOX_STEP / 2;
    return {receive(box), receive(box + 8), receive(more), receive(more + 8)};
}
#else
// Mailboxes of a single column use every other sector of the L2 cache, so that more slices of the cache share the loads of all
// blocks. Mailboxes of several columns have no gaps, since their number of bytes determines the time.
enum { SECTOR_BYTES = 32, SECTORS_APART = COLUMNS == 1 ? 2 : 1 };
__device__ inline u32 in_box(u32 bytes) { return bytes + bytes / SECTOR_BYTES * SECTOR_BYTES * (SECTORS_APART - 1); }
__device__ inline u32 column_in(u32 column, u32 stride) { return column * stride; }
__device__ inline uint4 receive_vector(u64 box) { return load_relaxed(box); }
__device__ inline u32 box_of(u32 column, u32 features) { return column * features * SECTORS_APART * (u32)sizeof(storage); }
#endif

// The two sets of mailboxes. bytes: size of a set. now: offset of the set that this launch fills, 0 or `bytes`.
struct Boxes {
    u64 bytes, now;
    __device__ Boxes(u64 bytes, u32 launch) : bytes(bytes), now(launch % 2 * bytes) {}
    // Send two outputs to their mailboxes, at the address `box` in the set of this launch. Empty the same mailboxes of the
    // other set.
    template <class T> __device__ void send(u64 box, const T& both) const {
        put(box, both);
        empty(box + (bytes - 2 * now), both);
    }
};
