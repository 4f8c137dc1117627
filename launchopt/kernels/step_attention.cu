// Attention of a decode step in one launch: the scores of each request's new token against its keys, their softmax, and the
// values weighted by it. Scores and probabilities are stored nowhere. Grid: x over splits, y over kv heads, z over requests.
//
// A block works on one split of the tokens of one request, for all query heads that share a kv head. The number of splits is
// fixed when the launch is planned. How many tokens a split has follows from the position of the request, which the block
// reads from memory; so a captured launch stays valid as the context grows. Blocks without tokens return. If a request has
// several splits with tokens, each block stores its sums. The last block to arrive adds them up in the order of the splits,
// so the result does not depend on the order of arrival.
//
// Each warp works alone on tiles of TILE tokens, with a softmax that is corrected as larger scores come (Milakov and
// Gimelshein 2018). The keys and values of its next tile are in flight meanwhile, in registers. The warps' sums are added
// up at the end. Loading tiles further ahead, into the L2 cache, was slower on an H100.
//
// Macros: HEAD_DIM 64 or 128; GROUP, 1 to 8 query heads per kv head; PAGE_TOKENS, or 0 if a request has one page;
// BLOCK_WARPS of a block, and BLOCKS that fit on a multiprocessor; ROPE=1: the launch also does the work of ROPE and KV_WRITE;
// QK_NORM=1: and the norms of queries and keys before it; PDL=1: programmatic dependent launch.
//
// With ROPE=1 every block rotates its queries itself. The block whose split has the new token rotates its key and stores key
// and value into the cache; no block reads that row of the cache.
//
// With PDL=1 the block loads its first keys and values before it waits for the previous launch, so no running launch may
// write them. Every token below the request's position is from an earlier step. Between two steps of a request its results
// are fed back by a launch that is not programmatic, or a graph ends; so all launches of earlier steps are complete. SLOT_MAP
// of this step may still run. Whether the block reads the position before or after SLOT_MAP advances it, the tokens below it
// are from earlier steps. If the position has changed behind the wait, the block loads again.
#include "common/storage.cuh"
#include "common/ptx.cuh"
#include "megakernel/vectors.cuh"
#include "shared/attention.cuh"
#include "shared/step_attention.cuh"
#include "attention/folded.cuh"
#include "attention/rotary.cuh"

// VECTORS: vectors of 16 bytes of a head. TILE: tokens of which a lane holds the keys in 8 vectors. LOT: tokens of a tile that
// are multiplied together; a tile has LOTS of them.
enum { VECTORS = HEAD_DIM / WIDTH, THREADS = 32 * BLOCK_WARPS };
enum { TILE = 8 * 32 / VECTORS, LOT = TILE < 16 ? TILE : 16, LOTS = TILE / LOT };
enum { LOT_IN_PAGE = PAGE_TOKENS % LOT == 0 };  // all tokens of a lot are in one page

// The cache of one request and kv head.
struct Cache {
    char* head;  // address of this kv head in page 0
    const int* pages;  // pages of the request
    u32 row_bytes, page_tokens, last_page;
    int earlier;  // tokens below this one are in the cache

