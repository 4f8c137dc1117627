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
#pragma unroll 1
        for (int j = FIRST_LOOKS; j < count; j += LOOKS) {
            uint4 more[LOOKS];
            enum { STEP = THREADS * 16 };
            ask(mailed, more, {from + j * STEP, 2 * STEP, STEP, (count - j + 1) / 2, (count - j) / 2});
#pragma unroll
            for (int i = 0; i < LOOKS; ++i)
                if (j + i < count) store_shared(to + (j + i) * THREADS * 16, ARRANGED ? arranged(more[i]) : more[i]);
        }
#else
        const int rows = input_rows(columns);
        if (own.part >= rows) return;
#pragma unroll 1
        for (int vector = own.vector; vector < vectors; vector += THREADS, from += THREADS * 16) {
            // One of a warp's at first until it is there, since all of them at once would keep the cache from others.
            if (mailed && is_first && lane == 0)
                while (!arrived(found[0])) found[0] = load_relaxed(from);
            take(task, columns, own, vector, from);
        }
#endif
    }
#if COLUMNS > 1
    // A vector of each of the own rows.
    __device__ void take(const Task& task, int columns, const Share& own, int vector, u64 from) const {
        const int rows = input_rows(columns);
        const u64 step = own.parts * task.from_bytes, apart = rows * task.from_bytes;
        const u32 step_to = own.parts * (u32)task.input_row_bytes;
        u32 to = shared_address(memory.inputs) + own.part * (u32)task.input_row_bytes;
        // Of how many rows the first column is still to be had, and of how many the second one.
        int left = (rows - own.part + own.parts - 1) / own.parts;
        int second = (columns - rows - own.part + own.parts - 1) / own.parts;
#pragma unroll 1
        for (; left > 0; left -= LOOKS / 2, second -= LOOKS / 2, from += LOOKS / 2 * step, to += LOOKS / 2 * step_to) {
            uint4 found[LOOKS];
            ask(task.mailed, found, {from, step, apart, left, second});
#pragma unroll
            for (int i = 0; i < LOOKS; i += 2)
                if (i / 2 < left) store_both(to + i / 2 * step_to, vector, found[i], found[i + 1]);
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
        for (bool there = !mailed; !there;) {  // those that are not there yet are asked for again together
            there = true;
#pragma unroll
            for (int i = 0; i < LOOKS; ++i) {
                if (arrived(found[i]) || !of.has(i, at)) continue;
                there = false;
                found[i] = load_relaxed(at);
            }
        }
    }

    // The same of whole columns, and their norms in place of them. Each vector is stored by one block. gain: a shared address.
    __device__ void gather_normed(const Task& task, u32 gain, int column, int columns, uint4 (&found)[FIRST_LOOKS]) {
        gather<false>(task, column, columns, 0, (int)task.row_used_bytes, true, found);
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
        const int bytes = (int)task.row_used_bytes, vectors = bytes / 16, last = (int)task.share - 1;
        const int second = warp + input_rows(columns);
        const u32 row = shared_address(memory.inputs) + warp * (u32)task.input_row_bytes;
        uint4 one, other;
        float sum = 0.0f, other_sum = 0.0f;
#pragma unroll 2
        for (int vector = lane; vector < vectors; vector += 32) {
            load_both(row, vector, one, other);
            sum += squares(one), other_sum += squares(other);
        }
        const float factor = factor_of(warp_sum(sum), bytes), other_factor = factor_of(warp_sum(other_sum), bytes);
        const bool stores = min(warp, last) == block, stores_other = second < columns && min(second, last) == block;
        const u64 to = task.normed + (column + warp) * task.normed_stride;
        const u64 to_other = task.normed + (column + second) * task.normed_stride;
#pragma unroll 2
        for (int vector = lane; vector < vectors; vector += 32) {
            const uint4 own_gain = load_shared(gain + vector * 16);
            load_both(row, vector, one, other);
            one = normed(one, own_gain, factor), other = normed(other, own_gain, other_factor);
            store_both(row, vector, one, other);
            if (stores) *(uint4*)(to + vector * 16) = one;
            if (stores_other) *(uint4*)(to_other + vector * 16) = other;
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
