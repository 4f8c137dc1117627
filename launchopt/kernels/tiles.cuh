// Tiles of weights (weights.cuh) times up to 16 columns of inputs in shared memory: for halves on the tensor cores, for
// fp32 by multiply-adds. The warps of a block have a SLICE_BYTES of each piece of k; what they have is added up in the end.
//
// mma.m16n8k16 wants, of thread 4 g + t, inputs at columns g and g + 8 and weights at row g, at k = 2 t, 2 t + 1 and 8 more.
// Which k is which does not matter as long as both agree: here a thread takes 8 neighbours of 32, k = 8 t to 8 t + 7, in one
// load, and uses them in two products. Rows, and columns, lie an odd number of 64 bytes apart, so that a quarter of a warp,
// which reads 64 bytes of two of them, has no conflict. Columns that there are not repeat another one.
enum { SLICE_BYTES = PIECE_BYTES / GROUP_WARPS, CHUNKS = SLICE_BYTES / 64 };
enum { PASS_ROWS = PASS_TILES * TILE_ROWS, PART_ROWS = PASS_ROWS + 8 };
enum { INPUT_BYTES = COLUMNS > 1 ? 64 << 10 : 32 << 10, INPUT_GAP_BYTES = 64 };  // of all columns, and behind each

#ifndef UNROLL
#define UNROLL CHUNKS
#endif
#ifndef TENSOR
#define TENSOR 0
#endif
typedef float Parts[COLUMNS][PART_ROWS];  // of each warp
enum { PARTS = COLUMNS > 1 ? 1 : 2 };     // of passes: of several columns there is no room for two

// Whose turn the buffers of sums are: warps leave theirs in one while those of the pass before are added up from the other.
struct Turns {
    u32 barriers, passes;  // address of those that a buffer is full, and behind them that it is empty; passes so far

    __device__ Turns(const u64* of_parts) : barriers(shared_address(of_parts)), passes(0) {}
    __device__ void begin() const {  // by 2 * PARTS threads
        if (threadIdx.x < 2 * PARTS) barrier_begin(barriers + threadIdx.x * 8, threadIdx.x < PARTS ? GROUP_WARPS : 1);
    }
    __device__ u32 which() const { return passes % PARTS; }
    __device__ u32 full() const { return barriers + which() * 8; }
    __device__ u32 empty() const { return full() + PARTS * 8; }
    __device__ void wait_full() const { barrier_wait(full(), passes / PARTS % 2); }
    __device__ void wait_empty() const { barrier_wait(empty(), passes / PARTS % 2 ^ 1); }  // the first time it is
    __device__ void leave_full(int lane) { leave(full(), lane); }
    __device__ void leave_empty(int lane) { leave(empty(), lane); }
    __device__ void leave(u32 barrier, int lane) {
        __syncwarp();
        if (lane == 0) barrier_arrive(barrier);
        ++passes;
    }
    // Until what has been left is stored.
    __device__ void drain() const {
        for (u32 pass = passes > PARTS ? passes - PARTS : 0; pass < passes; ++pass)
            barrier_wait(barriers + (PARTS + pass % PARTS) * 8, pass / PARTS % 2);
    }
};

// How many pieces of k are multiplied together, where a block has so few tiles that a piece at a time would leave a warp
// waiting for its own last product.
__device__ inline int pieces_together(int tiles, int left_bytes) {
    const int most = DTYPE == 0 || tiles > 2 ? 1 : tiles == 2 ? PASS_TILES / 2 : PASS_TILES;
    return min(most, (left_bytes + PIECE_BYTES - 1) / PIECE_BYTES);
}

