// Weights of a list's GEMMs, on their way into shared memory long before their turn comes. Weights do not change within a
// step, so nobody has to be waited for: memory is never idle while instructions wait for each other.
//
// A block goes through tiles of TILE_ROWS rows, up to PASS_TILES of them a pass; a pass in pieces of PIECE_BYTES of k, and a
// piece tile by tile. A ring of slots has a tile's pieces in that order. A warp that does nothing else fills it by bulk copies
// (sm_90), as soon as the others have read what was in a slot. Columns beyond MOST_COLUMNS go through everything again. Where a
// norm is done with the GEMM, its gain comes first, in a slot of its own.
//
// That a slot is empty is told by a barrier of its own, as soon as all warps have read it.
enum { ROW_BYTES = PIECE_BYTES + ROW_GAP_BYTES };  // 64: see megakernel/tiles.cuh
enum { SLOT_BYTES = TILE_ROWS * ROW_BYTES };
enum { BARRIERS = 2 * SLOTS };  // of each slot that it is full, and behind these that it is empty
enum { LEAVERS = (EACH_LANE ? 32 : 1) * GROUP_WARPS };  // who say that a slot is empty


__device__ inline u32 row_of_tile(u32 tile, u32 pair_rows) {
    return pair_rows ? tile / 2 * TILE_ROWS + tile % 2 * pair_rows : tile * TILE_ROWS;
}

// What a block has of a GEMM: tiles, and bytes of k. split: 1 where two blocks share tiles, else 0; tiles_each: of a block, or
// of two that share them, or pairs of tiles; tiles_more: how many of the first have one more. bytes: of k, and, where it is
// split, of the second one of two.
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

// What is read, or filled, next. Slots are known by shared addresses, as are their barriers, 8 bytes each.
struct Ring {
    u32 first, barriers, index, phase, left;  // left: how many have been read since the last `leave`

    __device__ Ring(const char* slots, const u64* of_slots)
        : first(shared_address(slots)), barriers(shared_address(of_slots)), index(0), phase(0), left(0) {}
    static __device__ void begin(const u64* of_slots) {  // by the first BARRIERS threads
        if (threadIdx.x < BARRIERS)
            barrier_begin(shared_address(of_slots + threadIdx.x), threadIdx.x < SLOTS ? 1 : LEAVERS);
    }
    static __device__ u32 wrapped(u32 i) { return min(i, i - SLOTS); }  // of less than twice as many
    __device__ u32 slot(u32 ahead = 0) const { return first + wrapped(index + ahead) * SLOT_BYTES; }
    __device__ u32 barrier() const { return barriers + index * 8; }
    // Whether one of the next ones is full.
    template <bool WAITS> __device__ bool is_full(u32 ahead) const {
        const u32 at = index + ahead, of_slot = barriers + wrapped(at) * 8, in_phase = phase ^ (at >= SLOTS);
        return WAITS ? barrier_try(of_slot, in_phase) : barrier_test(of_slot, in_phase);
    }
    template <int N> static constexpr bool SHARED_OUT = N > 2 && !EACH_LANE;
    // Whether the next `count` are, of N at the most, as far as a lane knows: of more than two each lane asks for one, so that
    // a warp asks once; of two each lane asks for both before the first answer is there.
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
            __syncwarp();  // what one lane has seen the others may read
            return;
        }
        if (are_full<N, true>(count)) return;
        while (!are_full<N, true>(count)) {}  // apart, since the head of a loop is some 50 cycles by itself
    }
    __device__ void next(u32 count = 1) {
        left += count, index += count;
        if (index >= SLOTS) index -= SLOTS, phase ^= 1;
    }
    __device__ void leave(u32 lane) {  // by each warp, when its lanes have read them
        __syncwarp();
        for (u32 i = 0; EACH_LANE && i < left; ++i) say_empty(i);
        if (!EACH_LANE && lane < left) say_empty(lane);
        left = 0;
    }
    __device__ void say_empty(u32 i) const {  // of those that are left
        barrier_arrive(barriers + (SLOTS + wrapped(index + SLOTS - left + i)) * 8);
    }
    __device__ void wait_empty() const {
        barrier_wait(barrier() + SLOTS * 8, phase ^ 1);  // the first time it is
        __syncwarp();  // else a lane may still wait when others have filled the slot, and it is empty once more
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
    bool waits;  // for the host's word on this launch (megakernel/gate.cuh), before it fills a slot for the second time

    __device__ Feed(const Weights* list, u32 block, const Ring& ring, bool waits)
        : list(list), ring(ring), block(block), lane(threadIdx.x % 32), waits(waits) {
        policy = evict_first(), next = *list;
    }
    __device__ bool begin() {  // the next GEMM of which this block has a tile
        do {
            now = next;
            if (!now.rows) return false;
            next = *++list;
            cut = Cut(block, now.split, now.tiles_each, now.tiles_more, now.pair_rows > 0, now.bytes, now.other_bytes);
        } while (cut.first == cut.last);
        return true;
    }
    // False: the launch was called off.
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
    // Once a slot is empty; or, where it waits for the host's word, not before that.
    __device__ bool has_room() {
        if (waits && ring.phase && !is_admitted()) return false;
        ring.wait_empty();
        return true;
    }
    __device__ bool is_admitted() {
        waits = false;
        if (learns_admission()) return true;
        // Nobody will read what is under way, but it must not come when the block has ended.
        const u32 filled = ring.phase ? (u32)SLOTS : ring.index;
        for (u32 i = 0; i < filled; ++i) barrier_wait(ring.barriers + 8 * i, 0);
        return false;
    }
    __device__ void copy_gain() {
        const u32 bytes = WITHOUT == NO_WEIGHTS ? 0 : cut.bytes;
        if (lane == 0) barrier_expect(ring.barrier(), bytes);
        if (lane == 0 && bytes) copy_bulk(ring.slot(), now.gain + cut.from, bytes, ring.barrier(), policy);
    }
    // A piece of a tile, a row a lane.
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
