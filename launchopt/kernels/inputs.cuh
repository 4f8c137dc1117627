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
    Boxes boxes;

    __device__ Inputs(const Program& q, u32 launch, Memory& memory, const Ring& ring)
        : q(q), launch(launch), block(blockIdx.x), memory(memory), ring(ring), warp(threadIdx.x / 32), lane(threadIdx.x % 32),
          boxes(q.box_bytes, launch) {
        settle(block);
    }

    // Inputs of some columns, `bytes` of k from `first` on, to shared memory. Each thread has a vector of all rows, of every
    // other one where there are few vectors, or several of the only one.
    enum { LOOKS = COLUMNS > 1 && sizeof(storage) == 2 ? 8 : 4, FIRST_LOOKS = 2 };
    struct Share {
        u64 from;             // the first vector of the first column
        int vector, vectors;  // of k: the first one, behind which each THREADS-th comes; of all
        bool mailed;
#if COLUMNS > 1
        u32 step, apart;    // to the next row's first column; of a row to the second column
        u32 to, step_to;    // the first row, in shared memory, and to the next one
        int rows, seconds;  // of which the first column is to be had, and the second one
#endif
        __device__ void forgo() { vectors = 0; }
        // From a vector to one so many whole sectors behind it.
        __device__ u32 bytes_of(u32 vectors) const { return vectors * 16 * (mailed ? SECTORS_APART : 1); }
    };
    __device__ Share share(const Task& task, u32 flags, u32 column, u32 columns, u32 first, u32 bytes) const {
        const bool few = COLUMNS > 1 && bytes <= THREADS / 2 * 16;  // a thread in two has every other row
        const u32 vector = few ? threadIdx.x % (THREADS / 2) : threadIdx.x, part = few ? threadIdx.x / (THREADS / 2) : 0;
        Share own;
        own.vector = vector, own.vectors = bytes / 16, own.mailed = flags & MAILED;
        const u32 offset = first + vector * 16;
        own.from = task.from + (own.mailed ? boxes.now + in_box(offset) : offset) + (u64)(column + part) * task.from_bytes;
        settle(own.from);
#if COLUMNS > 1
        const u32 rows = input_rows(columns);
        own.step = task.from_bytes << few, own.apart = rows * task.from_bytes;
        own.step_to = task.input_row_bytes << few;
        own.to = shared_address(memory.inputs) + part * task.input_row_bytes;
        own.rows = (int)(rows - part + few) >> few, own.seconds = (int)(columns - rows - part + few) >> few;
        settle(own.step), settle(own.apart);
        if (own.rows <= 0) own.forgo();
#endif
        return own;
    }
    // Vectors two by two: so many of the first ones, and of the second ones, which lie `apart`.
    struct Walk {
        u64 from;
        u32 step, apart;
        int first, second;
        __device__ u64 at(int i) const { return from + i / 2 * step + i % 2 * apart; }
        __device__ bool has(int i) const { return i / 2 < (i % 2 ? second : first); }
        // Some of them, or zeros.
        __device__ void ask(uint4 (&found)[LOOKS]) const {
#pragma unroll
            for (int i = 0; i < LOOKS; ++i) found[i] = has(i) ? load_relaxed(at(i)) : uint4{0, 0, 0, 0};
        }
        static __device__ bool waits(const uint4 (&found)[LOOKS]) {
            return COLUMNS > 1 ? __any_sync(0xFFFFFFFFu, !all_arrived(found)) : !all_arrived(found);
        }
        // Until all of them have arrived, of several columns all of the warp's: those that have not are asked for again
        // together.
        __device__ void collect(uint4 (&found)[LOOKS]) const {
            while (waits(found)) {
#pragma unroll
                for (int i = 0; i < LOOKS; ++i)
                    if (!arrived(found[i]) && has(i)) found[i] = load_relaxed(at(i));
            }
        }
    };

    // is_first: whether others may have to be waited for long; is_normed: whether a norm is done before products.
    // meanwhile: what is done before inputs are there, also by who has nothing to gather.
