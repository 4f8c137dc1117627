// The warps that multiply (step_gemm.cu): inputs, products of pieces, and the sums of all warps.

// A thread's inputs of a piece: of each chunk, 8 neighbours of column g, and of column g + 8.
typedef uint4 Inputs[CHUNKS][GROUPS];
typedef float Sums[CHAINS][GROUPS][4];  // a thread's sums of a tile

struct Consumer {
    const StepGemm& p;
    const Work work;
    const char* scales;
    u64 from;  // address of the first input that the thread copies
    u32 stages, column, gain, ring, full, slot, phase;  // column: offset of this thread's vectors in a stage
    int warp, lane;
    Sums sums[TILES];
    float of_squares[GROUPS], factors[2];

    __device__ Consumer(const StepGemm& p, const Work& work, char* a, char* b, u32 shared, u32 full)
        : p(p), work(work), scales(a + p.scales_at), ring(shared), full(full), slot(0), phase(0), warp(threadIdx.x / 32),
          lane(threadIdx.x % 32), of_squares{} {
        const u32 within = warp * SLICE + lane % 4 * 16 * PACK;
        stages = shared + SLOTS * SLOT_BYTES + warp * HELD * STAGE, gain = shared + GAIN_AT + within;
        column = min(lane / 4, COLUMNS - 1) * 64 + lane % 4 * 16;
        from = (u64)b + lane / 4 * p.b_step + within;
    }
    // Return the number of chunks of this warp in a piece.
    __device__ int chunks_of(u32 piece) const {
        return WHOLE ? (int)CHUNKS : min((int)CHUNKS, ((int)p.k_bytes - (int)(piece * PIECE_BYTES) - warp * SLICE) / 64);
    }
    // Return the offset of this thread's inputs of a chunk, from those of its first chunk.
    __device__ static u32 place(int chunk) { return chunk / PACK * (64 * PACK) + chunk % PACK * 16; }
    // Begin to copy the warp's inputs of a piece. Columns that do not exist are not copied; their sums are not used.
    __device__ void fetch(u32 piece) const {
        const int chunks = piece < work.pieces ? chunks_of(piece) : 0;
        const u32 to = stages + piece % HELD * STAGE + column;
        const u64 first = from + piece * PIECE_BYTES;
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk)
#pragma unroll
            for (int group = 0; group < GROUPS; ++group)
                if (chunk < chunks && 8 * group + lane / 4 < (COLUMNS == 1 ? 1 : (u32)p.columns))
                    copy_later(to + chunk * CHUNK + group * 512, first + group * 8 * p.b_step + place(chunk));
        group_copies();
    }
    __device__ void fetch_first() const {
        for (int i = 0; i < HELD; ++i) fetch(i);
    }
    // Wait for the inputs of a piece, load them, and begin to copy those of another piece.
    __device__ void take(Inputs& x, u32 piece) const {
        wait_for_copies_but<HELD - 1>();
        __syncwarp();
        const u32 at = stages + piece % HELD * STAGE + column;
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk)
#pragma unroll
            for (int group = 0; group < GROUPS; ++group) x[chunk][group] = load_shared(at + chunk * CHUNK + group * 512);
        __syncwarp();
        fetch(piece + HELD);
    }
    // Multiply inputs by the norm's weights, and add up their squares. The factor 1 / rms follows at the end (`store`).
    __device__ void norm(Inputs& x, u32 piece, int chunks, bool is_first) {
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            if (chunk >= chunks) break;
            const uint4 by = load_shared(gain + piece * PIECE_BYTES + place(chunk));
#pragma unroll
            for (int group = 0; group < GROUPS; ++group) {
                Vector v;
                v.whole = x[chunk][group];
                if (is_first)
#pragma unroll
                    for (int i = 0; i < WIDTH; ++i) of_squares[group] += v.wide(i) * v.wide(i);
                const uint4& w = v.whole;
                x[chunk][group] = {multiply_two(w.x, by.x), multiply_two(w.y, by.y), multiply_two(w.z, by.z),
                                   multiply_two(w.w, by.w)};
            }
        }
    }
    __device__ void next_slot() {
        if (++slot == SLOTS) slot = 0, phase ^= 1;
    }
    // Load the scales of this warp's slice of a piece, for the two rows of each tile.
    __device__ void load_scales(float (&of)[TILES][2], u32 piece, u32 half, u32 here) const {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const u32 own = half + 2 * tile + j, row = row_of(own, p) + lane / 4;
                if (2 * tile + j >= here || row >= p.rows || piece * PIECE_BYTES + warp * SLICE >= p.k_bytes) continue;
                const u32 block = (piece * PIECE_BYTES + warp * SLICE) / BLOCK_SLICE;
                of[tile][j] = widen_scale(scale_of(scales, weight_row(row, own, p), block, p.across));
            }
    }
    // Multiply the piece of all `here` halves of the pass, from `half` on.
    __device__ void multiply(const Inputs& x, int chunks, u32 piece, u32 half, u32 here) {
        const u32 within = lane / 4 * ROW_BYTES + warp * (SLICE / PACK) + lane % 4 * 16;
        float by_block[TILES][2] = {};
        if (BY_BLOCK) load_scales(by_block, piece, half, here);
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            if (2 * tile >= here) break;
            // Without a second half the first one stands for it, and its sums are not used.
            const bool has_two = 2 * tile + 1 < here;
            const u32 first = slot, low = ring + slot * SLOT_BYTES + within;
            barrier_wait(full + 8 * slot, phase);
            next_slot();
            const u32 second = slot, high = has_two ? ring + slot * SLOT_BYTES + within : low;
            if (has_two) barrier_wait(full + 8 * slot, phase), next_slot();
            float of_block[CHAINS][GROUPS][4] = {};
            Sums& to = BY_BLOCK ? of_block : sums[tile];
#pragma unroll
            for (int at = 0; at < VECTORS; at += TOGETHER) {
                uint4 a[TOGETHER], b[TOGETHER];
#pragma unroll
                for (int i = 0; i < TOGETHER; ++i) {
                    if ((at + i) * PACK >= chunks) break;
                    a[i] = load_shared(low + (at + i) * 64), b[i] = load_shared(high + (at + i) * 64);
                }
#pragma unroll
                for (int i = 0; i < TOGETHER * PACK; ++i) {
                    const int chunk = at * PACK + i;
                    if (chunk >= chunks) break;
                    multiply(to, halves_of(a[i / PACK], i % PACK), halves_of(b[i / PACK], i % PACK), x[chunk]);
                }
            }
            if (BY_BLOCK)
#pragma unroll
                for (int j = 0; j < CHAINS * GROUPS * 4; ++j)
                    sums[tile][j / (GROUPS * 4)][j / 4 % GROUPS][j % 4] +=
                        by_block[tile][j / 2 % 2] * of_block[j / (GROUPS * 4)][j / 4 % GROUPS][j % 4];
            __syncwarp();
            if (lane == 0) barrier_arrive(full + 8 * (SLOTS + first));
            if (lane == 0 && has_two) barrier_arrive(full + 8 * (SLOTS + second));
        }
    }
    // Add to `to` the products of a chunk of two halves of a tile.
    __device__ __forceinline__ static void multiply(Sums& to, const uint4& a, const uint4& b, const uint4 (&by)[GROUPS]) {
#pragma unroll
        for (int group = 0; group < GROUPS; ++group) mma(to[0][group], a.x, b.x, a.y, b.y, by[group].x, by[group].y);
#pragma unroll
        for (int group = 0; group < GROUPS; ++group) mma(to[CHAINS - 1][group], a.z, b.z, a.w, b.w, by[group].z, by[group].w);
    }
    __device__ void pass(u32 half, u32 here, bool is_first) {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int i = 0; i < CHAINS * GROUPS * 4; ++i) sums[tile][i / (GROUPS * 4)][i / 4 % GROUPS][i % 4] = 0.0f;
