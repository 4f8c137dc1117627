// Attention of one column a request, from q, k and v of a GEMM to what the next one reads, by a block for each request and kv
// head: what ROPE, KV_WRITE, QK, SOFTMAX and AV (attention.cuh) do one after another, with all they store, and rounded where
// they round. Keys and values of earlier tokens are from earlier launches; the new ones it has itself.
enum { AT_ONCE = 4 };  // queries, of values
enum { MOST_HEAD_DIM = 256 };
// Cosines, then sines, of a request's position, which all layers share: whose they are, and at which position.
__shared__ float turned[MOST_HEAD_DIM];
__shared__ int turned_of[2];

struct Attention {
    const Task& task;
    u64 now, other;  // as in Gemm
    int request, head, start, stop, slot;
    const int* pages;
#if HEAD_DIM
    enum { head_dim = HEAD_DIM, group = GROUP, vectors = HEAD_DIM / WIDTH };
#else
    int head_dim, group, vectors;  // vectors of a head
#endif
    float *scores, *part;  // [group][ctx]; [GROUP_WARPS][AT_ONCE][head_dim]
    storage* rows;         // [group + 2][head_dim]: queries, key, value
    uint4 first_key, first_value;  // of this thread in `score` and `mix`, asked for before it is known what for

    __device__ Attention(const Task& task, u64 now, u64 other, char* scratch, int item) : task(task), now(now), other(other) {
        const Instruction& in = task.in;
        const int heads = (int)in.kv_heads;
        request = item / heads, head = item - request * heads;
#if !HEAD_DIM
        head_dim = (int)in.head_dim, group = (int)in.q_heads / heads, vectors = head_dim / WIDTH;
#endif
        rows = (storage*)scratch, scores = (float*)(rows + (group + 2) * head_dim);
        part = scores + (group * (int)in.ctx + 3) / 4 * 4;
        const int r = (int)in.first_request + request;
        start = ((const int*)in.positions)[r], stop = min(start + 1, (int)in.ctx);
        slot = *(const int*)(task.slots + request * task.slots_stride);
        pages = (const int*)in.table + r * in.pages;
    }
    __device__ u32 page_tokens() const { return PAGE_TOKENS ? PAGE_TOKENS : (u32)task.in.page_tokens; }
    // Where section i of `rows` begins in a request's row of q, k and v.
    __device__ int place(int section) const {
        const int kv_heads = (int)task.in.kv_heads, q_heads = kv_heads * group;
        if (section < group) return (head * group + section) * head_dim;
        return (q_heads + head + (section > group ? kv_heads : 0)) * head_dim;
    }
    __device__ storage* cached(u32 page, u32 offset, int is_value) const {
        const Instruction& in = task.in;
        return (storage*)task.cache + (((page * 2ll + is_value) * page_tokens() + offset) * in.kv_heads + head) * head_dim;
    }
    // A vector of the key or value of a token.
    __device__ uint4 key_or_value(int token, int is_value, int vector) const {
        if (token == start) return ((const uint4*)(rows + (group + is_value) * head_dim))[vector];
        const u32 size = page_tokens(), index = (u32)token / size;
        return ((const uint4*)cached((u32)pages[index], (u32)token - index * size, is_value))[vector];
    }