#if COLUMNS == 1
    // Nothing is asked for before all else is done: what is asked for sooner comes later (RESIDENT.md, version 40).
    template <class Do> __device__ void gather(const Share& own, bool, bool is_normed, const Do& meanwhile) const {
        const auto put = [&](u32 to, const uint4& vector) { store_shared(to, is_normed ? vector : arranged(vector)); };
        meanwhile();
        const u32 to = shared_address(memory.inputs) + own.vector * 16, step = own.bytes_of(THREADS);
        uint4 found[FIRST_LOOKS];
#pragma unroll
        for (int i = 0; i < FIRST_LOOKS; ++i)
            if (own.vector + i * THREADS < own.vectors) found[i] = load_relaxed(own.from + i * step);
#pragma unroll
        for (int i = 0; i < FIRST_LOOKS; ++i) {
            if (own.vector - lane + i * THREADS >= own.vectors) return;  // the whole warp
            const bool has = own.vector + i * THREADS < own.vectors;
            while (has && own.mailed && !arrived(found[i])) found[i] = load_relaxed(own.from + i * step);
            __syncwarp();  // else lanes whose vector came sooner go on by themselves, and the others do all again
            if (has) put(to + i * THREADS * 16, found[i]);
        }
        const int count = (own.vectors - own.vector + THREADS - 1) / THREADS;
#pragma unroll 1
        for (int j = FIRST_LOOKS; j < count; j += LOOKS) {
            const Walk some = {own.from + j * step, 2 * step, step, (count - j + 1) / 2, (count - j) / 2};
            uint4 more[LOOKS];
            some.ask(more);
            if (own.mailed) some.collect(more);
#pragma unroll
            for (int i = 0; i < LOOKS; ++i)
                if (j + i < count) put(to + (j + i) * THREADS * 16, more[i]);
        }
    }
#else
    // All lanes of a warp go through it together; what it polls for is asked for before all else.
    template <class Do> __device__ void gather(const Share& own, bool is_first, bool, const Do& meanwhile) const {
        const bool has = own.vector - lane < own.vectors, polls = has && own.mailed && is_first;
        uint4 found = {EMPTY, EMPTY, EMPTY, EMPTY};
        if (polls && lane == 0) found = load_relaxed(own.from);
        Batch batch(own, lane);
        uint4 more[LOOKS];
        if (polls) poll(own, found);
        if (has) batch.some(own, lane).ask(more);
        meanwhile();
        const Both to(own.to, own.vector);
        if (has) batch.put(own, lane, more, to);
#pragma unroll 1
        while (batch.is_left(own)) {
            batch.some(own, lane).ask(more);
            batch.put(own, lane, more, to);
        }
    }
    // What is asked for at once, of a warp: vectors of so many rows, from one of them on.
    struct Batch {
        int first, done;  // the first lane's vector; rows before
        u64 from;
        u32 further;
        __device__ Batch(const Share& own, int lane) : first(own.vector - lane), done(0), from(own.from), further(0) {}
        __device__ bool is_left(const Share& own) const { return first < own.vectors; }
        __device__ Walk some(const Share& own, int lane) const {
            const bool has = first + lane < own.vectors;
            return {from, own.step, own.apart, has ? own.rows - done : 0, has ? own.seconds - done : 0};
        }
        // When they are there; on to the next ones.
        __device__ void put(const Share& own, int lane, uint4 (&more)[LOOKS], const Both& to) {
            const Walk these = some(own, lane);
            if (own.mailed) these.collect(more);
#pragma unroll
            for (int i = 0; i < LOOKS; i += 2)
                if (these.has(i)) to.store(further + i / 2 * own.step_to, more[i], more[i + 1]);
            done += LOOKS / 2, from += LOOKS / 2 * own.step, further += LOOKS / 2 * own.step_to;
            if (done < own.rows) return;
            first += THREADS, done = 0;
            const int behind = first + lane - own.vector;
            from = own.from + own.bytes_of(behind), further = behind * 16 * TOGETHER;
        }
    };
    // Until the first one of a warp's is there, since all of them at once would keep the cache from others.
    __device__ void poll(const Share& own, uint4& found) const {
        if (lane == 0)
            while (!arrived(found)) found = load_relaxed(own.from);
        __syncwarp();
    }
#endif
    // The norms of whole columns, in place of them. Each vector is stored by one block. gain: a shared address.
    __device__ void norm(const Task& task, u32 gain, int column, int columns) const {
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
        const int bytes = (int)task.bytes, own = lane * 16;
        const Both row(shared_address(memory.inputs) + warp * task.input_row_bytes, lane);
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
        const int bytes = (int)task.bytes, own = threadIdx.x * 16;
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
