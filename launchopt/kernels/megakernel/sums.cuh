// The sums of a warp for some tiles (megakernel/tiles.cuh). `add` multiplies the warp's slices by the inputs. `leave` stores
// the sums in shared memory.
#if DTYPE == 0 || PRELOADED
// Sums by multiply-adds: for fp32, and for halves in lists of short GEMMs with one column. For those, tensor cores would take
// as many cycles, and the clock of the GPU runs an eighth slower while it uses them.
struct Sums {
    enum { CHAINS = COLUMNS == 1 ? 2 : 1 };  // independent partial sums per output, so that additions overlap
    float of[PASS_TILES][COLUMNS][CHAINS];
    // Add the products of some pieces. own: number of pieces of which this warp has a slice. slice: shared address of the
    // warp's slice of the first piece's inputs.
    __device__ void add(const Slices& w, Ring&, int own, u32 slice, u32 row_bytes, int columns, int, int lane) {
        if (DTYPE == 0) add_tiles<0>(w, own, slice, row_bytes, columns, lane % 4);
        else if (w.tiles == PASS_TILES) add_tiles<PASS_TILES>(w, own, slice, row_bytes, columns, lane % 4);
        else if (w.tiles == 3) add_tiles<3>(w, own, slice, row_bytes, columns, lane % 4);
        else if (w.tiles == 2) add_tiles<2>(w, own, slice, row_bytes, columns, lane % 4);
        else add_tiles<1>(w, own, slice, row_bytes, columns, lane % 4);
    }
    // Multiply one vector of weights of each tile by one vector of a column's inputs.
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
    // TILES: number of tiles in a piece. 0: the number is known only at run time, and w holds one piece.
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
        // Add the sums of pieces that were multiplied together.
        if (DTYPE != 0 && tiles == 1) of[0][0][0] += of[1][0][0] + of[2][0][0] + of[3][0][0];
        if (DTYPE != 0 && tiles == 2) of[0][0][0] += of[2][0][0], of[1][0][0] += of[3][0][0];
#if COLUMNS == 1
        // Each of four lanes has a part of the sums of four tiles. After the exchange each lane has the total of one tile.
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
#elif IN_REGISTERS
// Sums by tensor cores, for several columns whose inputs are in registers (megakernel/gemm_in_registers.cuh).
struct Sums {
    // Thread 4 g + t has the sums of columns g, g, g + 8, g + 8 of rows 2 t, 2 t + 1, 2 t, 2 t + 1.
    float of[PASS_TILES][4];
    // Multiply N slots alternately, so that no product waits for the previous one. x: inputs of both products of each chunk.
    template <int N, int FIRST> __device__ void add_slots(const u32* from, const uint4 (&x)[2 * CHUNKS]) {
        uint4 v[2][N];
#pragma unroll
        for (int i = 0; i < N; ++i) v[0][i] = load_shared(from[i]);
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
#pragma unroll
            for (int i = 0; i < N && chunk + 1 < CHUNKS; ++i) v[(chunk + 1) % 2][i] = load_shared(from[i] + (chunk + 1) * 64);
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    const uint4 &by = x[2 * chunk + half], &w = v[chunk % 2][i];
                    mma(of[FIRST + i], by.x, by.y, by.z, by.w, half ? w.z : w.x, half ? w.w : w.y);
                }
        }
    }
    // Add the products of a piece of all tiles.
    __device__ void add(const Slices& w, const uint4 (&x)[2 * CHUNKS]) {
        if (w.tiles == PASS_TILES) add_slots<PASS_TILES, 0>(w.from, x);
        else if (w.tiles == 3) add_slots<3, 0>(w.from, x);
        else if (w.tiles == 2) add_slots<2, 0>(w.from, x);
        else add_slots<1, 0>(w.from, x);
    }
    // Add the products of the next piece, whose slots `w` holds too.
    __device__ void add_next(const Slices& w, const uint4 (&x)[2 * CHUNKS]) {
        if (w.tiles == 2) add_slots<2, 2>(w.from + 2, x);
        else add_slots<1, 1>(w.from + 1, x);
    }
    __device__ void leave(Parts& part, int tiles, int columns, int lane) {
        const int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // sum over pieces that were multiplied together
            if (tiles == 1) of[0][i] += of[1][i];
            if (tiles == 2) of[0][i] += of[2][i], of[1][i] += of[3][i];
        }