    // What is there already.
    __device__ void look() {
        const int key = threadIdx.x / KEY_LANES, lane = threadIdx.x % KEY_LANES, value = threadIdx.x / vectors;
        if (key < min(start, stop) && lane < vectors) first_key = key_or_value(key, 0, lane);
        if (value < min(start, stop)) first_value = key_or_value(value, 1, threadIdx.x - value * vectors);
    }
    // Float64, as in ROPE. After a barrier.
    __device__ void turn() {
        const int r = (int)task.in.first_request + request, half = head_dim / 2;
        if (turned_of[0] == r && turned_of[1] == start) return;
        const double octaves = log2(task.in.theta);
        for (int i = threadIdx.x; i < half; i += THREADS) {
            const double turns = start * exp2(-octaves * i / half) * 0.15915494309189535;
            double sine, cosine;
            sincospi(2.0 * (turns - rint(turns)), &sine, &cosine);
            turned[i] = (float)cosine, turned[half + i] = (float)sine;
        }
        __syncthreads();
        if (threadIdx.x == 0) turned_of[0] = r, turned_of[1] = start;
    }
    __device__ void gather() {
        const u64 from = task.from + (task.mailed ? now : 0) + request * task.from_bytes;
        for (int i = threadIdx.x; i < (group + 2) * vectors; i += THREADS) {
            const int section = i / vectors;
            const u64 at = from + (place(section) + (i - section * vectors) * WIDTH) * sizeof(storage);
            uint4 found = load_relaxed(at);
            while (task.mailed && !arrived(found)) found = load_relaxed(at);
            ((uint4*)rows)[i] = found;
        }
    }
    __device__ void rotate() {
        const int half = head_dim / 2;
        storage* c = (storage*)(task.in.c + request * task.in.stride_c);
        for (int i = threadIdx.x; i < (group + 1) * half; i += THREADS) {
            const int section = i / half, pair = i - section * half, to = place(section) + pair;
            storage* row = rows + section * head_dim + pair;
            const float x = widen(row[0]), y = widen(row[half]), cosine = turned[pair], sine = turned[half + pair];
            c[to] = row[0] = narrow(x * cosine - y * sine), c[to + half] = row[half] = narrow(x * sine + y * cosine);
        }
        for (int i = threadIdx.x; i < head_dim; i += THREADS) c[place(group + 1) + i] = rows[(group + 1) * head_dim + i];
    }
    __device__ void write() const {  // a key and a value; a token beyond ctx has no slot
        const int value = threadIdx.x / vectors, vector = threadIdx.x - value * vectors;
        if (slot < 0 || value > 1) return;
        const u32 size = page_tokens(), page = (u32)slot / size;
        uint4* const to = (uint4*)cached(page, (u32)slot - page * size, value);
        to[vector] = ((const uint4*)(rows + (group + value) * head_dim))[vector];
    }
    // Eight lanes a key, of which in the end each has the score of one query.
    __device__ void score() {
        const int lane = threadIdx.x % KEY_LANES, ctx = (int)task.in.ctx;
        const float scale = 1.0f / sqrtf((float)head_dim);
        storage* to = (storage*)(task.scores + request * task.scores_stride) + (head * group + lane) * ctx;
        for (int first = 0; first < stop; first += THREADS / KEY_LANES) {
            const int token = first + threadIdx.x / KEY_LANES;
            float sums[QUERIES] = {};
            for (int vector = lane; vector < vectors; vector += KEY_LANES) {
                Vector key, query;
                const bool is_there = first == 0 && vector == lane && token < min(start, stop);
                key.whole = is_there ? first_key : key_or_value(min(token, stop - 1), 0, vector);
#pragma unroll
                for (int j = 0; j < QUERIES; ++j) {
                    if (j >= group) break;
                    query.whole = ((const uint4*)(rows + j * head_dim))[vector];
#pragma unroll
                    for (int i = 0; i < WIDTH; ++i) sums[j] += widen(key.parts[i]) * widen(query.parts[i]);
                }
            }
            const storage value = narrow(folded<KEY_LANES / 2>(sums) * scale);
            if (lane >= group || token >= stop) continue;
            to[token] = value, scores[lane * ctx + token] = widen(value);
        }
    }
    __device__ void soften() {
        const int lane = threadIdx.x % 32, ctx = (int)task.in.ctx;
        for (int query = threadIdx.x / 32; query < group; query += GROUP_WARPS) {
            float *own = scores + query * ctx, most = -__uint_as_float(0x7F800000u), sum = 0.0f;
            storage* to = (storage*)(task.probabilities + request * task.probabilities_stride) + (head * group + query) * ctx;
            for (int token = lane; token < stop; token += 32) most = fmaxf(most, own[token]);
#pragma unroll
            for (int step = 16; step; step >>= 1) most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, step));
            for (int token = lane; token < stop; token += 32) sum += own[token] = expf(own[token] - most);
            sum = warp_sum(sum);
            for (int token = lane; token < stop; token += 32) {
                const storage value = narrow(own[token] / sum);
                to[token] = value, own[token] = widen(value);
            }
        }
    }
    // A lane a vector of a value, some tokens of all.
    __device__ void mix(int first) {
        const int lane = threadIdx.x % vectors, ctx = (int)task.in.ctx, count = min((int)group - first, (int)AT_ONCE);
        float sums[AT_ONCE][WIDTH] = {};
        for (int token = threadIdx.x / vectors; token < stop; token += THREADS / vectors) {
            Vector value;
            value.whole = token == threadIdx.x / vectors && token < start ? first_value : key_or_value(token, 1, lane);
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j) {
                const float weight = scores[min(first + j, group - 1) * ctx + token];
#pragma unroll
                for (int i = 0; i < WIDTH; ++i) sums[j][i] += weight * widen(value.parts[i]);
            }
        }
        for (int step = vectors; step < 32; step *= 2)
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j)
#pragma unroll
                for (int i = 0; i < WIDTH; ++i) sums[j][i] += __shfl_xor_sync(0xFFFFFFFFu, sums[j][i], step);
        if (threadIdx.x % 32 < vectors)
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j)
#pragma unroll
                for (int i = 0; i < WIDTH; ++i)
                    part[(threadIdx.x / 32 * AT_ONCE + j) * head_dim + lane * WIDTH + i] = sums[j][i];
        __syncthreads();
        for (int i = threadIdx.x; i < count * head_dim / 2; i += THREADS) {
            float2 sum = {0.0f, 0.0f};
            for (int warp = 0; warp < GROUP_WARPS; ++warp) {
                const float2 own = *(const float2*)(part + warp * AT_ONCE * head_dim + 2 * i);
                sum.x += own.x, sum.y += own.y;
            }
            const Pair made(sum.x, sum.y);
            const int to = (head * group + first) * head_dim + 2 * i;
            if (task.box) {
                const u64 box = task.box + (request * task.result_m + to) * sizeof(storage);
                send(box + now, box + other, made.both);
            }
            *(Pair*)((storage*)(task.result + request * task.result_stride) + to) = made;
        }
    }
};

// The share of a block, the place-th of those that have one. What it waits for is there, but for its mail; `ready`: where to
// note when that is there, too.
#if COLUMNS > 1
__noinline__  // its registers, beside those of several columns, would be too many
#endif
__device__ void attend(const Task& task, u32 place, u64 now, u64 other, char* scratch, u64* ready) {
    const int items = (int)(task.in.requests * task.in.kv_heads), blocks = (int)task.share;
    for (int item = place; item < items; item += blocks) {
        if (item >= blocks) __syncthreads();  // all have read what was there
        Attention it(task, now, other, scratch, item);
        it.look();
        it.turn();
        it.gather();
        __syncthreads();
#if STAMPS
        if (threadIdx.x == 0 && item < blocks) *ready = clock64();
#endif
        it.rotate();
        __syncthreads();
        it.write();
        it.score();
        __syncthreads();
        it.soften();
        __syncthreads();
#pragma unroll 1
        for (int first = 0; first < it.group; first += AT_ONCE) {
            if (first) __syncthreads();
            it.mix(first);
        }
    }
}