    // Return the number of the page that holds a token, or of the request's last page.
    __device__ u32 page_of(int token) const { return pages[PAGE_TOKENS ? min((u32)token / page_tokens, last_page) : 0]; }
    __device__ char* row(u32 page, u32 token, int is_value) const {
        const u32 offset = PAGE_TOKENS ? token % page_tokens : token;
        return head + (u64)((page * 2 + is_value) * page_tokens + offset) * row_bytes;
    }
};
// A tile: its first token, and the pages of its lots.
struct Tile {
    int first;
    u32 pages[LOTS];
    __device__ Tile(const Cache& cache, int first) : first(first) {
#pragma unroll
        for (int lot = 0; lot < LOTS; ++lot) pages[lot] = LOT_IN_PAGE ? cache.page_of(first + lot * LOT) : 0;
    }
    // Load a vector of a token's key or value. In place of a token that is not in the cache: of the last one that is.
    __device__ uint4 load(const Cache& cache, int token, int is_value, int vector) const {
        token = min(token, cache.earlier - 1);
        u32 page = LOTS == 1 || token < first + LOT ? pages[0] : pages[LOTS - 1];
        if (!LOT_IN_PAGE) page = cache.page_of(token);
        return __ldcg((const uint4*)cache.row(page, (u32)token, is_value) + vector);
    }
};
// Rows in shared memory: queries, then the new token's key and value.
struct Fresh {
    uint4 rows[GROUP + 2][VECTORS];
};
// The sums of a block's warps. most: largest score, times log2(e). sum: sum of the powers. mixed: values weighted by them.
struct Sums {
    float most[BLOCK_WARPS][QUERIES], sum[BLOCK_WARPS][QUERIES];
    float mixed[BLOCK_WARPS][GROUP][HEAD_DIM];
};
#if DTYPE == 0
#include "attention/step_products_fp32.cuh"
#else
#include "attention/step_products_halves.cuh"
#endif

// The tokens of a block. active: splits of the request that have tokens.
struct Span {
    int first, end, active;
    __device__ Span(int start, const StepAttention& p) {
        const int stop = min(start + 1, (int)p.ctx), splits = (int)p.splits;
        const int share = (max((stop + splits - 1) / splits, (int)p.least_tokens) + TILE - 1) / TILE * TILE;
        active = (stop + share - 1) / share, first = blockIdx.x * share, end = min(first + share, stop);
    }
};

// Two vectors of the new token's row that the thread puts into shared memory. With ROPE, their features are rotated together.
// Sections of the row are the queries of the kv head, the key and the value.
struct Given {
    enum { HALF = VECTORS / 2, ITEMS = (GROUP + (ROPE ? 2 : 0)) * HALF };
    int section, vector;
    Vector x, y;

    // Load the vectors. All threads have some, as whole warps take part in a norm. row: all features of the request.
    __device__ Given(const storage* row, const StepAttention& p) {
        static_assert(ITEMS <= THREADS, "a thread has one item");
        section = min((int)threadIdx.x, ITEMS - 1) / HALF, vector = threadIdx.x % HALF;
        const int heads = (int)p.kv_heads, head = blockIdx.y, beyond = section > GROUP ? heads : 0;
        const int place = section < GROUP ? head * GROUP + section : heads * GROUP + head + beyond;
        const uint4* const from = (const uint4*)(row + place * HEAD_DIM);
        x.whole = from[vector], y.whole = from[HALF + vector];
    }
    // Normalize and rotate the vectors, and put them into shared memory. turned: cosines, then sines. key, value: where these
    // go; 0: nowhere.
    __device__ void put(const StepAttention& p, const float* turned, Fresh& fresh, char* key, char* value) {
#if QK_NORM
        const uint4* const gains = (const uint4*)p.gains + (section < GROUP ? 0 : VECTORS);
        normalize_head(x, y, gains[vector], gains[HALF + vector], HALF, section <= GROUP);
#endif
        if (ROPE && section <= GROUP) {
            float cosines[WIDTH], sines[WIDTH];
#pragma unroll
            for (int e = 0; e < WIDTH; ++e)
                cosines[e] = turned[vector * WIDTH + e], sines[e] = turned[HEAD_DIM / 2 + vector * WIDTH + e];
            rotate_pairs(x, y, cosines, sines);
        }
        if (threadIdx.x >= ITEMS) return;
        fresh.rows[section][vector] = x.whole, fresh.rows[section][HALF + vector] = y.whole;
        if (section < GROUP || !key) return;
        uint4* const to = (uint4*)(section == GROUP ? key : value);
        to[vector] = x.whole, to[HALF + vector] = y.whole;
    }
};

