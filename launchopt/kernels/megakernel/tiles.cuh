// Tiles of weights (megakernel/weights.cuh) are multiplied by up to 16 columns of inputs, by tensor cores or by multiply-adds
// (TENSOR_CORES). Each warp has a slice of SLICE_BYTES of each piece of k. The sums of all warps are added up at the end.
//
// mma.m16n8k16 needs, from thread 4 g + t, inputs of columns g and g + 8 and weights of row g, at k = 2 t, 2 t + 1, 2 t + 8 and
// 2 t + 9. The order of k is free as long as inputs and weights agree. Here a thread takes 8 neighbours of 32, k = 8 t to 8 t +
// 7, and uses them in two products. Rows of weights and of inputs lie an odd multiple of 64 bytes apart. A quarter of a warp
// reads 64 bytes of two rows, so it has no bank conflict.
//
// With IN_REGISTERS the inputs are in registers (megakernel/gemm_in_registers.cuh). With COLUMN_PAIRS (fp32) two columns share
// a row, with words in turn. A row that does not exist repeats another one.
enum { SLICE_BYTES = PIECE_BYTES / GROUP_WARPS, CHUNKS = SLICE_BYTES / 64 };
enum { PASS_ROWS = PASS_TILES * TILE_ROWS, PART_ROWS = PASS_ROWS + PART_GAP_ROWS };
enum { TOGETHER = COLUMN_PAIRS ? 2 : 1 };  // columns of a row of inputs
enum { INPUT_BYTES = COLUMN_PAIRS ? PAIRS_INPUT_BYTES : SCRATCH_BYTES };  // of all rows of inputs
typedef float Parts[COLUMNS][PART_ROWS];  // sums of a warp

#if COLUMN_PAIRS
enum { MOST_INPUT_ROWS = COLUMNS / 2 };
// Row i holds columns i and i + input_rows. The words of both columns alternate. The first halves of four vectors lie together,
// 64 bytes, and so do the second halves. Which of them comes first alternates, so that stores of vectors have no bank conflict
// either.
__device__ inline int input_rows(int columns) { return (u32)(columns + 1) / 2; }
struct Both {  // a vector of both columns of a row; `further`: bytes to another row, or to a vector 8 n behind
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
// Return the column that is number i of a product's 16 columns; -1: none.
__device__ inline int column_of(int i, int columns) {
    const int rows = input_rows(columns), column = i < MOST_INPUT_ROWS ? i : i - MOST_INPUT_ROWS + rows;
    return i % MOST_INPUT_ROWS < rows && column < columns ? column : -1;
}
#endif

// Return how many pieces of k are multiplied together. With few tiles, one piece at a time would leave a warp waiting for its
// own last product.
__device__ inline int pieces_together(int tiles, int left_bytes) {
    const int in_registers = ONE_STEP ? (int)REGISTER_PIECES : 1;
    const int most = DTYPE == 0 || tiles > 2 ? 1 : IN_REGISTERS ? in_registers : PASS_TILES >> (tiles - 1);
    return min(most, (left_bytes + PIECE_BYTES - 1) / PIECE_BYTES);
}
__device__ inline u32 place_in_slot(int warp, int lane) { return lane / 4 * ROW_BYTES + warp * SLICE_BYTES + lane % 4 * 16; }

// A warp's slices of some tiles, of one piece or several, tile by tile.
#if IN_REGISTERS
struct Slices {
    int tiles, pieces;
    u32 from[PASS_TILES];
    bool are_full;  // as each lane has seen them
    __device__ void load(Ring& ring, int of_tiles, int left_bytes, int warp, int lane) {
        tiles = of_tiles, pieces = pieces_together(of_tiles, left_bytes);
        are_full = ring.are_full<PASS_TILES>(tiles * pieces);
#pragma unroll
        for (int slot = 0; slot < PASS_TILES; ++slot) from[slot] = ring.slot(slot) + place_in_slot(warp, lane);
    }
    // Wait for the slots that were not full before. Called when the inputs are there and every slot that was read before is
    // released, so that inputs do not wait for weights.
    __device__ void await(Ring& ring) const {
        if (__any_sync(0xFFFFFFFFu, !are_full)) ring.wait<PASS_TILES>(tiles * pieces);
        __syncwarp();  // what one lane has seen, the others may read
        ring.next(tiles * pieces);
    }
};
#else
// With PRELOADED the slices of a single column are in registers before the inputs are there. With TENSOR_CORES `Sums` waits for
// slots, and releases them, as it multiplies them.
enum { SLOTS_A_STEP = 2 };
struct Slices {
    int tiles, pieces;
#if PRELOADED
    uint4 of[PASS_TILES][CHUNKS];
    __device__ uint4 get(int slot, int chunk) const { return of[slot][chunk]; }
#else
    u32 from[PASS_TILES];
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

// Return inputs of a single column in the order in which four words in a row are an operand of a product, so that no word is
// moved.
__device__ inline uint4 arranged(const uint4& x) {
    if (COLUMNS > 1 || !TENSOR_CORES) return x;
    return {x.x, x.z, x.y, x.w};
}
#endif
