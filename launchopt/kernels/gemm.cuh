// A streamed GEMM (weights.cuh, tiles.cuh) by a block, with what is done as one with it: a norm before, a sum or SiLU times
// gate behind (devices/fusion.py).
struct Memory {  // shared, of a block; ops take what they need from its beginning
    char inputs[INPUT_BYTES + COLUMNS * INPUT_GAP_BYTES];
    Parts part[GROUP_WARPS];
    alignas(128) char ring[SLOTS * SLOT_BYTES];  // bulk copies to odd multiples of 16 are slower (RESIDENT.md)
};

__shared__ float norm_sums[GROUP_WARPS];
enum { HOLDERS = PASS_ROWS / 2 };  // threads that store a column

#ifdef KIND
__shared__ u64 largest[HOLDERS * COLUMNS];
#endif

// A block of the grid, and where it is in the list.
struct Gemm {
    Program q;
    u32 launch, block;
    Memory& memory;
    Ring ring;
    int warp, lane;
    u64 now, other;  // where the boxes of this launch lie, and those of the next one, from the first ones on
    Peer peer;
    u64* found;      // where the largest logits of each column and block go, [columns, blocks], or 0: see step_end.cuh

    __device__ Gemm(const Program& q, u32 launch, u64* found, Memory& memory, const Ring& ring)
        : q(q), launch(launch), block(blockIdx.x), memory(memory), ring(ring), warp(threadIdx.x / 32), lane(threadIdx.x % 32),
          found(found) {
        now = launch % 2 * q.box_bytes, other = (launch + 1) % 2 * q.box_bytes;
    }
    __device__ u64* stamps(u64 i) const { return q.stamps + (block * (q.count + 1) + i) * STAMPS_EACH; }
    __device__ void stamp(u64 i, int which) const {
#if STAMPS
        if (threadIdx.x == 0) stamps(i)[which] = clock64();
#endif
    }

