// A streamed GEMM (weights.cuh, tiles.cuh) by a block, with what is done as one with it: a norm before, a sum or SiLU times
// gate behind (devices/fusion.py).
struct Memory {  // shared, of a block; ops take what they need from its beginning
    char inputs[INPUT_BYTES + COLUMNS * INPUT_GAP_BYTES];
    Parts part[GROUP_WARPS];
    char ring[SLOTS * SLOT_BYTES];
};

__device__ inline float squares(const uint4& of) {
    Vector v;
    v.whole = of;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) sum += widen(v.parts[i]) * widen(v.parts[i]);
    return sum;
}
__device__ inline uint4 normed(const uint4& of, const uint4& gain, float factor) {
    Vector v, g;
    v.whole = of, g.whole = gain;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) v.parts[i] = narrow(widen(v.parts[i]) * factor * widen(g.parts[i]));
    return v.whole;
}
__device__ inline float warp_sum(float value) {
#pragma unroll
    for (int step = 16; step; step >>= 1) value += __shfl_xor_sync(0xFFFFFFFFu, value, step);
    return value;
}

// A block of the grid, and where it is in the list.
struct Gemm {
    Program q;
    u32 launch, block;
    Memory& memory;
    Ring ring;
    int warp, lane;
    u64 now, other;  // where the boxes of this launch lie, and those of the next one, from the first ones on

    __device__ Gemm(const Program& q, u32 launch, Memory& memory, const Ring& ring)
        : q(q), launch(launch), block(blockIdx.x), memory(memory), ring(ring), warp(threadIdx.x / 32), lane(threadIdx.x % 32) {
        now = launch % 2 * q.box_bytes, other = (launch + 1) % 2 * q.box_bytes;
    }
    __device__ void stamp(u64 i, int which) const {
#if STAMPS
        if (threadIdx.x == 0) q.stamps[(block * q.count + i) * STAMPS_EACH + which] = clock64();
#endif
    }

    // Inputs of some columns, `bytes` of k from `first` on, to shared memory. Each thread has a vector of all columns, or
    // several of the only one.
    __device__ void gather(const Task& task, int column, int columns, int first, int bytes) {
        enum { LOOKS = COLUMNS > 1 && sizeof(storage) == 2 ? 8 : 4 };
        const bool alone = COLUMNS == 1, mailed = task.mailed;
        const int vectors = bytes / 16, own = threadIdx.x;
        const int count = alone ? (vectors - own + THREADS - 1) / THREADS : columns;
        const u64 step = alone ? THREADS * 16 : task.from_bytes, from = task.from + (mailed ? now : 0) + column * task.from_bytes + first;
        const u32 step_to = alone ? THREADS * 16 : (u32)task.column_bytes, to = shared_address(memory.inputs);
#pragma unroll 1
        for (int vector = own; vector < vectors; vector += alone ? vectors : THREADS) {
            // Of several columns one at first until it is there, since all of them at once would keep the cache from others.
            if (mailed && !alone && first == 0)
                while (!arrived(load_relaxed(from + vector * 16))) {}
#pragma unroll 1
            for (int j = 0; j < count; j += LOOKS) {
                const u64 at = from + vector * 16 + j * step;
                const u32 place = to + vector * 16 + j * step_to;
                uint4 found[LOOKS];
#pragma unroll
                for (int i = 0; i < LOOKS; ++i) {
                    if (j + i >= count) break;
                    found[i] = load_relaxed(at + i * step);
                }
#pragma unroll
                for (int i = 0; i < LOOKS; ++i) {
                    if (j + i >= count) break;
                    while (mailed && !arrived(found[i])) found[i] = load_relaxed(at + i * step);
                    store_shared(place + i * step_to, found[i]);
                }
            }
        }
    }

