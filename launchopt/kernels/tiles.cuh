// Tiles of weights (weights.cuh) times up to 16 columns of inputs in shared memory: for halves on the tensor cores, or, as for
// fp32, by multiply-adds. The warps of a block have a SLICE_BYTES of each piece of k; what they have is added up in the end.
//
// mma.m16n8k16 wants, of thread 4 g + t, inputs at columns g and g + 8 and weights at row g, at k = 2 t, 2 t + 1 and 8 more.
// Which k is which does not matter as long as both agree: here a thread takes 8 neighbours of 32, k = 8 t to 8 t + 7, and uses
// them in two products. Rows of weights, and of inputs, lie an odd number of 64 bytes apart, so that a quarter of a warp, which
// reads 64 bytes of two of them, has no conflict.
//
// Of several columns two lie together, in a row: what one product wants of both is then 16 bytes, which come into registers as
// it wants them. Rows that there are not repeat another one.
enum { SLICE_BYTES = PIECE_BYTES / GROUP_WARPS, CHUNKS = SLICE_BYTES / 64 };
enum { PASS_ROWS = PASS_TILES * TILE_ROWS, PART_ROWS = PASS_ROWS + 8 };
enum { TOGETHER = COLUMNS > 1 ? 2 : 1 };  // columns of a row of inputs
enum { INPUT_BYTES = COLUMNS > 1 ? 64 << 10 : 32 << 10, INPUT_GAP_BYTES = 64 };  // of all rows, and behind each

// How many slots are waited for, and multiplied, together, by tensor cores.
#ifndef SLOTS_A_STEP
#define SLOTS_A_STEP (COLUMNS > 1 ? PASS_TILES : 2)
#endif
typedef float Parts[COLUMNS][PART_ROWS];  // of each warp

#if COLUMNS > 1
enum { MOST_INPUT_ROWS = COLUMNS / 2 };
// Row i has the columns i and i + input_rows: of each vector of both, words by turns, its first half and its second half, 64
// bytes of either beside each other. Which come first alternates, so that nor has who stores vectors a conflict.
__device__ inline int input_rows(int columns) { return (u32)(columns + 1) / 2; }
struct Both {  // a vector of both columns of a row; `further`: of another row, or a multiple of 8 vectors behind it
    u32 first, second;
    __device__ Both(u32 row, u32 vector) {
        const u32 turned = vector / 4 % 2 * 64;
        row += vector / 4 * 128 + vector % 4 * 16, first = row + turned, second = row + 64 - turned;
    }
    __device__ void store(u32 further, const uint4& one, const uint4& other) const {
        store_shared(first + further, uint4{one.x, other.x, one.y, other.y});
        store_shared(second + further, uint4{one.z, other.z, one.w, other.w});
    }
    __device__ void load(u32 further, uint4& one, uint4& other) const {
        const uint4 x = load_shared(first + further), y = load_shared(second + further);
        one = {x.x, x.z, y.x, y.z}, other = {x.y, x.w, y.y, y.w};
    }
};
// Of 16 columns of a product, which one it is of so many; -1: of none.
__device__ inline int column_of(int i, int columns) {
    const int rows = input_rows(columns), column = i < MOST_INPUT_ROWS ? i : i - MOST_INPUT_ROWS + rows;
    return i % MOST_INPUT_ROWS < rows && column < columns ? column : -1;
}
#endif

// How many pieces of k are multiplied together, where a block has so few tiles that a piece at a time would leave a warp
// waiting for its own last product.
__device__ inline int pieces_together(int tiles, int left_bytes) {
    const int most = DTYPE == 0 || tiles > 2 ? 1 : PASS_TILES >> (tiles - 1);
    return min(most, (left_bytes + PIECE_BYTES - 1) / PIECE_BYTES);
}

