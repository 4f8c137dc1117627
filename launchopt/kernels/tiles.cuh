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

typedef float Parts[COLUMNS][PART_ROWS];  // of each warp

// How many pieces of k are multiplied together, where a block has so few tiles that a piece at a time would leave a warp
// waiting for its own last product.
__device__ inline int pieces_together(int tiles, int left_bytes) {
    const int most = DTYPE == 0 || tiles > 2 ? 1 : PASS_TILES / tiles;
    return min(most, (left_bytes + PIECE_BYTES - 1) / PIECE_BYTES);
}

// A warp's slices of some tiles, of a piece or a few, tile by tile. Of a single column they are in registers before the inputs
// are there, if registers can be had; else where they are.
struct Slices {
    int tiles, pieces;
#if COLUMNS == 1
    uint4 of[PASS_TILES][CHUNKS];
    __device__ uint4 get(int slot, int chunk) const { return of[slot][chunk]; }
#else
    u32 from[PASS_TILES];
    __device__ uint4 get(int slot, int chunk) const { return load_shared(from[slot] + chunk * 64); }
#endif
    __device__ void load(Ring& ring, int of_tiles, int left_bytes, int warp, int lane) {
        tiles = of_tiles, pieces = pieces_together(of_tiles, left_bytes);
#pragma unroll
        for (int slot = 0; slot < PASS_TILES; ++slot) {
            if (slot >= tiles * pieces) break;
            ring.wait();
            const u32 at = ring.slot + lane / 4 * ROW_BYTES + warp * SLICE_BYTES + lane % 4 * 16;
#if COLUMNS == 1
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; ++chunk) of[slot][chunk] = load_shared(at + chunk * 64);
#else
            from[slot] = at;
#endif
            ring.next();
        }
    }
};

#if DTYPE == 0
struct Sums {
    float of[PASS_TILES][COLUMNS];
    // own: how many of the pieces this warp has a slice of; inputs: its slice of the first piece's.
    __device__ void add(const Slices& w, int own, u32 inputs, u32 column_bytes, int columns, int lane) {
        if (!own) return;
        const int tiles = w.tiles;
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            Vector v[PASS_TILES];
#pragma unroll
            for (int tile = 0; tile < PASS_TILES; ++tile)
                if (tile < tiles) v[tile].whole = w.get(tile, chunk);
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                Vector x;
                x.whole = load_shared(inputs + min(j, columns - 1) * column_bytes + chunk * 64 + lane % 4 * 16);
#pragma unroll
                for (int tile = 0; tile < PASS_TILES; ++tile) {
                    if (tile >= tiles) break;
#pragma unroll
                    for (int e = 0; e < WIDTH; ++e) of[tile][j] += v[tile].parts[e] * x.parts[e];
                }
            }
        }
    }
    __device__ void leave(Parts& part, int tiles, int columns, int lane) {
#pragma unroll
        for (int tile = 0; tile < PASS_TILES; ++tile) {
            if (tile >= tiles) break;
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                of[tile][j] += __shfl_xor_sync(0xFFFFFFFFu, of[tile][j], 1);
                of[tile][j] += __shfl_xor_sync(0xFFFFFFFFu, of[tile][j], 2);
                if (lane % 4 == j % 4) part[j][tile * TILE_ROWS + lane / 4] = of[tile][j];
            }
        }
    }
};
#else
struct Sums {
    float of[PASS_TILES][2][4];  // columns g, g, g + 8, g + 8 of rows 2 t, 2 t + 1, 2 t, 2 t + 1; of every other product
    // own: how many of the pieces this warp has a slice of; inputs: its slice of the first piece's.
    __device__ void add(const Slices& w, int own, u32 inputs, u32 column_bytes, int columns, int lane) {
        const int g = lane / 4, t = lane % 4;
        u32 left = inputs + (COLUMNS > 1 ? min(g, columns - 1) * column_bytes : 0) + t * 16;
        u32 right = COLUMNS > 8 ? inputs + min(g + 8, columns - 1) * column_bytes + t * 16 : left;
        uint4 x[CHUNKS], y[CHUNKS];
#pragma unroll
        for (int slot = 0; slot < PASS_TILES; ++slot) {
            if (slot >= w.tiles * own) break;
            if (slot == 0 || w.tiles == 1 || (w.tiles == 2 && slot == 2)) {  // another piece
#pragma unroll
                for (int chunk = 0; chunk < CHUNKS; ++chunk) {
                    x[chunk] = load_shared(left + chunk * 64);
                    y[chunk] = COLUMNS > 8 ? load_shared(right + chunk * 64) : x[chunk];
                }
                left += PIECE_BYTES, right += PIECE_BYTES;
            }
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; ++chunk) {
                const uint4 v = w.get(slot, chunk);
                mma(of[slot][0], x[chunk].x, y[chunk].x, x[chunk].y, y[chunk].y, v.x, v.y);
                mma(of[slot][1], x[chunk].z, y[chunk].z, x[chunk].w, y[chunk].w, v.z, v.w);
            }
        }
    }
    __device__ void leave(Parts& part, int tiles, int columns, int lane) {
        const int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int i = 0; i < 8; ++i) {  // those of pieces that were multiplied together
            float(*all)[8] = (float(*)[8])of;
            if (tiles == 1) all[0][i] += all[1][i] + all[2][i] + all[3][i];
            if (tiles == 2) all[0][i] += all[2][i], all[1][i] += all[3][i];
        }
#pragma unroll
        for (int tile = 0; tile < PASS_TILES; ++tile) {
            if (tile >= tiles) break;
            const float(&of)[2][4] = this->of[tile];
            const int row = tile * TILE_ROWS + 2 * t;
            if (g < columns) *(float2*)&part[g][row] = {of[0][0] + of[1][0], of[0][1] + of[1][1]};
            if (COLUMNS > 8 && g + 8 < columns) *(float2*)&part[COLUMNS > 8 ? g + 8 : 0][row] = {of[0][2] + of[1][2], of[0][3] + of[1][3]};
        }
    }
};
#endif