    // The same of whole columns, and their norms in place of them: a warp a column, or all warps the only one. Each vector is
    // stored by one block. gain: a shared address.
    __device__ void gather_normed(const Task& task, u32 gain, int column, int columns) {
        enum { LANES = COLUMNS > 1 ? 32 : THREADS };
        const int bytes = (int)task.row_used_bytes, own = (COLUMNS > 1 ? lane : threadIdx.x) * 16, last = (int)task.share - 1;
        gather(task, column, columns, 0, bytes);
        if (COLUMNS > 1) __syncthreads();  // else a thread has what it has put there
#pragma unroll 1
        for (int j = COLUMNS > 1 ? warp : 0; j < columns; j += GROUP_WARPS) {
            const u32 inputs = shared_address(memory.inputs) + j * (u32)task.column_bytes;
            float sum = 0.0f;
#pragma unroll 2
            for (int at = own; at < bytes; at += LANES * 16) sum += squares(load_shared(inputs + at));
            sum = warp_sum(sum);
            if (COLUMNS == 1) sum = block_sum(sum);
            const float factor = 1.0f / sqrtf(sum / (float)(bytes / (int)sizeof(storage)) + 1e-5f);
            const u64 to = task.normed + (column + j) * task.normed_stride;
            int storing = COLUMNS > 1 ? j : warp;
#pragma unroll 2
            for (int at = own; at < bytes; at += LANES * 16, storing += COLUMNS > 1 ? 0 : GROUP_WARPS) {
                const uint4 made = normed(load_shared(inputs + at), load_shared(gain + at), factor);
                store_shared(inputs + at, made);
                if (min(storing, last) == block) *(uint4*)(to + at) = made;
            }
        }
    }
    __device__ float block_sum(float value) {
        __shared__ float sums[GROUP_WARPS];
        if (lane == 0) sums[warp] = value;
        __syncthreads();
        value = 0.0f;
#pragma unroll
        for (int i = 0; i < GROUP_WARPS; ++i) value += sums[i];
        return value;
    }

    // What all warps have of a pass, added up and stored, two rows a thread.
    struct Place {
        u64 box;
        storage *c, *result;
        int row, column, rows;  // of this thread, in a pass; rows that there are from its first on
        storage added, added_below;
    };
    __device__ Place place(const Task& task, int pass, int tiles, int column, int columns) {
        const int row = threadIdx.x % (PASS_ROWS / 2) * 2, j = threadIdx.x / (PASS_ROWS / 2), tile = pass + row / TILE_ROWS;
        const int first = row_of_tile(tile, (u32)task.pair_rows) + row % TILE_ROWS;
        const int to = (FUSED >> OP_SILU_MUL & 1) && task.pair_rows ? tile / 2 * TILE_ROWS + row % TILE_ROWS : first;
        Place made = {task.box ? task.box + ((column + j) * task.result_m + to) * sizeof(storage) : 0,
                      (storage*)(task.in.c + (column + j) * task.in.stride_c) + first,
                      (storage*)(task.result + (column + j) * task.result_stride) + to,
                      row, j, row < tiles * TILE_ROWS && j < columns ? (int)task.in.m - first : 0};
        if ((FUSED >> OP_ADD & 1) && task.then == OP_ADD && made.rows > 0) {
            const storage* added = (const storage*)(task.added + (column + j) * task.added_stride) + to;
            made.added = added[0], made.added_below = added[1];
        }
        return made;
    }
    __device__ float2 total(int row, int column) const {
        float2 sum = {0.0f, 0.0f};
#pragma unroll
        for (int warp = 0; warp < GROUP_WARPS; ++warp) {
            const float2 part = *(const float2*)&memory.part[warp][column][row];
            sum.x += part.x, sum.y += part.y;
        }
        return sum;
    }
    __device__ void store(const Task& task, const Place& to) {
        if (to.rows <= 0) return;
        const float2 sum = total(to.row, to.column);
        storage value = narrow(sum.x), below = narrow(sum.y);
        to.c[0] = value;
        if (to.rows > 1) to.c[1] = below;
        if ((FUSED >> OP_ADD & 1) && task.then == OP_ADD) {
            value = narrow(widen(value) + widen(to.added)), below = narrow(widen(below) + widen(to.added_below));
            to.result[0] = value, to.result[1] = below;
        } else if ((FUSED >> OP_SILU_MUL & 1) && task.then == OP_SILU_MUL) {
            if (to.row & TILE_ROWS) return;  // the other factor
            const float2 up = total(to.row + TILE_ROWS, to.column);
            value = narrow(silu(widen(value)) * widen(narrow(up.x))), below = narrow(silu(widen(below)) * widen(narrow(up.y)));
            to.result[0] = value, to.result[1] = below;
        }
        if (to.box) send(to.box + now, to.box + other, value, below);
    }
    static __device__ float silu(float x) { return x / (1.0f + expf(-x)); }

