// The operations of attention: scores (QK), probabilities (SOFTMAX) and weighted values (AV). QK and AV read the KV cache
// (attention/kv_cache.cuh).
//
// A query is a pair of column and query head. A block of QK or AV works on up to QUERIES queries that share a kv head. So it
// reads each key or value once for all these queries.
#include "shared/attention.cuh"
enum { VALUES = 2 };  // values that a lane loads at once

// SOFTMAX of one row of scores per block. Grid: one block per query. A thread keeps in registers the first elements that it
// reads.
OP(SOFTMAX) {
    __shared__ float part[2][33];
    const Place place(p, request);
    if (!place.exists) return;
    const i64 j = blockIdx.x / p.q_heads, head = blockIdx.x % p.q_heads, stop = place.stop(j, p);
    const storage* from = B_OF + j * p.ldb + head * p.ctx;
    storage* to = C_OF + j * p.ldc + head * p.ctx;
    const bool whole = aligned(from) && aligned(to);
    const i64 passes = (stop + WIDTH * blockDim.x - 1) / (WIDTH * blockDim.x);
    const float none = -__uint_as_float(0x7F800000u);
    float first[WIDTH], x[WIDTH], most = none, sum = 0.0f;
    load(first, from, Share(0, stop, whole), none);
    for (int i = 0; i < WIDTH; ++i) most = fmaxf(most, first[i]);
    for (i64 pass = 1; pass < passes; ++pass) {
        load(x, from, Share(pass, stop, whole), none);
        for (int i = 0; i < WIDTH; ++i) most = fmaxf(most, x[i]);
    }
    most = combined(most, part[0], [](float x, float y) { return fmaxf(x, y); });
    for (int i = 0; i < WIDTH; ++i) sum += first[i] = expf(first[i] - most);
    for (i64 pass = 1; pass < passes; ++pass) {
        load(x, from, Share(pass, stop, whole), none);
        for (int i = 0; i < WIDTH; ++i) sum += expf(x[i] - most);
    }
    sum = combined(sum, part[1], [](float x, float y) { return x + y; });
    for (i64 pass = 0; pass < passes; ++pass) {
        const Share share(pass, stop, whole);
        load(x, from, share, none);
        for (int i = 0; i < WIDTH; ++i) x[i] = (pass ? expf(x[i] - most) : first[i]) / sum;
        store(to, share, x);
    }
}

// The queries on which a block of QK or AV works: up to QUERIES neighbours of one kv head, ordered by column, then by head.
// group: query heads of a kv head. count: number of queries. first: index of the first one among the queries of the kv head.
struct Tile {
    int kv_head, group, count;
    i64 first;
    __device__ explicit Tile(const Args& p) {
        const int tiles = gridDim.x / (int)p.kv_heads;
        group = (int)(p.q_heads / p.kv_heads);
        kv_head = blockIdx.x / tiles;
        first = (i64)(blockIdx.x % tiles) * QUERIES;
        count = (int)min((i64)QUERIES, p.n * group - first);
    }
    __device__ i64 column(int query) const { return (first + query) / group; }
    __device__ i64 head(int query) const { return (i64)kv_head * group + (first + query) % group; }
};

#include "attention/folded.cuh"

// Grid: x over tiles of queries, y over keys. KEY_LANES neighbouring threads share KEYS neighbouring keys.
OP_OF(QK, 32 * WARPS, 1) {
    extern __shared__ uint4 queries[];  // elements [QUERIES][vectors * WIDTH], with zeros behind head_dim
    const Place place(p, request);
    if (!place.exists) return;
    const Tile tile(p);
    const int stop = place.stop(tile.column(tile.count - 1), p), group = threadIdx.x / KEY_LANES;
    const i64 base = (i64)blockIdx.y * (blockDim.x / KEY_LANES) * KEYS;
    if (base >= stop) return;
    const storage *cache = A_OF, *from = B_OF;
    const int head_dim = (int)p.head_dim, vectors = (head_dim + WIDTH - 1) / WIDTH, padded = vectors * WIDTH;
    for (int i = threadIdx.x; i < QUERIES * padded; i += blockDim.x) {
        const int query = i / padded, feature = i % padded;
        const bool exists = query < tile.count && feature < head_dim;
        const i64 at = tile.column(query) * p.ldb + tile.head(query) * head_dim + feature;
        ((storage*)queries)[i] = exists ? from[at] : (storage)0;
    }
    __syncthreads();
    const bool whole = aligned(cache, head_dim);
    const int first = (int)base + group * KEYS, lane = threadIdx.x % KEY_LANES;
    const storage* keys[KEYS];
    float sums[KEYS][QUERIES] = {};
#pragma unroll
    for (int key = 0; key < KEYS; ++key)  // in place of a key that no query attends to: the last key; its score is not stored
        keys[key] = cache + cache_row(place, min(first + key, stop - 1), 0, p) + tile.kv_head * head_dim;
    for (int vector = lane; vector < vectors; vector += KEY_LANES) {
        float x[KEYS][WIDTH];
#pragma unroll
        for (int key = 0; key < KEYS; ++key) {
            const int at = vector * WIDTH;
            load(x[key], keys[key] + at, head_dim - at, whole);
        }
#pragma unroll
        for (int query = 0; query < QUERIES; ++query) {
            Vector y;
            y.whole = queries[query * vectors + vector];
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) {
                const float part = widen(y.parts[i]);
#pragma unroll
                for (int key = 0; key < KEYS; ++key) sums[key][query] += x[key][i] * part;
            }
        }
    }
    const float scale = 1.0f / sqrtf((float)head_dim);
    storage* to = C_OF + tile.column(lane) * p.ldc + tile.head(lane) * p.ctx;