    // Inputs of some columns, `bytes` of k from `first` on, to shared memory. Each thread has a vector of all columns, of every
    // other one where there are few vectors, or several of the only one. The first few are asked for beforehand (`look`), so
    // that what else is to be done meanwhile takes no time of its own.
    enum { LOOKS = COLUMNS > 1 && sizeof(storage) == 2 ? 8 : 4, FIRST_LOOKS = COLUMNS > 1 || PRELOADED ? 1 : 2 };
    struct Share {
        int part, parts, vector;  // of the threads; of k
        __device__ Share(int bytes) : part(0), parts(1), vector(threadIdx.x) {
            if (COLUMNS > 1 && bytes <= THREADS / 2 * 16) part = vector / (THREADS / 2), parts = 2, vector %= THREADS / 2;
        }
    };
    __device__ u64 inputs_of(const Task& task, int column, int first, const Share& own) const {
        return task.from + (task.mailed ? now : 0) + (column + own.part) * task.from_bytes + first + own.vector * 16;
    }
    __device__ void look(const Task& task, int column, int columns, int first, int bytes, uint4 (&found)[FIRST_LOOKS]) const {
        const Share own(bytes);
        const u64 from = inputs_of(task, column, first, own);
#pragma unroll
        for (int i = 0; i < FIRST_LOOKS; ++i)
            if ((COLUMNS == 1 || (lane == 0 && own.part < columns)) && own.vector + i * THREADS < bytes / 16)
                found[i] = load_relaxed(from + i * THREADS * 16);
    }
    // is_first: whether others may have to be waited for long.
    template <bool ARRANGED = true> __device__ void gather(
        const Task& task, int column, int columns, int first, int bytes, bool is_first, uint4 (&found)[FIRST_LOOKS]) const {
        const bool mailed = task.mailed;
        const int vectors = bytes / 16;
        const Share own(bytes);
        u64 from = inputs_of(task, column, first, own);
        u32 to = shared_address(memory.inputs) + own.vector * 16;
#if COLUMNS == 1
#pragma unroll
        for (int i = 0; i < FIRST_LOOKS; ++i) {
            if (own.vector + i * THREADS >= vectors) return;
            while (mailed && !arrived(found[i])) found[i] = load_relaxed(from + i * THREADS * 16);
            store_shared(to + i * THREADS * 16, ARRANGED ? arranged(found[i]) : found[i]);
        }
        const int count = (vectors - own.vector + THREADS - 1) / THREADS;
        take<ARRANGED>(from, to, THREADS * 16, THREADS * 16, FIRST_LOOKS, count, mailed);
#else
        if (own.part >= columns) return;
        to += own.part * (u32)task.column_bytes;
#pragma unroll 1
        for (int vector = own.vector; vector < vectors; vector += THREADS, from += THREADS * 16, to += THREADS * 16) {
            // One of a warp's at first until it is there, since all of them at once would keep the cache from others.
            if (mailed && is_first && lane == 0)
                while (!arrived(found[0])) found[0] = load_relaxed(from);
            take<ARRANGED>(from, to, own.parts * task.from_bytes, own.parts * (u32)task.column_bytes, 0,
                 (columns - own.part + own.parts - 1) / own.parts, mailed);
        }
#endif
    }
    // Vectors `done` to `count`.
    template <bool ARRANGED>
    __device__ void take(u64 from, u32 to, u64 step, u32 step_to, int done, int count, bool mailed) const {
#pragma unroll 1
        for (int j = done; j < count; j += LOOKS) {
            const u64 at = from + j * step;
            const u32 place = to + j * step_to;
            uint4 found[LOOKS];
#pragma unroll
            for (int i = 0; i < LOOKS; ++i)
                if (j + i < count) found[i] = load_relaxed(at + i * step);
            for (bool there = !mailed; !there;) {  // those that are not are asked for again together
                there = true;
#pragma unroll
                for (int i = 0; i < LOOKS; ++i) {
                    if (j + i >= count || arrived(found[i])) continue;
                    there = false;
                    found[i] = load_relaxed(at + i * step);
                }
            }
#pragma unroll
            for (int i = 0; i < LOOKS; ++i)
                if (j + i < count) store_shared(place + i * step_to, ARRANGED ? arranged(found[i]) : found[i]);
        }
    }

