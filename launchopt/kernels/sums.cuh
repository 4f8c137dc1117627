// What a warp has of some tiles (tiles.cuh): its slices times inputs, until all of k is added up, and left for the block.
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
