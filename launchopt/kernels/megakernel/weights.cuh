// Weights of the list's streamed GEMMs. One warp of each block copies them into shared memory long before they are used. No
// instruction writes weights within a step, so the copies wait for no instruction. They keep memory busy while instructions
// wait for each other.
//
// A block multiplies tiles of TILE_ROWS rows: up to PASS_TILES tiles in a pass. It processes a pass in pieces of PIECE_BYTES of
// k, and a piece tile by tile. The slots of a ring hold the pieces of the tiles in that order. The warp fills a slot by bulk
// copies (sm_90), as soon as the other warps have read the slot's previous content. Each group of up to MOST_COLUMNS columns
// needs all these copies again. If a norm is fused into the GEMM, the norm's gain comes first, in a slot of its own.
//
// Each slot has two mbarriers, "full" and "empty". All warps arrive at "empty" when they have read the slot.
enum { ROW_BYTES = PIECE_BYTES + ROW_GAP_BYTES };  // bytes from one row of a slot to the next; for the gap see tiles.cuh
enum { SLOT_BYTES = TILE_ROWS * ROW_BYTES };
enum { BARRIERS = 2 * SLOTS };  // the "full" barrier of each slot, then the "empty" barrier of each slot
enum { LEAVERS = (EACH_LANE ? 32 : 1) * GROUP_WARPS };  // threads that arrive at an "empty" barrier

// Return the first row of a tile. pair_rows: 0, or rows from the first tile of a pair to the second.
__device__ inline u32 row_of_tile(u32 tile, u32 pair_rows) {
    return pair_rows ? tile / 2 * TILE_ROWS + tile % 2 * pair_rows : tile * TILE_ROWS;
}

// A block's part of a GEMM: tiles `first` to `last` - 1, and `bytes` of k from byte `from` on.
//
// split: 1 if the two blocks of a cluster share tiles, else 0. tiles_each: tiles, or pairs of tiles (in_pairs), of each block;
// with split, of each cluster. tiles_more: number of blocks, or clusters, that have one more; they are the first of the grid.
// bytes, other_bytes: bytes of k that the first and the second block of a cluster multiply. Without split, `bytes` is all of k.
struct Cut {
    u32 first, last, from, bytes;
    __device__ Cut() {}
    __device__ Cut(u32 block, u32 split, u32 tiles_each, u32 tiles_more, u32 in_pairs, u32 bytes, u32 other_bytes) {
        const bool second = PAIRS && (block & split);
        from = second ? bytes : 0, this->bytes = second ? other_bytes : bytes;
        if (PAIRS) block >>= split;
        first = block * tiles_each + min(block, tiles_more) << in_pairs;
        last = first + (tiles_each + (block < tiles_more) << in_pairs);
    }
};

// The position in the ring of a warp that reads slots, or of the warp that fills them. A barrier has 8 bytes.
//
// first, barriers: shared addresses of slot 0 and of its "full" barrier. index: the next slot. phase: phase of that slot's
// barriers, 0 or 1. left: number of slots that the warp has read and not released.
struct Ring {
    u32 first, barriers, index, phase, left;

    __device__ Ring(const char* slots, const u64* of_slots)
        : first(shared_address(slots)), barriers(shared_address(of_slots)), index(0), phase(0), left(0) {}
    // Initialize the barriers. The first BARRIERS threads do this.
    static __device__ void begin(const u64* of_slots) {
        if (threadIdx.x < BARRIERS)
            barrier_begin(shared_address(of_slots + threadIdx.x), threadIdx.x < SLOTS ? 1 : LEAVERS);
    }
    // Return i modulo SLOTS. i must be below 2 * SLOTS; below SLOTS, i - SLOTS wraps around to a large number.
    static __device__ u32 wrapped(u32 i) { return min(i, i - SLOTS); }
    __device__ u32 slot(u32 ahead = 0) const { return first + wrapped(index + ahead) * SLOT_BYTES; }
    __device__ u32 barrier() const { return barriers + index * 8; }
    // Return whether the slot `ahead` slots behind the next one is full. WAITS: suspend the thread for a limited time first.
    template <bool WAITS> __device__ bool is_full(u32 ahead) const {
        const u32 at = index + ahead, of_slot = barriers + wrapped(at) * 8, in_phase = phase ^ (at >= SLOTS);
        return WAITS ? barrier_try(of_slot, in_phase) : barrier_test(of_slot, in_phase);
    }
    template <int N> static constexpr bool SHARED_OUT = N > 2 && !EACH_LANE;
    // Test the next `count` slots, at most N, and return whether those that this lane tests are full. With N > 2 each lane
    // tests one slot, so that the warp tests all slots together. With N <= 2 each lane tests all slots, and issues both tests
    // before it uses the first result.
    template <int N, bool WAITS = false> __device__ bool are_full(int count) const {
        if (SHARED_OUT<N>) return is_full<WAITS>(min((int)(threadIdx.x % N), count - 1));
        bool all = true;
#pragma unroll
        for (int i = 0; i < N; ++i) all &= is_full<WAITS>(i < count ? i : 0);
        return all;
    }
    // Wait until the next `count` slots, at most N, are full. All lanes of a warp call this.
    template <int N> __device__ void wait(int count) const {
        if (SHARED_OUT<N>) {
            while (!__all_sync(0xFFFFFFFFu, are_full<N, true>(count))) {}
            __syncwarp();  // if one lane has seen a slot full, all lanes may read the slot
            return;
        }
        // The first test is not in the loop, since entering a loop takes about 50 cycles.
        if (are_full<N, true>(count)) return;
        while (!are_full<N, true>(count)) {}
    }
    __device__ void next(u32 count = 1) {
        left += count, index += count;
        if (index >= SLOTS) index -= SLOTS, phase ^= 1;
    }
    // Release the slots that this warp has read. Each warp calls this once its lanes have read them.
    __device__ void leave(u32 lane) {
        __syncwarp();
        for (u32 i = 0; EACH_LANE && i < left; ++i) say_empty(i);
        if (!EACH_LANE && lane < left) say_empty(lane);
        left = 0;
    }
    // Arrive at the "empty" barrier of a slot. i: index of the slot among the `left` slots.
    __device__ void say_empty(u32 i) const {
        barrier_arrive(barriers + (SLOTS + wrapped(index + SLOTS - left + i)) * 8);
    }
    __device__ void wait_empty() const {
        barrier_wait(barrier() + SLOTS * 8, phase ^ 1);  // returns at once in the first lap, in which all slots are empty
        __syncwarp();  // otherwise a lane may still wait when the slot has been filled and emptied again
    }
};

