// What a block multiplies a GEMM's weights with: inputs of its columns, from memory or as they come by mail, in shared memory;
// and the norm that is done as one with it.
struct Memory {  // shared, of a block; ops take what they need from its beginning
    char inputs[INPUT_BYTES + COLUMNS / TOGETHER * INPUT_GAP_BYTES];
    Parts part[GROUP_WARPS];
    alignas(128) char ring[SLOTS * SLOT_BYTES];  // bulk copies to odd multiples of 16 are slower (RESIDENT.md)
};

__shared__ float norm_sums[GROUP_WARPS];

// A block of the grid, and where it is in the list.
struct Inputs {
    Program q;
    u32 launch, block;
    Memory& memory;
    Ring ring;
    int warp, lane;
    u64 now, other;  // where the boxes of this launch lie, and those of the next one, from the first ones on

    __device__ Inputs(const Program& q, u32 launch, Memory& memory, const Ring& ring)
        : q(q), launch(launch), block(blockIdx.x), memory(memory), ring(ring), warp(threadIdx.x / 32), lane(threadIdx.x % 32) {
        now = launch % 2 * q.box_bytes, other = (launch + 1) % 2 * q.box_bytes;
    }

    // Inputs of some columns, `bytes` of k from `first` on, to shared memory. Each thread has a vector of all rows, of every
    // other one where there are few vectors, or several of the only one. What it has is found out before any of it is there,
    // and the first few are asked for then (`look`), so that what else is to be done meanwhile takes no time of its own.
    enum { LOOKS = COLUMNS > 1 && sizeof(storage) == 2 ? 8 : 4, FIRST_LOOKS = COLUMNS > 1 || PRELOADED ? 1 : 2 };
    struct Share {
        u64 from;             // the first vector of the first column
        int vector, vectors;  // of k: the first one, behind which each THREADS-th comes; of all
        bool mailed;
#if COLUMNS > 1
        u64 step, apart;    // to the next row's first column; of a row to the second column
        u32 to, step_to;    // the first row, in shared memory, and to the next one
        int rows, seconds;  // of which the first column is to be had, and the second one
#endif
    };
    __device__ Share share(const Task& task, int column, int columns, int first, int bytes) const {
        const bool few = COLUMNS > 1 && bytes <= THREADS / 2 * 16;  // a thread in two has every other row
        const int vector = few ? threadIdx.x % (THREADS / 2) : threadIdx.x, part = few ? threadIdx.x / (THREADS / 2) : 0;
        Share own;
        own.vector = vector, own.vectors = bytes / 16, own.mailed = task.mailed;
        own.from = task.from + (own.mailed ? now : 0) + (column + part) * task.from_bytes + first + vector * 16;
        settle(own.from);
#if COLUMNS > 1
        const int rows = input_rows(columns);
        own.step = task.from_bytes << few, own.apart = rows * task.from_bytes;
        own.step_to = (u32)task.input_row_bytes << few;
        own.to = shared_address(memory.inputs) + part * (u32)task.input_row_bytes;
        own.rows = (rows - part + few) >> few, own.seconds = (columns - rows - part + few) >> few;
        settle(own.step), settle(own.apart);
#endif
        return own;
    }
    __device__ void look(const Share& own, uint4 (&found)[FIRST_LOOKS]) const {
#if COLUMNS > 1
        if (lane || own.rows <= 0) return;
#endif
#pragma unroll
        for (int i = 0; i < FIRST_LOOKS; ++i)
            if (own.vector + i * THREADS < own.vectors) found[i] = load_relaxed(own.from + i * THREADS * 16);
    }
    // is_first: whether others may have to be waited for long.
    template <bool ARRANGED = true>
    __device__ void gather(const Share& own, bool is_first, uint4 (&found)[FIRST_LOOKS]) const {
#if COLUMNS == 1
        const u32 to = shared_address(memory.inputs) + own.vector * 16;
#pragma unroll
        for (int i = 0; i < FIRST_LOOKS; ++i) {
            if (own.vector + i * THREADS >= own.vectors) return;
            while (own.mailed && !arrived(found[i])) found[i] = load_relaxed(own.from + i * THREADS * 16);
            store_shared(to + i * THREADS * 16, ARRANGED ? arranged(found[i]) : found[i]);
        }
        const int count = (own.vectors - own.vector + THREADS - 1) / THREADS;
#pragma unroll 1
        for (int j = FIRST_LOOKS; j < count; j += LOOKS) {
            uint4 more[LOOKS];
            enum { STEP = THREADS * 16 };
            ask(own.mailed, more, {own.from + j * STEP, 2 * STEP, STEP, (count - j + 1) / 2, (count - j) / 2});
#pragma unroll
            for (int i = 0; i < LOOKS; ++i)
                if (j + i < count) store_shared(to + (j + i) * THREADS * 16, ARRANGED ? arranged(more[i]) : more[i]);
        }
#else
        if (own.rows <= 0) return;
        u64 from = own.from;
#pragma unroll 1
        for (int vector = own.vector; vector < own.vectors; vector += THREADS, from += THREADS * 16) {
            const Both to(own.to, vector);
            // One of a warp's at first until it is there, since all of them at once would keep the cache from others.
            if (own.mailed && is_first && lane == 0)
                while (!arrived(found[0])) found[0] = load_relaxed(from);
            take(own, to, from);
        }
#endif
    }
#if COLUMNS > 1
    // A vector of each of the own rows.
    __device__ void take(const Share& own, const Both& to, u64 from) const {
        u32 further = 0;
#pragma unroll 1
        for (int done = 0; done < own.rows; done += LOOKS / 2) {
            uint4 found[LOOKS];
            ask(own.mailed, found, {from, own.step, own.apart, own.rows - done, own.seconds - done});
#pragma unroll
            for (int i = 0; i < LOOKS; i += 2)
                if (done + i / 2 < own.rows) to.store(further + i / 2 * own.step_to, found[i], found[i + 1]);
            from += LOOKS / 2 * own.step, further += LOOKS / 2 * own.step_to;
        }
    }
#endif
    // Vectors two by two: so many of the first ones, and of the second ones, which lie `apart`.
    struct Walk {
        u64 from, step, apart;
        int first, second;
        __device__ bool has(int i, u64& at) const {
            at = from + i / 2 * step + i % 2 * apart;
            return i / 2 < (i % 2 ? second : first);
        }
    };
    // Some of them, or zeros.
    __device__ static void ask(bool mailed, uint4 (&found)[LOOKS], Walk of) {
        u64 at;
#pragma unroll
        for (int i = 0; i < LOOKS; ++i) found[i] = of.has(i, at) ? load_relaxed(at) : uint4{0, 0, 0, 0};
        while (mailed) {
            bool all = true;
#pragma unroll
            for (int i = 0; i < LOOKS; ++i) all &= arrived(found[i]);
            if (all) return;
#pragma unroll
            for (int i = 0; i < LOOKS; ++i)  // those that are not there yet are asked for again together
                if (!arrived(found[i]) && of.has(i, at)) found[i] = load_relaxed(at);
        }
    }

