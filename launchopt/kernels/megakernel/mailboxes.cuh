// Mailboxes: a GEMM, or attention, sends its outputs to the next one as they are made. A mailbox lies beside each output. It
// holds EMPTY, a word that no output can be, until the output comes. A reader polls the mailbox itself. So data and the news
// that they are there take one trip through the L2 cache, in place of a store, a fence, a counter and a load.
//
// EMPTY is a NaN that arithmetic does not make: NaNs of arithmetic are 0x7FFFFFFF, and as halves 0x7FFF. Words are written
// whole. There are two sets of mailboxes, which launches use in turn. A launch empties the set that the launch before it
// filled. The end of a launch lies between that and the launch that fills the set again.
#define EMPTY 0xFFFFFFFFu

// Two neighbouring outputs.
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
// Return whether all of them have arrived, by one comparison.
template <int N> __device__ inline bool all_arrived(const uint4 (&found)[N]) {
    u32 most = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) most = max(most, max(max(found[i].x, found[i].y), max(found[i].z, found[i].w)));
    return WITHOUT == NO_WAITS || most != EMPTY;
}

// Offsets within mailboxes. column_in: of the first mailbox of a column; stride: bytes of a column, or of 16 columns. in_box:
// of the mailbox `bytes` behind that. box_of: of a column, for `features` features.
#if IN_REGISTERS
// The mailboxes that a warp loads at once lie together, as products need them (megakernel/gemm_in_registers.cuh): 64 bytes of
// each of 16 columns. A lane has two vectors of them, with words of columns g and g + 8 in turn. The next 64 bytes of the
// columns lie behind these.
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
__device__ inline uint4 receive_vector(u64 box) {  // the vector that begins there
    const u64 more = box + BOX_STEP / 2;
    return {receive(box), receive(box + 8), receive(more), receive(more + 8)};
}
#else
// Mailboxes of a single column use every other sector of the L2 cache. So more slices of the cache share the load of all
// blocks. Mailboxes of several columns lie dense, since there the number of bytes decides.
enum { SECTOR_BYTES = 32, SECTORS_APART = COLUMNS == 1 ? 2 : 1 };
__device__ inline u32 in_box(u32 bytes) { return bytes + bytes / SECTOR_BYTES * SECTOR_BYTES * (SECTORS_APART - 1); }
__device__ inline u32 column_in(u32 column, u32 stride) { return column * stride; }
__device__ inline uint4 receive_vector(u64 box) { return load_relaxed(box); }
__device__ inline u32 box_of(u32 column, u32 features) { return column * features * SECTORS_APART * (u32)sizeof(storage); }
#endif

// Offsets of the set of mailboxes of this launch: 0 or `bytes`.
struct Boxes {
    u64 bytes, now;
    __device__ Boxes(u64 bytes, u32 launch) : bytes(bytes), now(launch % 2 * bytes) {}
    // Send to a mailbox of this launch, and empty the one of the other set.
    template <class T> __device__ void send(u64 box, const T& both) const {
        put(box, both);
        empty(box + (bytes - 2 * now), both);
    }
};