    // The same of whole columns, and their norms in place of them. Each vector is stored by one block. gain: a shared address.
    __device__ void gather_normed(const Task& task, u32 gain, int column, int columns, uint4 (&found)[FIRST_LOOKS]) {
        gather<false>(task, column, columns, 0, (int)task.row_used_bytes, true, found);
#if COLUMNS == 1  // a thread has what it has put there
        norm_by_all(task, gain, column);
#else
        __syncthreads();
        if (warp < columns) norm_two(task, gain, column, columns);
#endif
    }
    __device__ static float factor_of(float squares, int bytes) {
        return rsqrtf(__fdividef(squares, (float)(bytes / (int)sizeof(storage))) + 1e-5f);
    }
#if COLUMNS > 1
    // A warp has two columns, of which one does not wait for the other; the second one may not be there.
    __device__ void norm_two(const Task& task, u32 gain, int column, int columns) const {
        const int bytes = (int)task.row_used_bytes, own = lane * 16, last = (int)task.share - 1;
        const int second = warp + GROUP_WARPS;
        const bool both = second < columns;
        const u32 one = shared_address(memory.inputs) + warp * (u32)task.column_bytes;
        const u32 other = both ? one + GROUP_WARPS * (u32)task.column_bytes : one;
        float sum = 0.0f, other_sum = 0.0f;
#pragma unroll 2
        for (int at = own; at < bytes; at += 512)
            sum += squares(load_shared(one + at)), other_sum += squares(load_shared(other + at));
        const float factor = factor_of(warp_sum(sum), bytes), other_factor = factor_of(warp_sum(other_sum), bytes);
        const bool stores = min(warp, last) == block, stores_other = both && min(second, last) == block;
        const u64 to = task.normed + (column + warp) * task.normed_stride;
#pragma unroll 2
        for (int at = own; at < bytes; at += 512) {
            const uint4 own_gain = load_shared(gain + at);
            const uint4 made = normed(load_shared(one + at), own_gain, factor);
            const uint4 other_made = normed(load_shared(other + at), own_gain, other_factor);
            store_shared(one + at, made);
            if (both) store_shared(other + at, other_made);
            if (stores) *(uint4*)(to + at) = made;
            if (stores_other) *(uint4*)(to + GROUP_WARPS * task.normed_stride + at) = other_made;
        }
    }
#else
    __device__ void norm_by_all(const Task& task, u32 gain, int column) const {
        const int bytes = (int)task.row_used_bytes, own = threadIdx.x * 16;
        const u32 inputs = shared_address(memory.inputs);
        float sum = 0.0f;
#pragma unroll 2
        for (int at = own; at < bytes; at += THREADS * 16) sum += squares(load_shared(inputs + at));
        const float factor = factor_of(block_sum(warp_sum(sum)), bytes);
        int storing = warp;
#pragma unroll 2
        for (int at = own; at < bytes; at += THREADS * 16, storing += GROUP_WARPS) {
            const uint4 made = normed(load_shared(inputs + at), load_shared(gain + at), factor);
            store_shared(inputs + at, arranged(made));
            if (min(storing, (int)task.share - 1) == block) *(uint4*)(task.normed + column * task.normed_stride + at) = made;
        }
    }
#endif
    __device__ float block_sum(float value) const {
        if (lane == 0) norm_sums[warp] = value;
        __syncthreads();
        value = 0.0f;
#pragma unroll
        for (int i = 0; i < GROUP_WARPS; ++i) value += norm_sums[i];
        return value;
    }

