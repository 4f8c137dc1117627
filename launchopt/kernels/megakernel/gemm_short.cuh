// A streamed GEMM of a list that has only short GEMMs: one column, no fused ops, and at most PASS_TILES slots per block. The
// time from the outputs of one GEMM to the inputs of the next dominates the step. Therefore:
//
//   - weights are in registers before the inputs are there,
//   - each warp loads the inputs of its own slices of k, so that no barrier is needed between load and use,
//   - an additional warp, the storer, adds up the sums and stores them while the other warps prepare the next GEMM.
//
// All warps meet at one barrier per GEMM, between writing and reading the sums. GEMMs use two buffers for the sums in turn.
static_assert(PRELOADED && ONE_STEP && !PAIRS && !GROUPS, "other lists need code that is left out here");

struct Gemm : Outputs {
    using Outputs::Outputs;
    // SLICE_VECTORS: vectors of a warp's slice of a piece. A lane has one vector of every APART-th piece, at most LOOKS
    // vectors.
    enum { SLICE_VECTORS = SLICE_BYTES / 16, APART = 32 / SLICE_VECTORS, LOOKS = PASS_TILES / APART };

    __device__ bool stores() const { return warp == GROUP_WARPS; }

    // Load the inputs of the warp's slices of all pieces into shared memory, in the order of k.
    __device__ void gather(const Task& task, u32 flags, u32 bytes) const {
        enum { STEP_BYTES = APART * PIECE_BYTES };
        const u32 offset = lane / SLICE_VECTORS * PIECE_BYTES + warp * SLICE_BYTES + lane % SLICE_VECTORS * 16;
        const bool mailed = flags & MAILED;
        const u64 from = task.from + (mailed ? boxes.now + in_box(offset) : offset);
        const u32 step = mailed ? in_box(STEP_BYTES) : STEP_BYTES, to = shared_address(memory.inputs) + offset;
        const auto has = [&](int i) { return offset + i * STEP_BYTES < bytes; };
        uint4 found[LOOKS];
#pragma unroll
        for (int i = 0; i < LOOKS; ++i)
            if (has(i)) found[i] = load_relaxed(from + i * step);
#pragma unroll
        for (int i = 0; i < LOOKS; ++i) {
            while (has(i) && mailed && !arrived(found[i])) found[i] = load_relaxed(from + i * step);
            // Without this barrier, lanes whose vector came first go on alone, and the warp repeats the code for the others.
            __syncwarp();
            if (has(i)) store_shared(to + i * STEP_BYTES, found[i]);
        }
        __syncwarp();
    }
    // Multiply the warp's slices by the inputs. All warps but the storer call this.
    __device__ void multiply(const Task& task, u32 flags, u64 i, u32 bytes, int tiles) {
        Slices w;
        w.load(ring, tiles, (int)bytes, warp, lane);
        gather(task, flags, bytes);
        stamp(i, READY);
        // Number of pieces of which the warp has a slice.
        const int own = ((int)bytes - warp * SLICE_BYTES + PIECE_BYTES - 1) / PIECE_BYTES;
        Sums sums = {};
        sums.add(w, ring, max(own, 0), shared_address(memory.inputs) + warp * SLICE_BYTES, 0, 1, warp, lane);
        sums.leave(memory.part[turn][warp], tiles, 1, lane);
        meet();
        ring.leave(lane);
    }
    // Add up the sums of all warps, and store the outputs. The storer calls this.
    __device__ void add_up(const Task& task, u32 flags, u64 i, u32 first, int tiles) {
        const Place to = place(task, flags, first, tiles, 0, 1);
        const bool finds = finds_in(i);
        if (finds) begin_find();
        meet();
        store(task, flags, to, tiles, 0, 1, finds);
        if (finds) say_found(0, 1);
    }
    __device__ void streamed(const Task& task, u32 flags, u64 i, int, int, bool) {
        const Cut cut(block, 0, task.tiles_each, task.tiles_more, false, task.bytes, task.other_bytes);
        const int tiles = (int)(cut.last - cut.first);
        if (stores()) add_up(task, flags, i, cut.first, tiles);
        else multiply(task, flags, i, cut.bytes, tiles);
        turn ^= 1;
    }
};
