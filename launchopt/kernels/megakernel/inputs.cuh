// The inputs of a streamed GEMM. A block loads them from memory, or from mailboxes, into shared memory. With IN_REGISTERS,
// megakernel/gemm_in_registers.cuh loads them into registers instead. A norm before the GEMM is fused here.
//
// A norm multiplies each input by its gain and by a factor: 1 / the root mean square of the column. The block multiplies each
// input by its gain when the input arrives, and adds up the squares of the inputs. The factor is the same for a whole column,
// so the block multiplies the GEMM's outputs by it (`factor_of`). Each input of halves is rounded once, as in a norm that is
// not fused. In fp16 an input times its gain must be below 65,520. The output of the norm itself is stored nowhere.
enum { PARTS = IN_REGISTERS || SHORT ? 2 : 1 };  // buffers for sums; with two, threads write one while others read the other
struct Memory {  // dynamic shared memory of a block; ops that are not GEMMs use it from its beginning
#if IN_REGISTERS
    union {
        char inputs[INPUT_BYTES];  // used by ops only, between GEMMs
        Parts part[PARTS][GROUP_WARPS];
    };
#else
    char inputs[INPUT_BYTES + COLUMNS / TOGETHER * INPUT_GAP_BYTES];
    Parts part[PARTS][GROUP_WARPS];
#endif
    alignas(128) char ring[SLOTS * SLOT_BYTES];  // slots of weights; bulk copies to odd multiples of 16 bytes are slower
};

// Each warp's sums of squares of a norm's inputs. The norms of the list use the two buffers in turn.
__shared__ float norm_sums[2][GROUP_WARPS][COLUMNS];

// A block of the grid: its memory, its position in the ring of weights, and its mailboxes.
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
    // A thread's share of the inputs of some columns: vectors of 16 bytes within a range of k. A row of shared memory holds one
    // column, or two (COLUMN_PAIRS). A thread has the same vector of all rows. If k has few vectors (`few`), each half of the
    // threads has the vectors of every other row. Every THREADS-th further vector of k is the thread's, too.
    //
    // LOOKS: vectors that a thread loads at once. FIRST_LOOKS: vectors that it loads first, with one column.
    enum { LOOKS = 4, FIRST_LOOKS = 2 };
    struct Share {
        u64 from;  // address of the thread's first vector, in its first column
        int vector, vectors;  // index of the thread's first vector in k; number of vectors of k
        bool mailed;  // the inputs come through mailboxes
#if COLUMNS > 1
        u32 step, apart;  // bytes in memory to the first column of the next row; bytes to the second column of the same row
        u32 to, step_to;  // shared address of the thread's first row; bytes from there to its next row
        int rows, seconds;  // number of the thread's rows; number of those rows that have a second column
#endif
        __device__ void forgo() { vectors = 0; }  // load nothing
        // Return the bytes from a vector to the one that follows `vectors` vectors later in k. `vectors` must be even, so that
        // the distance is a whole number of sectors (32 bytes).
        __device__ u32 bytes_of(u32 vectors) const { return vectors * 16 * (mailed ? SECTORS_APART : 1); }
    };
    // Return whether `bytes` of k are so few that each half of the threads loads every other row.
    static __device__ bool few(u32 bytes) { return COLUMNS > 1 && bytes <= THREADS / 2 * 16; }
    // Return this thread's share of `columns` columns from `column` on, for `bytes` of k from byte `first` on.
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
    // Vectors that a thread loads at once, in pairs: vector 2 i is in the first column of row i, vector 2 i + 1 in its second
    // column. from: address of vector 0. step: bytes from one pair to the next. apart: bytes from the first vector of a pair to
    // the second. first, second: number of pairs that have a first vector, and a second vector.
    struct Walk {
        u64 from;
        u32 step, apart;
        int first, second;
        __device__ u64 at(int i) const { return from + i / 2 * step + i % 2 * apart; }
        __device__ bool has(int i) const { return i / 2 < (i % 2 ? second : first); }
        // Load LOOKS vectors. Vectors that do not exist become zeros.
        __device__ void load(uint4 (&found)[LOOKS]) const {
#pragma unroll
            for (int i = 0; i < LOOKS; ++i) found[i] = has(i) ? load_relaxed(at(i)) : uint4{0, 0, 0, 0};
        }
        static __device__ bool waits(const uint4 (&found)[LOOKS]) {
            return COLUMNS > 1 ? __any_sync(0xFFFFFFFFu, !all_arrived(found)) : !all_arrived(found);
        }
        // Poll the mailboxes until all LOOKS vectors have arrived; with several columns, until those of all lanes have. Each
        // poll loads all missing vectors at once.
        __device__ void collect(uint4 (&found)[LOOKS]) const {
            while (waits(found)) {
#pragma unroll
                for (int i = 0; i < LOOKS; ++i)
                    if (!arrived(found[i]) && has(i)) found[i] = load_relaxed(at(i));
            }
        }
    };

    // gather: load a share of the inputs into shared memory.
    //
    // is_first: the inputs may not have been sent yet, so the warp polls before it loads. gain: shared address of the gain of a
    // norm, or 0. With a gain, a thread has at most FIRST_LOOKS vectors, or one vector of each row
    // (devices/instructions/fusion.py). meanwhile: work that does not need the inputs; all threads do it. After it, the gain
    // is in shared memory. is_odd: index into `norm_sums`.
