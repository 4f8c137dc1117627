// What a streamed GEMM gives: the sums of all warps, with what is done as one with it behind (devices/fusion.py), and where it
// goes.
// Two neighbours as they are stored.
struct Pair {
#if DTYPE == 0
    float2 both;
    __device__ Pair() {}
    __device__ Pair(float first, float second) : both{first, second} {}
    __device__ float first() const { return both.x; }
    __device__ float second() const { return both.y; }
    __device__ storage first_stored() const { return both.x; }
    __device__ storage second_stored() const { return both.y; }
#else
    u32 both;
    __device__ Pair() {}
    __device__ Pair(float first, float second) : both(narrow_two(first, second)) {}
    __device__ storage first_stored() const { return (storage)both; }
    __device__ storage second_stored() const { return (storage)(both >> 16); }
    __device__ float first() const { return widen(first_stored()); }
    __device__ float second() const { return widen(second_stored()); }
#endif
};

struct Results : Block {
    using Block::Block;
    // What all warps have of a pass, added up and stored, two rows a thread.
    struct Place {
        u64 box;
        int row, column, rows;  // of this thread, in a pass; rows that there are from its first on
        int first, to;          // of all rows, and of results
        Pair added;
    };
    __device__ Place place(const Task& task, int pass, int tiles, int column, int columns, u32 thread) const {
        Place made;
        made.row = thread % (PASS_ROWS / 2) * 2, made.column = thread / (PASS_ROWS / 2), made.rows = 0;
        if (made.row >= tiles * TILE_ROWS || made.column >= columns) return made;
        const int j = column + made.column, tile = pass + made.row / TILE_ROWS, below = made.row % TILE_ROWS;
        made.first = row_of_tile(tile, (u32)task.pair_rows) + below;
        made.to = (FUSED >> OP_SILU_MUL & 1) && task.pair_rows ? tile / 2 * TILE_ROWS + below : made.first;
        made.rows = (int)task.in.m - made.first;
        made.box = task.box ? task.box + now + (u32)(j * (int)task.result_m + made.to) * sizeof(storage) : 0;
        if ((FUSED >> OP_ADD & 1) && task.then == OP_ADD && made.rows > 0)
            made.added = *(const Pair*)((const storage*)(task.added + j * task.added_stride) + made.to);
        return made;
    }
    static __device__ float2 total(const Parts* parts, int row, int column) {
        float2 sums[GROUP_WARPS];
#pragma unroll
        for (int warp = 0; warp < GROUP_WARPS; ++warp) sums[warp] = *(const float2*)&parts[warp][column][row];
#pragma unroll
        for (int half = GROUP_WARPS / 2; half; half /= 2)
#pragma unroll
            for (int i = 0; i < half; ++i) sums[i].x += sums[i + half].x, sums[i].y += sums[i + half].y;
        return sums[0];
    }
    __device__ void store(const Task& task, const Place& to, int column, const Parts* parts) const {
        if (to.rows <= 0) return;
        const float2 sum = total(parts, to.row, to.column);
        const Pair own(sum.x, sum.y);
        Pair result = own;
        bool is_result = true;
        if ((FUSED >> OP_ADD & 1) && task.then == OP_ADD) {
            result = Pair(own.first() + to.added.first(), own.second() + to.added.second());
        } else if ((FUSED >> OP_SILU_MUL & 1) && task.then == OP_SILU_MUL) {
            is_result = !(to.row & TILE_ROWS);  // else the other factor
            if (is_result) {
                const float2 sum_up = total(parts, to.row + TILE_ROWS, to.column);
                const Pair up(sum_up.x, sum_up.y);
                result = Pair(silu(own.first()) * up.first(), silu(own.second()) * up.second());
            }
        }
        if (to.box && is_result) send(to.box, to.box + apart, result.both);
        const int j = column + to.column;
        storage* c = (storage*)(task.in.c + j * task.in.stride_c) + to.first;
        c[0] = own.first_stored();
        if (to.rows > 1) c[1] = own.second_stored();
        if (FUSED && task.then && is_result) *(Pair*)((storage*)(task.result + j * task.result_stride) + to.to) = result;
    }
    static __device__ float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }
};

#if COLUMNS == 1
// A warp that does nothing else adds up and stores what a pass of a single column gives, while the others are at the next one
// already: what leads to it is theirs, what follows from it its own.
struct Storer : Results {
    Turns turns;

    __device__ Storer(const Program& q, u32 launch, Memory& memory, const Turns& turns) : Results(q, launch, memory), turns(turns) {}
    __device__ void run(const List& list) {
        for (u32 i = 0; i < q.count; ++i) {
            const Plan plan = list.wait(i);
            if (plan.shares() && plan.streamed()) store(list.task(i), plan, i);
            list.leave(i);
        }
    }
    __device__ void store(const Task& task, const Plan& plan, u64 i) {
        if (plan.waits()) {
            wait(task, lane);
            __syncwarp();
        }
        const int first = first_tile(task, block);
#pragma unroll 1
        for (int pass = 0; pass < plan.tiles(); pass += PASS_TILES) {
            const Place to = place(task, first + pass, min((int)PASS_TILES, plan.tiles() - pass), 0, 1, lane);
            turns.wait_full();
            Results::store(task, to, 0, memory.part[turns.which()]);
            turns.leave_empty(lane);
        }
        if (task.counted && lane == 0) complete(i);
        stamp(i, DONE, lane == 0);
    }
};
#endif
