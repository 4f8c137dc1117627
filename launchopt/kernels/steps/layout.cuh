// Sizes of the GEMM of a decode step (step_gemm.cu), and a block's shared memory that is not in its ring.
#include "shared/step_gemm.cuh"

enum { PACK = 16 / CODE_BITS };  // weights of one vector, in vectors of halves
enum { ROW_BYTES = PIECE_BYTES / PACK + STEP_GAP_BYTES, SLOT_BYTES = STEP_ROWS * ROW_BYTES };  // a slot is half of a tile
enum { SLICE = PIECE_BYTES / WARPS, CHUNKS = SLICE / 64 };  // bytes of a warp's slice of a row of inputs; its chunks
enum { VECTORS = CHUNKS / PACK, BLOCK_SLICE = 2 * SCALE_BLOCK };  // weights of a chunk or more; inputs that share a scale
enum { GROUPS = (COLUMNS + 7) / 8, LANES = COLUMNS < 8 ? (COLUMNS + 1) / 2 : 4 };  // groups of 8 columns; lanes t with results
enum { TOGETHER = VECTORS < 2 ? 1 : 2 };  // vectors of weights in registers at once
// Shared memory: slots of weights; for each warp HELD stages of inputs, which hold the COLUMNS columns of each chunk side by
// side; the norm's weights.
enum { CHUNK = 64 * COLUMNS, STAGE = CHUNKS * CHUNK, GAIN_AT = SLOTS * SLOT_BYTES + WARPS * HELD * STAGE };
enum { CHAINS = TILES * GROUPS > 2 ? 1 : 2 };  // independent sums of each output, so that products overlap
enum { PASS_HALVES = 2 * TILES, ALL_THREADS = 32 * (WARPS + STEP_COPIERS) };
enum { RESULTS = STEP_ROWS * LANES };  // threads that have results of a tile and a group of columns
// Tiles whose sums are added up at once: one thread adds up four results, and the parts take at most STEP_PART_BYTES.
enum { OF_TILE = GROUPS * RESULTS, BY_BYTES = STEP_PART_BYTES / (WARPS * OF_TILE * 16), BY_THREADS = 32 * WARPS / OF_TILE };
enum { MOST_AT_ONCE = BY_BYTES < BY_THREADS ? BY_BYTES : BY_THREADS };
enum { AT_ONCE = TILES < MOST_AT_ONCE ? TILES : MOST_AT_ONCE };
static_assert(CHUNKS >= 1 && SLICE % 64 == 0 && CHUNKS % PACK == 0 && AT_ONCE >= 1, "a warp has whole chunks");
enum { BY_BLOCK = WEIGHTS != FORMAT_NONE && SCALES == PER_BLOCK, BY_ROW = WEIGHTS != FORMAT_NONE && SCALES != PER_BLOCK };
static_assert(!BY_BLOCK || BLOCK_SLICE % SLICE == 0, "a warp's slice has one scale");

__shared__ u64 barriers[2 * SLOTS + 1];  // "full" of each slot, "empty" of each slot, and "full" of the gain
__shared__ float4 parts[WARPS][AT_ONCE][GROUPS][RESULTS];
__shared__ float squares[WARPS][8 * GROUPS];
