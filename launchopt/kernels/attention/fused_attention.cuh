// Fused attention, for one column per request. One block executes it for one request and kv head. The block executes ROPE,
// KV_WRITE, QK, SOFTMAX and AV one after another (attention/kv_cache.cuh, attention/attention.cuh). It stores all outputs of
// these ops and rounds where they round. Earlier launches have stored the keys and values of earlier tokens; the block computes
// the key and the value of the new token.
//
// All other blocks wait for the results, so the block sends the results first and stores the other outputs afterwards. It reads
// the KV cache before its inputs have arrived.
enum { NEAR_PAGES = 32 };  // pages of a request that `Sequence` holds
// Data of one request that all layers of a launch share: the request for which this block last executed attention. Without it,
// a block would load position, page and key one after another. While weights are copied, each of these loads takes 1 us, even
// if it hits the L2 cache.
struct Sequence {
    float turned[MOST_HEAD_DIM];  // cosines, then sines, of the angles at the request's position
    u64 slots;  // address from which `slot` was read
    // Index of the request, or -1. Position of its new token. Slot of that token in the KV cache, or -1.
    int request, start, slot;
    int pages[NEAR_PAGES];  // the first pages of the request
};
__shared__ Sequence sequence;

struct Attention {
    const Task& task;
    const Boxes boxes;
    // request, head: request, counted from the task's first, and kv head of this block. start: position of the new token. stop:
    // start + 1, at most ctx. earlier: number of tokens whose keys and values are in the cache. whole: stop, rounded up to a
    // multiple of WHOLE_TOKENS. slot: the new token's slot in the cache, or -1.
    int request, head, start, stop, earlier, whole, slot;
    bool known;  // `sequence` holds this request
    const int* pages;  // pages of the request
    char* cache;  // address of this kv head in page 0
    u32 row_bytes;  // bytes from one token to the next, in the cache
    u64 box;  // mailbox of the request's first result, in the first set; or 0
    // Elements of a head, query heads of a kv head, vectors of 16 bytes of a head.
#if HEAD_DIM
    enum { head_dim = HEAD_DIM, group = GROUP, vectors = HEAD_DIM / WIDTH };
#else
    int head_dim, group, vectors;
#endif
    // In shared memory. rows, [group + 2][head_dim]: queries, key, value. scores, [group][whole]: scores, then probabilities.
    storage *rows, *scores;

    __device__ Attention(const Task& task, const Boxes& boxes, char* scratch, int item) : task(task), boxes(boxes) {
        const Instruction& in = task.in;
        const int heads = (int)in.kv_heads;
        request = item / heads, head = item - request * heads;
#if !HEAD_DIM
        head_dim = (int)in.head_dim, group = (int)in.q_heads / heads, vectors = head_dim / WIDTH;
#endif
        rows = (storage*)scratch, scores = rows + (group + 2) * head_dim;
        const int r = (int)in.first_request + request;
        const u64 slots = task.slots + request * task.slots_stride;
        known = sequence.request == r && sequence.slots == slots;
        start = known ? sequence.start : ((const int*)in.positions)[r];
        stop = min(start + 1, (int)in.ctx), earlier = min(start, stop);
        whole = (stop + WHOLE_TOKENS - 1) / WHOLE_TOKENS * WHOLE_TOKENS;
        slot = known ? sequence.slot : *(const int*)slots;
        pages = (const int*)in.table + r * in.pages;
        row_bytes = heads * head_dim * (u32)sizeof(storage);
        cache = (char*)task.cache + head * head_dim * sizeof(storage);
        box = task.box ? task.box + box_of(request, task.result_m) : 0;
    }
    __device__ u32 page_tokens() const { return PAGE_TOKENS ? PAGE_TOKENS : (u32)task.in.page_tokens; }
    // Return where a row of `rows` (a query, the key or the value) is in the row that has all queries, keys and values of the
    // request: the index of its first feature there. section: index of the row in `rows`.
    __device__ int place(int section) const {
        const int kv_heads = (int)task.in.kv_heads, q_heads = kv_heads * group;
        if (section < group) return (head * group + section) * head_dim;
        return (q_heads + head + (section > group ? kv_heads : 0)) * head_dim;
    }
    __device__ char* in_page(u32 page, u32 offset, int is_value) const {
        return cache + (u64)(page * 2 + is_value) * (page_tokens() * row_bytes) + (u64)offset * row_bytes;
    }
    // Return the address of a token's key or value in the cache. The address is valid even if the token does not exist yet.
    __device__ const char* cached(u32 token, int is_value) const {
        const u32 size = page_tokens(), index = token / size;
        const u32 at = min(index, (u32)task.in.pages - 1);
        return in_page(known && at < NEAR_PAGES ? sequence.pages[at] : pages[at], token - index * size, is_value);
    }
    // Return the key or the value of the new token, in shared memory.
    __device__ const storage* fresh(int is_value) const { return rows + (group + is_value) * head_dim; }

