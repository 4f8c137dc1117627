// The outputs of a streamed GEMM (megakernel/gemm.cuh, gemm_in_registers.cuh, gemm_short.cuh). A block adds up the sums of its
// warps and applies the fused op behind the GEMM, OP_ADD or OP_SILU_MUL (devices/instructions/fusion.py). With FINDS_LARGEST it
// also finds its largest logit. `results` are the outputs of the fused op behind the GEMM, or else of the GEMM itself.
enum { HOLDERS = PASS_ROWS / 2 };  // threads that store the outputs of a column; each thread has two rows
// Index of a thread among those that store. This is a macro, because a function would change the machine code for lists that
// are not SHORT.
#if SHORT
#define HOLDER ((int)threadIdx.x - THREADS)
#else
#define HOLDER threadIdx.x
#endif

#ifdef KIND
__shared__ u64 largest[HOLDERS * COLUMNS];  // largest logit of each thread that stores (sampling::found_at)
#endif

struct Outputs : Inputs {
    Peer peer;
    const Feedback& feed;
    u32 turn;  // which of the buffers Memory::part takes the sums of this pass

    __device__ Outputs(const Program& q, u32 launch, const Feedback& feed, Memory& memory, const Ring& ring)
        : Inputs(q, launch, memory, ring), feed(feed), turn(0) {}
    __device__ u64* stamps(u64 i) const { return q.stamps + (block * (q.count + 1) + i) * STAMPS_EACH; }
    __device__ void stamp(u64 i, int which) const {
#if STAMPS
        if (threadIdx.x == 0) stamps(i)[which] = clock64();
#endif
    }

