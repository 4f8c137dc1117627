// The products of a decode step's attention for fp32, by multiply-adds (step_attention.cu). KEY_LANES lanes share a key; each
// of them gets the score of one query. A lane has one vector of values.
struct Scratch {  // of a warp: powers of each token and query, and the factor by which each query's sums are corrected
    float powers[TILE][QUERIES], factors[QUERIES];
};
struct Products {
    enum { AT_ONCE = 32 / KEY_LANES, KEY_VECTORS = VECTORS / KEY_LANES, TOKENS = 32 / VECTORS };
    uint4 keys[TILE / AT_ONCE][KEY_VECTORS];  // of token AT_ONCE * i + lane / KEY_LANES
    uint4 values[8];  // vector lane % VECTORS of token TOKENS * i + lane / VECTORS
    float most, sum;  // of query lane % KEY_LANES; the lane has the sum of its own tokens
    float mixed[GROUP][WIDTH];
    Scratch* scratch;

    __device__ Products() : most(-__uint_as_float(0x7F800000u)), sum(0.0f), mixed() {}
    __device__ int lane() const { return threadIdx.x % 32; }

    __device__ void look_at_keys(const Cache& cache, const Tile& tile) {
        if (tile.first >= cache.earlier) return;
#pragma unroll
        for (int i = 0; i < TILE / AT_ONCE; ++i)
#pragma unroll
            for (int v = 0; v < KEY_VECTORS; ++v) {
                const int token = tile.first + AT_ONCE * i + lane() / KEY_LANES;
                keys[i][v] = tile.load(cache, token, 0, KEY_LANES * v + lane() % KEY_LANES);
            }
    }
    __device__ void look_at_values(const Cache& cache, const Tile& tile) {
        if (tile.first >= cache.earlier) return;
#pragma unroll
        for (int i = 0; i < 8; ++i)
            values[i] = tile.load(cache, tile.first + TOKENS * i + lane() / VECTORS, 1, lane() % VECTORS);
    }
    // See step_products_halves.cuh.
    __device__ void score(const Fresh& fresh, int first, int earlier, int end) {
        const float none = -__uint_as_float(0x7F800000u), scale = 1.4426950408889634f / sqrtf((float)HEAD_DIM);
        const int own = lane() % KEY_LANES;
        float found[TILE / AT_ONCE], largest = most;
#pragma unroll
        for (int i = 0; i < TILE / AT_ONCE; ++i) {
            const int token = first + AT_ONCE * i + lane() / KEY_LANES;
            float sums[QUERIES] = {};
#pragma unroll
            for (int v = 0; v < KEY_VECTORS; ++v) {
                const int vector = KEY_LANES * v + own;
                Vector key, query;
                key.whole = keys[i][v];
                if (ROPE && token >= earlier) key.whole = fresh.rows[GROUP][vector];
#pragma unroll
                for (int j = 0; j < GROUP; ++j) {
                    query.whole = fresh.rows[j][vector];
#pragma unroll
                    for (int e = 0; e < WIDTH; ++e) sums[j] += key.wide(e) * query.wide(e);
                }
            }
            const float value = folded<KEY_LANES / 2>(sums);
            found[i] = token < end ? value * scale : none;
            largest = fmaxf(largest, found[i]);
        }
        largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 8));
        largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 16));
        const float factor = exp2f(most - largest);
        sum *= factor, most = largest;
        __syncwarp();  // all lanes have read the previous tile's powers
        if (lane() < KEY_LANES) scratch->factors[lane()] = factor;
#pragma unroll
        for (int i = 0; i < TILE / AT_ONCE; ++i) {
            const float power = exp2f(found[i] - most);
            sum += power, scratch->powers[AT_ONCE * i + lane() / KEY_LANES][own] = power;
        }
        __syncwarp();
    }
    __device__ void mix(const Fresh& fresh, int first, int earlier) {
#pragma unroll
        for (int j = 0; j < GROUP; ++j)
#pragma unroll
            for (int e = 0; e < WIDTH; ++e) mixed[j][e] *= scratch->factors[j];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int token = TOKENS * i + lane() / VECTORS;
            Vector value;
            value.whole = values[i];
            if (first + token >= earlier) value.whole = ROPE ? fresh.rows[GROUP + 1][lane() % VECTORS] : uint4{0, 0, 0, 0};
#pragma unroll
            for (int j = 0; j < GROUP; ++j)
#pragma unroll
                for (int e = 0; e < WIDTH; ++e) mixed[j][e] += scratch->powers[token][j] * value.wide(e);
        }
    }
    __device__ void give(Sums& sums, int warp) {
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 8);
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 16);
        if (lane() < KEY_LANES) sums.most[warp][lane()] = most, sums.sum[warp][lane()] = sum;
#pragma unroll
        for (int j = 0; j < GROUP; ++j)
#pragma unroll
            for (int e = 0; e < WIDTH; ++e) {
                if (TOKENS > 1) mixed[j][e] += __shfl_xor_sync(0xFFFFFFFFu, mixed[j][e], 16);
                if (lane() < VECTORS) sums.mixed[warp][j][lane() * WIDTH + e] = mixed[j][e];
            }
    }
};
