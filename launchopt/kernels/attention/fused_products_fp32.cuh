// The products of fused attention for fp32, by multiply-adds (attention/fused_attention.cuh).

struct Products : Attention {
    using Attention::Attention;
    uint4 first_key, first_value;  // the thread's first vector of a key and of a value, loaded before the inputs arrive

    // Return a vector of a token's key or value.
    __device__ uint4 key_or_value(int token, int is_value, int vector) const {
        return token == start ? ((const uint4*)fresh(is_value))[vector] : ((const uint4*)cached(token, is_value))[vector];
    }
    // Load the thread's first vectors of keys and values, if the cache has them.
    __device__ void look() {
        const int key = threadIdx.x / KEY_LANES, lane = threadIdx.x % KEY_LANES, value = threadIdx.x / vectors;
        if (key < earlier && lane < vectors) first_key = key_or_value(key, 0, lane);
        if (value < earlier) first_value = key_or_value(value, 1, threadIdx.x - value * vectors);
    }
    // Compute the scores. Eight lanes share a key; at the end each lane has the score of one query.
    __device__ void score() {
        const int lane = threadIdx.x % KEY_LANES;
        const float scale = 1.0f / sqrtf((float)head_dim);
        for (int first = 0; first < whole; first += THREADS / KEY_LANES) {
            const int token = first + threadIdx.x / KEY_LANES;
            float sums[QUERIES] = {};
            for (int vector = lane; vector < vectors; vector += KEY_LANES) {
                Vector key, query;
                const bool is_there = first == 0 && vector == lane && token < earlier;
                key.whole = is_there ? first_key : key_or_value(min(token, stop - 1), 0, vector);
#pragma unroll
                for (int j = 0; j < QUERIES; ++j) {
                    if (j >= group) break;
                    query.whole = ((const uint4*)(rows + j * head_dim))[vector];
#pragma unroll
                    for (int i = 0; i < WIDTH; ++i) sums[j] += widen(key.parts[i]) * widen(query.parts[i]);
                }
            }
            const float value = folded<KEY_LANES / 2>(sums) * scale;
            if (lane >= group || token >= whole) continue;
            scores[lane * whole + token] = token < stop ? value : -__uint_as_float(0x7F800000u);
            if (token < stop) scores_of(lane)[token] = value;
        }
    }
    // Weight the values by the probabilities. A lane has one vector of the values of every (THREADS / vectors)-th token.
    __device__ void mix() {
        float* const part = scores + group * whole;  // sums of each warp, [GROUP_WARPS][VALUE_QUERIES][head_dim]
#pragma unroll 1
        for (int first = 0; first < group; first += VALUE_QUERIES) {
            if (first) __syncthreads();
            mix(first, part);
        }
    }
    // Weight the values for up to VALUE_QUERIES queries from `first` on.
    __device__ void mix(int first, float* part) {
        const int lane = threadIdx.x % vectors, count = min((int)group - first, (int)VALUE_QUERIES);
        float sums[VALUE_QUERIES][WIDTH] = {};
        for (int token = threadIdx.x / vectors; token < stop; token += THREADS / vectors) {
            Vector value;
            value.whole = token == threadIdx.x / vectors && token < start ? first_value : key_or_value(token, 1, lane);
#pragma unroll
            for (int j = 0; j < VALUE_QUERIES; ++j) {
                const float weight = scores[min(first + j, group - 1) * whole + token];
#pragma unroll
                for (int i = 0; i < WIDTH; ++i) sums[j][i] += weight * widen(value.parts[i]);
            }
        }
        for (int step = vectors; step < 32; step *= 2)
#pragma unroll
            for (int j = 0; j < VALUE_QUERIES; ++j)
#pragma unroll
                for (int i = 0; i < WIDTH; ++i) sums[j][i] += __shfl_xor_sync(0xFFFFFFFFu, sums[j][i], step);
        if (threadIdx.x % 32 < vectors)
#pragma unroll
            for (int j = 0; j < VALUE_QUERIES; ++j)
#pragma unroll
                for (int i = 0; i < WIDTH; ++i)
                    part[(threadIdx.x / 32 * VALUE_QUERIES + j) * head_dim + lane * WIDTH + i] = sums[j][i];
        __syncthreads();
        for (int i = threadIdx.x; i < count * head_dim / 2; i += THREADS) {
            float2 sum = {0.0f, 0.0f};
            for (int warp = 0; warp < GROUP_WARPS; ++warp) {
                const float2 own = *(const float2*)(part + warp * VALUE_QUERIES * head_dim + 2 * i);
                sum.x += own.x, sum.y += own.y;
            }
            give(first * head_dim + 2 * i, Pair(sum.x, sum.y));
        }
    }
};