    // The same of whole columns, and their norms in place of them. Each vector is stored by one block. gain: a shared address.
    __device__ void gather_normed(
        const Task& task, const Share& own, u32 gain, int column, int columns, uint4 (&found)[FIRST_LOOKS]) {
        gather<false>(own, true, found);
#if COLUMNS == 1  // a thread has what it has put there
        norm_by_all(task, gain, column);
#else
        __syncthreads();
        if (warp < input_rows(columns)) norm_row(task, gain, column, columns);
#endif
    }
    __device__ static float factor_of(float squares, int bytes) {
        return rsqrtf(__fdividef(squares, (float)(bytes / (int)sizeof(storage))) + 1e-5f);
    }
#if COLUMNS > 1
    // A warp has a row, of whose two columns one does not wait for the other; the second one may not be there.
    __device__ void norm_row(const Task& task, u32 gain, int column, int columns) const {
        enum { STEP = 32 * 16 };
        const int bytes = (int)task.row_used_bytes, own = lane * 16;
        const Both row(shared_address(memory.inputs) + warp * (u32)task.input_row_bytes, lane);
        uint4 one, other;
        float sum = 0.0f, other_sum = 0.0f;
#pragma unroll 2
        for (int at = 0; own + at < bytes; at += STEP) {
            row.load(2 * at, one, other);
            sum += squares(one), other_sum += squares(other);
        }
        const float factor = factor_of(warp_sum(sum), bytes), other_factor = factor_of(warp_sum(other_sum), bytes);
#pragma unroll 2
        for (int at = 0; own + at < bytes; at += STEP) {
            const uint4 own_gain = load_shared(gain + own + at);
            row.load(2 * at, one, other);
            row.store(2 * at, normed(one, own_gain, factor), normed(other, own_gain, other_factor));
        }
        const int last = (int)task.share - 1, second = warp + input_rows(columns);
        const bool stores = min(warp, last) == block, stores_other = second < columns && min(second, last) == block;
        if (!stores && !stores_other) return;
        const u64 to = task.normed + (column + warp) * task.normed_stride + own;
        const u64 to_other = task.normed + (column + second) * task.normed_stride + own;
        for (int at = 0; own + at < bytes; at += STEP) {
            row.load(2 * at, one, other);
            if (stores) *(uint4*)(to + at) = one;
            if (stores_other) *(uint4*)(to_other + at) = other;
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
};