    // What all warps have of a pass, added up and stored, two rows a thread.
    struct Place {
        u64 box;
        int row, column, rows;  // of this thread, in a pass; rows that there are from its first on
        int first, to;          // of all rows, and of results
        Pair added;
    };
    // Whether the other of two blocks stores a tile of a pass that they share.
    __device__ bool is_peers(const Task& task, int tile, int tiles) const {
        return PAIRS && task.split && (tile >= Peer::first_half(tiles, task.pair_rows > 0)) != peer.rank;
    }
    __device__ Place place(const Task& task, int pass, int tiles, int column, int columns) const {
        Place made;
        made.row = threadIdx.x % (PASS_ROWS / 2) * 2, made.column = threadIdx.x / (PASS_ROWS / 2), made.rows = 0;
        if (made.row >= tiles * TILE_ROWS || made.column >= columns) return made;
        if (is_peers(task, made.row / TILE_ROWS, tiles)) return made;
        const int j = column + made.column, tile = pass + made.row / TILE_ROWS, below = made.row % TILE_ROWS;
        made.first = row_of_tile(tile, (u32)task.pair_rows) + below;
        made.to = (FUSED >> OP_SILU_MUL & 1) && task.pair_rows ? tile / 2 * TILE_ROWS + below : made.first;
        made.rows = (int)task.in.m - made.first;
        made.box = task.box ? task.box + (u32)(j * (int)task.result_m + made.to) * sizeof(storage) : 0;
        if ((FUSED >> OP_ADD & 1) && task.then == OP_ADD && made.rows > 0)
            made.added = *(const Pair*)((const storage*)(task.added + j * task.added_stride) + made.to);
        return made;
    }
    __device__ float2 total(int row, int column) const {  // of this block
        float2 sum = {0.0f, 0.0f};
#pragma unroll
        for (int warp = 0; warp < GROUP_WARPS; ++warp) {
            const float2 part = *(const float2*)&memory.part[warp][column][row];
            sum.x += part.x, sum.y += part.y;
        }
        return sum;
    }
    // Give the other block what this one has of its tiles, and wait for what it has of the own ones; the first row of these.
    __device__ int swap(const Task& task, const Place& to, int tiles, int columns) const {
        const int half = Peer::first_half(tiles, task.pair_rows > 0) * TILE_ROWS, rows = tiles * TILE_ROWS;
        if (to.row < rows && to.column < columns && (to.row >= half) != peer.rank)
            peer.send(to.row - (peer.rank ? 0 : half), to.column, total(to.row, to.column));
        peer.wait(peer.rank ? rows - half : half, columns);
        return peer.rank ? half : 0;
    }
    __device__ void store(const Task& task, const Place& to, int tiles, int column, int columns, bool finds) {
        const bool split = PAIRS && task.split;
        const int first_own = split ? swap(task, to, tiles, columns) : 0;
        if (to.rows > 0) store_own(task, to, column, finds, split, first_own);
        if (split) peer.next();
    }
    __device__ void store_own(const Task& task, const Place& to, int column, bool finds, bool split, int first_own) const {
        const auto whole = [&](int row) {
            float2 sum = total(row, to.column);
            if (!split) return sum;
            const float2 more = peer.had(row - first_own, to.column);
            return float2{sum.x + more.x, sum.y + more.y};
        };
        const float2 sum = whole(to.row);
        const Pair own(sum.x, sum.y);
        Pair result = own;
        bool is_result = true;
        if ((FUSED >> OP_ADD & 1) && task.then == OP_ADD) {
            result = Pair(own.first() + to.added.first(), own.second() + to.added.second());
        } else if ((FUSED >> OP_SILU_MUL & 1) && task.then == OP_SILU_MUL) {
            is_result = !(to.row & TILE_ROWS);  // else the other factor
            if (is_result) {
                const float2 sum_up = whole(to.row + TILE_ROWS);
                const Pair up(sum_up.x, sum_up.y);
                result = Pair(silu(own.first()) * up.first(), silu(own.second()) * up.second());
            }
        }
        if (to.box && is_result) send(to.box + now, to.box + other, result.both);
        const int j = column + to.column;
        storage* c = (storage*)(task.in.c + j * task.in.stride_c) + to.first;
        c[0] = own.first_stored();
        if (to.rows > 1) c[1] = own.second_stored();
        if (FUSED && task.then && is_result) *(Pair*)((storage*)(task.result + j * task.result_stride) + to.to) = result;
        if (finds) find(to, own);
    }

#ifdef KIND
    // Of the largest logits, as sampling.cuh has them, each thread has its own rows' of all passes; then the block's are told.
    __device__ bool finds_in(u64 i) const { return FINDS && found && i + 1 == q.count; }
    __device__ void begin_find() const {
        if (threadIdx.x < HOLDERS * COLUMNS) largest[threadIdx.x] = 0;
    }
    __device__ void find(const Place& to, const Pair& own) const {
        u64 most = sampling::found_at(own.first(), (u32)to.first);
        if (to.rows > 1) most = sampling::larger(most, sampling::found_at(own.second(), (u32)to.first + 1));
        largest[threadIdx.x] = sampling::larger(largest[threadIdx.x], most);
    }
    __device__ void say_found(int column, int columns) const {
        if (warp * 32 >= HOLDERS * COLUMNS) return;
        u64 word = threadIdx.x < HOLDERS * COLUMNS ? largest[threadIdx.x] : 0;
#pragma unroll
        for (int step = HOLDERS / 2; step; step >>= 1) word = sampling::larger(word, __shfl_xor_sync(0xFFFFFFFFu, word, step));
        const int own = threadIdx.x / HOLDERS;
        if (threadIdx.x % HOLDERS == 0 && own < columns)  // of two blocks that share tiles one may have stored none
            store_relaxed((u64)(found + (column + own) * gridDim.x + block), max(word, 1ull));
    }
#else
    __device__ bool finds_in(u64) const { return false; }
    __device__ void begin_find() const {}
    __device__ void find(const Place&, const Pair&) const {}
    __device__ void say_found(int, int) const {}
#endif
    static __device__ float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

