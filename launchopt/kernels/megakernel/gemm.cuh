// A streamed GEMM whose inputs are loaded into shared memory: a GEMM of one column, or of fp32 (weights.cuh, tiles.cuh,
// sums.cuh). For several columns of halves see gemm_in_registers.cuh; for lists of short GEMMs see gemm_short.cuh.
struct Gemm : Outputs {
    using Outputs::Outputs;

    // Multiply all pieces of the tiles, some pieces at a time (`pieces_together`). `w` holds the first pieces. If the inputs of
    // all of k do not fit into shared memory, they are loaded part by part; the first part is loaded.
    __device__ void multiply(
        Sums& sums, Slices& w, const Task& task, u32 flags, const Cut& cut, int tiles, int column, int columns) {
        const u32 own_inputs = shared_address(memory.inputs) + warp * SLICE_BYTES * TOGETHER;
        int left = (int)(ONE_STEP ? cut.bytes : min(cut.bytes, task.round_bytes));  // bytes of k left of the current part
        int rest = (int)cut.bytes - left;  // bytes of k behind the current part
        u32 inputs = own_inputs;
#pragma unroll 1
        while (true) {
            const int own = min(w.pieces, (left - warp * SLICE_BYTES + PIECE_BYTES - 1) / PIECE_BYTES);
            sums.add(w, ring, max(own, 0), inputs, task.input_row_bytes, columns, warp, lane);
            if (ONE_STEP) return;
            left -= w.pieces * PIECE_BYTES, inputs += w.pieces * PIECE_BYTES * TOGETHER;
            const bool is_over = left <= 0;
            if (is_over && !rest) return;
            ring.leave(lane);
            if (is_over) left = min(rest, (int)task.round_bytes);
            w.load(ring, tiles, left, warp, lane);
            if (is_over) {
                next_round(task, flags, cut.from + (cut.bytes - rest), left, column, columns);
                rest -= left, inputs = own_inputs;
            }
        }
    }
    // Load the next part of the inputs: `bytes` of k from byte `from` on.
    __device__ void next_round(const Task& task, u32 flags, u32 from, int bytes, int column, int columns) {
        __syncthreads();
        const Share own = share(task, flags, column, columns, from, bytes);
        gather(own, false, 0, false, [] {});
        __syncthreads();
    }
    // Execute task i for `columns` columns from `column` on. is_last: no columns of the task follow.
    __device__ void streamed(const Task& task, u32 flags, u64 i, int column, int columns, bool is_last) {
        const Cut cut(block, flags & SPLIT, task.tiles_each, task.tiles_more, is_gated(flags), task.bytes, task.other_bytes);
        const bool finds = finds_in(i);
        if (finds) begin_find();
        bool is_first = true;
        u32 pass = cut.first;
#pragma unroll 1
        while (true) {
            const u32 at_once = ONE_STEP ? cut.bytes : min(task.round_bytes, cut.bytes);
            const int tiles = ONE_STEP ? (int)(cut.last - cut.first) : min((int)PASS_TILES, (int)(cut.last - pass));
            const bool gathers = ONE_STEP || is_first || at_once < cut.bytes;
            const bool is_normed = is_after_norm(flags) && is_first;
            Share own;
            if (gathers) own = share(task, flags, column, columns, cut.from, at_once);
            else own.forgo();
            Place to;
            Slices w;
            const u32 gain = is_normed ? ring.slot() : 0;
            gather(own, true, gain, is_odd(flags), [&] {
                to = place(task, flags, pass, tiles, column, columns);
                if (is_normed) ring.wait<1>(1), ring.next();
                w.load(ring, tiles, at_once, warp, lane);
            });
            if (gathers) {
                if (TENSOR_CORES && is_normed) ring.leave(lane);  // release the slot of the gain
                __syncthreads();
                if (is_first && !column) stamp(i, READY);
            }
            Sums sums = {};
            multiply(sums, w, task, flags, cut, tiles, column, columns);
            sums.leave(memory.part[0][warp], tiles, columns, lane);
            __syncthreads();
            store(task, flags, to, tiles, column, columns, finds);
            // Release the slots only behind the stores for which other blocks wait: new copies of weights would slow the
            // stores.
            ring.leave(lane);
            if (ONE_STEP) break;
            is_first = false, pass += PASS_TILES;
            if (pass >= cut.last && is_last) break;
            __syncthreads();  // all threads have read the sums and inputs, which are overwritten next
            if (pass >= cut.last) break;
        }
        if (finds) say_found(column, columns);
    }
};
