// Weights of the list's streamed GEMMs, copied into shared memory long before they are used. No instruction writes weights
// within a step, so the copies wait for nothing. Memory stays busy while instructions wait for each other.
//
// A block has tiles of TILE_ROWS rows. It takes up to PASS_TILES tiles in a pass, a pass in pieces of PIECE_BYTES of k, and a
// piece tile by tile. The slots of a ring hold the pieces of tiles in that order. A warp of its own fills the ring by bulk
// copies (sm_90), as soon as the other warps have read a slot. Columns beyond MOST_COLUMNS need all copies again. The gain of a
// norm that is fused into the GEMM comes first, in a slot of its own.
//
// Each slot has two barriers: one for full, one for empty, which all warps reach when they have read the slot.
enum { ROW_BYTES = PIECE_BYTES + ROW_GAP_BYTES };  // a gap of 64 bytes: see megakernel/tiles.cuh
enum { SLOT_BYTES = TILE_ROWS * ROW_BYTES };
enum { BARRIERS = 2 * SLOTS };  // "full" of each slot, then "empty" of each slot
enum { LEAVERS = (EACH_LANE ? 32 : 1) * GROUP_WARPS };  // threads that arrive at an "empty" barrier

__device__ inline u32 row_of_tile(u32 tile, u32 pair_rows) {
    return pair_rows ? tile / 2 * TILE_ROWS + tile % 2 * pair_rows : tile * TILE_ROWS;
}

// A block's part of a GEMM: tiles `first` to `last`, and `bytes` of k from byte `from` on. split: 1 where two blocks share
// tiles, else 0. tiles_each: tiles, or pairs of tiles, of a block, or of two blocks that share them. tiles_more: number of
// first blocks that have one more. bytes, other_bytes: of k, of the first and the second of two blocks that share tiles.
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

// The place in the ring of a reader, or of the warp that fills it. Addresses are of shared memory; a barrier has 8 bytes.
struct Ring {
    u32 first, barriers, index, phase, left;  // left: slots read since the last `leave`

    __device__ Ring(const char* slots, const u64* of_slots)
        : first(shared_address(slots)), barriers(shared_address(of_slots)), index(0), phase(0), left(0) {}
    static __device__ void begin(const u64* of_slots) {  // by the first BARRIERS threads
        if (threadIdx.x < BARRIERS)
            barrier_begin(shared_address(of_slots + threadIdx.x), threadIdx.x < SLOTS ? 1 : LEAVERS);
    }
    static __device__ u32 wrapped(u32 i) { return min(i, i - SLOTS); }  // i must be below 2 * SLOTS
    __device__ u32 slot(u32 ahead = 0) const { return first + wrapped(index + ahead) * SLOT_BYTES; }
    __device__ u32 barrier() const { return barriers + index * 8; }
    // Return whether the slot `ahead` places further is full. WAITS: wait for a while first.
    template <bool WAITS> __device__ bool is_full(u32 ahead) const {
        const u32 at = index + ahead, of_slot = barriers + wrapped(at) * 8, in_phase = phase ^ (at >= SLOTS);
        return WAITS ? barrier_try(of_slot, in_phase) : barrier_test(of_slot, in_phase);
    }
    template <int N> static constexpr bool SHARED_OUT = N > 2 && !EACH_LANE;
    // Return whether the next `count` slots, at most N, are full, as far as a lane knows. With N > 2 each lane tests one slot,
    // so that a warp tests all of them at once. With N = 2 each lane issues both tests before it looks at the first answer.
    template <int N, bool WAITS = false> __device__ bool are_full(int count) const {
        if (SHARED_OUT<N>) return is_full<WAITS>(min((int)(threadIdx.x % N), count - 1));
        bool all = true;
#pragma unroll
        for (int i = 0; i < N; ++i) all &= is_full<WAITS>(i < count ? i : 0);
        return all;
    }
    template <int N> __device__ void wait(int count) const {  // by a whole warp
        if (SHARED_OUT<N>) {
            while (!__all_sync(0xFFFFFFFFu, are_full<N, true>(count))) {}
            __syncwarp();  // what one lane has seen, the others may read
            return;
        }
        if (are_full<N, true>(count)) return;
        while (!are_full<N, true>(count)) {}  // apart from the first test, since the head of a loop takes about 50 cycles
    }
    __device__ void next(u32 count = 1) {
        left += count, index += count;
        if (index >= SLOTS) index -= SLOTS, phase ^= 1;
    }
    __device__ void leave(u32 lane) {  // by each warp, when its lanes have read the slots
        __syncwarp();
        for (u32 i = 0; EACH_LANE && i < left; ++i) say_empty(i);
        if (!EACH_LANE && lane < left) say_empty(lane);
        left = 0;
    }
    __device__ void say_empty(u32 i) const {  // i: index among the slots that are left
        barrier_arrive(barriers + (SLOTS + wrapped(index + SLOTS - left + i)) * 8);
    }
    __device__ void wait_empty() const {
        barrier_wait(barrier() + SLOTS * 8, phase ^ 1);  // a slot is empty the first time
        __syncwarp();  // otherwise a lane may still wait when the slot has been filled and emptied again
    }
};

// The warp that fills the ring.
struct Feed {
    const Weights* list;
    Weights now, next;
    u64 policy;
    Ring ring;
    u32 block;
    int lane;
    Cut cut;
    bool waits;  // it must know whether the launch is admitted (megakernel/gate.cuh) before it fills a slot for the second time

    __device__ Feed(const Weights* list, u32 block, const Ring& ring, bool waits)
        : list(list), ring(ring), block(block), lane(threadIdx.x % 32), waits(waits) {
        policy = evict_first(), next = *list;
    }
    __device__ bool begin() {  // go to the next GEMM of which this block has a tile
        do {
            now = next;
            if (!now.rows) return false;
            next = *++list;
            cut = Cut(block, now.split, now.tiles_each, now.tiles_more, now.pair_rows > 0, now.bytes, now.other_bytes);
        } while (cut.first == cut.last);
        return true;
    }
    // Return false if the launch was called off.
    __device__ bool run() {
        while (begin())
            for (u32 group = 0; group < now.groups; ++group) {
                if (now.gain) {
                    if (!has_room()) return false;
                    copy_gain();
                    ring.next();
                }
                for (u32 pass = cut.first; pass < cut.last; pass += PASS_TILES)
                    for (u32 piece = 0; piece < now.pieces; ++piece)
                        for (u32 tile = pass, end = min(pass + PASS_TILES, cut.last); tile < end; ++tile) {
                            if (!has_room()) return false;
                            copy(tile, piece);
                            ring.next();
                        }
            }
        return !waits || is_admitted();
    }
    // Wait until the slot is empty. Return false if the launch was called off.
    __device__ bool has_room() {
        if (waits && ring.phase && !is_admitted()) return false;
        ring.wait_empty();
        return true;
    }
    __device__ bool is_admitted() {
        waits = false;
        if (learns_admission()) return true;
        // No thread will read the copies that are under way, but they must end before the block ends.
        const u32 filled = ring.phase ? (u32)SLOTS : ring.index;
        for (u32 i = 0; i < filled; ++i) barrier_wait(ring.barriers + 8 * i, 0);
        return false;
    }
    __device__ void copy_gain() {
        const u32 bytes = WITHOUT == NO_WEIGHTS ? 0 : cut.bytes;
        if (lane == 0) barrier_expect(ring.barrier(), bytes);
        if (lane == 0 && bytes) copy_bulk(ring.slot(), now.gain + cut.from, bytes, ring.barrier(), policy);
    }
    // Copy a piece of a tile, a row per lane.
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
