// A streamed GEMM (weights.cuh, tiles.cuh) by a block, with what is done as one with it: a norm before, a sum or SiLU times
// gate behind (devices/fusion.py).
enum { HOLDERS = PASS_ROWS / 2 };  // threads that store a column

#ifdef KIND
__shared__ u64 largest[HOLDERS * COLUMNS];
#endif

struct Gemm : Inputs {
    Peer peer;
    u64* found;  // where the largest logits of each column and block go, [columns, blocks], or 0: see step_end.cuh

    __device__ Gemm(const Program& q, u32 launch, u64* found, Memory& memory, const Ring& ring)
        : Inputs(q, launch, memory, ring), found(found) {}
    __device__ u64* stamps(u64 i) const { return q.stamps + (block * (q.count + 1) + i) * STAMPS_EACH; }
    __device__ void stamp(u64 i, int which) const {
#if STAMPS
        if (threadIdx.x == 0) stamps(i)[which] = clock64();
#endif
    }

    // What all warps have of a pass, added up and stored, two rows a thread.
    struct Place {
        u64 box;
        int row, column, rows;  // of this thread, in a pass; rows that there are from its first on
        int first, to;          // of all rows, and of results
        Pair added;
    };
    __device__ Place place(const Task& task, int pass, int tiles, int column, int columns) const {
        Place made;
        made.row = threadIdx.x % (PASS_ROWS / 2) * 2, made.column = threadIdx.x / (PASS_ROWS / 2), made.rows = 0;
        if (made.row >= tiles * TILE_ROWS || made.column >= columns) return made;
        if (PAIRS && task.split && peer.has(made.row)) return made;
        const int j = column + made.column, tile = pass + made.row / TILE_ROWS, below = made.row % TILE_ROWS;
        made.first = row_of_tile(tile, (u32)task.pair_rows) + below;
        made.to = (FUSED >> OP_SILU_MUL & 1) && task.pair_rows ? tile / 2 * TILE_ROWS + below : made.first;
        made.rows = (int)task.in.m - made.first;
        made.box = task.box ? task.box + (u32)(j * (int)task.result_m + made.to) * sizeof(storage) : 0;
        if ((FUSED >> OP_ADD & 1) && task.then == OP_ADD && made.rows > 0) {
            if (PAIRS && task.added_mailed) made.added.both = receive(added_at(task, j, made.to));
            else made.added = *(const Pair*)added_at(task, j, made.to);
        }
        return made;
    }
    // What is added to a GEMM's results has been stored by the same thread, or comes by mail.
    __device__ u64 added_at(const Task& task, int column, int to) const {
        return task.added + (PAIRS && task.added_mailed ? now : 0) + column * task.added_stride + to * sizeof(storage);
    }
    __device__ Pair added(const Task& task, const Place& to, int column) const {
        Pair found = to.added;
        if (PAIRS && task.added_mailed)
            while (!arrived(found.both)) found.both = receive(added_at(task, column, to.to));
        return found;
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
    // Give the other block what this one has of its rows, and wait for what it has of the own ones.
    __device__ void swap(const Place& to, int tiles, int columns) const {
        if (to.row < tiles * TILE_ROWS && to.column < columns && peer.has(to.row))
            peer.send(to.row, to.column, total(to.row, to.column));
        peer.wait(tiles, columns);
    }
    __device__ void store(const Task& task, const Place& to, int tiles, int column, int columns, bool finds) {
        const bool split = PAIRS && task.split;
        if (split) swap(to, tiles, columns);
        if (to.rows > 0) store_own(task, to, column, finds, split);
        if (split) peer.next();
    }
    __device__ void store_own(const Task& task, const Place& to, int column, bool finds, bool split) const {
        const auto whole = [&](int row) {
            float2 sum = total(row, to.column);
            if (!split) return sum;
            const float2 more = peer.had(row, to.column);
            return float2{sum.x + more.x, sum.y + more.y};
        };
        const float2 sum = whole(to.row);
        const Pair own(sum.x, sum.y);
        Pair result = own;
        bool is_result = true;
        if ((FUSED >> OP_ADD & 1) && task.then == OP_ADD) {
            const Pair more = added(task, to, column + to.column);
            result = Pair(own.first() + more.first(), own.second() + more.second());
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
        if (threadIdx.x % HOLDERS == 0 && own < columns)  // of two blocks that share rows one may have stored none
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
    __device__ void multiply_round(Sums& sums, Slices& w, u32 row_bytes, int tiles, int bytes, int then, int columns) {
        u32 inputs = shared_address(memory.inputs) + warp * SLICE_BYTES * TOGETHER;
#pragma unroll 1
        for (int left = bytes;;) {
            const int own = min(w.pieces, (left - warp * SLICE_BYTES + PIECE_BYTES - 1) / PIECE_BYTES);
            sums.add(w, ring, max(own, 0), inputs, row_bytes, columns, warp, lane);
            left -= w.pieces * PIECE_BYTES, inputs += w.pieces * PIECE_BYTES * TOGETHER;
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
        const u32 row_bytes = (u32)task.input_row_bytes;
        const bool finds = finds_in(i);
        if (finds) begin_find();
#pragma unroll 1
        for (int pass = first; pass < last; pass += PASS_TILES) {
            const int tiles = min((int)PASS_TILES, last - pass);
            uint4 found[FIRST_LOOKS];
            const bool gathers = pass == first || at_once < all;
            Share own;
            if (gathers) own = share(task, column, columns, from, min(all, at_once)), look(own, found);
            const Place to = place(task, pass, tiles, column, columns);
            Slices w;
            const u32 gain = ring.slot();
            const bool is_normed = (FUSED >> OP_NORM & 1) && task.gain && pass == first;
            if (is_normed) ring.wait<1>(1), ring.next();
            if (!AWAITED || !gathers) w.load(ring, tiles, min(all, at_once), warp, lane);
            if (gathers) {
                if (is_normed) gather_normed(task, own, gain, column, columns, found);
                else gather(own, true, found);
                if (BY_TENSOR) ring.leave(lane);  // the gain's slot
                if (AWAITED) w.load(ring, tiles, min(all, at_once), warp, lane);
                __syncthreads();
                if (pass == first && !column) stamp(i, READY);
            }
            Sums sums = {};
#pragma unroll 1
            for (int round = 0;;) {
                const int bytes = min(all - round, at_once);
                const int then = min(all - round - bytes, at_once);
                multiply_round(sums, w, row_bytes, tiles, bytes, AWAITED ? 0 : then, columns);
                if ((round += at_once) >= all) break;
                if (AWAITED) ring.leave(lane);
                __syncthreads();
                own = share(task, column, columns, from + round, min(all - round, at_once));
                look(own, found);
                gather(own, false, found);
                if (AWAITED) w.load(ring, tiles, then, warp, lane);
                __syncthreads();
            }
            sums.leave(memory.part[warp], tiles, columns, lane);
            __syncthreads();
            ring.leave(lane);
            store(task, to, tiles, column, columns, finds);
            // Before sums, or inputs, are replaced.
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
