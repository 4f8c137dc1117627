// What a block multiplies a GEMM's weights with: inputs of its columns, from memory or as they come by mail, in shared memory
// (of several columns of halves in registers: megakernel/gemm_in_registers.cuh); and the norm that is done as one with it.
//
// A norm's factor is the same for a whole column, so that it is left for what the GEMM gives: inputs are multiplied by the gain
// as they come, and their squares added up meanwhile. Of halves that is one rounding of an input, as with the factor; in fp16
// an input times its gain must be below 65,520 for that. What the norm gives by itself is nowhere.
// Used in turn, so that the next one can be written while one is read.
enum { PARTS = IN_REGISTERS || SHORT ? 2 : 1 };
struct Memory {  // shared, of a block; ops take what they need from its beginning
#if IN_REGISTERS
    union {
        char inputs[INPUT_BYTES];  // of ops alone, between GEMMs
        Parts part[PARTS][GROUP_WARPS];
    };
#else
    char inputs[INPUT_BYTES + COLUMNS / TOGETHER * INPUT_GAP_BYTES];
    Parts part[PARTS][GROUP_WARPS];
#endif
    alignas(128) char ring[SLOTS * SLOT_BYTES];  // bulk copies to odd multiples of 16 are slower
};

__shared__ float norm_sums[2][GROUP_WARPS][COLUMNS];  // of squares, by each warp; for every other norm of the list

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

#if !IN_REGISTERS
    // Inputs of some columns, `bytes` of k from `first` on, to shared memory. Each thread has a vector of all rows, of every
    // other one where there are few vectors, or several of the only one.
    enum { LOOKS = 4, FIRST_LOOKS = 2 };
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
    // Bytes of k of which a thread in two has every other row.
    static __device__ bool few(u32 bytes) { return COLUMNS > 1 && bytes <= THREADS / 2 * 16; }
    __device__ Share share(const Task& task, u32 flags, u32 column, u32 columns, u32 first, u32 bytes) const {
        const bool halved = few(bytes);
        const u32 vector = halved ? threadIdx.x % (THREADS / 2) : threadIdx.x, part = halved ? threadIdx.x / (THREADS / 2) : 0;
        Share own;
        own.vector = vector, own.vectors = bytes / 16, own.mailed = flags & MAILED;
        const u32 offset = first + vector * 16;
        own.from = task.from + (own.mailed ? boxes.now + in_box(offset) : offset) + (u64)(column + part) * task.from_bytes;
        settle(own.from);
#if COLUMNS > 1
        const u32 rows = input_rows(columns);
        own.step = task.from_bytes << halved, own.apart = rows * task.from_bytes;
        own.step_to = task.input_row_bytes << halved;
        own.to = shared_address(memory.inputs) + part * task.input_row_bytes;
        own.rows = (int)(rows - part + halved) >> halved, own.seconds = (int)(columns - rows - part + halved) >> halved;
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

    // is_first: whether others may have to be waited for long. gain: a shared address, of the norm before products, or 0; of
    // that, a thread has FIRST_LOOKS vectors at the most, or, of several columns, one of each (devices/fusion.py).
    // meanwhile: what is done before inputs are there, also by who has nothing to gather; then the gain is. is_odd: see
    // `norm_sums`.
#if COLUMNS == 1
    __device__ void leave_squares(float sum, bool is_odd) const {
        sum = warp_sum(sum);
        if (lane == 0) norm_sums[is_odd][warp][0] = sum;
    }
    // Nothing is asked for before all else is done: what is asked for sooner comes later.
    template <class Do> __device__ void gather(const Share& own, bool, u32 gain, bool is_odd, const Do& meanwhile) const {
        const u32 to = shared_address(memory.inputs) + own.vector * 16, step = own.bytes_of(THREADS);
        meanwhile();
        uint4 found[FIRST_LOOKS];
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < FIRST_LOOKS; ++i)
            if (own.vector + i * THREADS < own.vectors) found[i] = load_relaxed(own.from + i * step);
#pragma unroll
        for (int i = 0; i < FIRST_LOOKS; ++i) {
            if (own.vector - lane + i * THREADS >= own.vectors) {  // the whole warp
                if (gain) leave_squares(sum, is_odd);
                return;
            }
            const bool has = own.vector + i * THREADS < own.vectors;
            while (has && own.mailed && !arrived(found[i])) found[i] = load_relaxed(own.from + i * step);
            __syncwarp();  // else lanes whose vector came sooner go on by themselves, and the others do all again
            if (has && gain) {
                sum += squares(found[i]);
                found[i] = product(found[i], load_shared(gain + (own.vector + i * THREADS) * 16));
            }
            if (has) store_shared(to + i * THREADS * 16, arranged(found[i]));
        }
        if (gain) return leave_squares(sum, is_odd);
        const int count = (own.vectors - own.vector + THREADS - 1) / THREADS;
#pragma unroll 1
        for (int j = FIRST_LOOKS; j < count; j += LOOKS) {
            const Walk some = {own.from + j * step, 2 * step, step, (count - j + 1) / 2, (count - j) / 2};
            uint4 more[LOOKS];
            some.ask(more);
            if (own.mailed) some.collect(more);
#pragma unroll
            for (int i = 0; i < LOOKS; ++i)
                if (j + i < count) store_shared(to + (j + i) * THREADS * 16, arranged(more[i]));
        }
    }