    // Pieces of all tiles, as many as `bytes` of k are, the first ones' weights loaded; `then`: bytes of the next round.
    __device__ void multiply_round(Sums& sums, Slices& w, u32 column_bytes, int tiles, int bytes, int then, int columns) {
        u32 inputs = shared_address(memory.inputs) + warp * SLICE_BYTES;
#pragma unroll 1
        for (int left = bytes;;) {
            const int own = min(w.pieces, (left - warp * SLICE_BYTES + PIECE_BYTES - 1) / PIECE_BYTES);
            sums.add(w, ring, max(own, 0), inputs, column_bytes, columns, warp, lane);
            left -= w.pieces * PIECE_BYTES, inputs += w.pieces * PIECE_BYTES;
            if (left <= 0 && !then) return;
            ring.leave(lane);
            w.load(ring, tiles, left > 0 ? left : then, warp, lane);
            if (left <= 0) return;
        }
    }
    __device__ void streamed(const Task& task, u64 i, int column, int columns) {
        const bool in_pairs = (FUSED >> OP_SILU_MUL & 1) && task.pair_rows;
        const Cut cut(block, (u32)task.tiles_each, (u32)task.tiles_more, in_pairs, task.split, (u32)task.row_used_bytes);
        const int first = cut.first, last = cut.last, from = (int)cut.from;
        const int all = (int)cut.bytes, at_once = (int)task.round_bytes;
        const u32 column_bytes = (u32)task.column_bytes;
        const bool finds = finds_in(i);
        if (finds) begin_find();
#pragma unroll 1
        for (int pass = first; pass < last; pass += PASS_TILES) {
            const int tiles = min((int)PASS_TILES, last - pass);
            uint4 found[FIRST_LOOKS];
            if (pass == first || at_once < all) look(task, column, columns, from, min(all, at_once), found);
            const Place to = place(task, pass, tiles, column, columns);
            Slices w;
            const u32 gain = ring.slot();
            const bool is_normed = (FUSED >> OP_NORM & 1) && task.gain && pass == first;
            if (is_normed) ring.wait<1>(1), ring.next();
            w.load(ring, tiles, min(all, at_once), warp, lane);
            if (at_once < all || pass == first) {
                if (pass > first || column) __syncthreads();  // all have read what was there
                if (is_normed) gather_normed(task, gain, column, columns, found);
                else gather(task, column, columns, from, min(all, at_once), true, found);
                __syncthreads();
                if (BY_TENSOR) ring.leave(lane);  // the gain's slot
                if (pass == first && !column) stamp(i, READY);
            }
            Sums sums = {};
#pragma unroll 1
            for (int round = 0;;) {
                const int bytes = min(all - round, at_once);
                multiply_round(sums, w, column_bytes, tiles, bytes, min(all - round - bytes, at_once), columns);
                if ((round += at_once) >= all) break;
                __syncthreads();
                look(task, column, columns, from + round, min(all - round, at_once), found);
                gather(task, column, columns, from + round, min(all - round, at_once), false, found);
                __syncthreads();
            }
            sums.leave(memory.part[warp], tiles, columns, lane);
            __syncthreads();
            ring.leave(lane);
            store(task, to, tiles, column, columns, finds);
            if (pass + PASS_TILES < last || column + COLUMNS < task.in.requests) __syncthreads();
        }
        if (finds) say_found(column, columns);
    }
    __device__ void streamed(const Task& task, u64 i) {
        if (COLUMNS == 1) return streamed(task, i, 0, 1);
#pragma unroll 1
        for (int column = 0, all = (int)task.in.requests; column < all; column += COLUMNS)
            streamed(task, i, column, min((int)COLUMNS, all - column));
    }
};