    // Fill `sequence` for this request, unless it is known. A barrier must follow. Angles are float64, as in ROPE.
    __device__ void fill_sequence() {
        if (known) return;
        const int half = head_dim / 2;
        const double octaves = log2(task.in.theta);
        for (int i = threadIdx.x; i < half; i += THREADS) {
            const double turns = start * exp2(-octaves * i / half) * 0.15915494309189535;
            double sine, cosine;
            sincospi(2.0 * (turns - rint(turns)), &sine, &cosine);
            sequence.turned[i] = (float)cosine, sequence.turned[half + i] = (float)sine;
        }
        if (threadIdx.x < NEAR_PAGES) sequence.pages[threadIdx.x] = pages[min((int)threadIdx.x, (int)task.in.pages - 1)];
        __syncthreads();
        if (threadIdx.x) return;
        sequence.request = (int)task.in.first_request + request, sequence.start = start, sequence.slot = slot;
        sequence.slots = task.slots + request * task.slots_stride;
    }
    // Load queries, key and value of the new token into `rows`, and rotate queries and key. A thread has two vectors whose
    // features are rotated together.
    __device__ void gather() {
        const int half = vectors / 2, own = threadIdx.x / half, vector = threadIdx.x - own * half;
        const int section = QK_NORM ? min(own, group + 1) : own;  // with norms, all lanes of a warp take part
        if ((QK_NORM ? threadIdx.x / 32 * 32 / half : own) >= group + 2) return;
        float cosines[WIDTH], sines[WIDTH];
#pragma unroll
        for (int e = 0; e < WIDTH; ++e)
            cosines[e] = sequence.turned[vector * WIDTH + e], sines[e] = sequence.turned[(half + vector) * WIDTH + e];
#if QK_NORM
        const uint4* const gains = (const uint4*)task.in.a + (section < group ? 0 : vectors);
        const uint4 gain = gains[vector], other_gain = gains[half + vector];
#endif
        const bool mailed = task.flags & MAILED;
        const u64 from =
            task.from + (mailed ? boxes.now + column_in(request, task.from_bytes) : (u64)request * task.from_bytes);
        const u32 first = (place(section) + vector * WIDTH) * sizeof(storage), second = first + half * 16;
        const u64 at = from + (mailed ? in_box(first) : first), other = from + (mailed ? in_box(second) : second);
        Vector x, y;
        do {
            x.whole = mailed ? receive_vector(at) : load_relaxed(at);
            y.whole = mailed ? receive_vector(other) : load_relaxed(other);
        } while (mailed && !(arrived(x.whole) && arrived(y.whole)));
#if QK_NORM
        normalize_head(x, y, gain, other_gain, half, section <= group);
        if (own != section) return;
#endif
        if (section <= group) rotate_pairs(x, y, cosines, sines);
        uint4* const to = (uint4*)rows + section * vectors + vector;
        to[0] = x.whole, to[half] = y.whole;
    }
    // Turn scores into probabilities, with one warp per query. A lane has two neighbouring tokens at once, and keeps the scores
    // of its first two in registers.
    __device__ void soften() {
        const int query = threadIdx.x / 32, lane = threadIdx.x % 32, pairs = whole / 2;
        if (query >= group) return;
        Pair* const own = (Pair*)(scores + query * whole);
        const float none = -__uint_as_float(0x7F800000u);
        float2 first = {none, none};
        if (lane < pairs) first = {own[lane].first(), own[lane].second()};
        float most = fmaxf(first.x, first.y), sum;
#pragma unroll 1
        for (int i = lane + 32; i < pairs; i += 32) most = fmaxf(most, fmaxf(own[i].first(), own[i].second()));
#pragma unroll
        for (int step = 16; step; step >>= 1) most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, step));
        first = {expf(first.x - most), expf(first.y - most)}, sum = first.x + first.y;
