// The position of each request's tokens, and the operations that fill the KV cache. attention/attention.cuh reads the cache.
//
// The cache of a layer is [pages][2][page_tokens][kv_heads][head_dim], K before V. table[r] lists the pages of request r in
// order. Column j of a command is token start[r] + j of its request; it sees the tokens up to itself. Grids are sized by ctx,
// the most tokens of a request. Blocks beyond the request's own tokens return at once.

struct Place {
    bool exists;
    int start;  // token of the command's first column
    const int* pages;  // of the request
    __device__ Place(const Args& p, i64 request) {
        const i64 r = request + blockIdx.z;
        exists = r < p.requests;
        start = exists ? ((const int*)p.positions)[r] : 0;
        pages = (const int*)p.table + (exists ? r : 0) * p.pages;
    }
    __device__ int stop(i64 column, const Args& p) const {  // one past the last token that the column sees
        return (int)min((i64)start + column + 1, p.ctx);
    }
};

__device__ inline i64 row_of_page(u32 page, u32 offset, int is_value, const Args& p) {
    return ((page * 2ll + is_value) * p.page_tokens + offset) * p.kv_heads * p.head_dim;
}

__device__ inline i64 cache_row(const Place& place, int token, int is_value, const Args& p) {
    const u32 size = (u32)p.page_tokens, index = (u32)token / size;
    return row_of_page((u32)place.pages[index], (u32)token - index * size, is_value, p);
}

// Grid: one block per command; only this block reads and writes next[r]. A token beyond ctx has no slot: -1. Each warp loads
// the first 32 pages into its lanes before it knows which of them it needs.
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
    for (int j = threadIdx.x; j - lane < n; j += blockDim.x) {  // whole warps
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

// Grid: x over WIDTH pairs of features, y over columns. Angles are float64. At position 10,000 an fp32 angle has only 3 good
// digits. An angle that is rounded after its reduction to one turn still spoils sines and cosines near 0.
OP(ROPE) {
    extern __shared__ float turned[];  // cosines of all pairs, then sines
    const Place place(p, request);
    if (!place.exists) return;
    const int half = (int)p.head_dim / 2, heads = (int)(p.q_heads + p.kv_heads);
    const storage* from = B_OF;
    storage* to = C_OF;
    const bool whole = aligned(from, p.ldb) && aligned(to, p.ldc) && aligned(0, half);
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
        for (int item = blockIdx.x * blockDim.x + threadIdx.x; item < items; item += gridDim.x * blockDim.x) {
            const bool copy = item >= rotated;
            const int i = copy ? 0 : item % lots * WIDTH;
            const int left = copy ? copied - (item - rotated) * WIDTH : half - i;
            const i64 at = copy ? heads * p.head_dim + (item - rotated) * WIDTH : item / lots * p.head_dim + i;
            float x[WIDTH], y[WIDTH], z[WIDTH];
            load(x, from + j * p.ldb + at, left, whole);
            if (!copy) {
                load(y, from + j * p.ldb + at + half, left, whole);
#pragma unroll
                for (int e = 0; e < WIDTH; ++e) {
                    const float cosine = e < left ? turned[i + e] : 0.0f, sine = e < left ? turned[half + i + e] : 0.0f;
                    z[e] = x[e] * sine + y[e] * cosine;
                    x[e] = x[e] * cosine - y[e] * sine;
                }
                store(to + j * p.ldc + at + half, z, left, whole);
            }
            store(to + j * p.ldc + at, x, left, whole);
        }
    }
}

// Grid: x over the features of k and v, y over columns.
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
        if (share.at_once()) {  // k and v are multiples of WIDTH wide, so WIDTH elements are never of both
            *(uint4*)(rows[share.first >= width] + share.first) = *(const uint4*)(from + j * p.ldb + share.first);
            continue;
        }
        for (int i = 0; i < WIDTH; ++i) {
            const i64 at = share.first + (i64)i * share.step;
            if (at < share.end) rows[at >= width][at] = from[j * p.ldb + at];
        }
    }
}
