// A streamed GEMM of up to 16 columns of halves, whose inputs are in registers, in the order that tensor cores need. Each warp
// loads the inputs of its own slices of k (tiles.cuh), from memory or from mailboxes. The inputs are not stored in shared
// memory, so they need no barrier, and shared memory holds only weights.
//
// Of columns g and g + 8, thread 4 g + t holds vector t of each 64 bytes of k. It has registers for REGISTER_PIECES pieces. If
// a GEMM has no more pieces, the thread loads the inputs once for all passes. Otherwise a later piece replaces a piece once
// that is multiplied.
//
// A norm before the GEMM is fused as in inputs.cuh, but tensor cores add up the squares.

// A thread's inputs.
struct Held {
    // The sums of squares of columns g and g + 8. They are on the diagonal of the product of the inputs with themselves.
    struct Squares {
        float of[2][4];
        __device__ void add(const uint4& x) {
            mma(of[0], x.x, x.y, x.z, x.w, x.x, x.z);
            mma(of[1], x.x, x.y, x.z, x.w, x.y, x.w);
        }
        __device__ void leave(float (&sums)[COLUMNS], int lane) const {
            const int g = lane / 4;
            if (lane % 4 != g / 2) return;
            sums[g] = g % 2 ? of[0][1] : of[0][0], sums[g + 8] = g % 2 ? of[1][3] : of[1][2];
        }
    };
    uint4 of[REGISTER_PIECES][2 * CHUNKS];  // inputs of each piece: two vectors per chunk, one for each of its two products
    u64 from;  // address of this thread's first vector: its mailbox, for both columns; or its memory, for column g
    u32 apart;  // bytes in memory from column g to column g + 8; 0: column g + 8 does not exist
    bool has;  // column g exists
    bool mailed;  // the inputs come through mailboxes
    int own;  // number of pieces of which this warp has a slice

    __device__ Held(const Task& task, u32 flags, const Cut& cut, u64 boxes, int column, int columns, int warp, int lane) {
        const u32 g = lane / 4, bytes = cut.from + warp * SLICE_BYTES + lane % 4 * 16;
        own = ((int)cut.bytes - warp * SLICE_BYTES + PIECE_BYTES - 1) / PIECE_BYTES;
        has = g < columns, mailed = flags & MAILED;
        apart = g + 8 < columns ? 8 * task.from_bytes : 0;
        from = task.from + (mailed ? boxes + column_in(column + g, task.from_bytes) + in_box(bytes)
                                   : (u64)(column + g) * task.from_bytes + bytes);
        settle(from);
    }
    // Return the address of the mailboxes of vector i of a piece. Mailboxes of columns that do not exist hold zeros
    // (devices/megakernel/memory.py).
    __device__ u64 box(int piece, int i) const { return from + piece * (PIECE_BYTES / 64 * BOX_STEP) + i * (BOX_STEP / 2); }
    // Return vector i of a piece from memory, in the order that tensor cores need.
    __device__ uint4 in_memory(int piece, int i) const {
        const u32* const one = (const u32*)(from + piece * PIECE_BYTES + i * 32 - i % 2 * 24);
        const u32* const other = (const u32*)((u64)one + apart);
        uint4 both = {load_relaxed(one), 0, load_relaxed(one + 1), 0};
        if (apart) both.y = load_relaxed(other), both.w = load_relaxed(other + 1);
        return both;
    }
    // Issue the loads of a piece into of[AT].
    template <int AT> __device__ void load_piece(int piece) {
        const bool loads = piece < own && has;
        if (mailed) {
#pragma unroll
            for (int i = 0; i < 2 * CHUNKS; ++i) of[AT][i] = loads ? load_relaxed(box(piece, i)) : uint4{0, 0, 0, 0};
        } else {
#pragma unroll
            for (int i = 0; i < 2 * CHUNKS; ++i) of[AT][i] = loads ? in_memory(piece, i) : uint4{0, 0, 0, 0};
        }
    }
    // Wait until all vectors of a piece have arrived in all lanes of the warp. Each poll loads all missing vectors at once.
    template <int AT> __device__ void collect(int piece) {
        if (!mailed) return;
        while (__any_sync(0xFFFFFFFFu, !all_arrived(of[AT]))) {
#pragma unroll
            for (int i = 0; i < 2 * CHUNKS; ++i)
                if (!arrived(of[AT][i])) of[AT][i] = load_relaxed(box(piece, i));
        }
    }
    // Multiply a piece by the gain, and add up the squares of its inputs. gain: shared address of the gain of this thread's
    // first vector of piece 0.
    template <int AT> __device__ void times(int piece, u32 gain, Squares& squares) {
        if (piece >= own) return;
#pragma unroll
        for (int i = 0; i < 2 * CHUNKS; ++i) squares.add(of[AT][i]);
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            const uint4 by = load_shared(gain + piece * PIECE_BYTES + chunk * 64);
            of[AT][2 * chunk] = product(of[AT][2 * chunk], {by.x, by.x, by.y, by.y});
            of[AT][2 * chunk + 1] = product(of[AT][2 * chunk + 1], {by.z, by.z, by.w, by.w});
        }
    }
};