// Two neighbouring features, for a query, of the weighted values of all warps, and the factor of a warp's share of them.
__device__ inline float2 added(const Sums& sums, int query, int feature, float& most, float& total) {
    most = sums.most[0][query], total = 0.0f;
#pragma unroll
    for (int warp = 1; warp < BLOCK_WARPS; ++warp) most = fmaxf(most, sums.most[warp][query]);
    float2 mixed = {0.0f, 0.0f};
#pragma unroll
    for (int warp = 0; warp < BLOCK_WARPS; ++warp) {
        const float factor = exp2f(sums.most[warp][query] - most);
        const float2 own = *(const float2*)&sums.mixed[warp][query][feature];
        total += factor * sums.sum[warp][query], mixed.x += factor * own.x, mixed.y += factor * own.y;
    }
    return mixed;
}

// Store the sums of this split. Return whether all other splits of the request and kv head have been stored.
__device__ inline bool is_last(const Sums& sums, const StepAttention& p, i64 item, int active, u32* arrived) {
    float* const mixed = (float*)p.mixed + (item * p.splits + blockIdx.x) * GROUP * HEAD_DIM;
    float2* const weights = (float2*)p.weights + (item * p.splits + blockIdx.x) * GROUP;
    for (int i = threadIdx.x; i < GROUP * HEAD_DIM / 2; i += THREADS) {
        const int query = i / (HEAD_DIM / 2), feature = i % (HEAD_DIM / 2) * 2;
        float2 weight;
        *(float2*)(mixed + 2 * i) = added(sums, query, feature, weight.x, weight.y);
        if (feature == 0) weights[query] = weight;
    }
    __syncthreads();
    if (threadIdx.x == 0) {  // it orders the accesses of all threads, since it meets them at the barriers
        u32* const counter = (u32*)p.arrived + item;
        *arrived = add_ordered(counter, 1);
        if (*arrived == (u32)active - 1) *counter = 0;  // for the next launch
    }
    __syncthreads();
    return *arrived == (u32)active - 1;
}