// A warp's slices of some tiles, of a piece or a few, tile by tile. Of a single column they are in registers before the inputs
// are there, where nothing else wants these. For the tensor cores slots are waited for, and left, as they are multiplied.
#define BY_TENSOR (DTYPE != 0 && !PRELOADED)
#define AWAITED (BY_TENSOR && SLOTS_A_STEP == PASS_TILES)  // all of them at once, when the inputs are there
struct Slices {
    int tiles, pieces;
#if PRELOADED
    uint4 of[PASS_TILES][CHUNKS];
    __device__ uint4 get(int slot, int chunk) const { return of[slot][chunk]; }
#else
    u32 from[PASS_TILES];
    bool are_full;  // as each lane has seen them
    __device__ uint4 get(int slot, int chunk) const { return load_shared(from[slot] + chunk * 64); }
#endif
    static __device__ u32 place(int warp, int lane) {  // in a slot
        return lane / 4 * ROW_BYTES + warp * SLICE_BYTES + lane % 4 * 16;
    }
    __device__ void load(Ring& ring, int of_tiles, int left_bytes, int warp, int lane) {
        tiles = of_tiles, pieces = pieces_together(of_tiles, left_bytes);
#if AWAITED
        are_full = ring.are_full<PASS_TILES>(tiles * pieces);
#pragma unroll
        for (int slot = 0; slot < PASS_TILES; ++slot) from[slot] = ring.slot(slot) + place(warp, lane);
        return;
#endif
        if (PRELOADED) ring.wait<PASS_TILES>(tiles * pieces);
#pragma unroll
        for (int slot = 0; slot < PASS_TILES && !BY_TENSOR; ++slot) {
            if (slot >= tiles * pieces) break;
            if (!PRELOADED) ring.wait<1>(1);
            const u32 at = ring.slot() + place(warp, lane);
#if PRELOADED
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; ++chunk) of[slot][chunk] = load_shared(at + chunk * 64);
#else
            from[slot] = at;
#endif
            ring.next();
        }
    }
    // When the inputs are there, and all that was read before is left: those that were not full are waited for now, since the
    // inputs need not wait for them.
    __device__ void await(Ring& ring) const {
#if AWAITED
        if (__any_sync(0xFFFFFFFFu, !are_full)) ring.wait<PASS_TILES>(tiles * pieces);
        ring.next(tiles * pieces);
#endif
    }
};

// Inputs of a single column in the order in which four words in a row are an operand of a product, without being moved.
__device__ inline uint4 arranged(const uint4& x) {
    if (COLUMNS > 1 || !BY_TENSOR) return x;
    return {x.x, x.z, x.y, x.w};
}

