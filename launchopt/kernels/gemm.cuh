// A streamed GEMM (weights.cuh, tiles.cuh) by a block, with a norm that is done as one with it before (devices/fusion.py).
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
#if DTYPE == 0
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) v.parts[i] *= factor * g.parts[i];
    return v.whole;
#else
    uint4 made;
    u32* words = (u32*)&made;
#pragma unroll
    for (int i = 0; i < WIDTH; i += 2)
        words[i / 2] = narrow_two(widen(v.parts[i]) * factor * widen(g.parts[i]), widen(v.parts[i + 1]) * factor * widen(g.parts[i + 1]));
    return made;
#endif
}
__device__ inline float warp_sum(float value) {
#pragma unroll
    for (int step = 16; step; step >>= 1) value += __shfl_xor_sync(0xFFFFFFFFu, value, step);
    return value;
}

__shared__ float norm_sums[2][GROUP_WARPS];  // of every other norm: others may still read those of the one before

struct Gemm : Results {
    Ring ring;
    Turns turns;
    u32 inputs, norms;  // address of the inputs; norms so far
    int held;           // slots that have been read, and are not told to be empty yet (GATED)
    u32 held_empty;     // the barrier of that of this lane's number

    __device__ Gemm(const Program& q, u32 launch, Memory& memory, const Ring& ring, const Turns& turns)
        : Results(q, launch, memory), ring(ring), turns(turns), inputs(shared_address(memory.inputs)), norms(0), held(0) {}

    // Inputs of some columns, `bytes` of k from `first` on, to shared memory. Each thread has a vector of all columns, or
    // several of the only one: then those that its own warp multiplies, which need not wait for others. The first ones are
    // asked for beforehand (`look`), so that what else is to be done meanwhile takes no time of its own.
    enum { LOOKS = COLUMNS > 1 && sizeof(storage) == 2 ? 8 : 4, STEP_BYTES = THREADS * 16 };
    typedef uint4 Looks[LOOKS];
    __device__ int own_byte() const {
        return COLUMNS > 1 ? threadIdx.x * 16 : lane / 16 * PIECE_BYTES + warp * SLICE_BYTES + lane % 16 * 16;
    }
    __device__ static void inputs_barrier() {
        if (COLUMNS > 1) __syncthreads();
        else __syncwarp();
    }
    static __device__ void ask(Looks& found, u64 at, u64 step, int count) {
#pragma unroll
        for (int i = 0; i < LOOKS; ++i)
            if (i < count) found[i] = load_relaxed(at + i * step);
    }
    // Until the only one is there, which is asked for again while the answer to another question is under way.
    static __device__ void await_one(uint4& found, u64 at) {
        uint4 later = load_relaxed(at);
        while (!arrived(found)) {
            found = load_relaxed(at);
            if (arrived(later)) {
                found = later;
                return;
            }
            later = load_relaxed(at);
        }
    }
    // Until all are there; those that are not are asked for again together.
    static __device__ void await(Looks& found, u64 at, u64 step, int count) {
        if (POLLS > 1 && count == 1) return await_one(found[0], at);
        for (bool there = false; !there;) {
            there = true;
#pragma unroll
            for (int i = 0; i < LOOKS; ++i) {
                if (i >= count || arrived(found[i])) continue;
                there = false;
                found[i] = load_relaxed(at + i * step);
            }
        }
    }
    static __device__ void put(const Looks& found, u32 to, u32 step, int count) {
#pragma unroll
        for (int i = 0; i < LOOKS; ++i)
            if (i < count) store_shared(to + i * step, found[i]);
    }
    __device__ int own_vectors(int bytes) const { return (bytes - own_byte() + STEP_BYTES - 1) / STEP_BYTES; }
    // from: of the first of them.
    __device__ void look(u64 from, int bytes, Looks& found) const {
        from += own_byte();
        if (COLUMNS == 1) ask(found, from, STEP_BYTES, own_vectors(bytes));
        else if (lane == 0 && own_byte() < bytes) found[0] = load_relaxed(from);
    }
    __device__ void gather(const Task& task, const Plan& plan, u64 from, int columns, int bytes, bool looked, Looks& found) const {
        u64 at = from + own_byte();
        u32 to = inputs + own_byte();
#if COLUMNS == 1
        int count = own_vectors(bytes);
#pragma unroll 1
        while (count > 0) {
            if (plan.mailed()) await(found, at, STEP_BYTES, count);
            put(found, to, STEP_BYTES, count);
            count -= LOOKS, at += LOOKS * STEP_BYTES, to += LOOKS * STEP_BYTES;
            ask(found, at, STEP_BYTES, count);
        }
#else
#pragma unroll 1
        for (int left = bytes - own_byte(); left > 0; left -= STEP_BYTES, at += STEP_BYTES, to += STEP_BYTES) {
            // One of a warp's at first until it is there, since all of them at once would keep the cache from others.
            if (plan.mailed() && looked && lane == 0)
                while (!arrived(found[0])) found[0] = load_relaxed(at);
#pragma unroll 1
            for (int j = 0; j < columns; j += LOOKS) {
                ask(found, at + j * task.from_bytes, task.from_bytes, columns - j);
                if (plan.mailed()) await(found, at + j * task.from_bytes, task.from_bytes, columns - j);
                put(found, to + j * (u32)task.column_bytes, (u32)task.column_bytes, columns - j);
            }
        }
#endif
    }

