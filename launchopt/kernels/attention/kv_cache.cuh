// The positions of each request's tokens, and the operations that fill the KV cache. attention/attention.cuh reads the cache.
//
// The cache of a layer is [pages][2][page_tokens][kv_heads][head_dim], K before V. table[r] lists the pages of request r in
// order. Column j of a command is token start[r] + j of its request r, and attends to all tokens up to itself. The size of the
// grids follows from ctx, the most tokens of a request. Blocks beyond a request's tokens return at once.

// The position of a command in its request.
struct Place {
    bool exists;  // the command's request exists; a batch may be padded with commands whose request does not
    int start;  // token of the command's first column
    const int* pages;  // pages of the request
    __device__ Place(const Args& p, i64 request) {
        const i64 r = request + blockIdx.z;
        exists = r < p.requests;
        start = exists ? ((const int*)p.positions)[r] : 0;
        pages = (const int*)p.table + (exists ? r : 0) * p.pages;
    }
    // Return the index behind the last token to which a column attends.
    __device__ int stop(i64 column, const Args& p) const {
        return (int)min((i64)start + column + 1, p.ctx);
    }
};

// Return the index in the cache of the first element of a token's key or value. offset: index of the token within its page.
__device__ inline i64 row_of_page(u32 page, u32 offset, int is_value, const Args& p) {
    return ((page * 2ll + is_value) * p.page_tokens + offset) * p.kv_heads * p.head_dim;
}

// Return the index in the cache of the first element of the key or value of a request's token.
__device__ inline i64 cache_row(const Place& place, int token, int is_value, const Args& p) {
    const u32 size = (u32)p.page_tokens, index = (u32)token / size;
    return row_of_page((u32)place.pages[index], (u32)token - index * size, is_value, p);
}

// Write the slot of each of a command's tokens, int32 [n], and advance the request's position. A token beyond ctx has slot -1.
// Grid: one block per command; only this block reads and writes next[r]. Each warp loads the numbers of the request's first 32
// pages, one per lane, before it knows which of them it needs.
OP(SLOT_MAP) {
    const i64 r = request + blockIdx.z;
    if (r >= p.requests) return;
    int* start = (int*)p.positions + r;
    int* next = start + p.requests;
    const int* pages = (const int*)p.table + r * p.pages;
    int* slots = of_command<int>(c, p.stride_c);
    const int lane = threadIdx.x % 32, n = (int)p.n, ctx = (int)p.ctx;
    const u32 size = (u32)p.page_tokens;
    const int first = *next, near = pages[min(lane, (int)p.pages - 1)];
    for (int j = threadIdx.x; j - lane < n; j += blockDim.x) {  // whole warps take part, as the shuffle below requires
        const int token = first + j;
        const u32 index = (u32)token / size;
        int page = __shfl_sync(0xFFFFFFFFu, near, index % 32);
        if (j >= n) continue;
        if (index >= 32 && token < ctx) page = pages[index];
        slots[j] = token < ctx ? page * (int)size + token - (int)(index * size) : -1;
    }
    __syncthreads();  // all threads have read *next
    if (threadIdx.x == 0) *start = first, *next = first + n;
}

// Normalize features of a head: WIDTH from index `at` on, and WIDTH from half a head further on. head: address of its features.
// gains: those of the head. Elements from `left` on do not exist.
__device__ inline void normalize(
    float (&x)[WIDTH], float (&y)[WIDTH], const storage* head, const storage* gains, int at, int left, int half, bool whole) {
    float z[WIDTH], u[WIDTH], v[WIDTH], sum = 0.0f;
    for (int i = 0; i < 2 * half; i += WIDTH) {
        load(z, head + i, 2 * half - i, whole);
#pragma unroll
        for (int e = 0; e < WIDTH; ++e) sum += z[e] * z[e];
    }
    const float factor = 1.0f / sqrtf(sum / (float)(2 * half) + NORM_EPSILON);
    load(u, gains + at, left, whole), load(v, gains + half + at, left, whole);
#pragma unroll
    for (int e = 0; e < WIDTH; ++e)
        x[e] = widen(narrow(x[e] * factor * u[e])), y[e] = widen(narrow(y[e] * factor * v[e]));
}

