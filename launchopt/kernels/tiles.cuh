// Tiles of weights (weights.cuh) times up to 16 columns of inputs in shared memory: for halves on the tensor cores, or, as for
// fp32, by multiply-adds. The warps of a block have a SLICE_BYTES of each piece of k; what they have is added up in the end.
//
// mma.m16n8k16 wants, of thread 4 g + t, inputs at columns g and g + 8 and weights at row g, at k = 2 t, 2 t + 1 and 8 more.
// Which k is which does not matter as long as both agree: here a thread takes 8 neighbours of 32, k = 8 t to 8 t + 7, in one
// load, and uses them in two products. Rows, and columns, lie an odd number of 64 bytes apart, so that a quarter of a warp,
// which reads 64 bytes of two of them, has no conflict. Columns that there are not repeat another one.
enum { SLICE_BYTES = PIECE_BYTES / GROUP_WARPS, CHUNKS = SLICE_BYTES / 64 };
enum { PASS_ROWS = PASS_TILES * TILE_ROWS, PART_ROWS = PASS_ROWS + 8 };
enum { INPUT_BYTES = COLUMNS > 1 ? 64 << 10 : 32 << 10, INPUT_GAP_BYTES = 64 };  // of all columns, and behind each

typedef float Parts[COLUMNS][PART_ROWS];  // of each warp

// How many pieces of k are multiplied together, where a block has so few tiles that a piece at a time would leave a warp
// waiting for its own last product.
__device__ inline int pieces_together(int tiles, int left_bytes) {
    const int most = DTYPE == 0 || tiles > 2 ? 1 : PASS_TILES / tiles;
    return min(most, (left_bytes + PIECE_BYTES - 1) / PIECE_BYTES);
}

// A warp's slices of some tiles, of a piece or a few, tile by tile. Of a single column they are in registers before the inputs
// are there, where nothing else wants these; or each slot is waited for when it is wanted. Of several columns, which leave no
// registers for that, slots are waited for together. Where other ops take so long that the ring is full, a slot is left when it
// has been multiplied, so that another is under way while the others are.
struct Slices {
    int tiles, pieces;
#if PRELOADED
    uint4 of[PASS_TILES][CHUNKS];
    __device__ uint4 get(int slot, int chunk) const { return of[slot][chunk]; }
#else
    u32 from[PASS_TILES];
    __device__ uint4 get(int slot, int chunk) const { return load_shared(from[slot] + chunk * 64); }
#endif
    static __device__ u32 place(const Ring& ring, int warp, int lane) {
        return ring.slot + lane / 4 * ROW_BYTES + warp * SLICE_BYTES + lane % 4 * 16;
    }
    __device__ void load(Ring& ring, int of_tiles, int left_bytes, int warp, int lane) {
        tiles = of_tiles, pieces = pieces_together(of_tiles, left_bytes);
#pragma unroll
        for (int slot = 0; slot < PASS_TILES && !SLOT_BY_SLOT; ++slot) {
            if (slot >= tiles * pieces) break;
            ring.wait();
            const u32 at = place(ring, warp, lane);
#if PRELOADED
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; ++chunk) of[slot][chunk] = load_shared(at + chunk * 64);
#else
            from[slot] = at;
#endif
            ring.next();
        }
    }
};

// Inputs of a single column in the order in which four words in a row are an operand of a product, without being moved.
__device__ inline void arrange(uint4& x) {
#if DTYPE != 0
    const u32 third = x.z;
    x.z = x.y, x.y = third;
#endif
}

#if DTYPE == 0 || PRELOADED
// By multiply-adds. Halves too, where there are short GEMMs of one column alone: tensor cores are as fast by their clock then,
// but that is an eighth slower (RESIDENT.md, version 28).
struct Sums {
    enum { CHAINS = COLUMNS == 1 ? 2 : 1 };  // of sums that do not wait for each other
    float of[PASS_TILES][COLUMNS][CHAINS];
    // own: how many of the pieces this warp has a slice of; slice: of the first piece's inputs.
    __device__ void add(const Slices& w, Ring&, int own, u32 slice, u32 column_bytes, int columns, int, int lane) {
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
#pragma unroll(COLUMNS > 1 ? 1 : CHUNKS)
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
        if (COLUMNS > 1) {
            mma(of[slot][0], x.x, y.x, x.y, y.y, v.x, v.y);
            mma(of[slot][1], x.z, y.z, x.w, y.w, v.z, v.w);
        } else {  // `arranged`: the first product is right in columns g, the second one in g + 8
            mma(of[slot][0], x.x, x.y, x.z, x.w, v.x, v.y);
            mma(of[slot][1], x.x, x.y, x.z, x.w, v.z, v.w);
        }
    }
    // own: how many of the pieces this warp has a slice of; inputs: its slice of the first piece's.
    __device__ void add(Slices& w, Ring& ring, int own, u32 inputs, u32 column_bytes, int columns, int warp, int lane) {
        const int g = lane / 4, t = lane % 4;
        u32 left = inputs + (COLUMNS > 1 ? min(g, columns - 1) * column_bytes : 0) + t * 16;
        u32 right = COLUMNS > 8 ? inputs + min(g + 8, columns - 1) * column_bytes + t * 16 : left;
        uint4 x[CHUNKS], y[CHUNKS];
#pragma unroll
        for (int slot = 0; slot < PASS_TILES; ++slot) {
#if SLOT_BY_SLOT
            if (slot >= w.tiles * w.pieces) break;
            ring.wait();
            w.from[slot] = Slices::place(ring, warp, lane);
            ring.next();
            if (slot >= w.tiles * own) {
                ring.leave(lane);
                continue;
            }
#else
            if (slot >= w.tiles * own) break;
#endif
            if (slot == 0 || w.tiles == 1 || (w.tiles == 2 && slot == 2)) {  // another piece
#pragma unroll
                for (int chunk = 0; chunk < CHUNKS; ++chunk) {
                    x[chunk] = load_shared(left + chunk * 64);
                    if (COLUMNS > 1) y[chunk] = load_shared(right + chunk * 64);
                    else arrange(x[chunk]);
                }
                left += PIECE_BYTES, right += PIECE_BYTES;
            }
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; ++chunk) add(slot, w.get(slot, chunk), x[chunk], y[chunk]);
            if (LEFT_SINGLY) ring.leave_first(lane);
        }
    }
    __device__ void leave(Parts& part, int tiles, int columns, int lane) {
        const int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int i = 0; i < (COLUMNS > 1 ? 4 : 2); ++i) {
#pragma unroll
            for (int slot = 0; slot < PASS_TILES; ++slot) of[slot][0][i] += of[slot][1][COLUMNS > 1 ? i : i + 2];
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