#pragma unroll 1
        for (int i = lane + 32; i < pairs; i += 32) sum += expf(own[i].first() - most) + expf(own[i].second() - most);
        sum = warp_sum(sum);
        if (lane < pairs) own[lane] = Pair(__fdividef(first.x, sum), __fdividef(first.y, sum));
#pragma unroll 1
        for (int i = lane + 32; i < pairs; i += 32)
            own[i] = Pair(__fdividef(expf(own[i].first() - most), sum), __fdividef(expf(own[i].second() - most), sum));
    }
    __device__ storage* scores_of(int query) const {
        return (storage*)(task.scores + request * task.scores_stride) + (head * group + query) * (int)task.in.ctx;
    }
    // Send and store two neighbouring results. to: index of the first one among the results of this kv head.
    __device__ void give(int to, const Pair& made) const {
        if (box) boxes.send(box + boxes.now + in_box((head * group * head_dim + to) * sizeof(storage)), made.both);
        *(Pair*)((storage*)(task.result + request * task.result_stride) + head * group * head_dim + to) = made;
    }
    // Store the outputs that no block of this launch waits for: the rotated rows, the key and value in the cache, and the
    // probabilities. A token beyond ctx has no slot in the cache.
    __device__ void store() const {
        storage* const c = (storage*)(task.in.c + request * task.in.stride_c);
        const u32 size = page_tokens(), page = (u32)slot / size;
#pragma unroll 1
        for (int i = threadIdx.x; i < (group + 2) * vectors; i += THREADS) {
            const int section = i / vectors, vector = i - section * vectors;
            const uint4 found = ((const uint4*)rows)[i];
            ((uint4*)(c + place(section)))[vector] = found;
            if (section < group || slot < 0) continue;
            ((uint4*)in_page(page, (u32)slot - page * size, section - group))[vector] = found;
        }
        storage* const to = (storage*)(task.probabilities + request * task.probabilities_stride);
        for (int query = threadIdx.x / 32; query < group; query += GROUP_WARPS)
#pragma unroll 1
            for (int token = threadIdx.x % 32; token < stop; token += 32)
                to[(head * group + query) * (int)task.in.ctx + token] = scores[query * whole + token];
    }
};

// Execute a block's share of an attention task. The block has waited for the task's counters, but not for its mailboxes.
// place: the block's place among the blocks with a share. ready: address of the clock stamp READY, written once the inputs have
// arrived. Products: the struct of fused_products_fp32.cuh or of fused_products_halves.cuh.
//
// With several columns the function is not inlined, because the kernel would spill registers.
template <class Products>
#if COLUMNS > 1
__noinline__
#endif
__device__ void attend(const Task& task, u32 place, u64 box_bytes, u32 launch, char* scratch, u64* ready) {
    const Boxes boxes(box_bytes, launch);
    const int items = (int)(task.in.requests * task.in.kv_heads), blocks = (int)task.share;
    for (int item = place; item < items; item += blocks) {
        if (item >= blocks) __syncthreads();  // all threads have read the shared memory of the previous item
        Products it(task, boxes, scratch, item);
        it.look();
        it.fill_sequence();
        it.gather();
        __syncthreads();
#if STAMPS
        if (threadIdx.x == 0 && item < blocks) *ready = clock64();
#endif
        it.score();
        __syncthreads();
        it.soften();
        __syncthreads();
        it.mix();
        __syncthreads();  // all threads have read the cache and `rows`, so `store` may write the new token into the cache
        it.store();
    }
}