// A warp's slices of some tiles, of a piece or a few, tile by tile, where they are.
struct Slices {
    int tiles, pieces;
    u32 empty;  // of the slot of this lane's number
    u32 from[PASS_TILES];
    __device__ uint4 get(int slot, int chunk) const { return load_shared(from[slot] + chunk * 64); }
    __device__ void find(Ring& ring, int of_tiles, int left_bytes, int warp, int lane) {
        tiles = of_tiles, pieces = pieces_together(of_tiles, left_bytes), empty = ring.empty(lane);
        ring.wait_full(tiles * pieces, lane);
#pragma unroll
        for (int slot = 0; slot < PASS_TILES; ++slot)
            from[slot] = ring.slot(slot) + lane / 4 * ROW_BYTES + warp * SLICE_BYTES + lane % 4 * 16;
        ring.advance(tiles * pieces);
    }
    // All lanes have read what they wanted.
    __device__ void leave(int lane) const {
        __syncwarp();
        if (lane < tiles * pieces) barrier_arrive(empty);
    }
};

#if DTYPE == 0 || (COLUMNS == 1 && !TENSOR)
// By multiply-adds: of a single column too, since tensor cores that are used in bursts cost an eighth of the clock.
struct Sums {
    enum { CHAINS = COLUMNS == 1 ? 2 : 1 };  // of sums that do not wait for each other
    float of[PASS_TILES][COLUMNS][CHAINS];
    // own: how many of the pieces this warp has a slice of; slice: of the first piece's inputs.
    __device__ void add(const Slices& w, int own, u32 slice, u32 column_bytes, int columns, int lane) {
        slice += lane % 4 * 16;
        if (DTYPE == 0) add_tiles<0>(w, own, slice, column_bytes, columns);
        else if (w.tiles == PASS_TILES) add_tiles<PASS_TILES>(w, own, slice, column_bytes, columns);
        else if (w.tiles == 3) add_tiles<3>(w, own, slice, column_bytes, columns);
        else if (w.tiles == 2) add_tiles<2>(w, own, slice, column_bytes, columns);
        else add_tiles<1>(w, own, slice, column_bytes, columns);
    }
    // TILES: of a piece, or 0 where that is known later and pieces come one at a time.
    template <int TILES> __device__ void add_tiles(const Slices& w, int own, u32 slice, u32 column_bytes, int columns) {
        enum { MOST = TILES ? TILES : PASS_TILES };
#pragma unroll
        for (int piece = 0; piece < PASS_TILES / MOST; ++piece) {
            if (piece >= own) return;
#pragma unroll(COLUMNS > 1 ? 1 : UNROLL)
            for (int chunk = 0; chunk < CHUNKS; ++chunk) {
                Vector v[MOST];
#pragma unroll
                for (int tile = 0; tile < MOST; ++tile)
                    if (TILES || tile < w.tiles) v[tile].whole = w.get(piece * MOST + tile, chunk);
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j) {
                    Vector x;
                    x.whole = load_shared(slice + min(j, columns - 1) * column_bytes + piece * PIECE_BYTES + chunk * 64);
#pragma unroll
                    for (int tile = 0; tile < MOST; ++tile) {
                        if (!TILES && tile >= w.tiles) break;
#pragma unroll
                        for (int e = 0; e < WIDTH; ++e)
                            of[piece * MOST + tile][j][e % CHAINS] += widen(v[tile].parts[e]) * widen(x.parts[e]);
                    }
                }
            }
        }
    }
    __device__ void leave(Parts& part, int tiles, int columns, int lane) {
#pragma unroll
        for (int slot = 0; slot < PASS_TILES; ++slot)
            if (CHAINS > 1) of[slot][0][0] += of[slot][0][CHAINS - 1];
        // Those of pieces that were multiplied together.
        if (DTYPE != 0 && tiles == 1) of[0][0][0] += of[1][0][0] + of[2][0][0] + of[3][0][0];
        if (DTYPE != 0 && tiles == 2) of[0][0][0] += of[2][0][0], of[1][0][0] += of[3][0][0];
#pragma unroll
        for (int tile = 0; tile < PASS_TILES; ++tile) {
            if (tile >= tiles) break;
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                float& sum = of[tile][j][0];
                sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
                sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
                if (lane % 4 == j % 4) part[j][tile * TILE_ROWS + lane / 4] = sum;
            }
        }
    }
};
#else
struct Sums {
    float of[PASS_TILES][2][4];  // columns g, g, g + 8, g + 8 of rows 2 t, 2 t + 1, 2 t, 2 t + 1; of every other product
    __device__ void add(int slot, const uint4& v, const uint4& x, const uint4& y) {
        mma(of[slot][0], x.x, y.x, x.y, y.y, v.x, v.y);
        mma(of[slot][1], x.z, y.z, x.w, y.w, v.z, v.w);
    }
    // own: how many of the pieces this warp has a slice of; inputs: its slice of the first piece's.
    __device__ void add(const Slices& w, int own, u32 inputs, u32 column_bytes, int columns, int lane) {
        const int g = lane / 4, t = lane % 4;
        const u32 left = inputs + (COLUMNS > 1 ? min(g, columns - 1) * column_bytes : 0) + t * 16;
        const u32 right = inputs + min(g + 8, columns - 1) * column_bytes + t * 16;
        if (own < PASS_TILES / w.tiles) add_some(w, w.tiles * own, left, right, g);
        else if (w.tiles == PASS_TILES) add_all<PASS_TILES>(w, left, right, g);
        else if (w.tiles == 3) add_all<3>(w, left, right, g);
        else if (w.tiles == 2) add_all<2>(w, left, right, g);
        else add_all<1>(w, left, right, g);
    }
    // PASS_TILES slots, of pieces of TILES each: all products of a chunk are independent.
    template <int TILES> __device__ void add_all(const Slices& w, u32 left, u32 right, int g) {
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk)
#pragma unroll
            for (int piece = 0; piece < PASS_TILES / TILES; ++piece) {
                uint4 x, y;
                inputs_at(x, y, left, right, piece * PIECE_BYTES + chunk * 64, g);
#pragma unroll
                for (int tile = 0; tile < TILES; ++tile) {
                    const int slot = piece * TILES + tile;
                    add(slot, w.get(slot, chunk), x, y);
                }
            }
    }
    __device__ void add_some(const Slices& w, int slots, u32 left, u32 right, int g) {
#pragma unroll
        for (int slot = 0; slot < PASS_TILES - 1; ++slot) {
            if (slot >= slots) break;
            const int piece = w.tiles == 1 ? slot : w.tiles == 2 ? slot / 2 : 0;
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; ++chunk) {
                uint4 x, y;
                inputs_at(x, y, left, right, piece * PIECE_BYTES + chunk * 64, g);
                add(slot, w.get(slot, chunk), x, y);
            }
        }
    }
    // Of a single column, all others are zero: products of what is never looked at would cost clock (RESIDENT.md).
    static __device__ void inputs_at(uint4& x, uint4& y, u32 left, u32 right, int offset, int g) {
        if (COLUMNS > 1) {
            x = load_shared(left + offset), y = load_shared(right + offset);
        } else {
            x = y = uint4{0, 0, 0, 0};
            if (g == 0) x = load_shared(left + offset);
        }
    }
    __device__ void leave(Parts& part, int tiles, int columns, int lane) {
        const int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int i = 0; i < (COLUMNS > 1 ? 4 : 2); ++i) {
#pragma unroll
            for (int slot = 0; slot < PASS_TILES; ++slot) of[slot][0][i] += of[slot][1][i];
            // Those of pieces that were multiplied together.
            if (tiles == 1) of[0][0][i] += of[1][0][i] + of[2][0][i] + of[3][0][i];
            if (tiles == 2) of[0][0][i] += of[2][0][i], of[1][0][i] += of[3][0][i];
        }
#pragma unroll
        for (int tile = 0; tile < PASS_TILES; ++tile) {
            if (tile >= tiles) break;
            const float(&sum)[4] = of[tile][0];
            const int row = tile * TILE_ROWS + 2 * t;
            if (g < columns) *(float2*)&part[COLUMNS > 1 ? g : 0][row] = {sum[0], sum[1]};
            if (COLUMNS > 8 && g + 8 < columns) *(float2*)&part[COLUMNS > 8 ? g + 8 : 0][row] = {sum[2], sum[3]};
        }
    }
};
#endif