#if DTYPE == 0 || PRELOADED
// By multiply-adds. Halves too, where there are short GEMMs of one column alone: tensor cores are as fast by their clock then,
// but that is an eighth slower (RESIDENT.md, version 28).
struct Sums {
    enum { CHAINS = COLUMNS == 1 ? 2 : 1 };  // of sums that do not wait for each other
    float of[PASS_TILES][COLUMNS][CHAINS];
    // own: how many of the pieces this warp has a slice of; slice: of the first piece's inputs.
    __device__ void add(const Slices& w, Ring&, int own, u32 slice, u32 row_bytes, int columns, int, int lane) {
        if (DTYPE == 0) add_tiles<0>(w, own, slice, row_bytes, columns, lane % 4);
        else if (w.tiles == PASS_TILES) add_tiles<PASS_TILES>(w, own, slice, row_bytes, columns, lane % 4);
        else if (w.tiles == 3) add_tiles<3>(w, own, slice, row_bytes, columns, lane % 4);
        else if (w.tiles == 2) add_tiles<2>(w, own, slice, row_bytes, columns, lane % 4);
        else add_tiles<1>(w, own, slice, row_bytes, columns, lane % 4);
    }
    // A vector of weights of each tile times those of a column's inputs.
    template <int TILES, int MOST>
    __device__ void add_column(const Slices& w, int first, int column, const Vector (&v)[MOST], const uint4& inputs) {
        Vector x;
        x.whole = inputs;
#pragma unroll
        for (int tile = 0; tile < MOST; ++tile) {
            if (!TILES && tile >= w.tiles) break;
#pragma unroll
            for (int e = 0; e < WIDTH; ++e)
                of[first + tile][column][e % CHAINS] += v[tile].wide(e) * x.wide(e);
        }
    }
    // TILES: of a piece, or 0 where that is known later and pieces come one at a time.
    template <int TILES>
    __device__ void add_tiles(const Slices& w, int own, u32 slice, u32 row_bytes, int columns, int vector) {
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
#if COLUMNS == 1
                const uint4 x = load_shared(slice + piece * PIECE_BYTES + chunk * 64 + vector * 16);
                add_column<TILES>(w, piece * MOST, 0, v, x);
#else
#pragma unroll
                for (int row = 0; row < MOST_INPUT_ROWS; ++row) {
                    uint4 one, other;
                    Both(slice, chunk * 4 + vector).load(min(row, input_rows(columns) - 1) * row_bytes, one, other);
                    add_column<TILES>(w, piece * MOST, row, v, one);
                    add_column<TILES>(w, piece * MOST, row + MOST_INPUT_ROWS, v, other);
                }
#endif
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
#if COLUMNS == 1
        // Four lanes have a part of four tiles each; in the end each of them has all of one tile.
        static_assert(PASS_TILES == 4, "as many as lanes that share a row");
        const bool odd = lane & 1, upper = lane & 2;
        const auto met = [](float own, float other, int at) { return own + __shfl_xor_sync(0xFFFFFFFFu, other, at); };
        const float low = met(odd ? of[1][0][0] : of[0][0][0], odd ? of[0][0][0] : of[1][0][0], 1);
        const float high = met(odd ? of[3][0][0] : of[2][0][0], odd ? of[2][0][0] : of[3][0][0], 1);
        const float sum = met(upper ? high : low, upper ? low : high, 2);
        if (lane % 4 < tiles) part[0][lane % 4 * TILE_ROWS + lane / 4] = sum;
#else
#pragma unroll
        for (int tile = 0; tile < PASS_TILES; ++tile) {
            if (tile >= tiles) break;
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                float& sum = of[tile][j][0];
                sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
                sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
                const int column = column_of(j, columns);
                if (lane % 4 == j % 4 && column >= 0) part[column][tile * TILE_ROWS + lane / 4] = sum;
            }
        }
#endif
    }
};
#else
struct Sums {
    float of[PASS_TILES][2][4];  // of g, g, g + 8, g + 8 (column_of) rows 2 t, 2 t + 1, 2 t, 2 t + 1; of every other product
    // N slots side by side, so that no product waits for the one before, and each vector comes while those before it are
    // multiplied. OWN: whether each slot is of a piece of its own, so that it has other inputs.
    template <int N, bool OWN> struct Chunk {
        uint4 v[N], x[OWN ? N : 1][TOGETHER];
        __device__ void load(int chunk, const u32* from, u32 inputs) {
#pragma unroll
            for (int i = 0; i < N; ++i) {
                v[i] = load_shared(from[i] + chunk * 64);
                if (i && !OWN) continue;
                const u32 at = inputs + (i * PIECE_BYTES + chunk * 64) * TOGETHER;
#pragma unroll
                for (int half = 0; half < TOGETHER; ++half) x[i][half] = load_shared(at + (chunk + half) % TOGETHER * 64);
            }
        }
    };
    // Of a single column the inputs are `arranged`: the first product is right in columns g, the second one in g + 8.
    template <int N, bool OWN> __device__ void multiply(int first, const Chunk<N, OWN>& by) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const uint4& x = by.x[OWN ? i : 0][0];
            mma(of[first + i][0], x.x, x.y, x.z, x.w, by.v[i].x, by.v[i].y);
        }
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const uint4& x = by.x[OWN ? i : 0][TOGETHER - 1];
            mma(of[first + i][1], x.x, x.y, x.z, x.w, by.v[i].z, by.v[i].w);
        }
    }
    template <int N, bool OWN> __device__ void add_slots(int first, const u32* from, u32 inputs) {
        Chunk<N, OWN> chunks[2];
        chunks[0].load(0, from, inputs);
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            if (chunk + 1 < CHUNKS) chunks[(chunk + 1) % 2].load(chunk + 1, from, inputs);
            multiply(first, chunks[chunk % 2]);
        }
    }
    // own: how many of the pieces this warp has a slice of; inputs: its slice of the first piece's.
    __device__ void add(const Slices& w, Ring& ring, int own, u32 inputs, u32 row_bytes, int columns, int warp, int lane) {
        const int all = w.tiles * w.pieces, mine = w.tiles * own;
        inputs += lane % 4 * 16;
#if COLUMNS > 1
        inputs += min(lane / 4, input_rows(columns) - 1) * row_bytes;
#endif
#if AWAITED
        add_step(w.tiles, 0, w.from, mine, inputs);
        if (LEFT_EARLY) ring.leave(lane);
        return;
#endif
        const u32 place = Slices::place(warp, lane);
#pragma unroll
        for (int slot = 0; slot < PASS_TILES; slot += SLOTS_A_STEP) {
            if (slot >= all) break;
            const int count = min((int)SLOTS_A_STEP, all - slot);
            ring.wait<SLOTS_A_STEP>(count);
            u32 from[SLOTS_A_STEP];
#pragma unroll
            for (int i = 0; i < SLOTS_A_STEP; ++i) from[i] = ring.slot(i) + place;
            ring.next(count);
            add_step(w.tiles, slot, from, mine, inputs);
            if (LEFT_EARLY) ring.leave(lane);
        }
    }
    __device__ void add_step(int tiles, int slot, const u32 (&from)[SLOTS_A_STEP], int mine, u32 inputs) {
        enum { BYTES = PIECE_BYTES * TOGETHER };
        if (SLOTS_A_STEP == 1) {
            if (slot < mine) add_slots<1, false>(slot, from, inputs + (tiles > 2 ? 0 : tiles == 2 ? slot / 2 : slot) * BYTES);
        } else if (tiles == 1) {
#pragma unroll
            for (int i = 0; i < SLOTS_A_STEP; i += 2) {
                const u32 piece = inputs + (slot + i) * BYTES;
                if (slot + i + 1 < mine) add_slots<2, true>(slot + i, from + i, piece);
                else if (slot + i < mine) add_slots<1, false>(slot + i, from + i, piece);
            }
        } else if (tiles == 2) {
#pragma unroll
            for (int i = 0; i < SLOTS_A_STEP; i += 2) {
                if (slot + i < mine) add_slots<2, false>(slot + i, from + i, inputs + (slot + i) / 2 * BYTES);
            }
        } else if (SLOTS_A_STEP == 2) {
            if (slot + 1 < mine) add_slots<2, false>(slot, from, inputs);
            else if (slot < mine) add_slots<1, false>(slot, from, inputs);
        } else if (mine > 3) {
            add_slots<SLOTS_A_STEP, false>(slot, from, inputs);
        } else if (mine == 3) {
            add_slots<3, false>(slot, from, inputs);
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
#if COLUMNS == 1
            if (g == 0) *(float2*)&part[0][row] = {sum[0], sum[1]};
#else
            if (const int column = column_of(g, columns); column >= 0) *(float2*)&part[column][row] = {sum[0], sum[1]};
            if (const int column = column_of(g + 8, columns); column >= 0) *(float2*)&part[column][row] = {sum[2], sum[3]};
#endif
        }
    }
};
#endif