#pragma unroll
        for (int tile = 0; tile < PASS_TILES; ++tile) {
            if (tile >= tiles) break;
            const float(&sum)[4] = of[tile];
            const int row = tile * TILE_ROWS + 2 * t;
            if (g < columns) *(float2*)&part[g][row] = {sum[0], sum[1]};
            if (g + 8 < columns) *(float2*)&part[g + 8][row] = {sum[2], sum[3]};
        }
    }
};
#else
// Sums by tensor cores, for a single column.
struct Sums {
    float of[PASS_TILES][2][4];  // by tile and product; product 0 uses elements 0 and 1, product 1 elements 2 and 3
    // A chunk, 64 bytes of each row, of N slots. The slots are multiplied alternately, so that no product waits for the
    // previous one. The next chunk is loaded while this one is multiplied. OWN: each slot belongs to another piece, so it has
    // inputs of its own.
    template <int N, bool OWN> struct Chunk {
        uint4 v[N], x[OWN ? N : 1];
        __device__ void load(int chunk, const u32* from, u32 inputs) {
#pragma unroll
            for (int i = 0; i < N; ++i) {
                v[i] = load_shared(from[i] + chunk * 64);
                if (i && !OWN) continue;
                x[i] = load_shared(inputs + i * PIECE_BYTES + chunk * 64);
            }
        }
    };
    // The inputs are `arranged`. The first product is valid in elements 0 and 1 of its sums, the second in elements 2 and 3.
    template <int N, bool OWN> __device__ void multiply(int first, const Chunk<N, OWN>& by) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const uint4& x = by.x[OWN ? i : 0];
            mma(of[first + i][0], x.x, x.y, x.z, x.w, by.v[i].x, by.v[i].y);
        }
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const uint4& x = by.x[OWN ? i : 0];
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
    // Add the products of some pieces, and wait for their slots. own: number of pieces of which this warp has a slice. inputs:
    // shared address of the warp's slice of the first piece's inputs.
    __device__ void add(const Slices& w, Ring& ring, int own, u32 inputs, u32, int, int warp, int lane) {
        const int all = w.tiles * w.pieces, mine = w.tiles * own;
        const u32 place = place_in_slot(warp, lane);
        inputs += lane % 4 * 16;
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
            if (RELEASED_EARLY) ring.leave(lane);
        }
    }
    // Multiply the slots from `slot` on, of which this warp has slices up to slot `mine` - 1.
    __device__ void add_step(int tiles, int slot, const u32 (&from)[SLOTS_A_STEP], int mine, u32 inputs) {
        const u32 piece = inputs + (tiles > 2 ? 0 : tiles == 2 ? slot / 2 : slot) * PIECE_BYTES;
        if (slot + 1 < mine) {
            if (tiles == 1) add_slots<2, true>(slot, from, piece);
            else add_slots<2, false>(slot, from, piece);
        } else if (slot < mine) {
            add_slots<1, false>(slot, from, piece);
        }
    }
    __device__ void leave(Parts& part, int tiles, int, int lane) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (int slot = 0; slot < PASS_TILES; ++slot) of[slot][0][i] += of[slot][1][i + 2];
            // Add the sums of pieces that were multiplied together.
            if (tiles == 1) of[0][0][i] += of[1][0][i] + of[2][0][i] + of[3][0][i];
            if (tiles == 2) of[0][0][i] += of[2][0][i], of[1][0][i] += of[3][0][i];
        }
#pragma unroll
        for (int tile = 0; tile < PASS_TILES; ++tile)
            if (tile < tiles && lane < 4) *(float2*)&part[0][tile * TILE_ROWS + 2 * lane] = {of[tile][0][0], of[tile][0][1]};
    }
};
#endif