#if COLUMNS == 1
    __device__ void leave_squares(float sum, bool is_odd) const {
        sum = warp_sum(sum);
        if (lane == 0) norm_sums[is_odd][warp][0] = sum;
    }
    // The loads follow all other work: polling a mailbox early delays the output that is sent to it.
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
            if (own.vector - lane + i * THREADS >= own.vectors) {  // no lane of the warp has this vector
                if (gain) leave_squares(sum, is_odd);
                return;
            }
            const bool has = own.vector + i * THREADS < own.vectors;
            while (has && own.mailed && !arrived(found[i])) found[i] = load_relaxed(own.from + i * step);
            // Without this barrier, lanes whose vector came first go on alone, and the warp repeats the code for the others.
            __syncwarp();
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
            some.load(more);
            if (own.mailed) some.collect(more);
#pragma unroll
            for (int i = 0; i < LOOKS; ++i)
                if (j + i < count) store_shared(to + (j + i) * THREADS * 16, arranged(more[i]));
        }
    }
#else
    // All lanes of a warp execute this together. The load that the warp polls is issued before all others.
    template <class Do>
    __device__ void gather(const Share& own, bool is_first, u32 gain, bool is_odd, const Do& meanwhile) const {
        const bool has = own.vector - lane < own.vectors, polls = has && own.mailed && is_first;
        uint4 found = {EMPTY, EMPTY, EMPTY, EMPTY};
        if (polls && lane == 0) found = load_relaxed(own.from);
        Batch batch(own, lane);
        uint4 more[LOOKS];
        if (polls) poll(own, found);
        if (has) batch.some(own, lane).load(more);
        meanwhile();
        const Both to(own.to, own.vector);
        float* const sums = norm_sums[is_odd][warp];
        if (gain && !has && lane < COLUMNS) sums[lane] = 0.0f;
        if (!has) return;
#pragma unroll 1
        while (true) {  // the body exists once, since longer code takes longer to fetch
            batch.put(own, lane, more, to, gain, sums);
            if (!batch.is_left(own)) return;
            batch.some(own, lane).load(more);
        }
    }
    // The vectors that a warp loads at once: one vector per lane and column of LOOKS / 2 rows.
    struct Batch {
        int first, done;  // index in k of the first lane's vector; number of rows that are complete
        u64 from;  // address of this lane's first vector of these rows
        u32 further;  // bytes in shared memory from the share's first vector to that vector
        __device__ Batch(const Share& own, int lane) : first(own.vector - lane), done(0), from(own.from), further(0) {}
        __device__ bool is_left(const Share& own) const { return first < own.vectors; }
        __device__ Walk some(const Share& own, int lane) const {
            const bool has = first + lane < own.vectors;
            return {from, own.step, own.apart, has ? own.rows - done : 0, has ? own.seconds - done : 0};
        }
        // Wait for the vectors, multiply them by the gain, store them in shared memory, and go to the next rows. sums: the
        // warp's sums of squares, one per column in the order of the loads.
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
    // Wait until the first vector of the warp has arrived. Only one lane polls: polls of 32 lanes would slow the L2 cache for
    // other blocks.
    __device__ void poll(const Share& own, uint4& found) const {
        if (lane == 0)
            while (!arrived(found)) found = load_relaxed(own.from);
        __syncwarp();
    }
#endif
#endif
    // Return the factor of the norm for one of `columns` columns: 1 / the root mean square of the column's inputs.
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
        return rsqrtf(__fdividef(squares, (float)(task.bytes / sizeof(storage))) + NORM_EPSILON);
    }
    static __device__ bool is_odd(u32 flags) { return flags & NORMED_ODD; }
};