// The warp that fills the ring.
struct Feed {
    const Weights* list;
    Weights now, next;  // the current GEMM, and the GEMM behind it in the list
    u64 policy;  // policy of the L2 cache for the copies
    Ring ring;
    u32 block;
    int lane;
    Cut cut;
    // The warp does not know yet whether the launch is admitted (megakernel/gate.cuh). It must know before it fills a slot for
    // the second time.
    bool waits;

    __device__ Feed(const Weights* list, u32 block, const Ring& ring, bool waits)
        : list(list), ring(ring), block(block), lane(threadIdx.x % 32), waits(waits) {
        policy = evict_first(), next = *list;
    }
    // Go to the next GEMM of which this block has a tile. Return false at the end of the list.
    __device__ bool begin() {
        do {
            now = next;
            if (!now.rows) return false;
            next = *++list;
            cut = Cut(block, now.split, now.tiles_each, now.tiles_more, now.pair_rows > 0, now.bytes, now.other_bytes);
        } while (cut.first == cut.last);
        return true;
    }
    // Copy the weights of all GEMMs of the list. Return false if the launch was called off.
    __device__ bool run() {
        while (begin())
            for (u32 group = 0; group < now.groups; ++group) {
                if (now.gain) {
                    if (!wait_for_slot()) return false;
                    copy_gain();
                    ring.next();
                }
                for (u32 pass = cut.first; pass < cut.last; pass += PASS_TILES)
                    for (u32 piece = 0; piece < now.pieces; ++piece)
                        for (u32 tile = pass, end = min(pass + PASS_TILES, cut.last); tile < end; ++tile) {
                            if (!wait_for_slot()) return false;
                            copy(tile, piece);
                            ring.next();
                        }
            }
        return !waits || is_admitted();
    }
    // Wait until the next slot is empty. Return false if the launch was called off.
    __device__ bool wait_for_slot() {
        if (waits && ring.phase && !is_admitted()) return false;
        ring.wait_empty();
        return true;
    }
    // Wait for the host's word. Return whether it admits the launch.
    __device__ bool is_admitted() {
        waits = false;
        if (learns_admission()) return true;
        // No thread will read the copies that are in flight, but they must end before the block ends.
        const u32 filled = ring.phase ? (u32)SLOTS : ring.index;
        for (u32 i = 0; i < filled; ++i) barrier_wait(ring.barriers + 8 * i, 0);
        return false;
    }
    __device__ void copy_gain() {
        const u32 bytes = WITHOUT == NO_WEIGHTS ? 0 : cut.bytes;
        if (lane == 0) barrier_expect(ring.barrier(), bytes);
        if (lane == 0 && bytes) copy_bulk(ring.slot(), now.gain + cut.from, bytes, ring.barrier(), policy);
    }
    // Copy a piece of a tile into the next slot. Each lane copies one row.
    __device__ void copy(u32 tile, u32 piece) {
        const u32 first = row_of_tile(tile, now.pair_rows), row = first + lane;
        const u32 rows = min((u32)TILE_ROWS, now.rows - first);
        const u32 bytes = min((u32)PIECE_BYTES, cut.bytes - piece * PIECE_BYTES);
        if (lane == 0) barrier_expect(ring.barrier(), WITHOUT == NO_WEIGHTS ? 0 : rows * bytes);
        if (WITHOUT != NO_WEIGHTS && (u32)lane < rows)
            copy_bulk(ring.slot() + lane * ROW_BYTES, now.a + (u64)row * now.row_bytes + cut.from + piece * PIECE_BYTES, bytes,
                      ring.barrier(), policy);
    }
};