    // The same of whole columns, and their norms in place of them: a warp a column, or all warps the only one. Each vector is
    // stored by one block. gain: its slot's address, and its barrier's.
    __device__ void gather_normed(const Task& task, const Plan& plan, u64 from, u32 gain, u32 gain_empty, int column, int columns, Looks& found) {
        enum { LANES = COLUMNS > 1 ? 32 : THREADS };
        const int bytes = plan.bytes(), own = COLUMNS > 1 ? lane * 16 : own_byte(), last = (int)task.share - 1, place = (int)place_in(task, block);
        gather(task, plan, from, columns, bytes, true, found);
        if (COLUMNS > 1) __syncthreads();  // else a thread has what it has put there
#pragma unroll 1
        for (int j = COLUMNS > 1 ? warp : 0; j < columns; j += GROUP_WARPS) {
            const u32 column_at = inputs + j * (u32)task.column_bytes;
            float sum = 0.0f;
#pragma unroll 2
            for (int at = own; at < bytes; at += LANES * 16) sum += squares(load_shared(column_at + at));
            sum = warp_sum(sum);
            if (COLUMNS == 1) sum = block_sum(sum);
            const float factor = rsqrtf(__fdividef(sum, (float)(bytes / (int)sizeof(storage))) + 1e-5f);
            const u64 to = task.normed + (column + j) * task.normed_stride;
            int storing = COLUMNS > 1 ? j : warp;
#pragma unroll 2
            for (int at = own; at < bytes; at += LANES * 16, storing += COLUMNS > 1 ? 0 : GROUP_WARPS) {
                const uint4 made = normed(load_shared(column_at + at), load_shared(gain + at), factor);
                store_shared(column_at + at, made);
                if (min(storing, last) == place) *(uint4*)(to + at) = made;
            }
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(gain_empty);
    }
    __device__ float block_sum(float value) {
        float* sums = norm_sums[norms++ % 2];
        if (lane == 0) sums[warp] = value;
        __syncthreads();
        value = 0.0f;
#pragma unroll
        for (int i = 0; i < GROUP_WARPS; ++i) value += sums[i];
        return value;
    }

    // Pieces of all tiles, as many as `bytes` of k are, the first ones' slots found; `then`: bytes of the next round.
    __device__ void multiply_round(Sums& sums, Slices& w, u32 column_bytes, int tiles, int bytes, int then, int columns, bool ends) {
        u32 slice = inputs + warp * SLICE_BYTES;
#pragma unroll 1
        for (int left = bytes;;) {
            const int own = min(w.pieces, (left - warp * SLICE_BYTES + PIECE_BYTES - 1) / PIECE_BYTES);
            sums.add(w, max(own, 0), slice, column_bytes, columns, lane);
            left -= w.pieces * PIECE_BYTES, slice += w.pieces * PIECE_BYTES;
            if (GATED && ends && left <= 0 && !then) {
                held = w.tiles * w.pieces, held_empty = w.empty;
                return;
            }
            w.leave(lane);
            if (left <= 0 && !then) return;
            w.find(ring, tiles, left > 0 ? left : then, warp, lane);
            if (left <= 0) return;
        }
    }
    __device__ void let_go() {  // when all lanes have read them
        if (lane < held) barrier_arrive(held_empty);
        held = 0;
    }
    __device__ void streamed(const Task& task, const Plan& plan, u64 i, int column, int columns) {
        const int all = plan.bytes(), at_once = COLUMNS > 1 ? (int)task.round_bytes : INPUT_BYTES;
        const u32 column_bytes = COLUMNS > 1 ? (u32)task.column_bytes : 0;
        const u64 from = plan.from() + (COLUMNS > 1 ? column * task.from_bytes : 0);
#pragma unroll 1
        for (int pass = 0; pass < plan.tiles(); pass += PASS_TILES) {
            const int tiles = min((int)PASS_TILES, plan.tiles() - pass);
            Looks found;
            if (!pass || at_once < all) look(from, min(all, at_once), found);
            Sums sums = {};
            Slices w;
            const u32 gain = ring.slot(0), gain_empty = ring.empty(0);
            if (plan.normed() && !pass) ring.wait_full(1, lane), ring.advance(1);
            w.find(ring, tiles, min(all, at_once), warp, lane);
            if (COLUMNS == 1) turns.wait_empty();
#pragma unroll 1
            for (int round = 0; round < all; round += at_once) {
                const int bytes = min(all - round, at_once);
                if (at_once < all || !pass) {
                    if (round || pass || column || COLUMNS == 1) inputs_barrier();  // who reads it has read what was there
                    if (round) look(from + round, bytes, found);
                    if (plan.normed()) gather_normed(task, plan, from, gain, gain_empty, column, columns, found);
                    else gather(task, plan, from + round, columns, bytes, !round, found);
                    inputs_barrier();
                    if (GATED) let_go();
                    if (!round && !pass && !column) stamp(i, READY, threadIdx.x == 0);
                }
                multiply_round(sums, w, column_bytes, tiles, bytes, min(all - round - bytes, at_once), columns, pass + PASS_TILES >= plan.tiles());
            }
#if COLUMNS == 1
            sums.leave(memory.part[turns.which()][warp], tiles, 1, lane);
            turns.leave_full(lane);
#else
            const Place to = place(task, first_tile(task, block) + pass, tiles, column, columns, threadIdx.x);
            sums.leave(memory.part[0][warp], tiles, columns, lane);
            __syncthreads();
            store(task, to, column, memory.part[0]);
            if (pass + PASS_TILES < plan.tiles() || column + COLUMNS < task.in.requests) __syncthreads();
#endif
        }
    }
    __device__ void streamed(const Task& task, const Plan& plan, u64 i) {
        stamp(i, BEGAN, threadIdx.x == 0);
#if COLUMNS == 1
        if (plan.waits() && !plan.mailed()) {
            wait(task, lane);
            __syncwarp();
        }
        streamed(task, plan, i, 0, 1);
#else
        if (plan.waits()) {
            wait(task, threadIdx.x);
            // What comes by mail is waited for where it is read; what else is read before any other barrier is not.
            if (!plan.mailed() || task.then == OP_ADD) __syncthreads();
        }
#pragma unroll 1
        for (int column = 0, all = (int)task.in.requests; column < all; column += COLUMNS)
            streamed(task, plan, i, column, min((int)COLUMNS, all - column));
        if (task.counted) {
            __syncthreads();
            if (threadIdx.x == 0) complete(i);
        }
        stamp(i, DONE, threadIdx.x == 0);
#endif
    }
};
