// Weights of a list's GEMMs, on their way into shared memory long before their turn comes. Weights do not change within a
// step, so nobody has to be waited for: memory is never idle while instructions wait for each other.
//
// A block goes through tiles of TILE_ROWS rows, up to PASS_TILES of them a pass; a pass in pieces of PIECE_BYTES of k, and a
// piece tile by tile. A ring of slots has a tile's pieces in that order. A warp that does nothing else fills it by bulk copies
// (sm_90), each slot as soon as all warps have read what was in it. Columns beyond MOST_COLUMNS go through everything
// again. Where a norm is done with the GEMM, its gain comes first, in a slot of its own.
enum { TILE_ROWS = 8, PASS_TILES = 4, PIECE_BYTES = 2048, ROW_BYTES = PIECE_BYTES + 64 };  // 64: see tiles.cuh
#ifndef PACE
#define PACE 0
#endif
enum { SLOT_BYTES = TILE_ROWS * ROW_BYTES, BARRIERS = 2 * SLOTS };

struct Weights {  // of devices/megakernel_tasks.py; the list ends with one of no rows
    u64 a, gain;                 // gain: of row_used_bytes, or 0
    u32 row_bytes, row_used_bytes, rows;
    u32 groups;                  // of columns
    u32 tiles_each, tiles_more;  // of a block, or pairs of them, and how many of the first blocks have one more
    u32 pieces;                  // of k
    u32 pair_rows;               // 0, or how far apart the rows of two tiles that go together lie: then tiles come in pairs
    u32 turn, unused;            // how far before the end of the grid the first block is, so that all have as much in the end
};

__device__ inline u32 moved(u32 block, u32 turn) { return min(block + turn, block + turn - gridDim.x); }  // wraps around

__device__ inline int row_of_tile(int tile, u32 pair_rows) {
    return pair_rows ? tile / 2 * TILE_ROWS + tile % 2 * (int)pair_rows : tile * TILE_ROWS;
}

// What is read, or filled, next, and what comes i slots after it. Slots and their barriers are known by shared addresses: of
// each one that it is full, and behind all of these one that it is empty, at which each warp arrives that has read it.
struct Ring {
    u32 slots, barriers, index, phase;

    __device__ Ring(const char* slots, const u64* of_slots)
        : slots(shared_address(slots)), barriers(shared_address(of_slots)), index(0), phase(0) {}
    static __device__ void begin(const u64* of_slots) {  // by the first BARRIERS threads
        if (threadIdx.x < BARRIERS) barrier_begin(shared_address(of_slots + threadIdx.x), threadIdx.x < SLOTS ? 1 : GROUP_WARPS);
    }
    __device__ u32 at(u32 i) const { return min(index + i, index + i - SLOTS); }  // less than none is a large number
    __device__ u32 slot(u32 i) const { return slots + at(i) * SLOT_BYTES; }
    __device__ u32 full(u32 i) const { return barriers + at(i) * 8; }
    __device__ u32 empty(u32 i) const { return full(i) + SLOTS * 8; }
    // For some, a lane each.
    __device__ void wait_full(int count, int lane) const {
        if (lane < count) barrier_wait(full(lane), phase ^ (index + lane >= SLOTS));
        __syncwarp();
    }
    __device__ void wait_empty() const { barrier_wait(empty(0), phase ^ 1); }  // the first time it is
    __device__ void advance(int count) {
        index += count;
        if (index >= SLOTS) index -= SLOTS, phase ^= 1;
    }
};

// Where in the list a slot's weights are: of the gain, or of a piece of a tile.
struct Cursor {
    const u32* list;  // of what comes after `now`
    Weights now;
    u32 ahead;  // a word of that, a lane each: on its way before it is wanted
    u32 block, group, piece;
    int first, last, pass, tile;
    bool in_gain;

    // now: the list's first entry, which comes with the launch; from: the others.
    __device__ Cursor(const Weights& now, const Weights* from, u32 block) : list((const u32*)from), now(now), block(block) {
        fetch();
    }
    __device__ bool ended() const { return now.rows == 0; }
    __device__ void step() {
        if (in_gain) {
            in_gain = false;
            return;
        }
        if (++tile < min(pass + PASS_TILES, last)) return;
        tile = pass;
        if (++piece < now.pieces) return;
        piece = 0, tile = pass += PASS_TILES;
        if (pass < last) return;
        tile = pass = first, in_gain = now.gain;
        if (++group == now.groups) next(), begin();
    }
    __device__ void fetch() {
        const u32 lane = threadIdx.x % 32;
        if (lane < sizeof(Weights) / 4) ahead = list[lane];
    }
    __device__ void next() {
#pragma unroll
        for (int i = 0; i < sizeof(Weights) / 4; ++i) ((u32*)&now)[i] = __shfl_sync(0xFFFFFFFFu, ahead, i);
        list += sizeof(Weights) / 4;
        fetch();
    }
    __device__ void begin() {  // with the first GEMM from `now` on of which this block has a tile
        for (;; next()) {
            if (ended()) return;
            const int pairs = now.pair_rows > 0;
            const u32 place = moved(block, now.turn);
            first = place * now.tiles_each + min(place, now.tiles_more) << pairs;
            last = first + (now.tiles_each + (place < now.tiles_more) << pairs);
            if (first < last) break;
        }
        tile = pass = first, group = piece = 0, in_gain = now.gain;
    }
    // Of a tile: its rows, a row a lane; how much of each, and where it is.
    __device__ int first_row() const { return row_of_tile(tile, now.pair_rows); }
    __device__ int rows() const { return min((int)TILE_ROWS, (int)now.rows - first_row()); }
    __device__ u32 bytes() const { return min((u32)PIECE_BYTES, now.row_used_bytes - piece * PIECE_BYTES); }
    __device__ u64 row(int row) const { return now.a + (u64)(first_row() + row) * now.row_bytes + piece * PIECE_BYTES; }
};

// The warp that fills the ring. What it begins with is under way when it is made.
struct Feed {
    Cursor at;
    Ring ring;
    u64 policy;
    int lane;

    __device__ Feed(const Weights& first, const Weights* others, u32 block, const Ring& ring)
        : at(first, others, block), ring(ring), lane(threadIdx.x % 32) {
        policy = evict_first();
    }
    __device__ void run() {
#if PACE
        u32 due = (u32)clock();
#endif
        for (at.begin(); !at.ended(); at.step()) {
            ring.wait_empty();
#if PACE
            while ((int)((u32)clock() - due) < 0) __nanosleep(20);
            due = max((int)(due - (u32)clock()), 0) + (u32)clock() + PACE;
#endif
            __syncwarp();  // else a lane may still wait when others have filled the slot, and it is empty once more
            if (at.in_gain) copy_gain();
            else copy();
            ring.advance(1);
        }
    }
    __device__ void copy_gain() {
        const u32 bytes = WITHOUT == NO_WEIGHTS ? 0 : at.now.row_used_bytes;
        if (lane == 0) barrier_expect(ring.full(0), bytes);
        if (lane == 0 && bytes) copy_bulk(ring.slot(0), at.now.gain, bytes, ring.full(0), policy);
        __syncwarp();
    }
    // A piece of a tile, a row a lane.
    __device__ void copy() {
        const int rows = WITHOUT == NO_WEIGHTS ? 0 : at.rows();
        const u32 bytes = at.bytes();
        if (lane == 0) barrier_expect(ring.full(0), rows * bytes);
        if (lane < rows) copy_bulk(ring.slot(0) + lane * ROW_BYTES, at.row(lane), bytes, ring.full(0), policy);
        __syncwarp();
    }
};