#pragma unroll 1
        for (u32 piece = 0; piece < work.pieces; ++piece) {
            const int chunks = chunks_of(piece);
            Inputs x;
            take(x, piece);
            if (NORMED) norm(x, piece, chunks, is_first);
#pragma unroll
            for (int i = 0; i < CHUNKS * GROUPS; ++i) x[i / GROUPS][i % GROUPS] = paired(x[i / GROUPS][i % GROUPS]);
            multiply(x, chunks, piece, half, here);
        }
    }
    __device__ void leave_squares() {
#pragma unroll
        for (int group = 0; group < GROUPS; ++group) {
            float& sum = of_squares[group];
            sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
            sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
            if (lane % 4 == 0) squares[warp][8 * group + lane / 4] = sum;
        }
    }
    // Compute 1 / rms of the inputs of the two columns of this thread's results.
    __device__ void find_factors(const Results& own) {
#pragma unroll
        for (int i = 0; i < 2 && own.tile < AT_ONCE; ++i) {
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < WARPS; ++j) sum += squares[j][min(own.column + i, 8 * GROUPS - 1)];
            factors[i] = 1.0f / sqrtf(sum / (float)(p.k_bytes / sizeof(storage)) + NORM_EPSILON);
        }
    }
    // Add up the sums of all warps, finish the outputs of a pass, and store them. half: the first half of the pass. end: what
    // the first results are finished with.
    __device__ void finish(
        const Results& own, AtEnd end, u32 half, u32 here, bool is_first, const char* a, char* c, const char* r) {
#pragma unroll
        for (int begin = 0; begin < TILES; begin += AT_ONCE) {
            if (2 * begin >= here) break;
            if (begin) {
                end.load(own, half + 2 * begin, here - 2 * begin, r, a, p);
                group_barrier();  // the parts of the tiles before have been read
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
#pragma unroll
                for (int group = 0; group < GROUPS; ++group)
                    if (begin + i < TILES && 2 * (begin + i) < here && lane % 4 < LANES) {
                        const int tile = begin + i < TILES ? begin + i : 0;
                        float sum[4];
#pragma unroll
                        for (int j = 0; j < 4; ++j)
                            sum[j] = sums[tile][0][group][j] + (CHAINS > 1 ? sums[tile][CHAINS - 1][group][j] : 0.0f);
                        parts[warp][i][group][lane / 4 * LANES + lane % 4] = {sum[0], sum[1], sum[2], sum[3]};
                    }
            group_barrier();
            if (NORMED && is_first && !begin) find_factors(own);
            store(own, end, half + 2 * begin, here - 2 * begin, c);
        }
    }
    __device__ static void group_barrier() { barrier_of(1, 32 * WARPS); }
    // Store this thread's results of the tiles from `half` on.
    __device__ void store(const Results& own, const AtEnd& end, u32 half, u32 here, char* c) const {
        if (!own.exist(here)) return;
        float of[4] = {};
#pragma unroll
        for (int i = 0; i < WARPS; ++i) {
            const float4 part = parts[i][own.tile][own.group][own.at];
            of[0] += part.x, of[1] += part.y, of[2] += part.z, of[3] += part.w;
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (own.column + i >= p.columns) return;
            const float factor = NORMED ? factors[i] : 1.0f;
            storage* const to = (storage*)(c + (own.column + i) * p.c_step);
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const u32 row = own.row(half, j, p);
                if (row >= p.rows || !own.has(j, here)) continue;
                const float sum = factor * end.scale(j) * of[i + 2 * j], up = factor * end.scale(1) * of[i + 2];
                if (!GATED) to[row] = narrow(sum + (ADDS ? widen(end.added.of[i + 2 * j]) : 0.0f));
                else if (j == 0) to[row] = narrow(sum / (1.0f + expf(-sum)) * up);
            }
        }
    }
};
