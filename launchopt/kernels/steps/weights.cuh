// Copies of weights to the ring of a block (step_gemm.cu).

// The share of a block: `halves` halves of tiles from `first` on.
struct Work {
    u32 first, halves, pieces;
    __device__ Work(const StepGemm& p) : pieces(((u32)p.k_bytes + PIECE_BYTES - 1) / PIECE_BYTES) {
        const u32 block = blockIdx.x, each = (u32)p.each, more = (u32)p.more;
        first = (block * each + min(block, more)) << GATED, halves = (each + (block < more)) << GATED;
    }
};
__device__ inline u32 row_of(u32 half, const StepGemm& p) { return GATED ? half / 2 * STEP_ROWS : half * STEP_ROWS; }
// Return the row of A of a row of C, of which `half` has gates or ups.
__device__ inline u64 weight_row(u32 row, u32 half, const StepGemm& p) { return row + (GATED && half % 2 ? p.pair_rows : 0); }

// One lane issues all copies of a slot. Rows of codes are short, so that lanes issue their copies together.
enum { IS_ISSUED_ALONE = PACK == 1 };

// Copies slot contents in the order in which they are multiplied: pass by pass, piece by piece, half by half.
struct Copier {
    const StepGemm& p;
    const Work work;
    u64 weights, policy;
    u32 ring, full, lane;
    // Copy the contents of a slot. If IS_ISSUED_ALONE, one lane calls this, else all lanes of a warp.
    __device__ void copy(u32 i, u32 slot) const {
        const u32 of_pass = PASS_HALVES * work.pieces, pass = i / of_pass, in_pass = i - pass * of_pass;
        const u32 here = min((u32)PASS_HALVES, work.halves - pass * PASS_HALVES), piece = in_pass / here;
        const u32 half = work.first + pass * PASS_HALVES + in_pass - piece * here;
        const u32 row = row_of(half, p), rows = min((u32)STEP_ROWS, (u32)p.rows - row);
        const u32 bytes = min((u32)PIECE_BYTES, (u32)p.k_bytes - piece * PIECE_BYTES) / PACK, barrier = full + 8 * slot;
        u64 from = weights + weight_row(row, half, p) * p.a_step + piece * (PIECE_BYTES / PACK);
        u32 to = ring + slot * SLOT_BYTES;
        if (IS_ISSUED_ALONE || lane == 0) barrier_expect(barrier, rows * bytes);
        if (IS_ISSUED_ALONE) {
            for (u32 i = 0; i < rows; ++i, from += p.a_step, to += ROW_BYTES) copy_bulk(to, from, bytes, barrier, policy);
        } else {
            __syncwarp();
            if (lane < rows) copy_bulk(to + lane * ROW_BYTES, from + lane * p.a_step, bytes, barrier, policy);
        }
    }
    __device__ u32 all() const { return work.halves * work.pieces; }
    // Fill the whole ring. All warps share this, since a warp issues one copy after another.
    __device__ void begin(int warp) const {
        for (u32 i = warp; i < min((u32)SLOTS, all()); i += WARPS + STEP_COPIERS)
            if (!IS_ISSUED_ALONE || lane == 0) copy(i, i);
    }
    // Fill each slot again as soon as all warps have read it. The copiers share the slots. copier: number of this one.
    __device__ void run(int copier) const {
        for (u32 i = SLOTS + copier; i < all(); i += STEP_COPIERS) {
            const u32 round = i / SLOTS, slot = i - round * SLOTS;
            barrier_wait(full + 8 * (SLOTS + slot), round + 1 & 1);
            if (!IS_ISSUED_ALONE || lane == 0) copy(i, slot);
        }
    }
};