#pragma unroll
    for (int key = 0; key < KEYS; ++key) {
        const float sum = folded<KEY_LANES / 2>(sums[key]);
        if (lane < tile.count && first + key < place.stop(tile.column(lane), p)) to[first + key] = narrow(sum * scale);
    }
}

// Grid: x over tiles of queries, y over slices of head_dim. AV_LANES neighbouring threads share a value.
OP_OF(AV, 32 * WARPS, 2) {
    __shared__ float part[WARPS][QUERIES][AV_LANES * WIDTH];
    __shared__ int offsets[QUERIES], stops[QUERIES];  // offset of each query's first probability; number of probabilities
    const Place place(p, request);
    if (!place.exists) return;
    const Tile tile(p);
    const storage *cache = A_OF, *from = B_OF + tile.column(0) * p.ldb;
    const int head_dim = (int)p.head_dim, slice = blockIdx.y * AV_LANES * WIDTH;
    const int lane = threadIdx.x % AV_LANES, feature = slice + lane * WIDTH, rows = blockDim.x / AV_LANES;
    const bool whole = aligned(cache, head_dim);
    if (threadIdx.x < QUERIES) {
        const i64 column = tile.column(threadIdx.x), row = column - tile.column(0);
        offsets[threadIdx.x] = (int)(row * p.ldb + tile.head(threadIdx.x) * p.ctx);
        stops[threadIdx.x] = threadIdx.x < tile.count ? place.stop(column, p) : 0;
    }
    __syncthreads();
    const int stop = place.stop(tile.column(tile.count - 1), p);
    float sums[WIDTH][QUERIES] = {};
    for (int token = threadIdx.x / AV_LANES; token < stop; token += rows * VALUES) {
        Vector x[VALUES];
        float weights[VALUES][QUERIES];
#pragma unroll
        for (int value = 0; value < VALUES; ++value) {
            const int t = token + value * rows;
            const i64 row = cache_row(place, min(t, stop - 1), 1, p) + tile.kv_head * head_dim;
            x[value] = read(cache + row + feature, t < stop ? head_dim - feature : 0, whole);
#pragma unroll
            for (int query = 0; query < QUERIES; ++query)
                weights[value][query] = t < stops[query] ? widen(from[offsets[query] + t]) : 0.0f;
        }
#pragma unroll
        for (int value = 0; value < VALUES; ++value)
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) {
                const float part = widen(x[value].parts[i]);
#pragma unroll
                for (int query = 0; query < QUERIES; ++query) sums[i][query] += weights[value][query] * part;
            }
    }
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        float sum = folded<16>(sums[i]);
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
        if (!(threadIdx.x & 2)) part[threadIdx.x / 32][threadIdx.x / 4 % QUERIES][lane * WIDTH + i] = sum;
    }
    __syncthreads();
    const int width = min(AV_LANES * WIDTH, head_dim - slice);
    storage* to = C_OF + slice;
    for (int i = threadIdx.x; i < tile.count * width; i += blockDim.x) {
        const int query = i / width, at = i % width;
        float sum = 0.0f;
        for (int warp = 0; warp < WARPS; ++warp) sum += part[warp][query][at];
        to[tile.column(query) * p.ldc + tile.head(query) * head_dim + at] = narrow(sum);
    }
}
