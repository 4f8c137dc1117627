// Tiles of weights (megakernel/weights.cuh). A block multiplies them by up to 16 columns of inputs, by tensor cores
// (TENSOR_CORES) or by multiply-adds. Each warp multiplies one slice, SLICE_BYTES of each row, of each piece of k. At the end
// the block adds up the sums of all warps.
//
// mma.m16n8k16 needs from thread 4 g + t the inputs of columns g and g + 8, and the weights of row g, at k = 2 t, 2 t + 1,
// 2 t + 8 and 2 t + 9. Any order of k gives the same sums, as long as inputs and weights agree. Here a thread has k = 8 t to
// 8 t + 7, that is 8 neighbours of 32, and uses them in two products. The distance from one row of weights, or of inputs, to
// the next is an odd multiple of 64 bytes. A quarter of a warp reads 64 bytes of two rows, so it has no bank conflict.
//
// With IN_REGISTERS the inputs are in registers (megakernel/gemm_in_registers.cuh). With COLUMN_PAIRS (fp32) two columns share
// a row of inputs, in which words of both columns alternate. A row that does not exist repeats another row.
enum { SLICE_BYTES = PIECE_BYTES / GROUP_WARPS, CHUNKS = SLICE_BYTES / 64 };  // bytes of a slice; its chunks of 64 bytes
enum { PASS_ROWS = PASS_TILES * TILE_ROWS, PART_ROWS = PASS_ROWS + PART_GAP_ROWS };  // rows of a pass; with the gap behind them
enum { TOGETHER = COLUMN_PAIRS ? 2 : 1 };  // columns of a row of inputs
enum { INPUT_BYTES = COLUMN_PAIRS ? PAIRS_INPUT_BYTES : SCRATCH_BYTES };  // bytes of all rows of inputs
typedef float Parts[COLUMNS][PART_ROWS];  // sums of a warp

#if COLUMN_PAIRS
enum { MOST_INPUT_ROWS = COLUMNS / 2 };
// Return the number of rows of inputs for `columns` columns. Row i holds columns i and i + input_rows.
__device__ inline int input_rows(int columns) { return (u32)(columns + 1) / 2; }
// A vector of k of both columns of a row. The words of both columns alternate, so the two vectors take 32 bytes. The first
// halves of four neighbouring vectors are contiguous, 64 bytes, and so are their second halves. From one group of four vectors
// to the next, first and second halves change places, so that stores have no bank conflicts.
//
// first, second: shared addresses of the two halves. further: bytes from there to another row, or to another vector whose
// distance is a multiple of 8 vectors.
struct Both {
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
// Return the column of the input whose products are sum i of a row's 16 sums, or -1 if there is none.
__device__ inline int column_of(int i, int columns) {
    const int rows = input_rows(columns), column = i < MOST_INPUT_ROWS ? i : i - MOST_INPUT_ROWS + rows;
    return i % MOST_INPUT_ROWS < rows && column < columns ? column : -1;
}
#endif

// Return the number of pieces of k that are multiplied together. With few tiles, a warp that multiplied one piece at a time
// would wait for the result of its previous product. left_bytes: bytes of k that are left.
__device__ inline int pieces_together(int tiles, int left_bytes) {
    const int in_registers = ONE_STEP ? (int)REGISTER_PIECES : 1;
    const int most = DTYPE == 0 || tiles > 2 ? 1 : IN_REGISTERS ? in_registers : PASS_TILES >> (tiles - 1);
    return min(most, (left_bytes + PIECE_BYTES - 1) / PIECE_BYTES);
}
// Return the bytes from a slot's begin to the first vector that a lane multiplies.
__device__ inline u32 place_in_slot(int warp, int lane) { return lane / 4 * ROW_BYTES + warp * SLICE_BYTES + lane % 4 * 16; }

// A warp's slices of some tiles, in the order of the slots: piece by piece, and each piece tile by tile.
#if IN_REGISTERS
struct Slices {
    int tiles, pieces;  // number of tiles; number of pieces of each tile
    u32 from[PASS_TILES];  // shared address of this lane's first vector in each slot
    bool are_full;  // the slots that this lane tested were full
    __device__ void load(Ring& ring, int of_tiles, int left_bytes, int warp, int lane) {
        tiles = of_tiles, pieces = pieces_together(of_tiles, left_bytes);
        are_full = ring.are_full<PASS_TILES>(tiles * pieces);
#pragma unroll
        for (int slot = 0; slot < PASS_TILES; ++slot) from[slot] = ring.slot(slot) + place_in_slot(warp, lane);
    }
    // Wait until all slots are full. The warp calls this once the inputs are there and it has released the slots that it read
    // before, so that inputs do not wait for weights.
    __device__ void await(Ring& ring) const {
        if (__any_sync(0xFFFFFFFFu, !are_full)) ring.wait<PASS_TILES>(tiles * pieces);
        __syncwarp();  // if one lane has seen a slot full, all lanes may read the slot
        ring.next(tiles * pieces);
    }
};
#else
// With PRELOADED `load` puts the slices into registers, before the inputs are there. With TENSOR_CORES `load` does not wait:
// `Sums` waits for each slot when it multiplies the slot.
enum { SLOTS_A_STEP = 2 };  // slots that tensor cores multiply together
struct Slices {
    int tiles, pieces;  // number of tiles; number of pieces of each tile
#if PRELOADED
    uint4 of[PASS_TILES][CHUNKS];  // this lane's vectors of each slot
    __device__ uint4 get(int slot, int chunk) const { return of[slot][chunk]; }
#else
    u32 from[PASS_TILES];  // shared address of this lane's first vector in each slot
    __device__ uint4 get(int slot, int chunk) const { return load_shared(from[slot] + chunk * 64); }
#endif
    __device__ void load(Ring& ring, int of_tiles, int left_bytes, int warp, int lane) {
        tiles = of_tiles, pieces = pieces_together(of_tiles, left_bytes);
        if (PRELOADED) ring.wait<PASS_TILES>(tiles * pieces);
#pragma unroll
        for (int slot = 0; slot < PASS_TILES && !TENSOR_CORES; ++slot) {
            if (slot >= tiles * pieces) break;
            if (!PRELOADED) ring.wait<1>(1);
            const u32 at = ring.slot() + place_in_slot(warp, lane);
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

// Return a vector of inputs of a single column with its words in the order in which `mma` takes them. One 16-byte load then
// fills the registers of its operand.
__device__ inline uint4 arranged(const uint4& x) {
    if (COLUMNS > 1 || !TENSOR_CORES) return x;
    return {x.x, x.z, x.y, x.w};
}
#endif
