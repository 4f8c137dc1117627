// Tiles of weights (megakernel/weights.cuh) times up to 16 columns of inputs: for halves on the tensor cores, or, as for fp32,
// by multiply-adds. The warps of a block have a SLICE_BYTES of each piece of k; what they have is added up in the end.
//
// mma.m16n8k16 wants, of thread 4 g + t, inputs at columns g and g + 8 and weights at row g, at k = 2 t, 2 t + 1 and 8 more.
// Which k is which does not matter as long as both agree: here a thread takes 8 neighbours of 32, k = 8 t to 8 t + 7, and uses
// them in two products. Rows of weights, and of inputs, lie an odd number of 64 bytes apart, so that a quarter of a warp, which
// reads 64 bytes of two of them, has no conflict.
//
// Of several columns of halves the inputs are in registers (megakernel/gemm_in_registers.cuh). Of fp32 two columns lie
// together, in a row, words by turns. Rows that there are not repeat another one.
enum { SLICE_BYTES = PIECE_BYTES / GROUP_WARPS, CHUNKS = SLICE_BYTES / 64 };
enum { PASS_ROWS = PASS_TILES * TILE_ROWS, PART_ROWS = PASS_ROWS + PART_GAP_ROWS };
enum { TOGETHER = COLUMN_PAIRS ? 2 : 1 };  // columns of a row of inputs
enum { INPUT_BYTES = COLUMN_PAIRS ? PAIRS_INPUT_BYTES : SCRATCH_BYTES };  // of all rows, and behind each
typedef float Parts[COLUMNS][PART_ROWS];  // of each warp

#if COLUMN_PAIRS
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
    const int in_registers = ONE_STEP ? (int)REGISTER_PIECES : 1;
    const int most = DTYPE == 0 || tiles > 2 ? 1 : IN_REGISTERS ? in_registers : PASS_TILES >> (tiles - 1);
    return min(most, (left_bytes + PIECE_BYTES - 1) / PIECE_BYTES);
}
__device__ inline u32 place_in_slot(int warp, int lane) { return lane / 4 * ROW_BYTES + warp * SLICE_BYTES + lane % 4 * 16; }

// A warp's slices of some tiles, of a piece or a few, tile by tile.
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
    // When the inputs are there, and all that was read before is left: those that were not full are waited for now, since the
    // inputs need not wait for them.
    __device__ void await(Ring& ring) const {
        if (__any_sync(0xFFFFFFFFu, !are_full)) ring.wait<PASS_TILES>(tiles * pieces);
        __syncwarp();  // what one lane has seen the others may read
        ring.next(tiles * pieces);
    }
};
#else
// Of a single column they are in registers before the inputs are there, where nothing else wants these. For the tensor cores
// slots are waited for, and left, as they are multiplied.
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

// Inputs of a single column in the order in which four words in a row are an operand of a product, without being moved.
__device__ inline uint4 arranged(const uint4& x) {
    if (COLUMNS > 1 || !TENSOR_CORES) return x;
    return {x.x, x.z, x.y, x.w};
}
#endif