    // The two rows of a pass that a thread stores, and the addresses to which it stores them.
    struct Place {
        u64 c, box;  // address of the thread's outputs; address of the mailbox for its results, or 0
        // The thread's first row and its column, both within the pass. Number of rows of C from that row on; 0: the thread
        // stores nothing.
        int row, column, rows;
        u32 first, to;  // index of the thread's first row in C; index of its first feature in the results
        Pair added;  // elements that OP_ADD adds to the thread's outputs
    };
    // Return the column that this thread stores. With IN_REGISTERS, words of two columns alternate in the mailboxes. A warp
    // then stores both columns, so that it fills whole sectors of the L2 cache.
    __device__ int own_column() const { return IN_REGISTERS ? warp + lane / HOLDERS * 8 : (int)HOLDER / HOLDERS; }
    // Return the place of this thread. pass: first tile of the pass; tiles: its number of tiles. column: first column.
    __device__ Place place(const Task& task, u32 flags, u32 pass, int tiles, int column, int columns) const {
        Place made;
        made.row = HOLDER % HOLDERS * 2, made.column = own_column(), made.rows = 0;
        if (made.row >= tiles * TILE_ROWS || made.column >= columns) return made;
        if (PAIRS && (flags & SPLIT) && peer.has(made.row)) return made;
        const u32 j = column + made.column, tile = pass + (u32)made.row / TILE_ROWS, below = (u32)made.row % TILE_ROWS;
        made.first = row_of_tile(tile, pair_rows_of(task, flags)) + below;
        made.to = is_gated(flags) ? tile / 2 * TILE_ROWS + below : made.first;
        made.rows = (int)((u32)task.in.m - made.first);
        made.c = task.c + j * task.stride_c + made.first * sizeof(storage);
        const u64 box = task.box + boxes.now + box_of(j, task.result_m) + in_box(made.to * (u32)sizeof(storage));
        made.box = task.box ? box : 0;
        if (adds(flags) && made.rows > 0) {
            if (PAIRS && (flags & ADDED_MAILED)) made.added.both = receive(added_at(task, flags, j, made.to));
            else made.added = *(const Pair*)added_at(task, flags, j, made.to);
        }
        return made;
    }
    static __device__ bool is_gated(u32 flags) { return (FUSED >> OP_SILU_MUL & 1) && (flags & GATED); }
    static __device__ bool is_after_norm(u32 flags) { return (FUSED >> OP_NORM & 1) && (flags & NORMED); }
    static __device__ bool adds(u32 flags) { return (FUSED >> OP_ADD & 1) && (flags & ADDS); }
    static __device__ u32 pair_rows_of(const Task& task, u32 flags) { return is_gated(flags) ? task.pair_rows : 0; }
    // Return the address of the elements that OP_ADD adds, or of their mailbox (ADDED_MAILED). Elements in memory were stored
    // by this thread, or by a task for which this task has waited.
    __device__ u64 added_at(const Task& task, u32 flags, u32 column, u32 to) const {
        const u32 bytes = to * sizeof(storage);
        if (PAIRS && (flags & ADDED_MAILED))
            return task.added + boxes.now + column_in(column, task.added_stride) + in_box(bytes);
        return task.added + column * task.added_stride + bytes;
    }
    // Return the two elements that OP_ADD adds. If they come through a mailbox, wait for them.
    __device__ Pair added(const Task& task, u32 flags, const Place& to, int column) const {
        Pair found = to.added;
        if (PAIRS && (flags & ADDED_MAILED))
            while (!arrived(found.both)) found.both = receive(added_at(task, flags, column, to.to));
        return found;
    }
    // Return the sums of two rows over all warps of this block.
    __device__ float2 total(int row, int column) const {
        float2 sum = {0.0f, 0.0f};
#pragma unroll
        for (int warp = 0; warp < GROUP_WARPS; ++warp) {
            const float2 part = *(const float2*)&memory.part[turn][warp][column][row];
            sum.x += part.x, sum.y += part.y;
        }
        return sum;
    }
    // Send the other block of the pair the sums of its rows, and wait for its sums of this block's rows.
    __device__ void swap(const Place& to, int tiles, int columns) const {
        if (to.row < tiles * TILE_ROWS && to.column < columns && peer.has(to.row))
            peer.send(to.row, to.column, total(to.row, to.column));
        peer.wait(tiles, columns);
    }
    // Store the thread's outputs and results, and send the results. finds: also look for the largest logit.
    __device__ void store(const Task& task, u32 flags, const Place& to, int tiles, int column, int columns, bool finds) {
        const bool split = PAIRS && (flags & SPLIT);
        if (split) swap(to, tiles, columns);
        if (to.rows > 0) store_own(task, flags, to, column, columns, finds);
        if (split) peer.next();
    }
    __device__ void store_own(
        const Task& task, u32 flags, const Place& to, int column, int columns, bool finds) const {
        const float factor = is_after_norm(flags) ? factor_of(task, flags, to.column, columns) : 1.0f;
        const auto whole = [&](int row) {
            float2 sum = total(row, to.column);
            if (FUSED >> OP_NORM & 1) sum.x *= factor, sum.y *= factor;
            if (!PAIRS || !(flags & SPLIT)) return sum;
            const float2 more = peer.had(row, to.column);
            return float2{sum.x + more.x, sum.y + more.y};
        };
        const float2 sum = whole(to.row);
        const Pair own(sum.x, sum.y);
        Pair result = own;
        bool is_result = true;
        if (adds(flags)) {
            const Pair more = added(task, flags, to, column + to.column);
            result = Pair(own.first() + more.first(), own.second() + more.second());
        } else if (is_gated(flags)) {
            is_result = !(to.row & TILE_ROWS);  // tiles alternate: gates, then the factors of silu(gate)
            if (is_result) {
                const float2 sum_up = whole(to.row + TILE_ROWS);
                const Pair up(sum_up.x, sum_up.y);
                result = Pair(silu(own.first()) * up.first(), silu(own.second()) * up.second());
            }
        }
        if (to.box && is_result) boxes.send(to.box, result.both);
        storage* const c = (storage*)to.c;
        c[0] = own.first_stored();
        if (to.rows > 1) c[1] = own.second_stored();
        if ((adds(flags) || is_gated(flags)) && is_result)
            *(Pair*)((storage*)(task.result + (column + to.column) * task.result_stride) + to.to) = result;
        if (finds) find(to, own);
    }

#ifdef KIND
    // `find` keeps the largest logit of the thread's rows of all passes (sampling::found_at). `say_found` writes the block's
    // largest logit of each column to memory.
    __device__ bool finds_in(u64 i) const { return FINDS_LARGEST && i + 1 == q.count && feed.rows; }
    __device__ void begin_find() const {
        if (HOLDER < HOLDERS * COLUMNS) largest[HOLDER] = 0;
    }
    __device__ void find(const Place& to, const Pair& own) const {
        u64 most = sampling::found_at(own.first(), to.first);
        if (to.rows > 1) most = sampling::larger(most, sampling::found_at(own.second(), to.first + 1));
        largest[HOLDER] = sampling::larger(largest[HOLDER], most);
    }
    __device__ void say_found(int column, int columns) const {
        if (!SHORT && warp * 32 >= HOLDERS * COLUMNS) return;
        u64 word = HOLDER < HOLDERS * COLUMNS ? largest[HOLDER] : 0;
#pragma unroll
        for (int step = HOLDERS / 2; step; step >>= 1) word = sampling::larger(word, __shfl_xor_sync(0xFFFFFFFFu, word, step));
        const int own = own_column();
        // A block of a cluster may have stored no row. It writes 1, since 0 means that the block has not written yet.
        if (HOLDER % HOLDERS == 0 && own < columns)
            store_relaxed((u64)(feed.found + (column + own) * gridDim.x + block), max(word, 1ull));
    }
#else
    __device__ bool finds_in(u64) const { return false; }
    __device__ void begin_find() const {}
    __device__ void find(const Place&, const Pair&) const {}
    __device__ void say_found(int, int) const {}
#endif
    static __device__ float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }
};