    // Pieces of all tiles, as many as `bytes` of k are, the first ones' weights loaded; `then`: bytes of the next round.
    __device__ void multiply_round(Sums& sums, Slices& w, u32 column_bytes, int tiles, int bytes, int then, int columns) {
        u32 inputs = shared_address(memory.inputs) + warp * SLICE_BYTES;
#pragma unroll 1
        for (int left = bytes;;) {
            const int own = min(w.pieces, (left - warp * SLICE_BYTES + PIECE_BYTES - 1) / PIECE_BYTES);
            sums.add(w, max(own, 0), inputs, column_bytes, columns, lane);
            left -= w.pieces * PIECE_BYTES, inputs += w.pieces * PIECE_BYTES;
            if (left <= 0 && !then) return;
            if (ring.untold() >= MOST_UNTOLD) {
                __syncthreads();
                ring.tell();
            }
            w.load(ring, tiles, left > 0 ? left : then, warp, lane);
            if (left <= 0) return;
        }
    }
    __device__ void streamed(const Task& task, u64 i, int column, int columns) {
        const int each = (int)task.tiles_each, more = (int)task.tiles_more, pairs = (FUSED >> OP_SILU_MUL & 1) && task.pair_rows;
        const int first = block * each + min((int)block, more) << pairs, last = first + (each + ((int)block < more) << pairs);
        const int all = (int)task.row_used_bytes, at_once = (int)task.round_bytes;
        const u32 column_bytes = (u32)task.column_bytes;
#pragma unroll 1
        for (int pass = first; pass < last; pass += PASS_TILES) {
            const int tiles = min((int)PASS_TILES, last - pass);
            const Place to = place(task, pass, tiles, column, columns);
            Sums sums = {};
            Slices w;
            const u32 gain = ring.slot;
            if ((FUSED >> OP_NORM & 1) && task.gain && pass == first) ring.wait(), ring.next();
            w.load(ring, tiles, min(all, at_once), warp, lane);
#pragma unroll 1
            for (int round = 0; round < all; round += at_once) {
                const int bytes = min(all - round, at_once);
                if (at_once < all || pass == first) {
                    if (round || pass > first || column) __syncthreads();  // all have read what was there
                    if ((FUSED >> OP_NORM & 1) && task.gain) gather_normed(task, gain, column, columns);
                    else gather(task, column, columns, round, bytes);
                    __syncthreads();
                    if (!round && pass == first && !column) stamp(i, READY);
                }
                multiply_round(sums, w, column_bytes, tiles, bytes, min(all - round - bytes, at_once), columns);
            }
            sums.leave(memory.part[warp], tiles, columns, lane);
            __syncthreads();
            ring.tell();
            store(task, to);
            if (pass + PASS_TILES < last || column + COLUMNS < task.in.requests) __syncthreads();
        }
    }
    __device__ void streamed(const Task& task, u64 i) {
        if (COLUMNS == 1) return streamed(task, i, 0, 1);
#pragma unroll 1
        for (int column = 0, all = (int)task.in.requests; column < all; column += COLUMNS)
            streamed(task, i, column, min((int)COLUMNS, all - column));
    }
};