// The work of a block for a streamed GEMM.
struct Gemm : Outputs {
    using Outputs::Outputs;
    static_assert(COLUMNS == 2 * GROUP_WARPS && HOLDERS == 16, "a warp stores two columns: see own_column");

    // Multiply the tiles by the inputs, one piece (PIECE_BYTES of k) after another; with ONE_STEP there are at most two pieces.
    // bytes: length of k. gain: address, in shared memory, of the elements of the fused norm's gain that belong to this
    // thread's first vector; 0: no norm. With a norm there are at most two pieces. odd: which buffer of `norm_sums` takes the
    // sums of squares. has_new: true: `load_piece` was called for the first two pieces, whose data may not be there yet;
    // false: the registers still hold the inputs of the previous pass. ready: called once the first inputs are there.
    template <class Do>
    __device__ void multiply(
        Sums& sums, Slices& w, Held& in, u32 bytes, u32 gain, bool odd, bool has_new, const Do& ready) {
        const int pieces = (int)(bytes + PIECE_BYTES - 1) / PIECE_BYTES;
        for (int piece = 0;; piece += REGISTER_PIECES) {
            if (has_new) {
                in.collect<0>(piece);
                if (ONE_STEP || gain) in.collect<1>(piece + 1);
            }
            if (gain) {
                Held::Squares squares = {};
                in.times<0>(0, gain, squares), in.times<1>(1, gain, squares);
                squares.leave(norm_sums[odd][warp], lane);
                ring.leave(lane);  // release the slot of the gain
            }
            if (!piece) ready();
            w.await(ring);
            if (piece < in.own) sums.add(w, in.of[0]);
            if (ONE_STEP && w.pieces > 1 && piece + 1 < in.own) sums.add_next(w, in.of[1]);
            if (ONE_STEP) break;
            if (piece + 1 < pieces) {
                ring.leave(lane);
                w.load(ring, w.tiles, PIECE_BYTES, warp, lane);
                if (const int next = piece + REGISTER_PIECES; next < pieces) in.load_piece<0>(next);
                if (has_new && !gain) in.collect<1>(piece + 1);
                w.await(ring);
                if (piece + 1 < in.own) sums.add(w, in.of[1]);
            }
            if (piece + REGISTER_PIECES >= pieces) break;
            ring.leave(lane);
            in.load_piece<1>(piece + 1 + REGISTER_PIECES);
            w.load(ring, w.tiles, PIECE_BYTES, warp, lane);
            has_new = true;
        }
    }
    // Execute task i for `columns` columns from `column` on. is_last: no columns of the task follow.
    __device__ void streamed(const Task& task, u32 flags, u64 i, int column, int columns, bool is_last) {
        const Cut cut(block, flags & SPLIT, task.tiles_each, task.tiles_more, is_gated(flags), task.bytes, task.other_bytes);
        const bool finds = finds_in(i);
        if (finds) begin_find();
        Held in(task, flags, cut, boxes.now, column, columns, warp, lane);
        bool is_first = true;
#pragma unroll 1
        for (u32 pass = cut.first; pass < cut.last; pass += PASS_TILES) {
            const int tiles = ONE_STEP ? (int)(cut.last - cut.first) : min((int)PASS_TILES, (int)(cut.last - pass));
            const bool is_normed = is_after_norm(flags) && is_first;
            const bool loads = ONE_STEP || is_first || cut.bytes > REGISTER_PIECES * PIECE_BYTES;
            if (loads) in.load_piece<0>(0), in.load_piece<1>(1);
            Place to;
            if (is_first) to = place(task, flags, pass, tiles, column, columns);
            const u32 gain = is_normed ? ring.slot() + warp * SLICE_BYTES + lane % 4 * 16 : 0;
            if (is_normed) ring.wait<1>(1), ring.next();
            Slices w;
            w.load(ring, tiles, (int)cut.bytes, warp, lane);
            Sums sums = {};
            multiply(sums, w, in, cut.bytes, gain, is_odd(flags), loads, [&] {
                if (is_first && !column) stamp(i, READY);
            });
            sums.leave(memory.part[turn][warp], tiles, columns, lane);
            if (!is_first) to = place(task, flags, pass, tiles, column, columns);
            __syncthreads();
            store(task, flags, to, tiles, column, columns, finds);
            turn ^= 1;
            // Release the slots only behind the stores for which other blocks wait: new copies of weights would slow the
            // stores.
            ring.leave(lane);
            if (ONE_STEP) break;
            is_first = false;
        }
        if (!is_last) __syncthreads();  // all threads have read `norm_sums`, which the next columns overwrite
        if (finds) say_found(column, columns);
    }
};