#else
    // All lanes of a warp go through it together; what it polls for is asked for before all else.
    template <class Do>
    __device__ void gather(const Share& own, bool is_first, u32 gain, bool is_odd, const Do& meanwhile) const {
        const bool has = own.vector - lane < own.vectors, polls = has && own.mailed && is_first;
        uint4 found = {EMPTY, EMPTY, EMPTY, EMPTY};
        if (polls && lane == 0) found = load_relaxed(own.from);
        Batch batch(own, lane);
        uint4 more[LOOKS];
        if (polls) poll(own, found);
        if (has) batch.some(own, lane).ask(more);
        meanwhile();
        const Both to(own.to, own.vector);
        float* const sums = norm_sums[is_odd][warp];
        if (gain && !has && lane < COLUMNS) sums[lane] = 0.0f;
        if (!has) return;
#pragma unroll 1
        while (true) {  // with one place for all that is done with them: code takes its time to come, too
            batch.put(own, lane, more, to, gain, sums);
            if (!batch.is_left(own)) return;
            batch.some(own, lane).ask(more);
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
        // When they are there, times the gain; on to the next ones. sums: of squares, in the order in which they are asked for.
        __device__ void put(const Share& own, int lane, uint4 (&more)[LOOKS], const Both& to, u32 gain, float* sums) {
            const Walk these = some(own, lane);
            if (own.mailed) these.collect(more);
            if (gain) {
                float of[LOOKS];
                const uint4 by = load_shared(gain + min(own.vector, own.vectors - 1) * 16);
#pragma unroll
                for (int i = 0; i < LOOKS; ++i) of[i] = squares(more[i]), more[i] = product(more[i], by);
                const float sum = warp_sums(of, lane);
                if (lane % (32 / LOOKS) == 0) sums[2 * done + lane / (32 / LOOKS)] = sum;
            }
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
#endif
    // What all else of a norm is multiplied by, of a column of `columns`.
    __device__ float factor_of(const Task& task, u32 flags, int column, int columns) const {
        const float(&sums)[GROUP_WARPS][COLUMNS] = norm_sums[is_odd(flags)];
        int place = 0, first = 0;
        bool halved = false;
#if IN_REGISTERS
        place = column;
#elif COLUMN_PAIRS
        const int rows = input_rows(columns), second = column >= rows, row = column - (second ? rows : 0);
        halved = few(task.bytes);
        place = 2 * (row >> halved) + second, first = halved ? row % 2 * (GROUP_WARPS / 2) : 0;
#endif
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < GROUP_WARPS; ++i)
            if (!halved || i < GROUP_WARPS / 2) squares += sums[first + i][place];
        return rsqrtf(__fdividef(squares, (float)(task.bytes / sizeof(storage))) + 1e-5f);
    }
    static __device__ bool is_odd(u32 flags) { return flags & NORMED_ODD; }
};