// Rotate the queries and keys of a row, and copy its values. If the model normalizes the heads of queries and keys (p.qk_norm),
// do so first: `gains` are those of a query head, then those of a key head. Grid: x over items, y over columns. An item is
// WIDTH pairs of features to rotate, or WIDTH features of values to copy. Angles are float64: at position 10,000 an fp32 angle
// has only 3 correct digits. Rounding an angle to fp32 after its reduction to one turn would still make sines and cosines near
// 0 inaccurate. KEEPS: also write keys and values into `cache`, unless their token is beyond ctx.
template <bool KEEPS>
__device__ __forceinline__ void rotate(
    storage* cache, const storage* gains, const storage* from, storage* to, i64 request, const Args& p) {
    extern __shared__ float turned[];  // cosines of all pairs, then sines
    const Place place(p, request);
    if (!place.exists) return;
    const int half = (int)p.head_dim / 2, heads = (int)(p.q_heads + p.kv_heads);
    const bool whole = aligned(from, p.ldb) && aligned(to, p.ldc) && aligned(0, half) && (!KEEPS || aligned(cache));
    const int lots = (half + WIDTH - 1) / WIDTH, rotated = heads * lots;
    const int copied = (int)(p.kv_heads * p.head_dim), items = rotated + (copied + WIDTH - 1) / WIDTH;
    const double octaves = log2(p.theta);
    for (i64 j = blockIdx.y; j < p.n; j += gridDim.y) {
        __syncthreads();
        for (int i = threadIdx.x; i < half; i += blockDim.x) {
            const double turns = (place.start + j) * exp2(-octaves * i / half) * 0.15915494309189535;
            double sine, cosine;
            sincospi(2.0 * (turns - rint(turns)), &sine, &cosine);
            turned[i] = (float)cosine, turned[half + i] = (float)sine;
        }
        __syncthreads();
        const int token = place.start + (int)j;
        const bool keeps = KEEPS && token < p.ctx;
        for (int item = blockIdx.x * blockDim.x + threadIdx.x; item < items; item += gridDim.x * blockDim.x) {
            const bool copy = item >= rotated;
            const int i = copy ? 0 : item % lots * WIDTH;
            const int left = copy ? copied - (item - rotated) * WIDTH : half - i;
            const i64 at = copy ? heads * p.head_dim + (item - rotated) * WIDTH : item / lots * p.head_dim + i;
            // Index of the item's first feature among the keys, or the values; negative for a query.
            const i64 key = at - (copy ? heads : p.q_heads) * p.head_dim;
            storage* const kept = keeps && key >= 0 ? cache + cache_row(place, token, copy, p) + key : 0;
            float x[WIDTH], y[WIDTH], z[WIDTH];
            load(x, from + j * p.ldb + at, left, whole);
            if (!copy) {
                load(y, from + j * p.ldb + at + half, left, whole);
                if (p.qk_norm) {
                    const storage* const own = gains + (item / lots < p.q_heads ? 0 : p.head_dim);
                    normalize(x, y, from + j * p.ldb + at - i, own, i, left, half, whole);
                }
#pragma unroll
                for (int e = 0; e < WIDTH; ++e) {
                    const float cosine = e < left ? turned[i + e] : 0.0f, sine = e < left ? turned[half + i + e] : 0.0f;
                    z[e] = x[e] * sine + y[e] * cosine;
                    x[e] = x[e] * cosine - y[e] * sine;
                }
                store(to + j * p.ldc + at + half, z, left, whole);
                if (kept) store(kept + half, z, left, whole);
            }
            store(to + j * p.ldc + at, x, left, whole);
            if (kept) store(kept, x, left, whole);
        }
    }
}

OP(ROPE) {
    rotate<false>(0, A_OF, B_OF, C_OF, request, p);
}

// Copy the keys and values of a row into the cache. Grid: x over the features of keys and values, y over columns.
OP(KV_WRITE) {
    const i64 r = request + blockIdx.z;
    if (r >= p.requests) return;
    const i64 width = p.kv_heads * p.head_dim;
    const int* slots = of_command<int>(a, p.stride_a);
    const storage* from = B_OF + p.q_heads * p.head_dim;
    storage* cache = C_OF;
    const bool whole = aligned(from, p.ldb) && aligned(cache, width);
    const Share share(blockIdx.x, 2 * width, whole);
    if (share.empty()) return;
    const u32 size = (u32)p.page_tokens;
    for (i64 j = blockIdx.y; j < p.n; j += gridDim.y) {
        const int slot = slots[j];
        if (slot < 0) continue;
        const u32 page = (u32)slot / size, offset = (u32)slot - page * size;
        storage* rows[] = {cache + row_of_page(page, offset, 0, p), cache + row_of_page(page, offset, 1, p) - width};
        if (share.at_once()) {  // keys and values are multiples of WIDTH wide, so WIDTH elements never belong to both
            *(uint4*)(rows[share.first >= width] + share.first) = *(const uint4*)(from + j * p.ldb + share.first);
            continue;
        }
        for (int i = 0; i < WIDTH; ++i) {
            const i64 at = share.first + (i64)i * share.step;
            if (at < share.end) rows[at >= width][at] = from[j * p.ldb + at];
        }
    }
}