// Add up the sums of all splits, and store the result. Loads of AT_ONCE splits are in flight at once.
__device__ inline void combine(const StepAttention& p, i64 item, int active, storage* to) {
    enum { AT_ONCE = 8 };
    const float2* const mixed = (const float2*)p.mixed + item * p.splits * GROUP * HEAD_DIM / 2;
    const float2* const weights = (const float2*)p.weights + item * p.splits * GROUP;
    for (int i = threadIdx.x; i < GROUP * HEAD_DIM / 2; i += THREADS) {
        float most = -__uint_as_float(0x7F800000u), total = 0.0f;
        float2 sum = {0.0f, 0.0f};
#pragma unroll 1
        for (int first = 0; first < active; first += AT_ONCE) {
            float2 weight[AT_ONCE], own[AT_ONCE];
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j) {
                const int split = min(first + j, active - 1);
                weight[j] = __ldcg(weights + split * GROUP + i / (HEAD_DIM / 2));
                own[j] = __ldcg(mixed + split * GROUP * HEAD_DIM / 2 + i);
            }
            float largest = most;
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j) largest = fmaxf(largest, weight[j].x);
            const float before = exp2f(most - largest);
            most = largest, total *= before, sum.x *= before, sum.y *= before;
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j) {
                const float factor = first + j < active ? exp2f(weight[j].x - most) : 0.0f;
                total += factor * weight[j].y, sum.x += factor * own[j].x, sum.y += factor * own[j].y;
            }
        }
        ((Pair*)to)[i] = Pair(sum.x / total, sum.y / total);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    step_attention(char* cache, char* rows, char* out, i64 request, const StepAttention p) {
    __shared__ Fresh fresh;
    __shared__ Sums sums;
    __shared__ u32 arrived;
#if DTYPE == 0
    __shared__ Scratch scratch[BLOCK_WARPS];
#endif
#if PDL
    let_next_begin();
#endif
    const i64 r = request + blockIdx.z;
    if (r >= p.requests) return;
    const int warp = threadIdx.x / 32;
    const int* const position = (const int*)p.positions + r;
    const u32 row_bytes = (u32)p.kv_heads * HEAD_DIM * sizeof(storage), page_tokens = PAGE_TOKENS ? PAGE_TOKENS : (u32)p.ctx;
    Cache at = {cache + blockIdx.y * HEAD_DIM * sizeof(storage), (const int*)p.table + r * p.pages, row_bytes, page_tokens,
                (u32)p.pages - 1, 0};
    Products it;
#if PDL
    int start = (int)load_relaxed((const u32*)position);
#else
    int start = *position;
#endif
#if ROPE
    __shared__ float turned[HEAD_DIM];
    const float* const turns = (const float*)p.turns;
    for (int i = threadIdx.x; i < HEAD_DIM; i += THREADS) turned[i] = turns[(i64)min(start, (int)p.ctx - 1) * HEAD_DIM + i];
#endif
    Span span(start, p);
    Tile tile(at, span.first + warp * TILE);
    at.earlier = min(start, (int)p.ctx);
#if !ROPE && !PDL
    at.earlier = min(start + 1, (int)p.ctx);
#endif
    if (tile.first < span.end) it.look_at_keys(at, tile), it.look_at_values(at, tile);
    const storage* const row = (const storage*)(rows + blockIdx.z * p.stride_in);
#if PDL
    wait_for_earlier();
    Given given(row, p);
    const int known = start;
    start = (int)load_relaxed((const u32*)position);
    bool stale = known != start;
#if ROPE
    if (stale)  // each thread replaces the elements that it stored itself
        for (int i = threadIdx.x; i < HEAD_DIM; i += THREADS) turned[i] = turns[(i64)min(start, (int)p.ctx - 1) * HEAD_DIM + i];
    at.earlier = min(start, (int)p.ctx);
#else
    at.earlier = min(start + 1, (int)p.ctx);
    stale |= tile.first + TILE > known;  // the tile may have the new token, which an earlier launch of this step stored
#endif
    if (stale) {
        span = Span(start, p);
        tile = Tile(at, span.first + warp * TILE);
        if (tile.first < span.end) it.look_at_keys(at, tile), it.look_at_values(at, tile);
    }
#else
    Given given(row, p);
#endif
    if ((int)blockIdx.x >= span.active) return;
#if ROPE
    char *key = 0, *value = 0;
    if ((int)blockIdx.x == span.active - 1 && start < (int)p.ctx) {
        const u32 page = at.page_of(start);
        key = at.row(page, (u32)start, 0), value = at.row(page, (u32)start, 1);
    }
    __syncthreads();  // `turned` is complete
    given.put(p, turned, fresh, key, value);
#else
    given.put(p, 0, fresh, 0, 0);
#endif
    __syncthreads();
#if DTYPE == 0
    it.scratch = scratch + warp;
#endif
#pragma unroll 1
    while (tile.first < span.end) {
        const Tile next(at, tile.first + BLOCK_WARPS * TILE);
        it.score(fresh, tile.first, at.earlier, span.end);
        if (next.first < span.end) it.look_at_keys(at, next);
        it.mix(fresh, tile.first, at.earlier);
        if (next.first < span.end) it.look_at_values(at, next);
        tile = next;
    }
    it.give(sums, warp);
    __syncthreads();
    storage* const to = (storage*)(out + blockIdx.z * p.stride_out) + blockIdx.y * GROUP * HEAD_DIM;
    if (span.active == 1) {
        for (int i = threadIdx.x; i < GROUP * HEAD_DIM / 2; i += THREADS) {
            float most, total;
            const float2 mixed = added(sums, i / (HEAD_DIM / 2), i % (HEAD_DIM / 2) * 2, most, total);
            ((Pair*)to)[i] = Pair(mixed.x / total, mixed.y / total);
        }
        return;
    }
    const i64 item = (i64)blockIdx.z * p.kv_heads + blockIdx.y;
    if (is_last(sums, p, item, span.active, &arrived)) combine(p, item, span.active, to);
}
